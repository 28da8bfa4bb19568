//! The elector: a loop of campaigns.
//!
//! Mechanism: each round campaigns, runs the work while it leads, and resigns. A heartbeat shows whether the loop runs.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{Leader, LeaderInfo, campaign::Candidacy};
use crate::{
    Clock, Error, Key, Result,
    engine::retry::Backoff,
    types::{duration::format_duration, ttl},
};

/// Called with each new leader.
type OnNewLeader = Box<dyn FnMut(&LeaderInfo) + Send>;
/// Called when this candidate stops leading.
type OnStopped = Box<dyn FnMut() + Send>;

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
    heartbeat: Arc<Heartbeat>,
}

impl Elector {
    pub(super) fn new(candidacy: Result<Candidacy>, clock: Clock) -> Self {
        let heartbeat = Arc::new(Heartbeat { clock, beat: AtomicU64::new(NOT_YET), allowed: AtomicU64::new(0) });
        Self { candidacy, on_new_leader: None, on_stopped: None, until: CancellationToken::new(), heartbeat }
    }

    /// Calls `call` whenever a leader with a new token is seen, this candidate included.
    pub fn on_new_leader(mut self, call: impl FnMut(&LeaderInfo) + Send + 'static) -> Self {
        self.on_new_leader = Some(Box::new(call));
        self
    }

    /// Calls `call` whenever the work as leader has stopped: it ended, the leadership was lost, or the end of the
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

    /// Returns a check of whether the elector runs, for any thread.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let name = self.candidacy.as_ref().ok().map(|candidacy| candidacy.name.clone());
        Readiness { name, heartbeat: Arc::clone(&self.heartbeat) }
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
        let Self { candidacy, mut on_new_leader, on_stopped, until, heartbeat } = self;
        let _end = HeartbeatEnd(&heartbeat);
        let candidacy = candidacy?;
        let clock = heartbeat.clock;
        let lasts = candidacy.leads;
        let beat = || heartbeat.beat.store(ttl::millis(clock.now()), Ordering::Release);
        // Before the work is first polled, so that its readiness check finds a beat.
        heartbeat.allowed.store(ttl::millis(lasts), Ordering::Relaxed);
        beat();
        let alive = async {
            loop {
                clock.sleep_until(clock.now().saturating_add(lasts.checked_div(6).unwrap_or_default())).await;
                beat();
            }
        };
        let observing = async {
            match &mut on_new_leader {
                Some(call) => candidacy.notify_of_leaders(call).await,
                None => std::future::pending().await,
            }
        };
        let end = until.child_token();
        let mut leading = pin!(lead(&candidacy, on_stopped, &end, work));
        let error = tokio::select! {
            biased;
            done = &mut leading => return done,
            error = observing => error,
            () = alive => return Ok(None),
        };
        // A leader stops, calls `on_stopped` and resigns before the error is returned.
        end.cancel();
        leading.await.and(Err(error.into()))
    }
}

/// Leads again and again.
async fn lead<T, E: From<Error>>(
    candidacy: &Candidacy,
    mut on_stopped: Option<OnStopped>,
    until: &CancellationToken,
    mut work: impl AsyncFnMut(&Leader) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let mut backoff = Backoff::new();
    loop {
        let elected = tokio::select! {
            biased;
            () = until.cancelled() => return Ok(None),
            elected = candidacy.campaign() => elected,
        };
        let leader = match elected {
            Ok(leader) => leader,
            Err(error @ (Error::Invalid { .. } | Error::Corrupt { .. })) => return Err(error.into()),
            // The campaign has recorded its error.
            Err(_recorded) => {
                debug!(name = %candidacy.name, "not elected: retrying");
                candidacy.pause(&mut backoff, until).await;
                continue;
            }
        };
        let began = candidacy.now();
        info!(name = %candidacy.name, token = %leader.token(), "leads");
        let done = tokio::select! {
            biased;
            () = until.cancelled() => None,
            done = leader.run(work(&leader)) => Some(done),
        };
        if let Some(call) = &mut on_stopped {
            call();
        }
        info!(name = %candidacy.name, token = %leader.token(), "leads no more");
        let ended = match done {
            // The lease is lost, and has logged why.
            Some(Err(_lost)) => {
                if candidacy.now().saturating_sub(began) > candidacy.leads {
                    backoff = Backoff::new();
                }
                candidacy.pause(&mut backoff, until).await;
                continue;
            }
            Some(Ok(returned)) => Some(returned),
            None => None,
        };
        // If this fails, the ttl ends the leadership, and a warning says so.
        drop(leader.resign().await);
        return ended.transpose();
    }
}

/// Stands for no beat: before the first, and after the last.
const NOT_YET: u64 = u64::MAX;
const NO_MORE: u64 = u64::MAX - 1;

/// The heartbeat of an elector.
#[derive(Debug)]
struct Heartbeat {
    clock: Clock,
    /// When the last beat was, in milliseconds on the clock.
    beat: AtomicU64,
    /// How long the elector may be silent, in milliseconds.
    allowed: AtomicU64,
}

/// Ends the heartbeat, however the elector ends.
struct HeartbeatEnd<'a>(&'a Heartbeat);

impl Drop for HeartbeatEnd<'_> {
    fn drop(&mut self) {
        self.0.beat.store(NO_MORE, Ordering::Relaxed);
    }
}

/// Checks whether an elector runs, for a readiness or liveness probe. A clone is cheap. It can be called from any
/// thread. Call it from a thread outside of the elector's runtime: a probe on a blocked runtime hangs, too.
#[derive(Clone, Debug)]
pub struct Readiness {
    name: Option<Key>,
    heartbeat: Arc<Heartbeat>,
}

impl Readiness {
    /// Checks that the elector has shown a sign of life within the time for which a leader leads without a refresh.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if it has not: it was not started, has ended, or hangs because its thread is blocked.
    pub fn check(&self) -> Result<()> {
        // Before `allowed`, which is stored before the first beat.
        let silent = match self.heartbeat.beat.load(Ordering::Acquire) {
            NOT_YET => return Err(self.not_ready("has not been run yet: run it")),
            NO_MORE => return Err(self.not_ready("has ended: run another one")),
            beat => ttl::millis(self.heartbeat.clock.now()).saturating_sub(beat),
        };
        let allowed = self.heartbeat.allowed.load(Ordering::Relaxed);
        if silent > allowed {
            return Err(self.not_ready(&format!(
                "has shown no sign of life for {}, and {} are allowed: check what blocks its thread",
                format_duration(Duration::from_millis(silent)),
                format_duration(Duration::from_millis(allowed))
            )));
        }
        Ok(())
    }

    fn not_ready(&self, how: &str) -> Error {
        let name = self.name.as_ref().map(Key::as_str).unwrap_or_default();
        Error::unavailable(format!("the elector of {name:?} {how}"))
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector").field("candidacy", &self.candidacy).finish_non_exhaustive()
    }
}
