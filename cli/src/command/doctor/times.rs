//! Checks of times: clocks, round trips, commits.

use std::{fmt, time::Duration};

use mongoseal::{Mongoseal, store::Clock};

use super::Finding;
use crate::{
    command::driver::{Deployment, Offset},
    exit_status::Failure,
    time,
};

/// The number of measurements of each time.
const SAMPLES: usize = 10;
/// The default grace for the clock check: that of a lease with the default ttl.
pub(super) const GRACE: Duration = Duration::from_millis(500);
/// The longest median commit without a warning. A slower one endangers refreshes at a third of a short ttl.
const SLOW: Duration = Duration::from_millis(500);

const CLOCKS: &str = "clocks";

/// Compares the difference between the members' clocks with the smallest grace of the leases.
pub(super) async fn clocks(deployment: &Deployment, grace: Option<Duration>) -> Finding {
    let (mut offsets, mut silent) = (Vec::new(), Vec::new());
    for host in deployment.hosts() {
        match deployment.offset(&host).await {
            Ok(offset) => offsets.push((host, offset)),
            Err(_silent) => silent.push(host),
        }
    }
    compared(&offsets, &silent, grace.unwrap_or(GRACE))
}

fn compared(offsets: &[(String, Offset)], silent: &[String], grace: Duration) -> Finding {
    let advice = "run NTP on each member, or set a larger grace: after a failover to a member whose clock is ahead by more than the grace, two holders can believe that they hold a key";
    let shown_grace = time::format(grace);
    let grace = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    match spread(offsets) {
        // NTP keeps clocks far closer than half of the grace.
        Some((apart, uncertain, ahead))
            if apart.saturating_add(uncertain) > grace || apart.saturating_sub(uncertain) > grace / 2 =>
        {
            let found = format!(
                "{} apart, and the grace is {shown_grace}; {ahead} is ahead",
                difference("up to", apart, uncertain)
            );
            let is_above = apart.saturating_sub(uncertain) > grace;
            if is_above { Finding::fail(CLOCKS, found, advice) } else { Finding::warn(CLOCKS, found, advice) }
        }
        _ if !silent.is_empty() => Finding::warn(
            CLOCKS,
            format!("cannot read the clocks of {} from here", silent.join(", ")),
            "check that these members run NTP",
        ),
        None => Finding::pass(CLOCKS, "one member, so only one clock"),
        Some((apart, uncertain, _)) => {
            Finding::pass(CLOCKS, format!("{} apart", difference("at most", apart, uncertain)))
        }
    }
}

/// Returns the largest difference and its uncertainty, in milliseconds, and the member that is ahead. `None` for fewer
/// than two clocks.
fn spread(offsets: &[(String, Offset)]) -> Option<(i64, i64, &str)> {
    let first = offsets.iter().min_by_key(|(_, offset)| offset.millis)?;
    let last = offsets.iter().max_by_key(|(_, offset)| offset.millis)?;
    let uncertain = first.1.uncertain.saturating_add(last.1.uncertain);
    let uncertain = i64::try_from(uncertain.as_millis()).unwrap_or(i64::MAX);
    (offsets.len() > 1).then(|| (last.1.millis.saturating_sub(first.1.millis), uncertain, last.0.as_str()))
}

/// Measures round trips to a server, which `of` names. `ping`: makes one.
pub(super) async fn round_trip<T, E: fmt::Display>(of: &str, ping: impl AsyncFn() -> Result<T, E>) -> Finding {
    const CHECK: &str = "round trip";
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        let began = Clock::Boot.now();
        if let Err(refusal) = ping().await {
            return Finding::fail(CHECK, format!("the {of} stopped answering ({refusal})"), "retry");
        }
        times.push(Clock::Boot.now().since(began));
    }
    Finding::pass(CHECK, format!("{} to the {of} and back (median of {SAMPLES})", whole_millis(median(times))))
}

