//! Standing again and again: a loop around campaigns.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{Leader, LeaderInfo, campaign::Stand};
use crate::{Clock, Error, Key, Result, engine::retry::Backoff, types::ttl};

/// Called with who leads.
type OnNewLeader = Box<dyn FnMut(&LeaderInfo) + Send>;
/// Called when this one leads no more.
type OnStopped = Box<dyn FnMut() + Send>;

/// Stands for a leadership, does its work while it leads, and stands again when it was lost: in the style
/// of Kubernetes' client-go.
///
/// Made by [`Campaign::elector`](super::Campaign::elector).
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
///     .on_new_leader(|incumbent| println!("{} leads", incumbent.value))
///     .on_stopped(|| println!("leads no more"));
/// let readiness = elector.readiness(); // for the probe that restarts a process that is stuck
///
/// // What `run` is given is `on_started` there: it is dropped when the leadership is lost.
/// let last = elector.run(async |leader| -> mongoseal::Result<_> { Ok(leader.token()) }).await?;
/// assert!(last.is_some());
/// # drop(readiness);
/// # Ok(())
/// # }
/// ```
#[must_use = "an elector does nothing until it is run"]
pub struct Elector {
    stand: Result<Stand>,
    on_new_leader: Option<OnNewLeader>,
    on_stopped: Option<OnStopped>,
    until: CancellationToken,
    pulse: Arc<Heartbeat>,
}

impl Elector {
    pub(super) fn new(stand: Result<Stand>, clock: Clock) -> Self {
        let pulse = Arc::new(Heartbeat { clock, beat: AtomicU64::new(NOT_YET), allowed: AtomicU64::new(0) });
        Self { stand, on_new_leader: None, on_stopped: None, until: CancellationToken::new(), pulse }
    }

    /// Calls this whenever somebody else or this one is seen to lead with a token that was not seen
    /// before.
    pub fn on_new_leader(mut self, call: impl FnMut(&LeaderInfo) + Send + 'static) -> Self {
        self.on_new_leader = Some(Box::new(call));
        self
    }

    /// Calls this whenever the work has stopped that was begun as leader: because it came to its end, the
    /// leadership was lost, or the elector was told to end. Not where [`run`](Self::run) is dropped.
    pub fn on_stopped(mut self, call: impl FnMut() + Send + 'static) -> Self {
        self.on_stopped = Some(Box::new(call));
        self
    }

    /// Ends when this is cancelled: the work is dropped, and the leadership resigned.
    pub fn until(mut self, cancelled: CancellationToken) -> Self {
        self.until = cancelled;
        self
    }

    /// Tells whether the elector runs, from any thread.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let name = self.stand.as_ref().ok().map(|stand| stand.name.clone());
        Readiness { name, pulse: Arc::clone(&self.pulse) }
    }

    /// Stands for the leadership, does the work as its leader, and stands again where it was lost. If the work returns
    /// while it leads, the elector resigns and ends: with the value of the work or with its error. If the elector is
    /// [told to end](Self::until), the result is `None`.
    ///
    /// # Errors
    ///
    /// The error of the work, if it returned one while it led; what work returns that has lost the leadership is dropped.
    /// [`Error::Invalid`] and [`Error::Corrupt`], as of a [`Campaign`](super::Campaign). All other errors of a campaign are
    /// retried.
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
    /// Dropping it drops the work, and resigns or withdraws in the background.
    pub async fn run<T, E>(self, work: impl AsyncFnMut(&Leader) -> Result<T, E>) -> Result<Option<T>, E>
    where
        E: From<Error>,
    {
        let Self { stand, mut on_new_leader, on_stopped, until, pulse } = self;
        let _ends = Ends(&pulse);
        let stand = stand?;
        let clock = pulse.clock;
        let alive = async {
            let lasts = stand.leads;
            pulse.allowed.store(ttl::millis(lasts), Ordering::Relaxed);
            loop {
                pulse.beat.store(ttl::millis(clock.now()), Ordering::Release);
                clock.sleep_until(clock.now().saturating_add(lasts.checked_div(6).unwrap_or_default())).await;
            }
        };
        let observing = async {
            match &mut on_new_leader {
                Some(call) => stand.tell_of_leaders(call).await,
                None => std::future::pending().await,
            }
        };
        let end = until.child_token();
        let mut leading = pin!(lead(&stand, on_stopped, &end, work));
        let error = tokio::select! {
            biased;
            done = &mut leading => return done,
            error = observing => error,
            () = alive => return Ok(None),
        };
        // Whoever leads stops, says so and resigns before it is heard why.
        end.cancel();
        leading.await.and(Err(error.into()))
    }
}

