//! Measures 100,000 leases of one handle that are held for minutes.

use std::{
    env,
    time::{Duration, Instant},
};

use mongoseal::{Lease, LeaseState};

use crate::{
    cpu,
    figures::Figures,
    many::{acquired, refreshes, resident},
    measured_set::MeasuredSet,
};

const TTL: Duration = Duration::from_secs(60);
/// How often the leases are looked at, which costs the client, too.
const LOOK: Duration = Duration::from_secs(10);

/// Keeps so many leases that the servers can just about refresh them. `MONGOSEAL_HOLD` says for how many seconds.
pub(crate) async fn measure(measured: &MeasuredSet, quick: bool) -> Figures {
    let hold = env::var("MONGOSEAL_HOLD").map_or(300, |seconds| seconds.parse().expect("it is a number of seconds"));
    let (many, time) = if quick { (5_000_u32, 2 * LOOK) } else { (100_000, Duration::from_secs(hold)) };
    let seal = measured.handle().await;
    // What is there once and for all is there then.
    drop(acquired(&seal, TTL, (0..many / 100).map(|number| format!("hold/first/{number:06}"))).await);
    let (before, began) = (resident(), Instant::now());
    let leases = acquired(&seal, TTL, (0..many).map(|number| format!("hold/{number:06}"))).await;
    let (acquiring, after) = (began.elapsed(), resident());
    let lost_before = Seen::of(&leases).lost;
    let clocks = measured.clocks().await;
    let counters = (refreshes(measured).await, cpu::of_client(), clocks.now().all);
    let began = Instant::now();
    let (mut least, mut at_risk) = (TTL, 0);
    while began.elapsed() < time {
        tokio::time::sleep(LOOK).await;
        let seen = Seen::of(&leases);
        (least, at_risk) = (seen.least.min(least), seen.at_risk.max(at_risk));
        let elapsed = began.elapsed().as_secs_f64();
        eprintln!("{elapsed:>4.0} s: {} lost, {} at risk, {:.1?} left at least", seen.lost, seen.at_risk, seen.least);
    }
    let took = began.elapsed();
    let ended = (refreshes(measured).await, cpu::of_client(), clocks.now().all);
    let at_end = resident();
    let lost = Seen::of(&leases).lost;
    let ending = Instant::now();
    seal.shutdown().await;
    let shutdown = ending.elapsed();
    let each = |bytes: usize| bytes.saturating_sub(before) / usize::try_from(many).unwrap_or(1);
    let refreshed = ended.0 - counters.0;
    let mut notes = vec![
        format!("{many} leases, acquired in {:.0} s, {lost_before} lost meanwhile", acquiring.as_secs_f64()),
        format!(
            "held for {:.0} s: {refreshed} refreshes, {lost} lost, {at_risk} at risk at most, {least:.1?} left at least",
            took.as_secs_f64()
        ),
        format!("client: {:.1} % of a core", share(counters.1, ended.1, took)),
        format!("{} bytes resident for each after acquiring, {} at the end", each(after), each(at_end)),
        format!("shutdown: {:.1} s", shutdown.as_secs_f64()),
    ];
    if !ended.2.is_zero() {
        notes.push(format!("servers: {:.0} % of a core", share(counters.2, ended.2, took)));
    }
    Figures { case: "hold-100000", what: "no time", rounds: vec![], commands: 0.0, notes }
}

fn share(before: Duration, after: Duration, took: Duration) -> f64 {
    100.0 * after.saturating_sub(before).as_secs_f64() / took.as_secs_f64()
}

/// What a look at leases finds.
struct Seen {
    lost: usize,
    at_risk: usize,
    /// The time that is left to the lease that has least, lost ones left out.
    least: Duration,
}

impl Seen {
    fn of(leases: &[Lease]) -> Self {
        let mut seen = Self { lost: 0, at_risk: 0, least: TTL };
        for lease in leases {
            match lease.state() {
                LeaseState::Held => seen.least = seen.least.min(lease.remaining()),
                LeaseState::AtRisk => {
                    seen.least = seen.least.min(lease.remaining());
                    seen.at_risk += 1;
                }
                _ => seen.lost += 1,
            }
        }
        seen
    }
}
