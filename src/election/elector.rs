//! The elector: campaigns again and again.
//!
//! Mechanism: three futures run side by side. One leads, one observes the leaders, and a heartbeat shows that they run.

use std::{fmt, pin::pin};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Leader, LeaderInfo, Readiness,
    campaign::Candidacy,
    lead::{OnStopped, StopSignals, lead},
    leadership::LeadershipPublisher,
    readiness::Heartbeat,
};
use crate::types::{
    clock::Clock,
    error::{Error, Result},
};

/// Called with each new leader.
type OnNewLeader = Box<dyn FnMut(&LeaderInfo) + Send>;

/// Campaigns for a leadership, runs its work while it leads, and campaigns again when the leadership was lost, like
/// Kubernetes' client-go.
///
/// [`Campaign::elector`](super::Campaign::elector) makes it.
///
/// # Examples
///
/// ```
/// use mongoseal::Mongoseal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let elector = seal
///     .campaign("scheduler")
///     .value("10.0.0.7:4000")
///     .elector()
///     .on_new_leader(|leader| println!("{} leads", leader.value))
///     .on_stopped(|| println!("leads no more"));
/// let readiness = elector.readiness(); // for the probe that restarts a process that hangs
///
/// // The closure is `on_started` of client-go: its work is dropped when the leadership is lost.
/// let last = elector.run(async |leader| -> mongoseal::Result<_> { Ok(leader.token()) }).await?;
/// assert!(last.is_some());
/// # drop(readiness);
/// # Ok(())
/// # }
/// ```
#[must_use = "an elector does nothing until it is run"]
pub struct Elector {
    candidacy: Result<Candidacy>,
    on_new_leader: Option<OnNewLeader>,
    on_stopped: Option<OnStopped>,
    until: CancellationToken,
    health: Option<watch::Receiver<bool>>,
    heartbeat: Heartbeat,
    pub(super) publisher: LeadershipPublisher,
}

impl Elector {
    pub(super) fn new(candidacy: Result<Candidacy>, clock: Clock) -> Self {
        Self {
            candidacy,
            on_new_leader: None,
            on_stopped: None,
            until: CancellationToken::new(),
            health: None,
            heartbeat: Heartbeat::new(clock),
            publisher: LeadershipPublisher::new(),
        }
    }

    /// Calls `call` whenever a leader with a new token is seen, this candidate included.
    pub fn on_new_leader(mut self, call: impl FnMut(&LeaderInfo) + Send + 'static) -> Self {
        self.on_new_leader = Some(Box::new(call));
        self
    }

    /// Calls `call` whenever the work as leader has stopped: it ended, the leadership was lost, the leader
    /// [stepped down](super::LeadershipWatch::step_down), the candidate became [ineligible](Self::health), or the end of the
    /// elector was requested. Not if the future of [`run`](Self::run) is dropped.
    pub fn on_stopped(mut self, call: impl FnMut() + Send + 'static) -> Self {
        self.on_stopped = Some(Box::new(call));
        self
    }

    /// Ends the elector when this is cancelled: the work is dropped, and the leader resigns.
    pub fn until(mut self, cancelled: CancellationToken) -> Self {
        self.until = cancelled;
        self
    }

