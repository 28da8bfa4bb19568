//! The signals that this program handles.

use std::{fmt, future::poll_fn, io, pin::pin, task::Poll, time::Duration};

use nix::sys::signal::{self as unix, SigSet};
use rustix::process::Signal as Named;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};

use crate::ui::message;

/// The time that the last step of the program still has after a terminating signal.
const GRACE: Duration = Duration::from_secs(2);

/// The signals that end a program. SIGALRM is that of alarm(2), which an exec inherits.
const TERMINATING: [SignalKind; 5] =
    [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate(), SignalKind::alarm()];

/// The other signals that are forwarded to a command. The last three are a new size of the terminal, Ctrl-Z, and the
/// continuation after it.
const FORWARDED: [Named; 5] = [Named::USR1, Named::USR2, Named::WINCH, Named::TSTP, Named::CONT];

/// Receives signals, each with its number.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(i32, Signal)>,
    ignored: SignalMask,
    blocked: SignalMask,
}

impl Signals {
    /// Handles the terminating signals, which then no longer end the program by themselves. A signal that was ignored
    /// at the start, as under nohup(1), stays ignored, for this program and for its commands.
    pub(crate) fn terminating() -> io::Result<Self> {
        let (ignored, blocked) = (SignalMask::read("SigIgn:"), SignalMask::read("SigBlk:"));
        let mut signals = Self { streams: Vec::new(), ignored, blocked };
        // If SIGCHLD is ignored, which is inherited, the system keeps no status of children. A handler ends that.
        drop(signal(SignalKind::child())?);
        for kind in TERMINATING {
            signals.handle(kind)?;
            if !signals.ignored.contains(kind.as_raw_value()) {
                message::give_up_after(kind.as_raw_value())?;
            }
        }
        Ok(signals)
    }

    /// Also handles the other signals that are forwarded to a command.
    pub(crate) fn add_forwarded(&mut self) -> io::Result<()> {
        FORWARDED.into_iter().try_for_each(|signal| self.handle(SignalKind::from_raw(signal.as_raw())))
    }

    fn handle(&mut self, kind: SignalKind) -> io::Result<()> {
        let number = kind.as_raw_value();
        if !self.ignored.contains(number) {
            self.streams.push((number, signal(kind)?));
        }
        Ok(())
    }

    /// Returns the signals that were blocked when the program started, which a command inherits.
    pub(crate) fn blocked(&self) -> SignalMask {
        self.blocked
    }

    /// Waits for the next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (number, signal) in &mut self.streams {
                if let Poll::Ready(Some(())) = signal.poll_recv(context) {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next terminating signal.
    pub(crate) async fn next_terminating(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            if TERMINATING.iter().any(|kind| kind.as_raw_value() == number) {
                return number;
            }
        }
    }

    /// Waits for `work`, or returns the number of a terminating signal that comes first.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, i32> {
        tokio::select! {
            biased;
            number = self.next_terminating() => Err(number),
            done = work => Ok(done),
        }
    }

    /// Waits for `work`, the last step of the program. After a terminating signal, waits [`GRACE`] longer at most.
    /// Signals from before the call do not count: they ended an earlier step.
    pub(crate) async fn finish<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        self.discard_pending().await;
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            _number = self.next_terminating() => {}
        }
        timeout(GRACE, work).await.ok()
    }

    /// Discards the signals that were received and not returned.
    async fn discard_pending(&mut self) {
        poll_fn(|context| {
            for (_, signal) in &mut self.streams {
                while let Poll::Ready(Some(())) = signal.poll_recv(context) {}
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// A set of signals as a bit mask, in the form of proc(5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SignalMask(u64);

impl SignalMask {
    /// Reads a mask of this process. Returns an empty one if the system does not report it.
    fn read(field: &str) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix(field));
        mask.and_then(|mask| Self::parse(mask.trim())).unwrap_or_default()
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).map(Self).ok()
    }

    fn contains(self, number: i32) -> bool {
        let bit = u32::try_from(number).ok().and_then(|number| 1_u64.checked_shl(number.saturating_sub(1)));
        self.0 & bit.unwrap_or_default() != 0
    }

    /// Returns the set without the real-time signals.
    pub(crate) fn to_set(self) -> SigSet {
        (1..=31)
            .filter(|number| self.contains(*number))
            .filter_map(|number| unix::Signal::try_from(number).ok())
            .collect()
    }
}

impl fmt::Display for SignalMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
