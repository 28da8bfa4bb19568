//! The leadership as a signal: which candidate leads, for code beside the work of an elector.
//!
//! Mechanism: the elector publishes its own lease and the leader that it observed. A [`LeadershipWatch`] reads both, and checks
//! the deadline of the lease at each call.
//!
//! Invariant: a lease that has ended is never reported as a leadership of this candidate, nor as that of another one.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Elector, LeaderInfo};
use crate::{
    engine::lease_inner::LeaseInner,
    lease::Lease,
    types::{lease_id::LeaseId, token::FencingToken},
};

/// Which candidate leads, as this process knows it: a copy that no later change reaches.
///
/// [`LeadershipWatch::state`] and [`LeadershipWatch::changed`] return it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeadershipState {
    /// This candidate leads: its lease was valid when this was returned.
    Leader {
        /// The token of the leadership.
        token: FencingToken,
        /// How long the lease lasts without another refresh.
        remaining: Duration,
    },
    /// Another candidate leads.
    Follower {
        /// The leader that was observed last. Its value is what it has published, such as its address.
        leader: LeaderInfo,
    },
    /// No leader is known, or the elector does not run.
    NoLeader,
}

impl LeadershipState {
    /// Whether both are one leadership with one value, or no leadership.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leader { token, .. }, Self::Leader { token: other, .. }) => token == other,
            (Self::Follower { leader }, Self::Follower { leader: other }) => {
                leader.visible_part() == other.visible_part()
            }
            (Self::NoLeader, Self::NoLeader) => true,
            _ => false,
        }
    }
}

/// Shows to any part of a program whether this candidate leads, and which candidate does. [`Elector::leadership`] makes it.
///
/// It can be read on any thread, needs no runtime, and keeps no lease alive. A clone shares the state, and has seen the
/// changes that the original has seen.
///
/// # A hint, not a proof
///
/// Use it to route: to answer a request here, or to forward it to the leader. The answer may be outdated a moment later, and
/// a leader that died is returned until its time is over. Only a [fence](crate::fence) refuses the late write of an earlier
/// leader, so pass the token of the [`Leader`](super::Leader) with each write.
///
/// # Examples
///
/// ```
/// use mongoseal::{CancellationToken, Mongoseal, election::LeadershipState};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// # let seal = Mongoseal::in_memory();
/// let end = CancellationToken::new();
/// let elector = seal.campaign("scheduler").value("10.0.0.7:4000").elector().until(end.clone());
/// let mut leadership = elector.leadership();
/// let running = tokio::spawn(elector.run(async |_leader| std::future::pending::<mongoseal::Result<()>>().await));
///
/// match leadership.changed().await {
///     Some(LeadershipState::Leader { token, .. }) => println!("this process leads with token {token}"),
///     Some(LeadershipState::Follower { leader }) => println!("forward to {}", leader.value),
///     Some(_) => println!("no process leads: retry later"),
///     None => println!("the elector has ended"),
/// }
/// assert!(leadership.is_leader());
///
/// end.cancel();
/// assert_eq!(running.await.expect("it does not panic")?, None);
/// assert_eq!(leadership.state(), LeadershipState::NoLeader);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LeadershipWatch {
    views: watch::Receiver<View>,
    /// The state that [`changed`](Self::changed) returned last.
    last: LeadershipState,
}

impl LeadershipWatch {
    /// The state at this moment. Needs no request.
    ///
    /// `Leader` is returned only while the lease of this candidate is valid. The call checks the deadline itself, so a
    /// process that was paused past it reads `Follower` or `NoLeader` at once.
    #[must_use]
    pub fn state(&self) -> LeadershipState {
        self.views.borrow().state()
    }

    /// Whether this candidate leads at this moment. Needs no request.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.views.borrow().led().is_some()
    }

    /// Waits until the state differs from the one that this value returned last, at first from `NoLeader`, and returns it.
    /// Another token, another value of the leader, and the loss of the leader are changes. A refresh is none.
    ///
    /// Once the elector has ended, this returns `NoLeader` if that is a change, and then `None`.
    ///
    /// If the state changes several times before the call, the call returns only the last state. A deadline that passes
    /// changes [`state`](Self::state) at once; a call that waits returns it when the elector has noticed it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call returns the state that this one would have returned.
    pub async fn changed(&mut self) -> Option<LeadershipState> {
        loop {
            // Before the state, which the elector clears before it closes the channel.
            let has_ended = self.views.has_changed().is_err();
            let state = self.views.borrow_and_update().state();
            if !state.is_same(&self.last) {
                self.last = state.clone();
                return Some(state);
            }
            if has_ended {
                return None;
            }
            // An error is the end of the elector, which the next turn finds.
            drop(self.views.changed().await);
        }
    }

    /// Gives way to another candidate, and returns whether this one led.
    ///
    /// If it leads, the elector drops the work, calls `on_stopped`, resigns, and campaigns again behind the candidates that
    /// wait at that time. Without another candidate it leads again, with a larger token. If the work returns at the same
    /// moment, the elector ends as without this call.
    ///
    /// This ends the leadership of the time of the call, and never a later one. It returns at once, before the work is
    /// dropped, and can be repeated. If this candidate does not lead, the call changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let elector = seal.campaign("scheduler").elector();
    /// let leadership = elector.leadership();
    /// assert!(!leadership.step_down(), "it does not run yet");
    ///
    /// let mut tokens = Vec::new();
    /// elector
    ///     .run(async |leader| -> mongoseal::Result<()> {
    ///         tokens.push(leader.token());
    ///         if tokens.len() == 1 {
    ///             assert!(leadership.step_down());
    ///             std::future::pending::<()>().await; // dropped
    ///         }
    ///         Ok(())
    ///     })
    ///     .await?;
    /// assert!(tokens[0] < tokens[1], "without another candidate it leads again");
    /// # Ok(())
    /// # }
    /// ```
    pub fn step_down(&self) -> bool {
        // A copy, so that no task is woken while the state is locked.
        let led = self.views.borrow().led().map(|led| led.step_down.clone());
        led.inspect(CancellationToken::cancel).is_some()
    }
}

