//! Measures the hand-over of a key from holder to waiter.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mongoseal::Mongoseal;

use crate::{
    figures::{Figures, Round, Samples, commands_per_sample},
    measured_set::MeasuredSet,
};

const HANDLES: usize = 8;
const GRANTS: usize = 200;
const GRANTS_IF_QUICK: usize = 80;
const WORK: Duration = Duration::from_millis(5);
const WAIT: Duration = Duration::from_secs(60);

/// One lease, from its grant to its release.
struct Turn {
    token: u64,
    granted: Instant,
    called: Instant,
    returned: Instant,
}

/// Measures hand-overs among handles that contend for a key all the time.
pub(crate) async fn measure(measured: &MeasuredSet, quick: bool) -> [Figures; 2] {
    let grants = if quick { GRANTS_IF_QUICK } else { GRANTS };
    let (mut from_return, mut from_call, mut commands) = (Vec::new(), Vec::new(), 0);
    let mut after_work = Vec::new();
    for round in 0..measured.rounds {
        let clocks = measured.clocks().await;
        let mut floor = Samples::default();
        floor.add(&clocks, measured.floor(grants)).await;
        floor.commands = count(grants);
        after_work.extend(measured.floor_after(WORK, grants / 4).await);
        let seals = measured.handles(HANDLES).await;
        let before = measured.writes_sent().await;
        let (turns, servers) = clocks.spent(contend(&seals, &format!("hot/{round}"), grants)).await;
        let sent = measured.writes_sent().await - before;
        commands += sent;
        shut_down(seals).await;
        let pairs = || turns.windows(2).map(|pair| (&pair[0], &pair[1]));
        let ours = |took| Samples { took, servers, commands: sent };
        from_return.push(Round {
            ours: ours(pairs().map(|(last, next)| next.granted.saturating_duration_since(last.returned)).collect()),
            floor: floor.clone(),
        });
        from_call.push(Round {
            ours: ours(pairs().map(|(last, next)| next.granted.saturating_duration_since(last.called)).collect()),
            floor,
        });
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
    let commands = commands as f64 / (measured.rounds * grants) as f64;
    let note = note(after_work);
    let figures = |case, what, rounds| Figures { case, what, rounds, commands, notes: vec![note.clone()] };
    [
        figures("hand-over-from-return", "return of `release` to return of the next `acquire`", from_return),
        figures("hand-over-from-call", "call of `release` to return of the next `acquire`", from_call),
    ]
}

/// Measures releases by holders that found their keys free. When they release, they do not know that a waiter came.
pub(crate) async fn first(measured: &MeasuredSet, quick: bool) -> Figures {
    let releases = if quick { GRANTS_IF_QUICK / 4 } else { GRANTS / 4 };
    let (holder, waiter) = (measured.handle().await, measured.handle().await);
    let (mut rounds, mut after_work) = (Vec::new(), Vec::new());
    for round in 0..measured.rounds {
        let clocks = measured.clocks().await;
        let (mut ours, mut floor) = (Samples::default(), Samples::default());
        floor.add(&clocks, measured.floor(releases)).await;
        floor.commands = count(releases);
        after_work.extend(measured.floor_after(WORK, releases).await);
        for number in 0..releases {
            let key = format!("once/{round}/{number}");
            let lease = holder.acquire(key.as_str()).await.expect("the key is free");
            let acquire = waiter.acquire(key.as_str()).wait(WAIT);
            let waiting = tokio::spawn(async move {
                let next = acquire.await.expect("it is granted");
                (next, Instant::now())
            });
            while !is_queued(measured, &key).await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let before = measured.writes_sent().await;
            tokio::time::sleep(WORK).await;
            let called = Instant::now();
            let ((next, granted), servers) = clocks
                .spent(async {
                    lease.release().await.expect("it is released");
                    waiting.await.expect("no waiter panics")
                })
                .await;
            ours.commands += measured.writes_sent().await - before;
            ours.servers += servers;
            ours.took.push(granted.saturating_duration_since(called));
            next.release().await.expect("it is released");
        }
        rounds.push(Round { ours, floor });
    }
    shut_down([holder, waiter]).await;
    Figures {
        case: "hand-over-first",
        what: "call of `release`, by a holder that found the key free, to return of the waiter's `acquire`",
        commands: commands_per_sample(&rounds),
        rounds,
        notes: vec![note(after_work)],
    }
}

/// Whether a waiter of this key is in its queue.
async fn is_queued(measured: &MeasuredSet, key: &str) -> bool {
    let waiter = doc! { "_id": key, "queue.0": { "$exists": true } };
    measured.records().find_one(waiter).await.expect("the record can be read").is_some()
}

fn note(mut after_work: Vec<Duration>) -> String {
    after_work.sort();
    let after_work = after_work[after_work.len() / 2].as_micros();
    format!("the floor after {} ms without a request, as a release comes: {after_work} µs", WORK.as_millis())
}

fn count(commands: usize) -> u64 {
    commands.try_into().expect("it is small")
}

async fn shut_down(seals: impl IntoIterator<Item = Mongoseal>) {
    for seal in seals {
        seal.shutdown().await;
    }
}

/// Handles that want one key all the time, until it was granted so many times.
async fn contend(seals: &[Mongoseal], key: &str, grants: usize) -> Vec<Turn> {
    let mut contenders = Vec::new();
    let each = grants / seals.len();
    for seal in seals {
        let (seal, key) = (seal.clone(), key.to_owned());
        contenders.push(tokio::spawn(async move {
            let mut turns = Vec::new();
            for _ in 0..each {
                let lease = seal.acquire(key.as_str()).wait(WAIT).await.expect("it is granted");
                let granted = Instant::now();
                let token = lease.token().get();
                tokio::time::sleep(WORK).await;
                let called = Instant::now();
                lease.release().await.expect("it is released");
                turns.push(Turn { token, granted, called, returned: Instant::now() });
            }
            turns
        }));
    }
    let mut turns = Vec::new();
    for contender in contenders {
        turns.extend(contender.await.expect("no contender fails"));
    }
    turns.sort_by_key(|turn| turn.token);
    turns
}
