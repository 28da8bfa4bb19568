//! Measures how long a holder cannot refresh after a fault of one member, and whether its lease survives.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use mongodb::bson::doc;
use mongoseal::{Lease, Mongoseal};
use mongoseal_test_support::{FailPoint, How, Peer, ReplicaSet};
use tokio::task::JoinHandle;

use crate::{
    figures::{Figures, Round, Samples},
    measured_set::{as_users, three_members},
};

const TTL: Duration = Duration::from_secs(30);

/// What happens to one member.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    Kill,
    Terminate,
    StepDown,
    ForcedStepDown,
    Pause,
    /// Nothing that it sends arrives; nothing that is sent to it; neither.
    Mute,
    Deaf,
    Isolated,
    KillSecondary,
    PauseSecondary,
    /// The other one follows it, and not the primary.
    KillSource,
    PauseSource,
}

const FAULTS: [(Fault, &str, &str); 12] = [
    (Fault::Kill, "recovery-kill", "kill -9 of the primary"),
    (Fault::Terminate, "recovery-term", "SIGTERM of the primary"),
    (Fault::StepDown, "recovery-step-down", "step-down"),
    (Fault::ForcedStepDown, "recovery-forced-step-down", "step-down by force"),
    (Fault::Pause, "recovery-pause", "SIGSTOP of the primary"),
    (Fault::Isolated, "recovery-isolated", "the primary behind a blackhole"),
    (Fault::Mute, "recovery-mute", "what the primary sends is lost"),
    (Fault::Deaf, "recovery-deaf", "what is sent to the primary is lost"),
    (Fault::KillSecondary, "recovery-kill-secondary", "kill -9 of a secondary"),
    (Fault::PauseSecondary, "recovery-pause-secondary", "SIGSTOP of a secondary"),
    (Fault::KillSource, "recovery-kill-source", "kill -9 of the secondary that the other one follows"),
    (Fault::PauseSource, "recovery-pause-source", "SIGSTOP of the secondary that the other one follows"),
];

/// The faults whose names are asked for.
pub(crate) fn faults(wanted: impl Fn(&str) -> bool) -> Vec<(Fault, &'static str, &'static str)> {
    FAULTS.into_iter().filter(|(_, case, _)| wanted(case)).collect()
}

/// Measures these faults on servers with these parameters.
pub(crate) async fn measure(
    rounds: usize,
    parameters: &[(String, String)],
    disk: Option<&Path>,
    faults: Vec<(Fault, &'static str, &'static str)>,
) -> Vec<Figures> {
    if faults.is_empty() {
        return Vec::new();
    }
    let mut builder = three_members(disk).election_timeout(Duration::from_secs(2)).proxied();
    for (name, value) in parameters {
        builder = builder.parameter(name, value);
    }
    // Tasks refer to it, and it ends with the process.
    let set: &'static ReplicaSet = Box::leak(Box::new(builder.start().await));
    let mut all = Vec::new();
    for (fault, case, what) in faults {
        let (mut ours, mut lost) = (Vec::new(), 0);
        for round in 0..rounds {
            let (took, lives) = one(set, fault).await;
            println!("{case} {round}: {took:?}{}", if lives { "" } else { ", the lease was lost" });
            ours.push(took);
            lost += u32::from(!lives);
        }
        let each: Vec<_> = ours.iter().map(|took| format!("{:.2}", took.as_secs_f64())).collect();
        let notes = vec![format!("seconds: {}; {lost} of {rounds} leases with a ttl of 30 s lost", each.join(" "))];
        all.push(Figures {
            case,
            what,
            rounds: vec![Round { ours: ours.into(), floor: Samples::default() }],
            commands: 0.0,
            notes,
        });
    }
    all
}

