//! What the holder of a lease and the guard of a command say to each other: a line each.

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

/// How long before the end of a lease its command is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// By SIGTERM.
    pub(crate) term_before: Duration,
    /// By SIGKILL.
    pub(crate) kill_before: Duration,
}

impl Times {
    /// How long a command has to end when it was told to.
    pub(crate) fn between(self) -> Duration {
        self.term_before.saturating_sub(self.kill_before)
    }
}

/// What the guard is told. Times are readings of the boot-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardCommand {
    /// First of all, with the command's standard input.
    Begin { until: Duration, times: Times },
    /// The lease is good until then.
    Until(Duration),
    /// The command is to be given this signal.
    Signal(i32),
    /// The lease is no more.
    End,
}

/// What the guard tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command was begun, in this process group.
    Group(Pid),
    /// It was stopped by this signal.
    Stopped(i32),
    /// It has ended with this status, and nothing of its group is left; whether it was told to.
    Over { status: u8, told: bool },
}

/// A line that is none of these.
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
            Self::Begin { until, times: Times { term_before, kill_before } } => {
                write!(f, "begin {} {} {}", until.as_micros(), term_before.as_micros(), kill_before.as_micros())
            }
            Self::Until(until) => write!(f, "until {}", until.as_micros()),
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
            ["begin", until, term_before, kill_before] => Ok(Self::Begin {
                until: micros(until)?,
                times: Times { term_before: micros(term_before)?, kill_before: micros(kill_before)? },
            }),
            ["until", until] => Ok(Self::Until(micros(until)?)),
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
            Self::Over { status, told: true } => write!(f, "over {status} told"),
            Self::Over { status, told: false } => write!(f, "over {status}"),
        }
    }
}

impl FromStr for Report {
    type Err = ParseError;

    fn from_str(line: &str) -> Result<Self, ParseError> {
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["group", group] => Ok(Self::Group(Pid::from_raw(group.parse()?).ok_or(ParseError)?)),
            ["stopped", signal] => Ok(Self::Stopped(signal.parse()?)),
            ["over", status, "told"] => Ok(Self::Over { status: status.parse()?, told: true }),
            ["over", status] => Ok(Self::Over { status: status.parse()?, told: false }),
            _ => Err(ParseError),
        }
    }
}

/// Longer than every order.
const LONGEST: usize = 200;

/// Gives the first order, and with it what the command reads.
pub(crate) fn begin(socket: &UnixStream, order: GuardCommand, stdin: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let stdin = [stdin];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&stdin)) {
        return Err(io::Error::other("there is no room for one descriptor"));
    }
    let line = format!("{order}\n");
    sendmsg(socket.as_fd(), &[IoSlice::new(line.as_bytes())], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Hears the first order, and nothing of what follows it.
pub(crate) fn first(socket: &UnixStream) -> io::Result<(GuardCommand, OwnedFd)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    // The descriptor comes with the first byte.
    recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::empty())?;
    let mut line = byte.to_vec();
    let mut rest = socket;
    while !line.ends_with(b"\n") && line.len() < LONGEST {
        rest.read_exact(&mut byte)?;
        line.extend(byte);
    }
    let order = str::from_utf8(&line).ok().and_then(|line| line.parse().ok());
    let mut given = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let stdin = given.next().map(|stdin| {
        // Only the command is to have it.
        rustix::io::fcntl_setfd(&stdin, rustix::io::FdFlags::CLOEXEC)?;
        Ok::<_, io::Error>(stdin)
    });
    match (order, stdin.transpose()?) {
        (Some(order), Some(stdin)) => Ok((order, stdin)),
        _ => Err(io::Error::other("it was not begun by this program")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let micros = Duration::from_micros;
        let times = Times { term_before: micros(5_000_001), kill_before: micros(1) };
        for order in [
            GuardCommand::Begin { until: micros(123_456_789_012), times },
            GuardCommand::Until(micros(7)),
            GuardCommand::Signal(15),
            GuardCommand::End,
        ] {
            assert_eq!(order.to_string().parse::<GuardCommand>().unwrap(), order);
        }
        let group = Pid::from_raw(4711).unwrap();
        for report in [
            Report::Group(group),
            Report::Stopped(20),
            Report::Over { status: 255, told: true },
            Report::Over { status: 0, told: false },
        ] {
            assert_eq!(report.to_string().parse::<Report>().unwrap(), report);
        }
        for line in ["", "until", "until x", "signal 1 2", "over 256", "group 0", "begin 1 2"] {
            assert!(line.parse::<GuardCommand>().is_err() && line.parse::<Report>().is_err(), "{line}");
        }
    }

    #[test]
    fn the_first_order_carries_a_descriptor() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reads, mut writes) = io::pipe().unwrap();
        begin(&one, GuardCommand::Until(Duration::from_secs(1)), writes.as_fd()).unwrap();
        io::Write::write_all(&mut &one, b"end\n").unwrap();
        let (order, given) = first(&other).unwrap();
        assert_eq!(order, GuardCommand::Until(Duration::from_secs(1)));
        let mut next = [0; 4];
        io::Read::read_exact(&mut &other, &mut next).unwrap();
        assert_eq!(&next, b"end\n", "what follows is left for whoever hears that");
        io::Write::write_all(&mut std::fs::File::from(given), b"to").unwrap();
        io::Write::write_all(&mut writes, b"gether").unwrap();
        drop(writes);
        let mut text = String::new();
        io::Read::read_to_string(&mut reads, &mut text).unwrap();
        assert_eq!(text, "together");
        drop(one);
        assert!(first(&other).is_err());
    }
}
