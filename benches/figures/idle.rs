//! Counts the commands of waiters while the key stays held.

use std::time::Duration;

use crate::{figures::Figures, measured_set::MeasuredSet};

const HANDLES: usize = 8;

/// Counts what eight waiters with clients of their own send while nothing happens.
pub(crate) async fn measure(measured: &MeasuredSet, quick: bool) -> Figures {
    let seconds: u32 = if quick { 3 } else { 10 };
    let time = Duration::from_secs(seconds.into());
    let clocks = measured.clocks().await;
    let ((), without) = clocks.spent(tokio::time::sleep(time)).await;
    let holder = measured.handle().await;
    let lease = holder.acquire("idle").await.expect("the key is free");
    let mut handles = Vec::new();
    let mut waiting = Vec::new();
    for _ in 0..HANDLES {
        let seal = measured.handle().await;
        let waiter = seal.acquire("idle").wait(Duration::MAX);
        // Each releases what it is granted, because they may be queued in any order.
        waiting.push(tokio::spawn(async move {
            let lease = waiter.await.expect("it is granted");
            lease.release().await.expect("it is released");
        }));
        handles.push(seal);
    }
    // Until all of them are queued and listen.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let sent = ["findAndModify", "find", "aggregate"];
    let mut before = Vec::new();
    for name in sent {
        before.push(measured.commands(name).await);
    }
    let reads = measured.commands("getMore").await;
    let ((), with) = clocks.spent(tokio::time::sleep(time)).await;
    let mut notes = Vec::new();
    let mut commands = 0;
    for (name, before) in sent.into_iter().zip(before) {
        let count = measured.commands(name).await - before;
        notes.push(format!("{count} {name} in {seconds} s"));
        commands += count;
    }
    let reads = measured.commands("getMore").await - reads;
    notes.push(format!(
        "{reads} getMore in {seconds} s, of {HANDLES} change streams and of the members' own oplog readers"
    ));
    if !with.primary.is_zero() {
        let millis = |spent: Duration| spent.as_secs_f64() * 1e3 / f64::from(seconds);
        notes.push(format!(
            "primary: {:.1} ms of processor time a second, {:.1} ms before the first handle connected",
            millis(with.primary),
            millis(without.primary)
        ));
    }
    lease.release().await.expect("it is released");
    for waiter in waiting {
        waiter.await.expect("no waiter panics");
    }
    for seal in handles {
        seal.shutdown().await;
    }
    holder.shutdown().await;
    #[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
    let commands = commands as f64 / f64::from(seconds);
    Figures { case: "idle-waiters", what: "commands a second of 8 waiters together", rounds: vec![], commands, notes }
}
