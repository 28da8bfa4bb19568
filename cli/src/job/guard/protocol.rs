//! The messages between the holder of a lease and the guard of a command, one line each.

use mongoseal::Reading;
use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut, Read},
    mem::MaybeUninit,
    num::ParseIntError,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    str::FromStr,
    time::Duration,
};

use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
    process::Pid,
};

/// How long before the end of a lease its command gets each signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A message from the holder to the guard. Times are readings of the boot-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardCommand {
    /// The first message, which carries the command's standard input as a descriptor. `is_nested` if the holder itself
    /// was started under another lease.
    Begin { until: Reading, times: Times, is_nested: bool },
    /// The lease is valid until then.
    Until(Reading),
    /// Sends this signal to the command.
    Signal(i32),
    /// The lease is lost: end the command.
    End,
}

/// A message from the guard to the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command was started in this process group.
    Group(Pid),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command has ended, and no process of it is left. `signalled` if the guard ended the command, or should have
    /// by then.
    Ended { exit: Exit, signalled: bool },
}

/// How a command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With this status.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

/// A line is no message.
#[derive(Debug)]
pub(crate) struct ParseError;

impl From<ParseIntError> for ParseError {
    fn from(_: ParseIntError) -> Self {
        Self
    }
}

impl fmt::Display for GuardCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin { until, times: Times { term_before, kill_before }, is_nested } => {
                let word = if *is_nested { "nested" } else { "begin" };
                write!(
                    f,
                    "{word} {} {} {}",
                    until.since_origin().as_micros(),
                    term_before.as_micros(),
                    kill_before.as_micros()
                )
            }
            Self::Until(until) => write!(f, "until {}", until.since_origin().as_micros()),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::End => f.write_str("end"),
        }
    }
}

impl FromStr for GuardCommand {
    type Err = ParseError;

    fn from_str(line: &str) -> Result<Self, ParseError> {
        let micros = |number: &str| Ok::<_, ParseError>(Duration::from_micros(number.parse()?));
        match *line.split_whitespace().collect::<Vec<_>>() {
            [word @ ("begin" | "nested"), until, term_before, kill_before] => Ok(Self::Begin {
                until: Reading::at(micros(until)?),
                times: Times { term_before: micros(term_before)?, kill_before: micros(kill_before)? },
                is_nested: word == "nested",
            }),
            ["until", until] => Ok(Self::Until(Reading::at(micros(until)?))),
            ["signal", number] => Ok(Self::Signal(number.parse()?)),
            ["end"] => Ok(Self::End),
            _ => Err(ParseError),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(group) => write!(f, "group {}", group.as_raw_pid()),
            Self::Stopped(signal) => write!(f, "stopped {signal}"),
            Self::Ended { exit, signalled } => {
                match exit {
                    Exit::Code(code) => write!(f, "ended {code}")?,
                    Exit::Signal(signal) => write!(f, "ended by {signal}")?,
                }
                f.write_str(if *signalled { " signalled" } else { "" })
            }
        }
    }
}

impl FromStr for Report {
    type Err = ParseError;

    fn from_str(line: &str) -> Result<Self, ParseError> {
        let (line, signalled) = match line.strip_suffix(" signalled") {
            Some(line) => (line, true),
            None => (line, false),
        };
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["group", group] => Ok(Self::Group(Pid::from_raw(group.parse()?).ok_or(ParseError)?)),
            ["stopped", signal] => Ok(Self::Stopped(signal.parse()?)),
            ["ended", code] => Ok(Self::Ended { exit: Exit::Code(code.parse()?), signalled }),
            ["ended", "by", signal] => Ok(Self::Ended { exit: Exit::Signal(signal.parse()?), signalled }),
            _ => Err(ParseError),
        }
    }
}

/// The largest length of a message.
const MAX_LINE: usize = 200;

/// Sends the first message, with the command's standard input.
pub(crate) fn send_begin(socket: &UnixStream, command: GuardCommand, stdin: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let stdin = [stdin];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&stdin)) {
        return Err(io::Error::other("no room for a descriptor in the message"));
    }
    let line = format!("{command}\n");
    sendmsg(socket.as_fd(), &[IoSlice::new(line.as_bytes())], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Receives the first message, and reads nothing of the next.
pub(crate) fn receive_begin(socket: &UnixStream) -> io::Result<(GuardCommand, OwnedFd)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    // The descriptor comes with the first byte.
    recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::empty())?;
    let mut line = byte.to_vec();
    let mut rest = socket;
    while !line.ends_with(b"\n") && line.len() < MAX_LINE {
        rest.read_exact(&mut byte)?;
        line.extend(byte);
    }
    let command = str::from_utf8(&line).ok().and_then(|line| line.parse().ok());
    let mut received = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let stdin = received.next().map(|stdin| {
        // Only the command inherits it.
        rustix::io::fcntl_setfd(&stdin, rustix::io::FdFlags::CLOEXEC)?;
        Ok::<_, io::Error>(stdin)
    });
    match (command, stdin.transpose()?) {
        (Some(command), Some(stdin)) => Ok((command, stdin)),
        _ => Err(io::Error::other("it was not started by this program")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_written_is_read_as_the_same() {
        let micros = Duration::from_micros;
        let times = Times { term_before: micros(5_000_001), kill_before: micros(1) };
        for command in [
            GuardCommand::Begin { until: Reading::at(micros(123_456_789_012)), times, is_nested: false },
            GuardCommand::Begin { until: Reading::at(micros(1)), times, is_nested: true },
            GuardCommand::Until(Reading::at(micros(7))),
            GuardCommand::Signal(15),
            GuardCommand::End,
        ] {
            assert_eq!(command.to_string().parse::<GuardCommand>().unwrap(), command);
        }
        let group = Pid::from_raw(4711).unwrap();
        for report in [
            Report::Group(group),
            Report::Stopped(20),
            Report::Ended { exit: Exit::Code(255), signalled: true },
            Report::Ended { exit: Exit::Code(0), signalled: false },
            Report::Ended { exit: Exit::Signal(2), signalled: true },
        ] {
            assert_eq!(report.to_string().parse::<Report>().unwrap(), report);
        }
        for line in ["", "until", "until x", "signal 1 2", "ended 256", "group 0", "begin 1 2"] {
            assert!(line.parse::<GuardCommand>().is_err() && line.parse::<Report>().is_err(), "{line}");
        }
    }

    #[test]
    fn the_first_message_carries_a_descriptor() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reads, mut writes) = io::pipe().unwrap();
        send_begin(&one, GuardCommand::Until(Reading::at(Duration::from_secs(1))), writes.as_fd()).unwrap();
        io::Write::write_all(&mut &one, b"end\n").unwrap();
        let (command, descriptor) = receive_begin(&other).unwrap();
        assert_eq!(command, GuardCommand::Until(Reading::at(Duration::from_secs(1))));
        let mut next = [0; 4];
        io::Read::read_exact(&mut &other, &mut next).unwrap();
        assert_eq!(&next, b"end\n", "the next message is still unread");
        io::Write::write_all(&mut std::fs::File::from(descriptor), b"to").unwrap();
        io::Write::write_all(&mut writes, b"gether").unwrap();
        drop(writes);
        let mut text = String::new();
        io::Read::read_to_string(&mut reads, &mut text).unwrap();
        assert_eq!(text, "together");
        drop(one);
        assert!(receive_begin(&other).is_err());
    }
}
