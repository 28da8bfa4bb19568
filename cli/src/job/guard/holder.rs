//! What the holder of the lease has sent to the guard.

use std::os::unix::net::UnixStream;

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};

use super::protocol::{self, GuardCommand};

/// The guard's end of the socket. It is read without a thread and without waiting: what was sent before a call is there in
/// that call, even if the guard was stopped or got no processor.
#[derive(Debug)]
pub(crate) struct Holder {
    socket: UnixStream,
    /// The beginning of a line.
    unread: Vec<u8>,
    is_gone: bool,
}

impl Holder {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, unread: Vec::new(), is_gone: false }
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Returns whether the holder has ended, has closed the socket or has sent an invalid line.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Returns all commands that were sent since the last call.
    pub(crate) fn receive(&mut self) -> Vec<GuardCommand> {
        let (mut commands, mut chunk) = (Vec::new(), [0; 1024]);
        while !self.is_gone {
            match recv(&self.socket, &mut chunk, RecvFlags::DONTWAIT) {
                Ok((read, _)) if read > 0 => commands.extend(self.parse(&chunk[..read])),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => self.is_gone = true,
            }
        }
        commands
    }

    fn parse(&mut self, bytes: &[u8]) -> Vec<GuardCommand> {
        self.unread.extend(bytes);
        let Some(end) = self.unread.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let lines: Vec<u8> = self.unread.drain(..=end).collect();
        let parsed = str::from_utf8(&lines).unwrap_or("\n").lines().map(protocol::parse);
        let commands: Vec<_> = parsed.collect();
        self.is_gone = commands.contains(&None);
        commands.into_iter().map_while(|command| command).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Duration};

    use super::*;

    /// The guard may run again after a stop, while the thread that reads the new deadline gets no processor.
    #[test]
    fn all_that_was_sent_is_received_at_once() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let mut holder = Holder::new(ours);
        assert_eq!((holder.receive(), holder.is_gone()), (Vec::new(), false));
        // More than one call of the system reads.
        let sent: Vec<_> = (0..200).map(|second| GuardCommand::Until(Duration::from_secs(second))).collect();
        let lines: String = sent.iter().map(protocol::line).collect();
        let (most, rest) = lines.split_at(lines.len() - 3);
        theirs.write_all(most.as_bytes()).unwrap();
        assert_eq!(holder.receive(), sent[..199]);
        theirs.write_all(rest.as_bytes()).unwrap();
        drop(theirs);
        assert_eq!((holder.receive(), holder.is_gone()), (vec![sent[199]], true));
        assert_eq!(holder.receive(), []);
    }

    #[test]
    fn after_an_invalid_line_the_holder_counts_as_gone() {
        for invalid in [&b"{}\n"[..], b"\n", b"\xff\n"] {
            let (mut theirs, ours) = UnixStream::pair().unwrap();
            let mut holder = Holder::new(ours);
            theirs.write_all(&[protocol::line(&GuardCommand::Signal(2)).as_bytes(), invalid].concat()).unwrap();
            theirs.write_all(protocol::line(&GuardCommand::Signal(15)).as_bytes()).unwrap();
            let received = holder.receive();
            assert!(holder.is_gone() && received.iter().all(|one| *one == GuardCommand::Signal(2)), "{received:?}");
            assert_eq!(holder.receive(), []);
        }
    }
}
