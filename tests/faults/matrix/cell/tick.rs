//! A tick whose completion meets the fault.

use std::time::Duration;

use mongoseal::{Mongoseal, OnceOutcome, Result, Skipped, Tick};
use tokio::{sync::oneshot, task::JoinHandle};

use super::ttl;

const TICK: Tick = Tick::number(1);

/// A runner at work.
pub(super) struct Running {
    ends: oneshot::Sender<()>,
    run: JoinHandle<Result<OnceOutcome<()>>>,
}

impl Running {
    /// Begins the work of a tick.
    pub(super) async fn start(seal: &Mongoseal, key: &str) -> Self {
        let (ends, ended) = oneshot::channel();
        let (works, begun) = oneshot::channel();
        let once = seal.once(key, TICK).ttl(ttl()).wait(Duration::ZERO);
        let run = tokio::spawn(once.run(async move |_| -> Result<()> {
            works.send(()).expect("the test waits for it");
            ended.await.expect("the test ends it");
            Ok(())
        }));
        begun.await.expect("the work begins");
        Self { ends, run }
    }

    /// Ends the work.
    pub(super) async fn complete(self) -> Result<()> {
        self.ends.send(()).expect("the work is under way");
        let ended = self.run.await.expect("the runner does not panic");
        ended.map(|ended| assert_eq!(ended, OnceOutcome::Ran(())))
    }
}

/// A tick that was confirmed as completed is not run again. If that is not known, it is completed now.
pub(super) async fn is_done(seal: &Mongoseal, key: &str, is_confirmed: bool, left: Duration) {
    let again = seal.once(key, TICK).wait(left).run(async |_| -> Result<()> { Ok(()) }).await;
    let again = again.unwrap_or_else(|error| panic!("{key}: {error}"));
    match again {
        OnceOutcome::Skipped(Skipped::AlreadyDone { .. }) => {}
        OnceOutcome::Ran(()) if !is_confirmed => {}
        other => panic!("{key}: {other:?}, and the completion was confirmed: {is_confirmed}"),
    }
    let again = seal.once(key, TICK).run(async |_| -> Result<()> { panic!("{key}: the tick runs again") }).await;
    assert!(matches!(again, Ok(OnceOutcome::Skipped(Skipped::AlreadyDone { .. }))), "{key}: {again:?}");
}
