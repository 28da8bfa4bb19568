//! The part of a worker process that runs schedules.

use mongoseal::{
    Error, Mongoseal, OnceOutcome, Result, Skipped, Tick,
    store::{Clock, Instant},
};
use tokio::time::sleep;

use crate::{
    millis,
    words::{Schedule, Word, now},
    worker::say,
};

/// Runs the ticks in their order. If it waits, it goes on to the next tick only when the one before is completed, by
/// whichever process.
pub(crate) async fn run(seal: &Mongoseal, schedule: &Schedule) {
    let mut due = schedule.begin;
    for tick in 0..=schedule.last {
        if tick >= schedule.first {
            Clock::Boot.sleep_until(Instant::at(due)).await;
            while !attempt(seal, schedule, tick).await {}
        }
        due += schedule.every;
    }
    say(&Word::Through { schedule: schedule.key.clone() });
}

/// Runs a tick, unless another process does. Returns whether this process is done with it.
async fn attempt(seal: &Mongoseal, schedule: &Schedule, tick: u64) -> bool {
    let wait = schedule.wait.unwrap_or_default();
    let once = seal.once(&schedule.key, Tick::number(tick)).ttl(schedule.ttl).wait(wait);
    let named = || schedule.key.clone();
    let mut ran = None;
    let work = async |lease: &mongoseal::TickLease| -> Result<()> {
        let (at, token) = (now(), lease.token());
        ran = Some(token);
        // The clock is read first: a lease that is valid now was valid at that time, too.
        say(&Word::Runs { schedule: named(), tick, token, at: lease.lease().is_valid().then_some(at) });
        sleep(millis(fastrand::u64(1..=schedule.work))).await;
        if schedule.stays {
            say(&Word::Worked { schedule: named(), tick });
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    match once.run(work).await {
        Ok(OnceOutcome::Ran(())) => {
            let token = ran.expect("the work has run");
            say(&Word::Ran { schedule: named(), tick, token, at: now() });
            true
        }
        Ok(OnceOutcome::Skipped(Skipped::AlreadyDone { .. } | Skipped::Superseded { .. })) => true,
        Ok(OnceOutcome::Skipped(Skipped::Busy { .. })) => {
            say(&Word::Skips { schedule: named(), tick });
            schedule.wait.is_none()
        }
        Err(error @ (Error::Lost { .. } | Error::Unavailable { .. })) => {
            say(&Word::Unfinished { schedule: named(), tick, error: error.to_string() });
            schedule.wait.is_none()
        }
        other => {
            say(&Word::Failed { waiter: 0, error: format!("{tick}: {other:?}") });
            true
        }
    }
}
