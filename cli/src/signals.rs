//! The signals that this program hears.

use std::{future::poll_fn, io, pin::pin, task::Poll, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};

/// How long what a program does last may still take when it is told to end meanwhile.
const GRACE: Duration = Duration::from_secs(2);

/// Those that end a program.
const ENDS: [SignalKind; 4] =
    [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()];

/// The other signals that a command may want to hear. The last two are those of a terminal that stops it and of
/// what lets it go on.
const OTHERS: [i32; 5] = [
    rustix::process::Signal::USR1.as_raw(),
    rustix::process::Signal::USR2.as_raw(),
    rustix::process::Signal::WINCH.as_raw(),
    rustix::process::Signal::TSTP.as_raw(),
    rustix::process::Signal::CONT.as_raw(),
];

/// Hears signals, each by its number.
#[derive(Debug)]
pub(crate) struct Signals {
    heard: Vec<(i32, Signal)>,
    ignored: u64,
}

impl Signals {
    /// Those that end a program, which end it no more by themselves. One that was ignored when the program began, as
    /// under nohup(1), stays so: for it and for what it runs.
    pub(crate) fn that_end() -> io::Result<Self> {
        let mut signals = Self { heard: Vec::new(), ignored: ignored() };
        // Of children that nobody asks about, the system keeps no status. That is inherited; a handler is not.
        drop(signal(SignalKind::child())?);
        for kind in ENDS {
            signals.hear(kind)?;
        }
        Ok(signals)
    }

    /// Also those that a command may want to hear.
    pub(crate) fn and_others(&mut self) -> io::Result<()> {
        OTHERS.into_iter().try_for_each(|number| self.hear(SignalKind::from_raw(number)))
    }

    fn hear(&mut self, kind: SignalKind) -> io::Result<()> {
        let number = kind.as_raw_value();
        let bit = u32::try_from(number).ok().and_then(|number| 1_u64.checked_shl(number.saturating_sub(1)));
        if self.ignored & bit.unwrap_or_default() == 0 {
            self.heard.push((number, signal(kind)?));
        }
        Ok(())
    }

    /// The next one. Dropping this loses none.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (number, signal) in &mut self.heard {
                if let Poll::Ready(Some(())) = signal.poll_recv(context) {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that ends a program.
    pub(crate) async fn ending(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            if ENDS.iter().any(|kind| kind.as_raw_value() == number) {
                return number;
            }
        }
    }

    /// Does the work unless told to end first: by which signal, then.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, i32> {
        tokio::select! {
            biased;
            number = self.ending() => Err(number),
            done = work => Ok(done),
        }
    }

    /// Does what a program does last. One that is told to end meanwhile leaves it [`GRACE`]; what came before told
    /// something else to end.
    pub(crate) async fn hurry<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        self.forget().await;
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            _number = self.ending() => {}
        }
        timeout(GRACE, work).await.ok()
    }

    /// Forgets those that have come.
    async fn forget(&mut self) {
        poll_fn(|context| {
            for (_, signal) in &mut self.heard {
                while let Poll::Ready(Some(())) = signal.poll_recv(context) {}
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// The signals that are ignored, a bit each, where the system says it.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