/// Leads again and again.
async fn lead<T, E: From<Error>>(
    stand: &Stand,
    mut on_stopped: Option<OnStopped>,
    until: &CancellationToken,
    mut work: impl AsyncFnMut(&Leader) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let mut backoff = Backoff::new();
    loop {
        let elected = tokio::select! {
            biased;
            () = until.cancelled() => return Ok(None),
            elected = stand.elected() => elected,
        };
        let leader = match elected {
            Ok(leader) => leader,
            Err(error @ (Error::Invalid { .. } | Error::Corrupt { .. })) => return Err(error.into()),
            Err(error) => {
                debug!(name = %stand.name, %error, "stands again");
                stand.pause(&mut backoff, until).await;
                continue;
            }
        };
        let began = stand.now();
        info!(name = %stand.name, token = %leader.token(), "leads");
        let done = tokio::select! {
            biased;
            () = until.cancelled() => None,
            done = leader.run(work(&leader)) => Some(done),
        };
        if let Some(call) = &mut on_stopped {
            call();
        }
        info!(name = %stand.name, token = %leader.token(), "leads no more");
        let ended = match done {
            // The lease that was lost says why.
            Some(Err(_lost)) => {
                if stand.now().saturating_sub(began) > stand.leads {
                    backoff = Backoff::new();
                }
                stand.pause(&mut backoff, until).await;
                continue;
            }
            Some(Ok(returned)) => Some(returned),
            None => None,
        };
        if let Err(error) = leader.resign().await {
            debug!(name = %stand.name, %error, "the leadership is left to its ttl");
        }
        return ended.transpose();
    }
}

/// A sign of life that is not there: before the first, and after the last.
const NOT_YET: u64 = u64::MAX;
const NO_MORE: u64 = u64::MAX - 1;

/// Signs of life of an elector.
#[derive(Debug)]
struct Heartbeat {
    clock: Clock,
    /// When the last was, in milliseconds on the clock.
    beat: AtomicU64,
    /// How long none may be given, in milliseconds.
    allowed: AtomicU64,
}

/// Ends the pulse, however the elector ends.
struct Ends<'a>(&'a Heartbeat);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.beat.store(NO_MORE, Ordering::Relaxed);
    }
}

/// Tells whether an elector runs, for a readiness or liveness probe. Cheap to clone, and can be asked from
/// any thread, also one outside of the elector's runtime, which is the one to ask from: a probe that waits
/// for a blocked runtime is as stuck as that.
#[derive(Clone, Debug)]
pub struct Readiness {
    name: Option<Key>,
    pulse: Arc<Heartbeat>,
}

impl Readiness {
    /// Looks whether the elector has given a sign of life within the time for which a leader leads unheard.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where it has not, because it was not begun, has ended, or is wedged: something
    /// blocks its thread.
    pub fn check(&self) -> Result<()> {
        // Before what is allowed, which is said before the first beat.
        let silent = match self.pulse.beat.load(Ordering::Acquire) {
            NOT_YET => return Err(self.fails("has not been run yet: run it")),
            NO_MORE => return Err(self.fails("has ended: run another one")),
            beat => ttl::millis(self.pulse.clock.now()).saturating_sub(beat),
        };
        let allowed = self.pulse.allowed.load(Ordering::Relaxed);
        if silent > allowed {
            return Err(self.fails(&format!(
                "has given no sign of life for {silent} ms, and {allowed} are allowed: look what blocks its thread"
            )));
        }
        Ok(())
    }

    fn fails(&self, how: &str) -> Error {
        let name = self.name.as_ref().map(Key::as_str).unwrap_or_default();
        Error::unavailable(format!("the elector of {name:?} {how}"))
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector").field("stand", &self.stand).finish_non_exhaustive()
    }
}
