//! Clauses on leases.

use std::time::Duration;

use super::bench::{Bench, LONG, LONGEST_REQUEST, SHORT, leave, once, refresh, release, terms, wait};
use crate::{
    FencingToken, HybridTime, Metadata,
    record::{Downgrade, LeaseSpec, Outcome, Raise, Record, Request, Revoke, StoreTime, Transfer},
};

pub(super) async fn a_free_key_is_granted_and_read_at_once(bench: Bench) {
    assert_eq!(bench.seen().await.0, None, "a new key has no record");
    let terms = terms();
    let token = bench.granted(once(&terms)).await;
    let record = bench.record().await;
    assert_eq!(record.version, token, "the record's version is the highest token");
    assert_eq!(record.holders.len(), 1, "one holds it");
    assert_eq!((&record.holders[0].terms, record.holders[0].version), (&terms, token), "it is the one who asked");
}

pub(super) async fn a_held_key_is_refused_and_its_record_stays_as_it_is(bench: Bench) {
    let first = terms();
    let token = bench.granted(once(&first)).await;
    let before = bench.record().await;
    match bench.applied(once(&terms())).await {
        applied @ crate::store::Applied { outcome: Outcome::Refused { .. }, .. } => {
            assert!(!applied.changed, "an answer of a request that changed nothing does not say that it did");
            let Outcome::Refused { holder } = applied.outcome else { return };
            assert_eq!(holder.version, token, "whoever is refused is told of the holder");
            let left = holder.expires_at.since(applied.at.expect("there is a record").now);
            assert!(left > Duration::from_millis(LONG / 2), "and how long it holds: {left:?}");
        }
        other => panic!("a held key is refused, and not {other:?}"),
    }
    assert_eq!(bench.record().await, before, "a refusal changes nothing");
}

pub(super) async fn the_same_request_again_keeps_its_token(bench: Bench) {
    let mut terms = terms();
    let token = bench.granted(once(&terms)).await;
    let before = bench.record().await;
    assert_eq!(bench.granted(once(&terms)).await, token, "the same lease id keeps its token");
    assert_ne!(bench.record().await, before, "an answer that says so comes from a write");
    terms.owner = "another process".parse().expect("it is an owner");
    bench.granted(once(&terms)).await;
    assert_eq!(bench.holders().await[0].terms.owner, terms.owner, "who takes a lease up is who others see");
}

pub(super) async fn tokens_grow_over_release_and_expiry(bench: Bench) {
    let mut last = None;
    for ttl in [LONG, SHORT, LONG] {
        let terms = LeaseSpec { ttl, ..terms() };
        let token = bench.granted(once(&terms)).await;
        assert!(Some(token) > last, "{token} comes after {last:?}");
        last = Some(token);
        if ttl == SHORT {
            let end = bench.holders().await[0].expires_at;
            bench.pass(end).await;
        } else {
            assert_eq!(bench.send(release(&terms, token)).await, Outcome::Released, "it is released");
        }
    }
}

