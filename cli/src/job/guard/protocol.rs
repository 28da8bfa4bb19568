//! The messages between the holder of a lease and the guard of a command, one line each.

use std::{
    io::{self, IoSlice, IoSliceMut, Read},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use rustix::{
    cmsg_space,
    io::{FdFlags, fcntl_setfd, retry_on_intr},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// How long before the end of a lease its command gets each signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Times {
    /// SIGTERM.
    pub(crate) term_before: Duration,
    /// SIGKILL.
    pub(crate) kill_before: Duration,
}

impl Times {
    /// Returns the time between SIGTERM and SIGKILL.
    pub(crate) fn between(self) -> Duration {
        self.term_before.saturating_sub(self.kill_before)
    }
}

/// A message from the holder to the guard. `until`: a reading of the boot-time clock, as the time since its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum GuardCommand {
    /// The first message, which carries the command's standard input as a descriptor, and after it the order to release the
    /// leases, if there is one. `is_nested` if the holder itself was started under another lease.
    Begin { until: Duration, times: Times, is_nested: bool },
    /// The lease is valid until then.
    Until(Duration),
    /// Sends this signal to the command.
    Signal(i32),
    /// The lease is lost: end the command.
    End,
}

/// A message from the guard to the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum Report {
    /// The command was started in this process group.
    Group(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command has ended, and no process of it is left. `signalled` if the guard ended the command, or should have
    /// by then.
    Ended { exit: Exit, signalled: bool },
}

/// How a command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum Exit {
    /// With this status.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

/// Formats a message as a line.
pub(crate) fn line(message: &impl Serialize) -> String {
    // A message has no map, so that this cannot fail.
    serde_json::to_string(message).unwrap_or_default() + "\n"
}

/// Parses a line. Returns `None` if it is no such message.
pub(crate) fn parse<T: DeserializeOwned>(line: &str) -> Option<T> {
    serde_json::from_str(line).ok()
}

/// The largest length of a message.
const MAX_LINE: usize = 1024;

/// Sends the first message, with the command's standard input and the order.
pub(crate) fn send_begin(
    socket: &UnixStream,
    command: GuardCommand,
    stdin: BorrowedFd<'_>,
    order: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let descriptors: Vec<_> = [Some(stdin), order].into_iter().flatten().collect();
    send_with(socket, line(&command).as_bytes(), &descriptors)
}

fn send_with(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("no room for the descriptors in the message"));
    }
    sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Receives the first message, with the command's standard input and the order. Reads nothing of the next.
pub(crate) fn receive_begin(socket: &UnixStream) -> io::Result<(GuardCommand, OwnedFd, Option<OwnedFd>)> {
    let mut byte = [0];
    let mut received = receive_with(socket.as_fd(), &mut byte)?.into_iter();
    let mut line = byte.to_vec();
    let mut rest = socket;
    while !line.ends_with(b"\n") && line.len() < MAX_LINE {
        rest.read_exact(&mut byte)?;
        line.extend(byte);
    }
    let command = str::from_utf8(&line).ok().and_then(parse);
    match (command, received.next()) {
        (Some(command), Some(stdin)) => Ok((command, stdin, received.next())),
        _ => Err(io::Error::other("it was not started by this program")),
    }
}

/// Receives a byte and its descriptors.
fn receive_with(socket: BorrowedFd<'_>, byte: &mut [u8; 1]) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(byte)], &mut ancillary, RecvFlags::empty()))?;
    let mut received = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            received.extend(descriptors);
        }
    }
    for descriptor in &received {
        // The command inherits its standard input only, and not the order.
        fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    }
    Ok(received)
}

/// Sends its standard input to the process that executes the command.
pub(crate) fn send_stdin(socket: &UnixStream, stdin: BorrowedFd<'_>) -> io::Result<()> {
    send_with(socket, b"\n", &[stdin])
}

/// Receives the standard input. Returns `None` if the guard has ended.
pub(crate) fn receive_stdin(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    Ok(receive_with(socket, &mut [0])?.into_iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_written_is_read_as_the_same() {
        let micros = Duration::from_micros;
        let times = Times { term_before: micros(5_000_001), kill_before: micros(1) };
        for command in [
            GuardCommand::Begin { until: micros(123_456_789_012), times, is_nested: false },
            GuardCommand::Begin { until: micros(1), times, is_nested: true },
            GuardCommand::Until(micros(7)),
            GuardCommand::Signal(15),
            GuardCommand::End,
        ] {
            assert_eq!(parse(&line(&command)), Some(command));
        }
        for report in [
            Report::Group(4711),
            Report::Stopped(20),
            Report::Ended { exit: Exit::Code(255), signalled: true },
            Report::Ended { exit: Exit::Code(0), signalled: false },
            Report::Ended { exit: Exit::Signal(2), signalled: true },
        ] {
            assert_eq!(parse(&line(&report)), Some(report));
        }
        for line in [
            "",
            "End",
            "{\"Until\":1}",
            "{\"Signal\":\"15\"}",
            "{\"Ended\":{\"exit\":{\"Code\":256},\"signalled\":true}}",
        ] {
            assert_eq!((parse::<GuardCommand>(line), parse::<Report>(line)), (None, None), "{line}");
        }
    }

    #[test]
    fn the_first_message_carries_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reads, mut writes) = io::pipe().unwrap();
        let (order, mut ordered) = io::pipe().unwrap();
        send_begin(&one, GuardCommand::Until(Duration::from_secs(1)), writes.as_fd(), Some(order.as_fd())).unwrap();
        io::Write::write_all(&mut ordered, b"order").unwrap();
        drop((order, ordered));
        io::Write::write_all(&mut &one, b"next\n").unwrap();
        let (command, descriptor, order) = receive_begin(&other).unwrap();
        assert_eq!(io::read_to_string(std::fs::File::from(order.unwrap())).unwrap(), "order");
        assert_eq!(command, GuardCommand::Until(Duration::from_secs(1)));
        let mut next = [0; 5];
        io::Read::read_exact(&mut &other, &mut next).unwrap();
        assert_eq!(&next, b"next\n", "the next message is still unread");
        io::Write::write_all(&mut std::fs::File::from(descriptor), b"to").unwrap();
        io::Write::write_all(&mut writes, b"gether").unwrap();
        drop(writes);
        let mut text = String::new();
        io::Read::read_to_string(&mut reads, &mut text).unwrap();
        assert_eq!(text, "together");
        drop(one);
        assert!(receive_begin(&other).is_err());
    }

    #[test]
    fn a_command_gets_its_standard_input_from_a_guard_that_has_not_ended() {
        let (guard, command) = UnixStream::pair().unwrap();
        let (reads, mut writes) = io::pipe().unwrap();
        io::Write::write_all(&mut writes, b"input").unwrap();
        drop(writes);
        send_stdin(&guard, reads.as_fd()).unwrap();
        let stdin = receive_stdin(command.as_fd()).unwrap().unwrap();
        assert_eq!(io::read_to_string(std::fs::File::from(stdin)).unwrap(), "input");
        drop(guard);
        assert!(receive_stdin(command.as_fd()).unwrap().is_none());
    }
}
