//! Measures what an observer with metrics costs this process.

use std::{sync::Arc, time::Duration};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use mongoseal::{Builder, Mongoseal, metrics::MetricsObserver};

use crate::{
    cpu,
    figures::{Figures, Round, Samples},
    measured_set::{MeasuredSet, as_users},
};

/// As in the documentation.
const BUCKETS: [f64; 13] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0];
/// The blocks of each kind in a round.
const BLOCKS: u32 = 10;

/// Acquires and releases with metrics in a recorder of Prometheus, beside the same without an observer: on the set, and
/// in memory, where nothing else of the cycle costs as much.
pub(crate) async fn measure(measured: &MeasuredSet, quick: bool) -> Vec<Figures> {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Prefix("mongoseal".into()), &BUCKETS)
        .expect("there are buckets")
        .install_recorder()
        .expect("no other case installs a recorder");
    let observed = || Mongoseal::builder().observer(Arc::new(MetricsObserver::new()));

    let connect = |builder: Builder| builder.database("mongoseal_figures").connect(as_users(measured.set));
    let (with, without) = (connect(observed()).await, connect(Mongoseal::builder()).await);
    let (with, without) = (with.expect("the set is fit"), without.expect("the set is fit"));
    let before = measured.writes_sent().await;
    let on_set = rounds(measured.rounds, 20, &with, &without).await;
    let cycles = 2 * 20 * (BLOCKS + 1) * u32::try_from(measured.rounds).expect("there are few rounds");
    let sent = u32::try_from(measured.writes_sent().await - before).expect("a case sends few commands");
    with.shutdown().await;
    without.shutdown().await;

    let (with, without) = (observed().in_memory(), Mongoseal::builder().in_memory());
    let (with, without) = (with.expect("the settings are valid"), without.expect("the settings are valid"));
    let in_memory = rounds(measured.rounds, if quick { 200 } else { 5_000 }, &with, &without).await;
    with.shutdown().await;
    without.shutdown().await;

    let page = recorder.render();
    for name in ["mongoseal_acquire_duration_bucket", "mongoseal_lease_held_duration_sum", "mongoseal_leases 0"] {
        assert!(page.contains(name), "{name} is missing:\n{page}");
    }
    let what = "processor time of an acquire and a release with metrics, beside those without an observer";
    vec![
        figures("observed", what, on_set, f64::from(sent) / f64::from(cycles)),
        figures("observed-in-memory", "the same on the memory store", in_memory, 0.0),
    ]
}

fn figures(case: &'static str, what: &'static str, rounds: Vec<Round>, commands: f64) -> Figures {
    let sum = |of: fn(&Round) -> &Samples| rounds.iter().flat_map(|round| &of(round).took).sum::<Duration>();
    let blocks = BLOCKS * u32::try_from(rounds.len()).expect("there are few rounds");
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(blocks);
    let (with, without) = (each(sum(|round| &round.ours)), each(sum(|round| &round.floor)));
    let notes =
        vec![format!("mean: {with:.1} µs with metrics, {without:.1} µs without, {:.1} µs more", with - without)];
    Figures { case, what, rounds, commands, notes }
}

/// In each round, blocks with and without metrics take turns.
async fn rounds(count: usize, cycles: u32, with: &Mongoseal, without: &Mongoseal) -> Vec<Round> {
    let mut rounds = Vec::new();
    for _ in 0..count {
        let (mut ours, mut floor) = (Samples::default(), Samples::default());
        // The first block warms up.
        for block in 0..=BLOCKS {
            // Each is first in every other block.
            let (took, took_without) = if block % 2 == 0 {
                (spent(with, cycles).await, spent(without, cycles).await)
            } else {
                let first = spent(without, cycles).await;
                (spent(with, cycles).await, first)
            };
            if block > 0 {
                ours.took.push(took);
                floor.took.push(took_without);
            }
        }
        rounds.push(Round { ours, floor });
    }
    rounds
}

/// The processor time of this process for one cycle, as the mean of a block.
async fn spent(seal: &Mongoseal, cycles: u32) -> Duration {
    let before = cpu::of_client();
    for _ in 0..cycles {
        let lease = seal.acquire("observed").await.expect("the key is free");
        lease.release().await.expect("it is released");
    }
    cpu::of_client().saturating_sub(before) / cycles
}
