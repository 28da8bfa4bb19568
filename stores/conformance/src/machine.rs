//! The requirement behind all others: a store does what the state machine does.

use super::fixture::{Fixture, terms};
use mongoseal::{
    FencingToken, Json, LeaseId, Sharing,
    record::{
        Acquire, Complete, Downgrade, HoldLimits, LeaseSpec, Leave, PutValue, Raise, Record, Refresh, Release, Request,
        Reset, Revoke, RunReport, Transfer, WaitSpec,
    },
    store::HybridTime,
};

/// [`Fixture::send`] compares each of them with the state machine.
pub(super) async fn random_requests_do_what_the_state_machine_does(fixture: Fixture) {
    for _ in 0..200 {
        fixture.send(random(fixture.known().as_ref())).await;
    }
}

/// A request of one of a few leases, so that requests meet. Some have a short ttl.
fn random(met: Option<&Record>) -> Request {
    let lease = || LeaseId::from_bytes([fastrand::u8(1..=6); 16]);
    let millis = || if fastrand::u8(0..5) == 0 { fastrand::u64(1..60) } else { 60_000 };
    let acquire_id = |lease: LeaseId| {
        let text = format!("{:016x}/{}", lease.to_bytes()[0], fastrand::u8(0..2));
        text.parse().expect("the text is an acquire id")
    };
    let taken_back = || {
        let lease = lease();
        Request::Leave(Leave { lease, acquire_id: acquire_id(lease) })
    };
    // A minimum or a maximum hold, which few leases have. Most end within the requirement.
    let hold = || (fastrand::u8(0..8) == 0).then(|| fastrand::u64(1..80));
    let first = met.and_then(|record| record.holders.first());
    match fastrand::u8(0..31) {
        0..=10 => {
            let lease = lease();
            let terms = LeaseSpec {
                lease,
                acquire_id: acquire_id(lease),
                sharing: Sharing::from_limit(fastrand::u32(0..4)),
                ttl: millis(),
                grace: fastrand::u64(0..20),
                hold: HoldLimits { min: hold(), max: hold() },
                ..terms()
            };
            let wait = WaitSpec { ttl: millis(), queue_limit: fastrand::u32(1..6) };
            Request::Acquire(Acquire { terms, wait: (fastrand::u8(0..4) > 0).then_some(wait) })
        }
        11..=13 => {
            let lease = lease();
            let acquire_id = (fastrand::u8(0..3) == 0).then(|| acquire_id(lease));
            Request::Refresh(Refresh { lease, ttl: millis(), grace: 0, metadata: None, acquire_id })
        }
        14..=15 => taken_back(),
        16..=17 => first.map_or_else(taken_back, |first| {
            Request::Release(Release { lease: first.terms.lease, token: first.version })
        }),
        18 => Request::Revoke(Revoke {
            by: "ops".into(),
            reason: "drill".into(),
            upto: first.map_or(FencingToken::MAX, |first| first.version),
        }),
        19 => Request::Prune,
        20 => {
            let version = met.map_or(0, |record| record.version.get());
            let more = [0, 1, 5, 7_200 << HybridTime::ORDINAL_BITS][fastrand::usize(0..4)];
            let to =
                FencingToken::new(version.saturating_add(more).max(1)).expect("the token is far below the largest");
            Request::Raise(Raise { to })
        }
        21..=22 => first.map_or(Request::Prune, |first| {
            let (lease, token) = (first.terms.lease, first.version);
            Request::Downgrade(Downgrade { lease, token, sharing: Sharing::from_limit(fastrand::u32(0..4)) })
        }),
        // The lease may have been released, or may have expired.
        23..=25 => first.map_or_else(taken_back, |first| {
            let (tick, keep) = (fastrand::u64(1..9), fastrand::u64(0..100_000));
            let (lease, token) = (first.terms.lease, first.version);
            let report = RunReport {
                took: fastrand::u64(0..100_000),
                is_failed: fastrand::bool(),
                note: "$$ROOT".into(),
                period: fastrand::bool().then_some(60_000),
            };
            Request::Complete(Complete { lease, token, tick, by: "$$ROOT".into(), keep, report })
        }),
        26 => Request::Reset(Reset { tick: fastrand::u64(0..9), upto: FencingToken::MAX, by: "$ops".into() }),
        27..=29 => first.map_or_else(taken_back, |first| {
            let (lease, token, value) =
                (first.terms.lease, first.version, met.and_then(|record| record.value.as_ref()));
            let last = value.filter(|value| value.token == token).map_or(0, |value| value.write);
            let after = if fastrand::u8(0..4) == 0 { fastrand::u64(0..3) } else { last };
            let content = fastrand::bool().then(|| Json::of("$$ROOT").expect("the content is small"));
            let (write, keep, releases) = (fastrand::u64(1..9), fastrand::u64(0..100_000), fastrand::u8(0..4) == 0);
            Request::PutValue(PutValue { lease, token, after, write, content, keep, releases })
        }),
        _ => first.map_or(
            Request::Refresh(Refresh { lease: lease(), ttl: 1, grace: 0, metadata: None, acquire_id: None }),
            |first| {
                let transfer = Transfer { lease: first.terms.lease, token: first.version, to: lease() };
                if fastrand::bool() { Request::Transfer(transfer) } else { Request::Upgrade(transfer) }
            },
        ),
    }
}
