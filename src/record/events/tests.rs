use std::collections::BTreeSet;

use fastrand::Rng;

use super::*;
use crate::{
    record::{self, Acquire, LeaseSpec, Leave, Raise, Refresh, Request, Revoke, StoreClock, Transfer, WaitSpec},
    types::{acquire_id::AcquireId, lease_id::LeaseId, sharing::Sharing, token::HybridTime},
};

fn key() -> Key {
    "k".parse().unwrap()
}

fn changes(before: Option<&Record>, after: Option<&Record>, at: StoreTime) -> Vec<Event> {
    super::changes(&key(), before, after, at)
}

fn present(record: Option<&Record>, at: StoreTime) -> Vec<Event> {
    super::present(&key(), record, at)
}

/// A record and its events.
struct Bench {
    record: Option<Record>,
    millis: i64,
    ordinal: u64,
}

impl Bench {
    fn new() -> Self {
        Self { record: None, millis: 1_700_000_000_000, ordinal: 0 }
    }

    fn now(&self) -> StoreTime {
        StoreTime::from_millis(self.millis)
    }

    /// Applies a request and returns its events.
    fn send(&mut self, request: &Request) -> Vec<Event> {
        let before = self.record.take();
        self.ordinal += 1;
        let hlc = HybridTime { seconds: u64::try_from(self.millis / 1000).unwrap(), ordinal: self.ordinal };
        self.record = record::apply(before.as_ref(), StoreClock { now: self.now(), hlc }, request).0;
        changes(before.as_ref(), self.record.as_ref(), self.now())
    }

    /// The token of the last grant.
    fn version(&self) -> FencingToken {
        self.record.as_ref().unwrap().version
    }
}

fn lease(number: u8) -> LeaseId {
    LeaseId::from_bytes([number; 16])
}

fn acquire_id(number: u8) -> AcquireId {
    format!("{number:016x}/{number}").parse().unwrap()
}

fn acquire(number: u8, limit: u32, ttl: u64, wait_ttl: Option<u64>) -> Request {
    let terms = LeaseSpec::of_number(number, Sharing::from_limit(limit), ttl);
    Request::Acquire(Acquire { terms, wait: wait_ttl.map(|ttl| WaitSpec { ttl, queue_limit: 100 }) })
}

fn release(number: u8) -> Request {
    Request::Leave(Leave { lease: lease(number), acquire_id: acquire_id(number) })
}

fn revoke() -> Request {
    Request::Revoke(Revoke { by: "alice".into(), reason: "drill".into(), upto: FencingToken::MAX })
}

/// The kinds of events, in short.
fn kinds(events: &[Event]) -> Vec<&str> {
    let kind = |event: &Event| match event.kind {
        EventKind::Holds { .. } => "holds",
        EventKind::Granted { .. } => "granted",
        EventKind::Released => "released",
        EventKind::Expired => "expired",
        EventKind::Revoked { .. } => "revoked",
        EventKind::Transferred { .. } => "transferred",
        EventKind::Removed => "removed",
    };
    events.iter().map(kind).collect()
}

#[test]
fn a_hand_over_is_a_release_and_then_a_grant() {
    let mut bench = Bench::new();
    let granted = bench.send(&acquire(1, 0, 1000, None));
    assert_eq!(kinds(&granted), ["granted"]);
    let first = bench.version();
    assert_eq!((granted[0].token, granted[0].at, granted[0].owner.as_str()), (first, bench.now(), "owner 1"));
    let EventKind::Granted { holding } = &granted[0].kind else { panic!() };
    assert_eq!((holding.token, holding.sharing), (first, Sharing::Exclusive));
    assert_eq!(bench.send(&acquire(2, 0, 1000, Some(1000))), [], "queueing is no event");
    bench.millis += 5;
    assert_eq!(
        bench.send(&Request::Refresh(Refresh {
            lease: lease(1),
            ttl: 1000,
            grace: 0,
            metadata: None,
            acquire_id: None
        })),
        [],
        "a refresh is no event"
    );
    bench.millis += 5;
    let events = bench.send(&release(1));
    assert_eq!(kinds(&events), ["released", "granted"]);
    assert_eq!(events.iter().map(|event| event.token).collect::<Vec<_>>(), [first, bench.version()]);
    assert_eq!(events[0].at, bench.now());
}

