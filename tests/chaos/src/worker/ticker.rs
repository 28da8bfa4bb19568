//! A client in a worker: runs the ticks of schedules, which clients of all workers run at about the same time.

use std::time::Duration;

use fastrand::Rng;
use mongoseal::{Error, OnceOutcome, Skipped, Tick, TickLease};
use tokio::time::sleep;

use super::{SMALLEST_TTL, Worker, say};
use crate::words::{Call, Event, Micros, now};

/// What the keys of schedules begin with, and how many schedules there are.
pub(crate) const SCHEDULE: &str = "tick/";
pub(crate) const SCHEDULES: u64 = 2;
/// The time between two ticks.
const EVERY: Micros = 500_000;
/// By how many ticks a runner is behind at most: longer than a ttl, so that a tick whose runner was killed is run again.
const BEHIND: u64 = 5;

pub(super) async fn run(worker: &Worker, rng: &mut Rng) {
    while !worker.is_ending() {
        let key = format!("{SCHEDULE}{}", rng.u64(..SCHEDULES));
        let tick = (now() / EVERY).saturating_sub(rng.u64(..=BEHIND)).max(1);
        run_tick(worker, key, tick, rng).await;
        sleep(Duration::from_millis(rng.u64(1..60))).await;
    }
}

async fn run_tick(worker: &Worker, key: String, tick: u64, rng: &mut Rng) {
    let wait = if rng.bool() { Duration::from_secs(3) } else { Duration::ZERO };
    let once = worker.handles.seal.once(key.as_str(), Tick::number(tick)).ttl(SMALLEST_TTL);
    let once = once.grace(worker.spec.least_grace).wait(wait);
    // Mostly short, sometimes past the ttl.
    let length = if rng.u8(..4) == 0 { rng.u64(200..2_800) } else { rng.u64(1..40) };
    let id = worker.spec.worker;
    let (begin, mut ran) = (now(), 0);
    let work = async |lease: &TickLease| -> mongoseal::Result<()> {
        let (token, at) = (lease.token().get(), now());
        ran = token;
        // The clock is read first: a lease that is valid now was valid at that time, too.
        if lease.lease().is_valid() {
            say(&Event::Works { worker: id, key: key.clone(), tick, token, at });
        }
        sleep(Duration::from_millis(length)).await;
        Ok(())
    };
    let outcome = match once.run(work).await {
        Ok(OnceOutcome::Ran(())) => "ran".into(),
        Ok(OnceOutcome::Skipped(Skipped::AlreadyDone { .. } | Skipped::Superseded { .. })) => "done".into(),
        Ok(OnceOutcome::Skipped(Skipped::Busy { .. })) => "busy".into(),
        Err(Error::Lost { .. } | Error::Ended { .. }) => "lost".into(),
        Err(Error::Unavailable { .. }) => "unavailable".into(),
        other => format!("{other:?}"),
    };
    // It lasts as long as its work.
    let within = Micros::MAX;
    let call = Call { worker: id, key, verb: "once".into(), begin, end: now(), within, outcome, ..Call::default() };
    say(&Event::Call(Call { tick, token: ran, ..call }));
}