/// One fault: how long it took until a refresh worked, and whether the lease that refreshes itself is there.
async fn one(set: &'static ReplicaSet, fault: Fault) -> (Duration, bool) {
    set.settled().await;
    let primary = set.primary().await;
    let (victim, other) = match fault {
        Fault::KillSecondary | Fault::PauseSecondary | Fault::KillSource | Fault::PauseSource => {
            ((primary + 1) % 3, (primary + 2) % 3)
        }
        _ => (primary, (primary + 1) % 3),
    };
    let chained = match fault {
        Fault::KillSource | Fault::PauseSource => {
            [follow(set, victim, primary).await, follow(set, other, victim).await].into()
        }
        _ => Vec::new(),
    };
    // With a client of its own, as a process has, which knows nothing yet.
    let seal = Mongoseal::builder().connect(as_users(set)).await.expect("the set is fit");
    // A lease that was lost in the round before may have been refreshed at the servers after that.
    let acquire = |key: &str| seal.acquire(key).ttl(TTL).wait(2 * TTL);
    let kept = acquire("kept").await.expect("the key becomes free");
    let asked = acquire("asked").without_refresh().await.expect("the key becomes free");
    // Somewhere between two heartbeats.
    tokio::time::sleep(Duration::from_millis(rand())).await;

    for chained in chained {
        chained.off().await;
    }
    let began = Instant::now();
    let ending = hurt(set, fault, victim).await;
    let works = is_refreshed(&asked).await;
    let took = began.elapsed();
    // Until the other one has refreshed itself since, or is lost.
    while kept.is_valid() && kept.remaining() + began.elapsed() < TTL {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lives = works && kept.is_valid() && kept.verify().await.is_ok();
    mend(set, fault, victim, ending).await;
    set.settled().await;
    drop((kept, asked));
    seal.shutdown().await;
    (took, lives)
}

/// Somewhere in two seconds.
fn rand() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    500 + u64::from(now.subsec_nanos()) % 2000
}

/// Waits until a refresh works; false where the lease was lost before.
async fn is_refreshed(lease: &Lease) -> bool {
    while lease.refresh().await.is_err() {
        if !lease.is_valid() {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

/// Makes a member follow another, for as long as the fail point is armed.
async fn follow(set: &ReplicaSet, member: usize, source: usize) -> FailPoint {
    let host = &set.hosts()[source];
    let force = doc! {
        "configureFailPoint": "forceSyncSourceCandidate", "mode": "alwaysOn", "data": { "hostAndPort": host },
    };
    let forced = set.fail_point(member, force).await;
    let began = Instant::now();
    loop {
        set.admin(member, doc! { "replSetSyncFrom": host }).await.ok();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let status = set.admin(member, doc! { "replSetGetStatus": 1 }).await.expect("it answers");
        if status.get_str("syncSourceHost").is_ok_and(|source| source == host) {
            return forced;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "member {member} does not follow {source}: {status}");
    }
}

/// Lets it happen. What is given back is a member that takes its time to end.
async fn hurt(set: &'static ReplicaSet, fault: Fault, victim: usize) -> Option<JoinHandle<()>> {
    let member = Peer::Member(victim);
    match fault {
        Fault::Kill | Fault::KillSecondary | Fault::KillSource => set.kill(victim).await,
        Fault::Pause | Fault::PauseSecondary | Fault::PauseSource => set.pause(victim).await,
        Fault::Isolated => set.proxy().cut_both(&member, &Peer::Anyone, How::Blackhole),
        Fault::Mute => set.proxy().cut(member, Peer::Anyone, How::Blackhole),
        Fault::Deaf => set.proxy().cut(Peer::Anyone, member, How::Blackhole),
        Fault::StepDown => set.step_down().await,
        Fault::ForcedStepDown => {
            let command = doc! { "replSetStepDown": 2, "force": true };
            set.admin(victim, command).await.expect("a primary steps down");
        }
        Fault::Terminate => {
            let ending = tokio::spawn(set.terminate(victim));
            // It goes on for a moment.
            while is_primary(set, victim).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            return Some(ending);
        }
    }
    None
}

async fn is_primary(set: &ReplicaSet, member: usize) -> bool {
    let hello = set.admin(member, doc! { "hello": 1 }).await;
    hello.is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
}

async fn mend(set: &ReplicaSet, fault: Fault, victim: usize, ending: Option<JoinHandle<()>>) {
    match fault {
        Fault::Kill | Fault::KillSecondary | Fault::KillSource => set.restart(victim).await,
        Fault::Terminate => {
            ending.expect("it was told to end").await.expect("it ends");
            set.restart(victim).await;
        }
        Fault::Pause | Fault::PauseSecondary | Fault::PauseSource => set.resume(victim).await,
        Fault::Isolated | Fault::Mute | Fault::Deaf => set.proxy().heal(),
        Fault::StepDown | Fault::ForcedStepDown => {}
    }
}