#[test]
fn an_expired_lease_has_expired_whichever_request_removes_it() {
    for last in [release(1), revoke(), acquire(2, 0, 1000, None), Request::Prune] {
        let mut bench = Bench::new();
        bench.send(&acquire(1, 0, 1000, None));
        let end = bench.now().after(1000);
        bench.millis += 1000;
        let events = bench.send(&last);
        assert_eq!((&events[0].kind, events[0].at), (&EventKind::Expired, end), "{last:?}");
    }
    let mut bench = Bench::new();
    bench.send(&acquire(1, 0, 1000, None));
    bench.millis += 999;
    assert_eq!(kinds(&bench.send(&release(1))), ["released"]);
}

#[test]
fn a_revocation_has_operator_and_reason_and_one_of_an_earlier_token_does_not_count() {
    let mut bench = Bench::new();
    for number in [1, 2] {
        bench.send(&acquire(number, 9, 1000, None));
    }
    let events = bench.send(&revoke());
    let revoked = EventKind::Revoked { by: "alice".into(), reason: "drill".into() };
    assert!(events.len() == 2 && events.iter().all(|event| event.kind == revoked && event.at == bench.now()));
    // The same lease id again.
    bench.send(&acquire(1, 0, 1000, None));
    assert_eq!(kinds(&bench.send(&release(1))), ["released"]);
}

#[test]
fn a_transfer_is_one_event_with_both_tokens() {
    let mut bench = Bench::new();
    bench.send(&acquire(1, 0, 1000, None));
    let old = bench.version();
    bench.millis += 10;
    let transfer = Request::Transfer(Transfer { lease: lease(1), token: old, to: lease(7) });
    let events = bench.send(&transfer);
    assert_eq!(kinds(&events), ["transferred"]);
    let EventKind::Transferred { to } = &events[0].kind else { panic!() };
    assert_eq!((events[0].token, to.token, events[0].at), (old, bench.version(), bench.now()));
    assert_eq!(bench.send(&transfer), [], "a repeated request is no event");
    // A grant with the same lease id is a new grant.
    bench.millis += 1000;
    bench.send(&acquire(1, 0, 100, None));
    bench.millis += 100;
    assert_eq!(kinds(&bench.send(&acquire(1, 0, 100, None))), ["expired", "granted"]);
}

#[test]
fn a_deleted_record_removes_its_holders_and_one_put_back_holds_again() {
    let mut bench = Bench::new();
    bench.send(&acquire(1, 9, 1000, None));
    bench.send(&acquire(2, 9, 5000, None));
    let now = bench.now();
    assert_eq!(kinds(&changes(bench.record.as_ref(), None, now)), ["removed", "removed"]);
    assert_eq!(kinds(&changes(bench.record.as_ref(), None, now.after(1000))), ["expired", "removed"]);
    let older = bench.record.clone();
    bench.send(&release(1));
    bench.send(&release(2));
    bench.send(&acquire(3, 0, 5000, None));
    assert_eq!(kinds(&changes(bench.record.as_ref(), older.as_ref(), now)), ["removed", "holds", "holds"]);
    assert!(changes(None, None, now).is_empty());
}

#[test]
fn the_holder_of_the_newest_token_that_is_put_back_is_no_grant() {
    let mut bench = Bench::new();
    bench.send(&acquire(1, 0, 1000, None));
    let whole = bench.record.clone();
    bench.send(&release(1));
    let events = changes(bench.record.as_ref(), whole.as_ref(), bench.now());
    assert_eq!(kinds(&events), ["holds"]);
}