/// Measures the acquire of a shared lease, so that concurrent doctors do not wait for each other. `write` names what the
/// store confirms, and `of` the server or servers that do it.
pub(super) async fn commit(seal: &Mongoseal, write: &str, of: &str) -> Finding {
    const CHECK: &str = "commit";
    match commits(seal).await {
        Ok(times) => {
            let median = median(times);
            let found = format!("{} for {write} (median of {SAMPLES})", whole_millis(median));
            if median > SLOW {
                return Finding::warn(CHECK, found, format!("find out what slows the {of} down, and use longer ttls"));
            }
            Finding::pass(CHECK, found)
        }
        Err(failure) => Finding::refused(CHECK, &failure),
    }
}

async fn commits(seal: &Mongoseal) -> Result<Vec<Duration>, Failure> {
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        let began = Clock::Boot.now();
        let lease = seal.acquire("mongoseal/doctor").shared().await?;
        times.push(Clock::Boot.now().since(began));
        lease.release().await?;
    }
    Ok(times)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Formats a measured time, rounded up to whole milliseconds.
fn whole_millis(measured: Duration) -> String {
    time::format(measured.saturating_add(Duration::from_nanos(999_999)))
}

/// Formats a difference of clocks and its uncertainty, both in milliseconds.
pub(super) fn difference(bound: &str, apart: i64, uncertain: i64) -> String {
    let shown = |millis: i64| time::format(Duration::from_millis(millis.unsigned_abs()));
    format!("{bound} {} (± {})", shown(apart), shown(uncertain))
}

#[cfg(test)]
mod tests {
    use mongoseal::store::Ttl;

    use super::{super::Verdict, *};

    fn clock(name: &str, millis: i64, uncertain: u64) -> (String, Offset) {
        (name.into(), Offset { millis, uncertain: Duration::from_millis(uncertain) })
    }

    #[test]
    fn clocks_that_are_further_apart_than_the_grace_fail_and_near_it_they_are_told_and_who_is_ahead() {
        let found = compared(&[clock("a", 5_000, 2), clock("b", 5_400, 2), clock("c", 5_010, 2)], &[], GRACE);
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(found.found, "up to 400 ms (± 4 ms) apart, and the grace is 500 ms; b is ahead");
        let minute = Duration::from_secs(60);
        for (other, uncertain, grace, verdict) in [
            (5_200, 2, GRACE, Verdict::Pass),
            (5_254, 2, GRACE, Verdict::Pass),
            (5_255, 2, GRACE, Verdict::Warn),
            (5_504, 2, GRACE, Verdict::Warn),
            (5_505, 2, GRACE, Verdict::Fail),
            (-6_000, 2, GRACE, Verdict::Fail),
            (-6_000, 2, minute, Verdict::Pass),
            // Within the uncertainty, either side of a limit is possible.
            (5_400, 100, GRACE, Verdict::Warn),
            (5_000, 250, GRACE, Verdict::Pass),
            (5_000, 251, GRACE, Verdict::Warn),
        ] {
            let both = [clock("a", 5_000, uncertain), clock("b", other, uncertain)];
            assert_eq!(compared(&both, &[], grace).verdict, verdict, "{other} ± {uncertain}");
        }
        assert_eq!(compared(&[clock("a", 5_000, 2)], &["b".into()], GRACE).verdict, Verdict::Warn);
        assert_eq!(compared(&[clock("a", 5_000, 2)], &[], GRACE).verdict, Verdict::Pass);
    }

    #[tokio::test(start_paused = true)]
    async fn clocks_are_measured_against_the_default_grace_of_the_default_ttl() {
        let seal = Mongoseal::in_memory();
        let lease = seal.acquire("k").without_refresh().await.unwrap();
        let holders = seal.inspect("k").await.unwrap().unwrap().holders;
        assert_eq!(holders[0].free_in, Ttl::DEFAULT.duration() + GRACE);
        lease.release().await.unwrap();
    }
}
