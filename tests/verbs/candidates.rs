//! Candidates of an election, each an elector on a task of its own.

use std::sync::{Arc, Mutex};

use mongoseal::{
    CancellationToken, FencingToken, Mongoseal,
    election::{LeadershipState, LeadershipWatch, Readiness},
};
use mongoseal_test_support::{eventually, secs};
use tokio::{sync::watch, task::JoinHandle};

/// What candidates did, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    /// Returns the entries, and forgets them.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Notes when the work is dropped.
struct Work(Log, String);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.note(format!("{} is dropped", self.1));
    }
}

/// An elector of the name `k` that works until it is stopped.
pub(crate) struct Candidate {
    pub(crate) leadership: LeadershipWatch,
    pub(crate) readiness: Readiness,
    pub(crate) health: watch::Sender<bool>,
    pub(crate) end: CancellationToken,
    pub(crate) running: JoinHandle<mongoseal::Result<Option<()>>>,
}

impl Candidate {
    pub(crate) fn start(seal: &Mongoseal, value: &str, log: &Log) -> Self {
        Self::start_with(seal, value, log, true)
    }

    pub(crate) fn start_with(seal: &Mongoseal, value: &str, log: &Log, is_healthy: bool) -> Self {
        let ((health, receiver), end) = (watch::channel(is_healthy), CancellationToken::new());
        let elector = seal.campaign("k").value(value).elector().health(receiver).until(end.clone());
        let (leadership, readiness) = (elector.leadership(), elector.readiness());
        let (signal, log, value) = (leadership.clone(), log.clone(), value.to_owned());
        let (stops, stopped) = (log.clone(), format!("{value} stops"));
        let elector = elector.on_stopped(move || {
            assert!(!signal.is_leader(), "the work has stopped, so it does not lead");
            stops.note(stopped.as_str());
        });
        let running = tokio::spawn(elector.run(async move |_leader| {
            log.note(format!("{value} works"));
            let _work = Work(log.clone(), value.clone());
            std::future::pending().await
        }));
        Self { leadership, readiness, health, end, running }
    }

    /// The token with which it leads.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        match self.leadership.state() {
            LeadershipState::Leader { token, .. } => Some(token),
            _ => None,
        }
    }

    /// Waits until it leads, and returns the token.
    pub(crate) async fn leads(&self) -> FencingToken {
        until_some(|| self.token()).await
    }

    /// Waits until it follows a leader with this value.
    pub(crate) async fn follows(&self, value: &str) {
        until_some(|| {
            let state = self.leadership.state();
            matches!(state, LeadershipState::Follower { leader } if leader.value == value).then_some(())
        })
        .await;
    }

    /// Ends the elector.
    pub(crate) async fn finish(self) {
        self.end.cancel();
        assert_eq!(self.running.await.unwrap().unwrap(), None);
    }
}

/// Polls until there is a value, for up to an hour of paused time.
pub(crate) async fn until_some<T>(poll: impl Fn() -> Option<T>) -> T {
    let mut found = None;
    eventually(secs(3600), "there is a value", async || {
        found = poll();
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// Waits until so many candidates are queued.
pub(crate) async fn waiters(seal: &Mongoseal, wanted: usize) {
    eventually(secs(3600), "so many candidates wait", async || {
        seal.inspect("k").await.unwrap().map_or(0, |record| record.queue.len()) == wanted
    })
    .await;
}
