//! Clocks, round trips and commits.

use std::time::Duration;

use mongoseal::{Clock, Mongoseal};

use super::{
    Finding,
    driver::{Deployment, Offset, doc},
};
use crate::status::Failure;

/// How often each is measured.
const TIMES: usize = 10;
/// From when on a difference of clocks is worth a word, and from when on it ends leases of the default ttl.
const NOTICEABLE: i64 = 250;
const HARMFUL: i64 = 10_000;
/// From when on a commit takes too long for refreshes at a third of a short ttl.
const SLOW: Duration = Duration::from_millis(500);

const CLOCKS: &str = "clocks";

/// How far the clocks of the members are apart.
pub(super) async fn clocks(deployment: &Deployment) -> Finding {
    let (mut offsets, mut silent) = (Vec::new(), Vec::new());
    for host in deployment.hosts() {
        match deployment.offset(&host).await {
            Ok(offset) => offsets.push((host, offset)),
            Err(_silent) => silent.push(host),
        }
    }
    compared(&offsets, &silent)
}

fn compared(offsets: &[(String, Offset)], silent: &[String]) -> Finding {
    let advice = "run NTP on each: after a failover to a member whose clock is ahead, leases end that much sooner";
    match spread(offsets) {
        // What may be an error of the measurement counts for nothing.
        Some((apart, uncertain, ahead)) if apart.saturating_sub(uncertain) > NOTICEABLE => {
            let found = format!("up to {apart} ms apart, give or take {uncertain} ms; {ahead} is ahead");
            let harmful = apart.saturating_sub(uncertain) > HARMFUL;
            if harmful { Finding::fail(CLOCKS, found, advice) } else { Finding::warn(CLOCKS, found, advice) }
        }
        _ if !silent.is_empty() => Finding::warn(
            CLOCKS,
            format!("not all could be asked from here, not these: {}", silent.join(", ")),
            "see to it yourself that they run NTP",
        ),
        None => Finding::pass(CLOCKS, "there is one member, whose clock is the only one"),
        Some((apart, uncertain, _)) => {
            Finding::pass(CLOCKS, format!("at most {apart} ms apart, give or take {uncertain} ms"))
        }
    }
}

/// How far they are apart and how uncertain that is, in milliseconds, and which is ahead. `None` of one alone.
fn spread(offsets: &[(String, Offset)]) -> Option<(i64, i64, &str)> {
    let first = offsets.iter().min_by_key(|(_, offset)| offset.millis)?;
    let last = offsets.iter().max_by_key(|(_, offset)| offset.millis)?;
    let uncertain = first.1.uncertain.saturating_add(last.1.uncertain);
    let uncertain = i64::try_from(uncertain.as_millis()).unwrap_or(i64::MAX);
    (offsets.len() > 1).then(|| (last.1.millis.saturating_sub(first.1.millis), uncertain, last.0.as_str()))
}

pub(super) async fn round_trip(deployment: &Deployment) -> Finding {
    const CHECK: &str = "round trip";
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let began = Clock::Boot.now();
        if let Err(refusal) = deployment.admin(doc! { "ping": 1 }).await {
            return Finding::fail(CHECK, format!("the primary ceased to answer, {refusal}"), "ask again");
        }
        times.push(Clock::Boot.now().saturating_sub(began));
    }
    Finding::pass(CHECK, format!("{} to the primary and back, the median of {TIMES}", millis(median(times))))
}

/// What a lease costs, by one that is shared, so that two who ask at once do not meet.
pub(super) async fn commit(seal: &Mongoseal) -> Finding {
    const CHECK: &str = "commit";
    match commits(seal).await {
        Ok(times) => {
            let median = median(times);
            let found = format!("{} for a write that a majority confirms, the median of {TIMES}", millis(median));
            if median > SLOW {
                return Finding::warn(
                    CHECK,
                    found,
                    "find out what slows the replica set down, and hold leases for long enough",
                );
            }
            Finding::pass(CHECK, found)
        }
        Err(failure) => Finding::refused(CHECK, &failure),
    }
}

async fn commits(seal: &Mongoseal) -> Result<Vec<Duration>, Failure> {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let began = Clock::Boot.now();
        let lease = seal.acquire("mongoseal/doctor").shared().await?;
        times.push(Clock::Boot.now().saturating_sub(began));
        lease.release().await?;
    }
    Ok(times)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    fn clock(name: &str, millis: i64, uncertain: u64) -> (String, Offset) {
        (name.into(), Offset { millis, uncertain: Duration::from_millis(uncertain) })
    }

    #[test]
    fn clocks_that_are_apart_by_more_than_may_be_an_error_are_told_and_who_is_ahead() {
        let found = compared(&[clock("a", 5_000, 2), clock("b", 5_400, 2), clock("c", 5_010, 2)], &[]);
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(found.found, "up to 400 ms apart, give or take 4 ms; b is ahead");
        for (other, uncertain, verdict) in
            [(5_200, 2, Verdict::Pass), (5_400, 100, Verdict::Pass), (-6_000, 2, Verdict::Fail)]
        {
            let both = [clock("a", 5_000, uncertain), clock("b", other, uncertain)];
            assert_eq!(compared(&both, &[]).verdict, verdict, "{other}");
        }
        assert_eq!(compared(&[clock("a", 5_000, 2)], &["b".into()]).verdict, Verdict::Warn);
        assert_eq!(compared(&[clock("a", 5_000, 2)], &[]).verdict, Verdict::Pass);
    }
}
