//! The faults of servers, network and workers. Each fault ends by itself.

mod commands;
mod network;
mod processes;
mod records;
mod redis;

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use mongoseal_test_support::{How, ReplicaSet};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

pub(crate) use commands::{LOGIN_CODES, OVERLOADED_CODES};

use crate::{
    clocks::Clocks,
    crew::{Crew, SLOTS},
    history::History,
    servers::Servers,
    words::{Event, Fault, Micros, now},
    worker::OPERATION_TIMEOUT,
};

macro_rules! kinds {
    ($($list:ident: $($kind:ident)*;)*) => {
        /// What can be done.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub(crate) enum Kind { $($($kind),*),* }

        $(const $list: &[Kind] = &[$(Kind::$kind),*];)*
    };
}

kinds! {
    OF_ALL:
        Kill Pause Partition Minority DeafClient SwallowReply KillClient PauseClient BlockClient Drop Latency Outage
        ClockJump;
    OF_REPLICA_SET:
        Terminate StepDown StepUp OneWay SplitClient Unconfirmed Uncommitted Delay KillStream StallCollection
        LockRecord LockedRecords Login Refuse RefuseChecks RefuseCommits;
    OF_REDIS:
        Promote Failover SplitBrain KillMessages ScriptFlush;
}

/// Until the lane that inflicts a fault says which it is.
impl Default for Kind {
    fn default() -> Self {
        Self::Kill
    }
}

impl Kind {
    /// Those of the servers and the workers of a run.
    pub(crate) fn all(redis: bool) -> Vec<Self> {
        [OF_ALL, if redis { OF_REDIS } else { OF_REPLICA_SET }].concat()
    }

    /// Whether it is done to workers, which can be while servers are hurt.
    fn is_of_clients(self) -> bool {
        matches!(self, Self::KillClient | Self::PauseClient | Self::BlockClient | Self::SwallowReply)
    }

    /// Whether it is judged by what it leaves, so that calls have to end before the next fault.
    fn is_judged_afterwards(self) -> bool {
        self == Self::RefuseCommits
    }

    /// Whether it is judged by what it does alone, so that what came before it must have ended.
    fn is_judged_alone(self) -> bool {
        matches!(self, Self::LockRecord | Self::LockedRecords | Self::Latency)
    }
}

/// Does harm, until it is stopped.
pub(crate) struct Chaos<S> {
    pub(crate) servers: Arc<S>,
    pub(crate) crew: Arc<Crew>,
    pub(crate) history: History,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) seed: u64,
    pub(crate) until: Micros,
    pub(crate) clocks: Clocks,
}

/// How long the consequences of a fault of the servers last after it.
pub(crate) const AFTERMATH: Duration = Duration::from_secs(3);

impl<S: Servers> Chaos<S> {
    /// Hurts servers and workers, each one after another and both at the same time.
    pub(crate) async fn run(self: &Arc<Self>) {
        let lane = |clients: bool| {
            let this = Arc::clone(self);
            tokio::spawn(async move { this.lane(clients).await })
        };
        let (servers, clients) = (lane(false), lane(true));
        servers.await.expect("a fault can be done and healed");
        clients.await.expect("a fault can be done and healed");
        self.servers.heal();
    }

    async fn lane(&self, clients: bool) {
        let kinds: Vec<_> = self.kinds.iter().copied().filter(|kind| kind.is_of_clients() == clients).collect();
        if kinds.is_empty() {
            return;
        }
        let mut rng = Rng::with_seed(self.seed ^ u64::from(clients));
        let mut bag = Vec::new();
        sleep(Duration::from_secs(1)).await;
        while now() < self.until {
            if bag.is_empty() {
                bag.clone_from(&kinds);
                rng.shuffle(&mut bag);
            }
            let Some(kind) = bag.pop() else { break };
            if kind.is_judged_alone() && kinds.iter().any(|kind| !kind.is_judged_alone()) {
                sleep(AFTERMATH).await;
            }
            let begin = now();
            let fault = S::inflict(self, kind, &mut rng).await;
            if !clients {
                self.servers.settled().await;
            }
            let pause = if kind.is_judged_afterwards() { OPERATION_TIMEOUT } else { Duration::ZERO };
            self.history.note(Event::Fault(Fault { kind, begin, end: now(), ..fault }));
            sleep(pause + millis(&mut rng, 300..1200)).await;
        }
    }
}

