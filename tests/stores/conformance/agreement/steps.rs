//! Random steps.

use std::{collections::HashSet, ops::RangeInclusive, time::Duration};

use mongoseal::{
    FencingToken, Json, LeaseId, Metadata, Sharing,
    record::{
        Acquire, BatchRequest, Complete, Downgrade, HoldLimits, LeaseSpec, Leave, PutValue, Raise, Refresh, Release,
        Request, Reset, Revoke, RunReport, Transfer, WaitSpec,
    },
    store::{AcquireId, HybridTime},
};
use proptest::{collection::vec, prelude::*};
use serde_json::json;

/// How many steps a key has: long sequences reach what is rare, and begin with short ones.
const LENGTH: RangeInclusive<usize> = 20..=32;

/// One step: a request, and how long to wait before it so that some entries expire.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) pause: Duration,
    pub(super) asked: Asked,
    /// Sends it once more, as after a lost reply.
    pub(super) twice: bool,
}

/// What is asked of a store.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Of(Request),
    /// Of those holders whose bits are set, in the order of the record; the last bit stands for one who
    /// never held.
    Jointly(BatchRequest, u8),
    /// Of the same key at the same time: acquires that wait, acquires that do not, or leaves.
    Together(Vec<Request>),
}

/// One of the few callers that ask with a lease.
fn acquire_id_of(lease: LeaseId, asks: u64) -> AcquireId {
    format!("{:016x}/{asks}", lease.to_bytes()[0]).parse().unwrap()
}

fn step() -> impl Strategy<Value = Step> {
    // Short times, so that they pass.
    let lease = lease_of();
    // The last is that of a lease without expiry.
    let millis = prop_oneof![2 => 1_u64..60, 8 => Just(60_000_u64), 1 => Just(220_752_000_000_000_u64)];
    let limit = prop_oneof![2 => Just(0_u32), 4 => 1_u32..5, 1 => Just(u32::try_from(i32::MAX).unwrap())];
    let grace = prop_oneof![3 => Just(0_u64), 1 => 1_u64..30];
    let patience = (millis.clone(), prop_oneof![1 => 1_u32..4, 2 => Just(u32::MAX)]);
    let patience =
        proptest::option::weighted(0.8, patience.prop_map(|(ttl, queue_limit)| WaitSpec { ttl, queue_limit }));
    // A minimum and a maximum hold, which few leases have. Short ones end within a sequence.
    let hold = || prop_oneof![6 => Just(None), 1 => (1_u64..60).prop_map(Some), 1 => Just(Some(60_000_u64))];
    let hold = (hold(), hold()).prop_map(|(min, max)| HoldLimits { min, max });
    let text = prop_oneof![Just("me"), Just("$owner"), Just("$$NOW"), Just("{\"$literal\": 1}")];
    let acquire =
        (lease.clone(), limit, millis.clone(), grace.clone(), patience, text, (any::<bool>(), 0_u64..3, hold))
            .prop_map(|(lease, limit, ttl, grace, patience, owner, (described, asks, hold))| {
                let mut metadata = Metadata::default();
                if described {
                    metadata.insert("note", owner).unwrap();
                }
                let group = described.then(|| owner.parse().unwrap());
                let acquire_id = acquire_id_of(lease, asks);
                let owner = owner.parse().unwrap();
                let terms = LeaseSpec {
                    lease,
                    acquire_id,
                    owner,
                    sharing: Sharing::from_limit(limit),
                    ttl,
                    grace,
                    group,
                    metadata,
                    hold,
                };
                Acquire { terms, wait: patience }
            });
    let joint = prop_oneof![
        Just(BatchRequest::Release),
        Just(BatchRequest::Revoke { by: "$ops".into(), reason: "$$ROOT".into() }),
        millis.clone().prop_map(|ttl| BatchRequest::Keep { ttl }),
    ];
    let which = prop_oneof![8 => 1_u8..8, 1 => any::<u8>()];
    let joint = (joint, which).prop_map(|(joint, which)| Asked::Jointly(joint, which));
    let refresh =
        (lease.clone(), millis, grace, any::<bool>(), 0_u64..6).prop_map(|(lease, ttl, grace, described, asks)| {
            let metadata = described.then(|| {
                let mut metadata = Metadata::default();
                metadata.insert("$x", "$$NOW").unwrap_err();
                metadata.insert("value", "$$NOW").unwrap();
                metadata
            });
            let acquire_id = (asks < 3).then(|| acquire_id_of(lease, asks));
            Request::Refresh(Refresh { lease, ttl, grace, metadata, acquire_id })
        });
    // With the token of a holder, if there is one: see `sent`.
    let release = lease.clone().prop_map(|lease| Request::Release(Release { lease, token: FencingToken::MAX }));
    let taken_back = (lease, 0_u64..3)
        .prop_map(|(lease, asks)| Request::Leave(Leave { lease, acquire_id: acquire_id_of(lease, asks) }));
    // Half of the revocations are of those who held before the last: see `sent`.
    let upto = prop_oneof![Just(FencingToken::MAX), Just(FencingToken::new(1).unwrap())];
    let revoke = upto.prop_map(|upto| Request::Revoke(Revoke { by: "$ops".into(), reason: "$$ROOT".into(), upto }));
    // Of a holder, if there is one: see `sent`.
    let transfer = (lease_of(), lease_of(), proptest::bool::ANY).prop_map(|(lease, to, is_upgrade)| {
        let transfer = Transfer { lease, token: FencingToken::MAX, to };
        if is_upgrade { Request::Upgrade(transfer) } else { Request::Transfer(transfer) }
    });
    let downgrade = (lease_of(), 0_u32..5).prop_map(|(lease, limit)| {
        Request::Downgrade(Downgrade { lease, token: FencingToken::MAX, sharing: Sharing::from_limit(limit) })
    });
    // From one less than the version to two hours above it: see `sent`.
    let to = prop_oneof![1_u64..7, Just(7_200 << HybridTime::ORDINAL_BITS)];
    let raise = to.prop_map(|to| Request::Raise(Raise { to: FencingToken::new(to).unwrap() }));
    // By the holder with this lease id, or by the first: see `sent`.
    let keep = prop_oneof![Just(0), Just(60_000), Just(1_000_000_000)];
    let report = (
        0_u64..100_000,
        proptest::bool::ANY,
        prop_oneof![Just(""), Just("$$ROOT")],
        prop_oneof![Just(None), Just(Some(60_000))],
    );
    let report =
        report.prop_map(|(took, is_failed, note, period)| RunReport { took, is_failed, note: note.into(), period });
    let complete = (lease_of(), 1_u64..9, keep, report).prop_map(|(lease, tick, keep, report)| {
        Request::Complete(Complete { lease, token: FencingToken::MAX, tick, by: "$$ROOT".into(), keep, report })
    });
    let put = put_value();
    let upto = prop_oneof![3 => Just(FencingToken::MAX), 1 => Just(FencingToken::new(1).unwrap())];
    let reset = (0_u64..9, upto).prop_map(|(tick, upto)| Request::Reset(Reset { tick, upto, by: "$ops".into() }));
    let together = (vec(acquire.clone(), 2..6), 0_u8..3).prop_map(|(mut acquires, verb)| {
        // With the same bound on how many wait.
        let room = acquires[0].wait.map_or(4, |wait| wait.queue_limit);
        for Acquire { terms, wait: patience } in &mut acquires {
            terms.sharing = Sharing::Exclusive;
            let lasts = patience.map_or(terms.ttl, |wait| wait.ttl);
            *patience = (verb == 0).then_some(WaitSpec { ttl: lasts, queue_limit: room });
        }
        let mut leases = HashSet::new();
        acquires.retain(|acquire| leases.insert(acquire.terms.lease));
        let request = |acquire: Acquire| match verb {
            0 | 1 => Request::Acquire(acquire),
            _ => Request::Leave(Leave { lease: acquire.terms.lease, acquire_id: acquire.terms.acquire_id }),
        };
        Asked::Together(acquires.into_iter().map(request).collect())
    });
    let acquire = acquire.prop_map(Request::Acquire);
    let request = prop_oneof![12 => acquire, 4 => refresh, 1 => release, 3 => taken_back, 1 => revoke, 3 => transfer, 2 => downgrade, 1 => raise, 3 => complete, 1 => reset, 3 => put, 3 => Just(Request::Prune)];
    let pause = prop_oneof![4 => Just(0_u64), 1 => 1_u64..25].prop_map(Duration::from_millis);
    let asked = prop_oneof![24 => request.prop_map(Asked::Of), 3 => joint, 3 => together];
    (pause, asked, proptest::bool::weighted(0.15)).prop_map(|(pause, asked, twice)| Step { pause, asked, twice })
}