impl fmt::Debug for LeadershipWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeadershipWatch").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Elector {
    /// Returns a signal of which candidate leads, for any thread. All of them share one state.
    ///
    /// If there is one when the elector is run, the elector observes the leaders of the name, with the costs of
    /// [`observe`](crate::Mongoseal::observe). [`on_new_leader`](Self::on_new_leader) shares that observation.
    #[must_use]
    pub fn leadership(&self) -> LeadershipWatch {
        self.publisher.subscribe()
    }
}

/// What an elector publishes.
#[derive(Default)]
struct View {
    /// The leadership whose work runs.
    own: Option<OwnLeadership>,
    /// The leader that was observed last. Never this candidate.
    other: Option<LeaderInfo>,
    /// The lease ids of the latest campaigns of this elector, the newest at the end. A campaign that was dropped, or whose
    /// reply was lost, can be granted without a token that the elector knows.
    campaigns: VecDeque<LeaseId>,
    /// The token of this candidate's latest leadership. A leader with a smaller token was before it.
    newest: Option<FencingToken>,
}

/// How many campaigns an elector remembers. A take-back ends within the operation timeout, so few are needed.
const MAX_CAMPAIGNS: usize = 16;

/// A leadership of this candidate.
struct OwnLeadership {
    lease: Arc<LeaseInner>,
    step_down: CancellationToken,
}

impl View {
    /// The leadership of this candidate, if its lease is valid.
    fn led(&self) -> Option<&OwnLeadership> {
        self.own.as_ref().filter(|own| own.lease.is_valid())
    }

    fn state(&self) -> LeadershipState {
        let own = self.own.as_ref().map(|own| (own.lease.remaining(), own));
        match (own, &self.other) {
            // In this order, because the deadline may pass in between.
            (Some((remaining, own)), _) if own.lease.is_valid() => {
                LeadershipState::Leader { token: own.lease.token, remaining }
            }
            (_, Some(leader)) => LeadershipState::Follower { leader: leader.clone() },
            (_, None) => LeadershipState::NoLeader,
        }
    }

    /// Whether a leader is another candidate that this one does not know to have ended. Other candidates can have the same
    /// owner, so it does not count.
    fn is_other(&self, leader: &LeaderInfo) -> bool {
        !self.campaigns.contains(&leader.lease) && self.newest.is_none_or(|newest| newest < leader.token)
    }
}

/// The elector's side of the signal. Dropping it publishes that the elector has ended.
pub(super) struct LeadershipPublisher {
    views: watch::Sender<View>,
}

impl LeadershipPublisher {
    pub(super) fn new() -> Self {
        Self { views: watch::Sender::new(View::default()) }
    }

    fn subscribe(&self) -> LeadershipWatch {
        LeadershipWatch { views: self.views.subscribe(), last: LeadershipState::NoLeader }
    }

    /// Whether there is a value that shows the leadership.
    pub(super) fn has_subscribers(&self) -> bool {
        self.views.receiver_count() > 0
    }

    /// Returns the lease id for a campaign. Called before the campaign is sent, so that no observation is earlier.
    pub(super) fn begin_campaign(&self) -> LeaseId {
        let id = LeaseId::random();
        self.views.send_if_modified(|view| {
            if view.campaigns.len() >= MAX_CAMPAIGNS {
                view.campaigns.pop_front();
            }
            view.campaigns.push_back(id);
            false
        });
        id
    }

    /// Publishes that this candidate leads. Returns the token that is cancelled if it is to step down.
    pub(super) fn begin_leadership(&self, lease: &Lease) -> CancellationToken {
        let (lease, step_down) = (Arc::clone(lease.lease_inner()), CancellationToken::new());
        self.views.send_modify(|view| {
            view.newest = Some(lease.token);
            view.other.take_if(|other| other.token < lease.token);
            view.own = Some(OwnLeadership { lease, step_down: step_down.clone() });
        });
        step_down
    }

    /// Publishes that this candidate's work has stopped.
    pub(super) fn end_leadership(&self) {
        self.views.send_modify(|view| view.own = None);
    }

    /// Publishes the leader that was observed.
    pub(super) fn record_leader(&self, leader: Option<&LeaderInfo>) {
        self.views.send_modify(|view| {
            view.other = leader.filter(|leader| view.is_other(leader)).cloned();
        });
    }
}

impl Drop for LeadershipPublisher {
    fn drop(&mut self) {
        self.views.send_replace(View::default());
    }
}