    /// Lets this candidate lead and wait only while `health` is `true`. Default: always.
    ///
    /// If the value becomes `false` while it leads, the elector drops the work, calls `on_stopped`, and resigns. If it
    /// waits, it gives up its place in the queue at once. When the value is `true`, it campaigns again, behind the
    /// candidates that wait by then. An elector that is not eligible still observes, and stays [ready](Self::readiness).
    ///
    /// If the sender is dropped, the last value stays. A value that was `false` only between two polls of the elector has no
    /// effect.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// use tokio::sync::watch;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let (health, is_healthy) = watch::channel(false);
    /// let elector = seal.campaign("scheduler").elector().health(is_healthy);
    /// let running = tokio::spawn(elector.run(async |leader| -> mongoseal::Result<_> { Ok(leader.token()) }));
    ///
    /// tokio::task::yield_now().await;
    /// assert_eq!(seal.leader("scheduler").await?, None, "it does not campaign");
    /// health.send_replace(true);
    /// assert!(running.await.expect("it does not panic")?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn health(mut self, health: watch::Receiver<bool>) -> Self {
        self.health = Some(health);
        self
    }

    /// Returns a check of whether the elector runs, for any thread.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.heartbeat.readiness(self.candidacy.as_ref().ok())
    }

    /// Campaigns for the leadership, runs the work as its leader, and campaigns again if the leadership was lost. If the work
    /// returns while it leads, the elector resigns, and this returns the value of the work or its error. It returns `None`
    /// if the [end was requested](Self::until).
    ///
    /// # Errors
    ///
    /// The error of the work, if the work returned it while it led. If the leadership is lost, the result of the work is
    /// dropped. [`Error::Invalid`] and [`Error::Corrupt`], as of a [`Campaign`](super::Campaign). Other errors of a campaign
    /// are retried.
    ///
    /// # Spawning
    ///
    /// To spawn the elector, pass it an `async move` closure that owns what it uses. The work can then run several times, and
    /// each run borrows from the closure:
    ///
    /// ```
    /// # use mongoseal::{CancellationToken, Mongoseal};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let end = CancellationToken::new();
    /// let elector = seal.campaign("scheduler").elector().until(end.clone());
    /// let (jobs, mut rounds) = (vec!["mail", "backup"], 0);
    ///
    /// let running = tokio::spawn(elector.run(async move |leader| -> mongoseal::Result<()> {
    ///     rounds += 1;
    ///     for job in &jobs {
    ///         println!("round {rounds}: {job} with token {}", leader.token());
    ///         leader.lease().verify().await?;
    ///     }
    ///     leader.lease().cancelled().await;
    ///     Ok(())
    /// }));
    ///
    /// # tokio::task::yield_now().await;
    /// end.cancel();
    /// assert_eq!(running.await.expect("it does not panic")?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Work that borrows from its function runs on the task of that function, beside other futures of it:
    ///
    /// ```
    /// # use mongoseal::{CancellationToken, Mongoseal};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let (mut done, end) = (Vec::new(), CancellationToken::new());
    /// let elector = seal.campaign("scheduler").elector().until(end.clone());
    /// let leading = elector.run(async |leader| -> mongoseal::Result<()> {
    ///     done.push(leader.token());
    ///     end.cancel();
    ///     std::future::pending().await
    /// });
    /// let (ended, ()) = tokio::join!(leading, end.cancelled());
    /// assert_eq!(ended?, None);
    /// assert_eq!(done.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, and resigns or withdraws in the background.
    pub async fn run<T, E>(self, work: impl AsyncFnMut(&Leader) -> Result<T, E>) -> Result<Option<T>, E>
    where
        E: From<Error>,
    {
        let Self { candidacy, mut on_new_leader, on_stopped, until, health, heartbeat, publisher } = self;
        // Before the work is first polled, so that its readiness check finds a beat.
        heartbeat.beat();
        let candidacy = candidacy?;
        let is_observed = on_new_leader.is_some() || publisher.has_subscribers();
        let mut last = None;
        let mut note = |leader: Option<&LeaderInfo>| {
            publisher.record_leader(leader);
            if let Some((call, leader)) = on_new_leader.as_mut().zip(leader)
                && last.replace(leader.token) != Some(leader.token)
            {
                call(leader);
            }
        };
        let observing = async {
            if is_observed { candidacy.notify_of_leaders(&mut note).await } else { std::future::pending().await }
        };
        let stop = StopSignals { end: until.child_token(), health };
        let mut leading = pin!(lead(&candidacy, on_stopped, &stop, &publisher, work));
        let error = tokio::select! {
            biased;
            done = &mut leading => return done,
            error = observing => error,
            () = heartbeat.keep(candidacy.ttl) => return Ok(None),
        };
        // A leader stops, calls `on_stopped` and resigns before the error is returned.
        stop.end.cancel();
        leading.await.and(Err(error.into()))
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector").field("candidacy", &self.candidacy).finish_non_exhaustive()
    }
}