impl<S: Servers> Chaos<S> {
    /// The wall clock of a server is set. It goes back by less than the retention on Redis.
    async fn clock_jump(&self, server: usize, rng: &mut Rng) -> String {
        let shift = ["+30", "-8", "+5", "-5", "+1h"][rng.usize(..5)];
        self.servers.set_clock(server, shift);
        sleep(millis(rng, 1500..4000)).await;
        self.servers.set_clock(server, &self.clocks.shift(server));
        sleep(Duration::from_secs(1)).await;
        format!("{shift} at server {server}")
    }

    /// Hurts a worker. Faults of servers have no effect here.
    async fn hurt_client(&self, kind: Kind, rng: &mut Rng) -> Fault {
        let slot = rng.u32(..SLOTS);
        let length = match kind {
            Kind::KillClient => millis(rng, 0..1000),
            Kind::PauseClient => millis(rng, 300..6000),
            // Longer than its ttls.
            _ => millis(rng, 2500..5000),
        };
        match kind {
            Kind::KillClient => self.crew.kill(slot, length).await,
            Kind::PauseClient => self.crew.pause(slot, length).await,
            Kind::BlockClient => self.crew.block(slot, length).await,
            _ => return Fault::from(String::from("not of these servers")),
        }
        Fault { what: format!("the worker of slot {slot} for {length:?}"), slot: Some(slot), ..Fault::default() }
    }
}

impl Chaos<ReplicaSet> {
    /// Does it and heals it; says what it was.
    pub(crate) async fn inflict(&self, kind: Kind, rng: &mut Rng) -> Fault {
        let what = match kind {
            Kind::SwallowReply => return self.swallow_reply(rng).await,
            Kind::LockRecord => return self.lock_record(rng).await,
            Kind::LockedRecords => return self.lock_records(rng).await,
            Kind::Login => return self.refuse_logins(rng).await,
            Kind::Refuse => self.refuse(rng).await,
            Kind::RefuseChecks => self.refuse_checks(rng).await,
            Kind::RefuseCommits => self.refuse_commits(rng).await,
            Kind::Latency => return self.latency(rng).await,
            Kind::Kill => self.kill(rng).await,
            Kind::Terminate => self.terminate(rng).await,
            Kind::Pause => self.pause(rng).await,
            Kind::StepDown => {
                self.servers.step_down().await;
                "the primary".into()
            }
            Kind::StepUp => self.step_up(rng).await,
            Kind::Partition => self.partition(rng).await,
            Kind::OneWay => self.one_way(rng).await,
            Kind::Minority => self.minority(rng).await,
            Kind::SplitClient => self.split_client(rng).await,
            Kind::DeafClient => self.deaf_client(rng).await,
            Kind::Unconfirmed => self.unconfirmed(rng).await,
            Kind::Uncommitted => self.uncommitted(rng).await,
            Kind::Delay => self.delay(rng).await,
            Kind::KillStream => self.kill_stream(rng).await,
            Kind::Drop => self.drop_collection().await,
            Kind::StallCollection => self.stall_collection(rng).await,
            Kind::Outage => self.outage(rng).await,
            Kind::ClockJump => self.clock_jump(self.victim(rng).await, rng).await,
            _ => return self.hurt_client(kind, rng).await,
        };
        what.into()
    }
}

fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

/// What a cut does.
fn how(rng: &mut Rng) -> How {
    if rng.bool() { How::Blackhole } else { How::Reset }
}