#[test]
fn an_expired_holder_is_reported_once_and_never_as_a_holder() {
    let mut bench = Bench::new();
    bench.send(&acquire(1, 9, 1000, None));
    bench.send(&acquire(2, 9, 5000, None));
    let record = bench.record.clone();
    let over = bench.now().after(1000);
    assert_eq!(kinds(&present(record.as_ref(), bench.now())), ["holds", "holds"]);
    assert_eq!(kinds(&present(record.as_ref(), over)), ["holds"]);
    // Nothing has changed, but time has passed.
    assert_eq!(kinds(&changes(record.as_ref(), record.as_ref(), over)), ["expired"]);
    let reported = record.map(|record| without_expired(record, over));
    assert_eq!(changes(reported.as_ref(), bench.record.as_ref(), over), []);
    bench.millis += 1000;
    bench.send(&release(2));
    assert_eq!(kinds(&changes(reported.as_ref(), bench.record.as_ref(), bench.now())), ["released"]);
}

/// A random request: of few leases, so that requests meet, and with short ttls, so that leases expire.
fn request(rng: &mut Rng) -> Request {
    let number = rng.u8(1..6);
    let ttl = |rng: &mut Rng| if rng.bool() { rng.u64(1..50) } else { 5_000 };
    match rng.u8(..19) {
        0..8 => {
            let (limit, time) = (rng.u32(..4), ttl(rng));
            let wait_ttl = (rng.u8(..10) < 7).then(|| ttl(rng));
            acquire(number, limit, time, wait_ttl)
        }
        8..10 => Request::Refresh(Refresh {
            lease: lease(number),
            ttl: ttl(rng),
            grace: 0,
            metadata: None,
            acquire_id: None,
        }),
        10..14 => release(number),
        14..16 => {
            let to = lease(rng.u8(1..6));
            let transfer = Transfer { lease: lease(number), token: FencingToken::MAX, to };
            if rng.bool() { Request::Transfer(transfer) } else { Request::Upgrade(transfer) }
        }
        16 => revoke(),
        17 => Request::Prune,
        _ => Request::Raise(Raise { to: FencingToken::MIN }),
    }
}

#[test]
fn the_holders_follow_from_all_events() {
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        let mut bench = Bench::new();
        let mut holding = BTreeSet::new();
        // Each acquire has a number of its own.
        for number in 1000..1000 + rng.u64(1..40) {
            bench.millis += if rng.bool() { rng.i64(1..20) } else { 0 };
            let mut request = request(&mut rng);
            if let Request::Acquire(acquire) = &mut request {
                acquire.terms.acquire_id.number = number;
            }
            if let (Request::Transfer(transfer) | Request::Upgrade(transfer), Some(record)) =
                (&mut request, &bench.record)
            {
                transfer.token = record.holder(transfer.lease).map_or(FencingToken::MAX, |holder| holder.version);
            }
            if let (Request::Raise(raise), Some(record)) = (&mut request, &bench.record) {
                raise.to = FencingToken::new(record.version.get() + (1 << HybridTime::ORDINAL_BITS)).unwrap();
            }
            let said = format!("seed {seed}, {number}: {request:?}");
            for Event { token, kind, .. } in bench.send(&request) {
                match kind {
                    EventKind::Granted { holding: granted } => {
                        assert!(holding.insert(token) && granted.token == token, "{said}: {token} was granted twice");
                    }
                    EventKind::Transferred { to } => {
                        assert!(holding.remove(&token) && to.token > token && holding.insert(to.token), "{said}");
                        assert!(matches!(request, Request::Transfer(_) | Request::Upgrade(_)), "{said}");
                    }
                    EventKind::Revoked { .. } => {
                        assert!(holding.remove(&token) && matches!(request, Request::Revoke(_)), "{said}");
                    }
                    EventKind::Released => {
                        assert!(holding.remove(&token) && matches!(request, Request::Leave(_)), "{said}");
                    }
                    EventKind::Expired => assert!(holding.remove(&token), "{said}"),
                    EventKind::Holds { .. } | EventKind::Removed => panic!("{said}: {kind:?} of no operator"),
                }
            }
            let holders = bench.record.iter().flat_map(|record| &record.holders);
            assert_eq!(holding, holders.map(|holder| holder.version).collect::<BTreeSet<_>>(), "{said}");
        }
    }
}