/// A lease id of a few, so that requests meet.
fn lease_of() -> impl Strategy<Value = LeaseId> + Clone {
    (1_u8..=8).prop_map(|number| LeaseId::from_bytes([number; 16]))
}

/// A write of a value by the holder with this lease id, or by the first: see `sent`.
fn put_value() -> impl Strategy<Value = Request> {
    // After the last write, mostly: see `sent`.
    let content = prop_oneof![
        Just(None),
        Just(Some(Json::of(&json!({ "$x": { "a.b": ["$$ROOT", 0.1, null] } })).unwrap())),
        Just(Some(Json::of(&1.0).unwrap())),
    ];
    let ids = (prop_oneof![3 => Just(u64::MAX), 1 => 0_u64..3], 1_u64..9);
    let keep = prop_oneof![Just(0), Just(1_000_000_000)];
    (lease_of(), ids, content, keep, 0_u8..3).prop_map(|(lease, (after, write), content, keep, releases)| {
        let (token, releases) = (FencingToken::MAX, releases == 0);
        Request::PutValue(PutValue { lease, token, after, write, content, keep, releases })
    })
}

/// A step of a key that is mostly free: two leases acquire it, and release it.
fn calm_step() -> impl Strategy<Value = Step> {
    let request = (1_u8..=2, 0_u8..3, any::<bool>()).prop_map(|(number, verb, waits)| {
        let lease = LeaseId::from_bytes([number; 16]);
        if verb > 0 {
            return Request::Release(Release { lease, token: FencingToken::MAX });
        }
        let (acquire_id, owner) = (acquire_id_of(lease, 0), "me".parse().unwrap());
        let terms = LeaseSpec {
            lease,
            acquire_id,
            owner,
            sharing: Sharing::Exclusive,
            ttl: 60_000,
            grace: 5,
            group: None,
            metadata: Metadata::default(),
            hold: HoldLimits::default(),
        };
        let wait = waits.then_some(WaitSpec { ttl: 60_000, queue_limit: 9 });
        Request::Acquire(Acquire { terms, wait })
    });
    let pause = prop_oneof![4 => Just(0_u64), 1 => 1_u64..25].prop_map(Duration::from_millis);
    let asked = request.prop_map(Asked::Of);
    (pause, asked, proptest::bool::weighted(0.15)).prop_map(|(pause, asked, twice)| Step { pause, asked, twice })
}

/// The steps of a key: one key of four is mostly free.
pub(super) fn sequence() -> impl Strategy<Value = Vec<Step>> {
    prop_oneof![3 => vec(step(), LENGTH), 1 => vec(calm_step(), LENGTH)]
}