pub(super) async fn a_lease_ends_at_its_ttl_and_not_before(bench: Bench) {
    let short = LeaseSpec { ttl: SHORT, ..terms() };
    bench.granted(once(&short)).await;
    let holder = bench.holders().await.remove(0);
    assert_eq!(holder.expires_at, holder.since.after(SHORT), "the store counts the ttl from when it granted the key");
    loop {
        let applied = bench.applied(once(&terms())).await;
        let now = applied.at.expect("there is a record").now;
        match applied.outcome {
            Outcome::Refused { .. } => assert!(now < holder.expires_at, "refused at {now:?}, after its end"),
            Outcome::Granted { .. } => {
                assert!(now >= holder.expires_at, "granted at {now:?}, before the other's end");
                return;
            }
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(super) async fn a_refresh_pushes_the_end_out_and_never_creates(bench: Bench) {
    // Long enough for three requests to a store that has much to do.
    let short = LeaseSpec { ttl: 2_000, ..terms() };
    assert_eq!(bench.send(refresh(&short)).await, Outcome::Absent, "what is not there is not created");
    assert_eq!(bench.seen().await.0, None, "not even a record");
    let token = bench.granted(once(&short)).await;
    let before = bench.holders().await.remove(0);
    assert_eq!(bench.send(refresh(&LeaseSpec { ttl: 1, ..short.clone() })).await, Outcome::Refreshed { token });
    assert!(bench.holders().await[0].expires_at >= before.expires_at, "a refresh never pulls the end in");
    bench.send(refresh(&short)).await;
    let after = bench.holders().await.remove(0);
    assert!(after.refreshes > before.refreshes, "each refresh is counted");
    bench.pass(after.expires_at).await;
    assert_eq!(bench.send(refresh(&short)).await, Outcome::Absent, "what has expired is over");
}

pub(super) async fn grace_keeps_the_key_after_the_ttl_and_a_release_ends_it(bench: Bench) {
    let graceful = LeaseSpec { ttl: SHORT, grace: LONG, ..terms() };
    let token = bench.granted(once(&graceful)).await;
    let ttl_over = bench.holders().await[0].since.after(SHORT);
    bench.pass(ttl_over).await;
    assert!(matches!(bench.send(once(&terms())).await, Outcome::Refused { .. }), "the grace keeps others out");
    assert_eq!(bench.send(release(&graceful, token)).await, Outcome::Released);
    bench.granted(once(&terms())).await;
}

pub(super) async fn a_release_ends_its_own_lease_and_no_other(bench: Bench) {
    let first = terms();
    let old = bench.granted(once(&first)).await;
    assert_eq!(bench.send(release(&terms(), old)).await, Outcome::Absent, "nobody else's");
    assert_eq!(bench.send(release(&first, old)).await, Outcome::Released);
    assert_eq!(bench.send(release(&first, old)).await, Outcome::Absent, "it can be sent twice");
    let new = bench.granted(once(&first)).await;
    assert_eq!(bench.send(release(&first, old)).await, Outcome::Absent, "not a later grant of the same id");
    let again = LeaseSpec { caller: terms().caller, ..first.clone() };
    assert_eq!(bench.granted(once(&again)).await, new, "the lease is taken up by another acquire");
    assert_eq!(bench.send(leave(&first)).await, Outcome::Absent, "not what another acquire with the same id holds");
    assert_eq!(bench.send(leave(&again)).await, Outcome::Released, "what the acquire itself holds");
    assert_eq!(bench.record().await.version, new, "the record stays: its version is the point");
}

pub(super) async fn of_many_who_ask_at_once_one_is_granted_the_key(bench: Bench) {
    let asked: Vec<_> = (0..24)
        .map(|_| {
            let bench = bench.clone();
            #[allow(clippy::disallowed_methods, reason = "waited for below")]
            tokio::spawn(async move {
                loop {
                    match bench.store.apply(&bench.key, once(&terms()).into(), bench.deadline()).await {
                        Ok(applied) => return matches!(applied.outcome, Outcome::Granted { .. }),
                        Err(crate::Error::Unavailable { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    let mut granted = 0_usize;
    for one in asked {
        granted = granted.saturating_add(usize::from(one.await.expect("it does not panic")));
    }
    assert_eq!(granted, 1, "one of 24");
}

pub(super) async fn sharers_are_as_many_as_all_of_them_allow(bench: Bench) {
    let sharing = |limit| LeaseSpec { limit, ..terms() };
    let first = bench.granted(once(&sharing(3))).await;
    let second = bench.granted(once(&sharing(2))).await;
    assert!(second > first, "each has a token of its own");
    assert!(matches!(bench.send(once(&sharing(3))).await, Outcome::Refused { .. }), "one of them allows two");
    assert!(matches!(bench.send(once(&sharing(0))).await, Outcome::Refused { .. }), "0 is alone");
}

pub(super) async fn a_revocation_ends_the_leases_it_means_and_is_remembered(bench: Bench) {
    let (one, two) = (LeaseSpec { limit: 9, ..terms() }, LeaseSpec { limit: 9, ..terms() });
    let upto = bench.granted(once(&one)).await;
    bench.granted(once(&two)).await;
    let revoke = Request::Revoke(Revoke { by: "$ops".into(), reason: "$$ROOT".into(), upto });
    match bench.send(revoke).await {
        Outcome::Revoked { holders } => {
            assert!(holders.iter().map(|holder| holder.terms.lease).eq([one.lease]), "{holders:?}");
        }
        other => panic!("{other:?}"),
    }
    let record = bench.record().await;
    assert!(record.holders.iter().map(|holder| holder.terms.lease).eq([two.lease]), "the later one keeps its lease");
    let event = record.history.last().expect("the record remembers it");
    assert_eq!((event.by.as_str(), event.reason.as_str(), &event.tokens), ("$ops", "$$ROOT", &vec![upto]));
}

pub(super) async fn a_transfer_changes_the_holder_and_the_token_once(bench: Bench) {
    let (giver, taker) = (terms(), terms());
    let token = bench.granted(once(&giver)).await;
    let transfer = Request::Transfer(Transfer { lease: giver.lease, token, to: taker.lease });
    let Outcome::Transferred { token: larger } = bench.send(transfer.clone()).await else { panic!("it is given") };
    assert!(larger > token, "the token grows");
    assert_eq!(bench.send(transfer).await, Outcome::Transferred { token: larger }, "it can be sent twice");
    assert_eq!(bench.send(refresh(&giver)).await, Outcome::Absent);
    assert_eq!(bench.granted(once(&taker)).await, larger, "the taker finds it held by itself");
}

pub(super) async fn a_downgrade_lets_sharers_in_and_keeps_lease_token_and_expiry(bench: Bench) {
    let sharing = || LeaseSpec { limit: 9, ..terms() };
    let (holder, sharer, excluding, last) = (terms(), sharing(), terms(), sharing());
    let token = bench.granted(once(&holder)).await;
    for waiter in [&sharer, &excluding, &last] {
        assert!(matches!(bench.send(wait(waiter)).await, Outcome::Queued { .. }), "the key is held");
    }
    let before = bench.holders().await.remove(0);
    let downgrade = |token, limit| Request::Downgrade(Downgrade { lease: holder.lease, token, limit });
    assert_eq!(bench.send(downgrade(FencingToken::MIN, 3)).await, Outcome::Absent, "it names the token, too");
    assert_eq!(bench.send(downgrade(token, 3)).await, Outcome::Downgraded);
    let record = bench.record().await;
    let leases = |record: &Record| record.holders.iter().map(|holder| holder.terms.lease).collect::<Vec<_>>();
    assert_eq!(
        leases(&record),
        [holder.lease, sharer.lease],
        "sharers are let in up to the first that excludes others"
    );
    let after = &record.holders[0];
    assert_eq!((after.version, after.since, after.expires_at), (token, before.since, before.expires_at));
    assert_eq!(after.terms, LeaseSpec { limit: 3, ..holder.clone() });
    assert!(record.holders[1].version > token, "a sharer has a larger token");
    assert_eq!(bench.send(downgrade(token, 3)).await, Outcome::Downgraded, "it can be sent twice");
    let again = bench.record().await;
    assert!(again.holders[0].refreshes > after.refreshes, "each answer that confirms it comes from a write");
    assert_eq!(leases(&again), leases(&record), "and has no further effect");
    assert!(matches!(bench.send(downgrade(token, 4)).await, Outcome::Refused { .. }), "a limit is final");
    assert_eq!(bench.send(refresh(&holder)).await, Outcome::Refreshed { token });
    assert_eq!(bench.send(release(&holder, token)).await, Outcome::Released);
    assert_eq!(bench.send(downgrade(token, 3)).await, Outcome::Absent, "what is over is not downgraded");
}

pub(super) async fn a_raise_lifts_the_version_and_ends_no_lease(bench: Bench) {
    let hours_ahead = |token: FencingToken| {
        let number = token.get().saturating_add(7_200 << HybridTime::ORDINAL_BITS);
        FencingToken::new(number).expect("it is far below the largest")
    };
    let holder = terms();
    let token = bench.granted(once(&holder)).await;
    let version = hours_ahead(token);
    let raise = |to| Request::Raise(Raise { to });
    assert_eq!(bench.send(raise(version)).await, Outcome::Raised { version });
    let raised = bench.record().await;
    assert_eq!((raised.version, raised.holders[0].version), (version, token), "the holder keeps its token");
    let time = |token: FencingToken| HybridTime::from(token).seconds.saturating_mul(1_000);
    let passed = StoreTime::from_millis(i64::try_from(time(version)).expect("it is a time"));
    assert!(raised.expires_at > passed, "the record is kept until the clock has passed the token");
    assert_eq!(bench.send(raise(version)).await, Outcome::Raised { version }, "it can be sent twice");
    assert_eq!(bench.send(raise(token)).await, Outcome::Raised { version }, "a version is never lowered");
    assert_eq!(bench.record().await, raised, "and neither changes the record");
    assert_eq!(bench.send(refresh(&holder)).await, Outcome::Refreshed { token });
    let waiter = terms();
    assert!(matches!(bench.send(wait(&waiter)).await, Outcome::Queued { .. }), "it is held");
    assert_eq!(bench.send(release(&holder, token)).await, Outcome::Released);
    let next = bench.granted(wait(&waiter)).await;
    assert!(next > version, "the next token is larger than the version");

    let unknown = bench.beside("unknown");
    assert_eq!(unknown.send(raise(version)).await, Outcome::Raised { version }, "a record is made if there is none");
    assert!(unknown.granted(once(&terms())).await > version);
}

pub(super) async fn texts_of_callers_come_back_as_they_are(bench: Bench) {
    let mut metadata = Metadata::default();
    for (name, text) in [("a", "$version"), ("literal", "{ \"$literal\": 1 }"), ("ключ", "$$NOW")] {
        metadata.insert(name, text).expect("it is metadata");
    }
    let owner = "$$ROOT; drop".parse().expect("it is an owner");
    let said = LeaseSpec { owner, metadata, ..terms() };
    bench.granted(once(&said)).await;
    assert_eq!(bench.holders().await[0].terms, said);
}

pub(super) async fn the_time_of_the_store_is_that_of_its_writes(bench: Bench) {
    let now = async || bench.store.now(bench.deadline()).await.expect("the time can be read");
    let before = now().await;
    let written = bench.applied(once(&terms())).await.at.expect("there is a record").now;
    let after = now().await;
    assert!(before <= written && written <= after, "{before:?}, then a write at {written:?}, then {after:?}");
    assert!(after.since(before) < LONGEST_REQUEST, "one clock tells all of them");
}

pub(super) async fn clocks_move_on_and_never_back(bench: Bench) {
    let terms = terms();
    let mut last = bench.applied(once(&terms)).await.at.expect("there is a record");
    for _ in 0..50 {
        let at = bench.applied(refresh(&terms)).await.at.expect("there is a record");
        assert!(at.now >= last.now, "the wall clock went back from {last:?} to {at:?}");
        assert!(at.tick >= last.tick, "the hybrid clock went back from {last:?} to {at:?}");
        last = at;
    }
}
