//! Measures holding many leases of one handle.

use std::{
    fs,
    time::{Duration, Instant},
};

use mongodb::{
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal::{Lease, LeaseState, Mongoseal};
use tokio::task::JoinSet;

use crate::{
    cpu::{self, ServerTime},
    figures::{Figures, Round, Samples},
    measured_set::MeasuredSet,
};

const TTL: Duration = Duration::from_secs(30);
const AT_ONCE: usize = 32;
/// The collection of copies of the records.
const COPIES: &str = "copies";

/// Leases of these keys, asked for side by side.
pub(crate) async fn acquired(seal: &Mongoseal, ttl: Duration, keys: impl Iterator<Item = String>) -> Vec<Lease> {
    let (mut leases, mut asking) = (Vec::new(), JoinSet::new());
    for key in keys {
        if asking.len() == AT_ONCE
            && let Some(lease) = asking.join_next().await
        {
            leases.push(lease.expect("no task panics"));
        }
        let asked = seal.acquire(key).ttl(ttl).into_future();
        asking.spawn(async move { asked.await.expect("the key is free") });
    }
    leases.extend(asking.join_all().await);
    leases
}

/// Keeps many leases for a while.
pub(crate) async fn refresh(measured: &MeasuredSet, quick: bool) -> Figures {
    let (many, ttl, time) = if quick { (1_000, TTL / 5, TTL / 5) } else { (10_000, TTL, 2 * TTL) };
    let seal = measured.handle().await;
    let leases = acquired(&seal, ttl, (0..many).map(|number| format!("many/{number:05}"))).await;
    // Until each has been refreshed, and all are in step.
    tokio::time::sleep(if quick { ttl / 3 } else { ttl }).await;
    let clocks = measured.clocks().await;
    let before = (refreshes(measured).await, measured.writes().await, cpu::of_client());
    let sent = (measured.commands("update").await, measured.commands("findAndModify").await);
    let began = Instant::now();
    let ((), servers) = clocks.spent(tokio::time::sleep(time)).await;
    let took = began.elapsed();
    let commands = measured.commands("update").await.saturating_sub(sent.0)
        + measured.commands("findAndModify").await.saturating_sub(sent.1);
    let after = (refreshes(measured).await, measured.writes().await, cpu::of_client());
    let lost = leases.iter().filter(|lease| lease.state() != LeaseState::Held).count();
    let least = leases.iter().map(Lease::remaining).min().unwrap_or_default();
    // As they are while they are held.
    let copy = vec![doc! { "$match": { "_id": { "$regex": "^many/" } } }, doc! { "$out": COPIES }];
    measured.records().aggregate(copy).await.expect("the records can be copied");
    seal.shutdown().await;
    let refreshed = u32::try_from(after.0 - before.0).expect("they are some");
    let each = after.1.saturating_sub(before.1) / refreshed.max(1);
    let intervals = took.as_secs_f64() / (ttl / 3).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
    let commands = commands as f64 / intervals / (f64::from(many) / 5_000.0);
    let mut notes = vec![
        format!(
            "{many} leases for {:.0} s: {refreshed} refreshes, {lost} not held, {least:.1?} left at least",
            took.as_secs_f64()
        ),
        "commands are per interval and 5,000 leases".into(),
        format!(
            "client: {:.1} % of a core",
            100.0 * after.2.saturating_sub(before.2).as_secs_f64() / took.as_secs_f64()
        ),
    ];
    let (floor, idle) = bare_updates(measured, many, if quick { 2 } else { 6 }).await;
    if !idle.primary.is_zero() {
        notes.push(format!(
            "processor time is per refresh, and per document of the bare update, without the {:.0} ms a second of an idle \
             primary",
            idle.primary.as_secs_f64() * 1e3
        ));
    }
    let ours = Samples { took: vec![each], servers: servers.without(idle, took), commands: refreshed.into() };
    let rounds = vec![Round { ours, floor }];
    Figures {
        case: "refresh-10000",
        what: "one of the refreshes, as the server's time for writes over their number, beside a bare update of many",
        rounds,
        commands,
        notes,
    }
}

/// The same of bare updates of 5,000 copies of the records by one command, which take no time of a condition or a
/// pipeline: as a batch, each after a pause of a second. Beside them, what the servers spend in such a pause.
async fn bare_updates(measured: &MeasuredSet, many: u32, rounds: u32) -> (Samples, ServerTime) {
    const AT_ONCE: u32 = 5_000;
    let copies = measured.database().collection::<Document>(COPIES);
    let clocks = measured.clocks().await;
    let (mut samples, mut idle) = (Samples::default(), ServerTime::default());
    for round in 0..rounds {
        let ((), pause) = clocks.spent(tokio::time::sleep(Duration::from_secs(1))).await;
        idle += pause;
        let first = round * AT_ONCE % many;
        let last = (first + AT_ONCE).min(many);
        let names = doc! { "$gte": format!("many/{first:05}"), "$lt": format!("many/{last:05}") };
        let before = measured.writes().await;
        let plus = doc! { "$inc": { "holders.0.refreshes": 1_i64 } };
        let update = copies.update_many(doc! { "_id": names }, plus).write_concern(WriteConcern::majority());
        let updating = async {
            let updated = update.await.expect("they are updated").modified_count;
            assert_eq!(updated, u64::from(last - first), "all of them are there");
            // Until the other secondary has applied it, too.
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        let began = Instant::now();
        let ((), servers) = clocks.spent(updating).await;
        samples.servers += servers.without(pause, began.elapsed());
        samples.commands += u64::from(last - first);
        samples.took.push(measured.writes().await.saturating_sub(before) / (last - first));
    }
    (samples, idle / rounds)
}

/// How often the holders there are were refreshed.
pub(crate) async fn refreshes(measured: &MeasuredSet) -> i64 {
    let sum = doc! { "$sum": { "$sum": "$holders.refreshes" } };
    let mut found = measured
        .records()
        .aggregate([doc! { "$group": { "_id": null, "refreshes": sum } }])
        .await
        .expect("the records can be read");
    if found.advance().await.expect("the records can be read") {
        found.deserialize_current().expect("it is a document").get_i64("refreshes").unwrap_or_default()
    } else {
        0
    }
}

/// What a held lease takes in this process.
pub(crate) async fn memory(measured: &MeasuredSet, quick: bool) -> Figures {
    let many = if quick { 2_000 } else { 10_000 };
    let seal = measured.handle().await;
    // What is there once and for all is there then.
    let first = acquired(&seal, TTL, (0..many / 10).map(|number| format!("memory/first/{number:05}"))).await;
    let before = resident();
    let leases = acquired(&seal, TTL, (0..many).map(|number| format!("memory/{number:05}"))).await;
    let after = resident();
    let each = after.saturating_sub(before) / many;
    let held = first.iter().chain(&leases).filter(|lease| lease.is_valid()).count();
    seal.shutdown().await;
    Figures {
        case: "memory-per-lease",
        what: "no time",
        rounds: vec![],
        commands: 0.0,
        notes: vec![format!("{each} bytes resident for each of {many} leases, {held} held")],
    }
}

/// The bytes of this process that are in memory.
pub(crate) fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("the system tells of this process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it says how large it is");
    line.split_whitespace()
        .nth(1)
        .and_then(|kilobytes| kilobytes.parse().ok())
        .map_or(0, |kilobytes: usize| kilobytes * 1024)
}
