//! Requirements on the leases of one key.

use std::time::Duration;

use super::fixture::{Fixture, LONG, REQUEST_TIMEOUT, SHORT, leave, once, refresh, release, terms, wait};
use crate::{
    record::{Downgrade, LeaseSpec, Outcome, Raise, Record, Request, Revoke, StoreTime, Transfer},
    types::{
        metadata::Metadata,
        sharing::Sharing,
        token::{FencingToken, HybridTime},
    },
};

pub(super) async fn a_free_key_is_granted_and_read_at_once(fixture: Fixture) {
    assert_eq!(fixture.seen().await.0, None, "a new key must have no record");
    let terms = terms();
    let token = fixture.granted(once(&terms)).await;
    let record = fixture.record().await;
    assert_eq!(record.version, token, "the version must be the highest token");
    assert_eq!(record.holders.len(), 1, "one lease must hold the key");
    assert_eq!(
        (&record.holders[0].terms, record.holders[0].version),
        (&terms, token),
        "the holder must be the lease of the acquire"
    );
}

pub(super) async fn a_held_key_is_refused_and_its_record_stays_as_it_is(fixture: Fixture) {
    let first = terms();
    let token = fixture.granted(once(&first)).await;
    let before = fixture.record().await;
    match fixture.applied(once(&terms())).await {
        applied @ crate::store::answers::Applied { outcome: Outcome::Refused { .. }, .. } => {
            assert!(!applied.changed, "a refusal must not be marked as a change");
            let Outcome::Refused { holder } = applied.outcome else { return };
            assert_eq!(holder.version, token, "a refusal must name the holder");
            let left = holder.expires_at.since(applied.at.expect("there must be a record").now);
            assert!(left > Duration::from_millis(LONG / 2), "a refusal must have the remaining time: {left:?}");
        }
        other => panic!("a held key must be refused, not {other:?}"),
    }
    assert_eq!(fixture.record().await, before, "a refusal must change nothing");
}

pub(super) async fn the_same_request_again_keeps_its_token(fixture: Fixture) {
    let terms = terms();
    let token = fixture.granted(once(&terms)).await;
    let before = fixture.record().await;
    assert_eq!(fixture.granted(once(&terms)).await, token, "the same acquire must keep its token");
    assert_ne!(fixture.record().await, before, "a grant must come from a write that changes the record");
}

pub(super) async fn an_acquire_whose_lease_id_is_in_the_record_under_another_acquire_id_changes_nothing(
    fixture: Fixture,
) {
    let (holder, mut waiter) = (LeaseSpec { sharing: Sharing::UpTo(2), ..terms() }, terms());
    waiter.hold.max = Some(LONG);
    let token = fixture.granted(once(&holder)).await;
    assert!(matches!(fixture.send(wait(&waiter)).await, Outcome::Queued { .. }), "the second acquire must wait");
    let before = fixture.record().await;
    for spec in [&holder, &waiter] {
        let other =
            LeaseSpec { acquire_id: terms().acquire_id, sharing: Sharing::UpTo(2), hold: holder.hold, ..spec.clone() };
        for request in [Request::from(once(&other)), wait(&other).into(), leave(&other)] {
            let outcome = fixture.send(request.clone()).await;
            let is_believed = matches!(outcome, Outcome::Granted { .. } | Outcome::Queued { .. } | Outcome::Released);
            assert!(!is_believed, "{request:?} must not be answered with {outcome:?}");
            assert_eq!(fixture.record().await, before, "{request:?} must change nothing");
        }
    }
    assert_eq!(fixture.send(release(&holder, token)).await, Outcome::Released);
    fixture.granted(wait(&waiter)).await;
}

pub(super) async fn tokens_grow_over_release_and_expiry(fixture: Fixture) {
    let mut last = None;
    for ttl in [LONG, SHORT, LONG] {
        let terms = LeaseSpec { ttl, ..terms() };
        let token = fixture.granted(once(&terms)).await;
        assert!(Some(token) > last, "{token} must be larger than {last:?}");
        last = Some(token);
        if ttl == SHORT {
            let end = fixture.holders().await[0].expires_at;
            fixture.pass(end).await;
        } else {
            assert_eq!(fixture.send(release(&terms, token)).await, Outcome::Released, "the lease must be released");
        }
    }
}

pub(super) async fn a_lease_ends_at_its_ttl_and_not_before(fixture: Fixture) {
    let short = LeaseSpec { ttl: SHORT, ..terms() };
    fixture.granted(once(&short)).await;
    let holder = fixture.holders().await.remove(0);
    assert_eq!(holder.expires_at, holder.since.after(SHORT), "the ttl must count from the grant");
    loop {
        let applied = fixture.applied(once(&terms())).await;
        let now = applied.at.expect("there must be a record").now;
        match applied.outcome {
            Outcome::Refused { .. } => {
                assert!(now < holder.expires_at, "an acquire was refused at {now:?}, after the expiry");
            }
            Outcome::Granted { .. } => {
                assert!(now >= holder.expires_at, "an acquire was granted at {now:?}, before the expiry");
                return;
            }
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(super) async fn a_refresh_extends_a_lease_and_never_creates_one(fixture: Fixture) {
    // Long enough for three requests to a busy store.
    let short = LeaseSpec { ttl: 2_000, ..terms() };
    assert_eq!(fixture.send(refresh(&short)).await, Outcome::Absent, "a refresh must not create a lease");
    assert_eq!(fixture.seen().await.0, None, "a refresh must not create a record");
    let token = fixture.granted(once(&short)).await;
    let before = fixture.holders().await.remove(0);
    assert_eq!(fixture.send(refresh(&LeaseSpec { ttl: 1, ..short.clone() })).await, Outcome::Refreshed { token });
    assert!(fixture.holders().await[0].expires_at >= before.expires_at, "a refresh must never shorten a lease");
    fixture.send(refresh(&short)).await;
    let after = fixture.holders().await.remove(0);
    assert!(after.refreshes > before.refreshes, "each refresh must be counted");
    fixture.pass(after.expires_at).await;
    assert_eq!(fixture.send(refresh(&short)).await, Outcome::Absent, "an expired lease must not be refreshed");
}

pub(super) async fn grace_keeps_the_key_after_the_ttl_and_a_release_ends_it(fixture: Fixture) {
    let graceful = LeaseSpec { ttl: SHORT, grace: LONG, ..terms() };
    let token = fixture.granted(once(&graceful)).await;
    let ttl_over = fixture.holders().await[0].since.after(SHORT);
    fixture.pass(ttl_over).await;
    assert!(
        matches!(fixture.send(once(&terms())).await, Outcome::Refused { .. }),
        "no acquire must be granted during the grace"
    );
    assert_eq!(fixture.send(release(&graceful, token)).await, Outcome::Released);
    fixture.granted(once(&terms())).await;
}

pub(super) async fn a_release_ends_its_own_lease_and_no_other(fixture: Fixture) {
    let first = terms();
    let old = fixture.granted(once(&first)).await;
    assert_eq!(
        fixture.send(release(&terms(), old)).await,
        Outcome::Absent,
        "a release must not end the lease of another lease id"
    );
    assert_eq!(fixture.send(release(&first, old)).await, Outcome::Released);
    assert_eq!(fixture.send(release(&first, old)).await, Outcome::Absent, "a second release must find nothing");
    let new = fixture.granted(once(&first)).await;
    assert_eq!(
        fixture.send(release(&first, old)).await,
        Outcome::Absent,
        "a delayed release must not end a later grant of the same lease id"
    );
    assert_eq!(fixture.send(leave(&first)).await, Outcome::Released, "a leave must end the lease of its own acquire");
    assert_eq!(fixture.record().await.version, new, "the record must keep its version");
}

pub(super) async fn one_of_many_concurrent_acquires_is_granted_the_key(fixture: Fixture) {
    let asked: Vec<_> = (0..24)
        .map(|_| {
            let fixture = fixture.clone();
            #[allow(clippy::disallowed_methods, reason = "waited for below")]
            tokio::spawn(async move {
                loop {
                    match fixture.store.apply(&fixture.key, once(&terms()).into(), fixture.deadline()).await {
                        Ok(applied) => return Ok(matches!(applied.outcome, Outcome::Granted { .. })),
                        Err(crate::Error::Unavailable { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            })
        })
        .collect();
    let mut granted = 0_usize;
    for one in asked {
        let is_granted = one.await.expect("a request must not panic");
        granted = granted.saturating_add(usize::from(is_granted.expect("an acquire must be answered")));
    }
    assert_eq!(granted, 1, "one of 24 acquires must be granted");
}

pub(super) async fn sharers_are_as_many_as_each_of_them_allows(fixture: Fixture) {
    let sharing = |limit| LeaseSpec { sharing: Sharing::from_limit(limit), ..terms() };
    let first = fixture.granted(once(&sharing(3))).await;
    let second = fixture.granted(once(&sharing(2))).await;
    assert!(second > first, "each sharer must get a larger token");
    assert!(
        matches!(fixture.send(once(&sharing(3))).await, Outcome::Refused { .. }),
        "one holder allows two sharers only"
    );
    assert!(
        matches!(fixture.send(once(&sharing(0))).await, Outcome::Refused { .. }),
        "an exclusive acquire must be refused while the key is shared"
    );
}

pub(super) async fn a_revocation_ends_the_leases_up_to_its_token_and_is_recorded(fixture: Fixture) {
    let (one, two) =
        (LeaseSpec { sharing: Sharing::UpTo(9), ..terms() }, LeaseSpec { sharing: Sharing::UpTo(9), ..terms() });
    let upto = fixture.granted(once(&one)).await;
    fixture.granted(once(&two)).await;
    let revoke = Request::Revoke(Revoke { by: "$ops".into(), reason: "$$ROOT".into(), upto });
    match fixture.send(revoke).await {
        Outcome::Revoked { holders } => {
            assert!(holders.iter().map(|holder| holder.terms.lease).eq([one.lease]), "{holders:?}");
        }
        other => panic!("{other:?}"),
    }
    let record = fixture.record().await;
    assert!(
        record.holders.iter().map(|holder| holder.terms.lease).eq([two.lease]),
        "a lease with a later token must stay"
    );
    let event = record.history.last().expect("the history must have the revocation");
    assert_eq!((event.by.as_str(), event.reason.as_str(), &event.tokens), ("$ops", "$$ROOT", &vec![upto]));
}

pub(super) async fn a_transfer_changes_the_holder_and_the_token_once(fixture: Fixture) {
    let (giver, taker) = (terms(), terms());
    let token = fixture.granted(once(&giver)).await;
    let transfer = Request::Transfer(Transfer { lease: giver.lease, token, to: taker.lease });
    let Outcome::Transferred { token: larger } = fixture.send(transfer.clone()).await else {
        panic!("the lease must be transferred")
    };
    assert!(larger > token, "the token must grow");
    assert_eq!(
        fixture.send(transfer).await,
        Outcome::Transferred { token: larger },
        "a repeated transfer must return the same token"
    );
    assert_eq!(fixture.send(refresh(&giver)).await, Outcome::Absent);
    assert_eq!(
        fixture.send(refresh(&taker)).await,
        Outcome::Refreshed { token: larger },
        "the receiver must hold the key with the token of the transfer"
    );
}

pub(super) async fn an_upgrade_makes_a_sharer_that_is_alone_exclude_others(fixture: Fixture) {
    let sharing = || LeaseSpec { sharing: Sharing::UpTo(9), ..terms() };
    let (sharer, other, waiter) = (sharing(), sharing(), terms());
    let token = fixture.granted(once(&sharer)).await;
    let beside = fixture.granted(once(&other)).await;
    let to = terms().lease;
    let upgrade = Request::Upgrade(Transfer { lease: sharer.lease, token, to });
    let refused = fixture.send(upgrade.clone()).await;
    assert!(
        matches!(&refused, Outcome::Refused { holder } if holder.version == beside),
        "a sharer beside another must be refused, and stay: {refused:?}"
    );
    assert_eq!(fixture.send(refresh(&sharer)).await, Outcome::Refreshed { token });
    assert_eq!(fixture.send(release(&other, beside)).await, Outcome::Released);
    assert!(matches!(fixture.send(wait(&waiter)).await, Outcome::Queued { .. }), "the key is held");
    let Outcome::Transferred { token: larger } = fixture.send(upgrade.clone()).await else {
        panic!("a sharer that is alone must be upgraded")
    };
    assert!(larger > beside, "the token must be larger than that of each earlier sharer");
    assert_eq!(
        fixture.send(upgrade).await,
        Outcome::Transferred { token: larger },
        "a repeated upgrade must return the same token"
    );
    let record = fixture.record().await;
    let [holder] = &record.holders[..] else { panic!("one lease must hold the key: {:?}", record.holders) };
    assert_eq!(holder.terms, LeaseSpec { lease: to, sharing: Sharing::Exclusive, ..sharer.clone() });
    assert!(record.queue.iter().map(|queued| queued.terms.lease).eq([waiter.lease]), "the waiter must stay queued");
    assert!(
        matches!(fixture.send(once(&sharing())).await, Outcome::Refused { .. }),
        "an upgraded lease must exclude sharers"
    );
    assert_eq!(fixture.send(refresh(&sharer)).await, Outcome::Absent);
}

pub(super) async fn a_downgrade_lets_sharers_in_and_keeps_lease_token_and_expiry(fixture: Fixture) {
    let sharing = || LeaseSpec { sharing: Sharing::UpTo(9), ..terms() };
    let (holder, sharer, excluding, last) = (terms(), sharing(), terms(), sharing());
    let token = fixture.granted(once(&holder)).await;
    for waiter in [&sharer, &excluding, &last] {
        assert!(matches!(fixture.send(wait(waiter)).await, Outcome::Queued { .. }), "the key is held");
    }
    let before = fixture.holders().await.remove(0);
    let downgrade = |token, limit| {
        Request::Downgrade(Downgrade { lease: holder.lease, token, sharing: Sharing::from_limit(limit) })
    };
    assert_eq!(fixture.send(downgrade(FencingToken::MIN, 3)).await, Outcome::Absent, "it names the token, too");
    assert_eq!(fixture.send(downgrade(token, 3)).await, Outcome::Downgraded);
    let record = fixture.record().await;
    let leases = |record: &Record| record.holders.iter().map(|holder| holder.terms.lease).collect::<Vec<_>>();
    assert_eq!(
        leases(&record),
        [holder.lease, sharer.lease],
        "sharers are let in up to the first that excludes others"
    );
    let after = &record.holders[0];
    assert_eq!((after.version, after.since, after.expires_at), (token, before.since, before.expires_at));
    assert_eq!(after.terms, LeaseSpec { sharing: Sharing::UpTo(3), ..holder.clone() });
    assert!(record.holders[1].version > token, "a sharer has a larger token");
    assert_eq!(fixture.send(downgrade(token, 3)).await, Outcome::Downgraded, "it can be sent twice");
    let again = fixture.record().await;
    assert!(again.holders[0].refreshes > after.refreshes, "each answer that confirms it comes from a write");
    assert_eq!(leases(&again), leases(&record), "and has no further effect");
    assert!(matches!(fixture.send(downgrade(token, 4)).await, Outcome::Refused { .. }), "a limit is final");
    assert_eq!(fixture.send(refresh(&holder)).await, Outcome::Refreshed { token });
    assert_eq!(fixture.send(release(&holder, token)).await, Outcome::Released);
    assert_eq!(fixture.send(downgrade(token, 3)).await, Outcome::Absent, "what is over is not downgraded");
}

pub(super) async fn a_raise_lifts_the_version_and_ends_no_lease(fixture: Fixture) {
    let hours_ahead = |token: FencingToken| {
        let number = token.get().saturating_add(7_200 << HybridTime::ORDINAL_BITS);
        FencingToken::new(number).expect("the token is far below the largest")
    };
    let holder = terms();
    let token = fixture.granted(once(&holder)).await;
    let version = hours_ahead(token);
    let raise = |to| Request::Raise(Raise { to });
    assert_eq!(fixture.send(raise(version)).await, Outcome::Raised { version });
    let raised = fixture.record().await;
    assert_eq!((raised.version, raised.holders[0].version), (version, token), "the holder must keep its token");
    let time = |token: FencingToken| HybridTime::from(token).seconds.saturating_mul(1_000);
    let passed = StoreTime::from_millis(i64::try_from(time(version)).expect("the number is a time"));
    assert!(raised.expires_at > passed, "the record must be kept until the clock has passed the token");
    assert_eq!(
        fixture.send(raise(version)).await,
        Outcome::Raised { version },
        "a repeated raise must return the same version"
    );
    assert_eq!(fixture.send(raise(token)).await, Outcome::Raised { version }, "a raise must never lower the version");
    assert_eq!(fixture.record().await, raised, "neither must change the record");
    assert_eq!(fixture.send(refresh(&holder)).await, Outcome::Refreshed { token });
    let waiter = terms();
    assert!(
        matches!(fixture.send(wait(&waiter)).await, Outcome::Queued { .. }),
        "the key is held, so the acquire must wait"
    );
    assert_eq!(fixture.send(release(&holder, token)).await, Outcome::Released);
    let next = fixture.granted(wait(&waiter)).await;
    assert!(next > version, "the next token must be larger than the version");

    let unknown = fixture.beside("unknown");
    assert_eq!(unknown.send(raise(version)).await, Outcome::Raised { version }, "a raise must create a missing record");
    assert!(unknown.granted(once(&terms())).await > version);
}

pub(super) async fn texts_of_callers_are_returned_unchanged(fixture: Fixture) {
    let mut metadata = Metadata::default();
    for (name, text) in [("a", "$version"), ("literal", "{ \"$literal\": 1 }"), ("ключ", "$$NOW")] {
        metadata.insert(name, text).expect("the text is metadata");
    }
    let owner = "$$ROOT; drop".parse().expect("the text is an owner");
    let said = LeaseSpec { owner, metadata, ..terms() };
    fixture.granted(once(&said)).await;
    assert_eq!(fixture.holders().await[0].terms, said);
}

pub(super) async fn the_time_of_the_store_is_that_of_its_writes(fixture: Fixture) {
    let now = async || fixture.store.now(fixture.deadline()).await.expect("the time can be read");
    let before = now().await;
    let written = fixture.applied(once(&terms())).await.at.expect("there is a record").now;
    let after = now().await;
    assert!(before <= written && written <= after, "{before:?}, then a write at {written:?}, then {after:?}");
    assert!(after.since(before) < REQUEST_TIMEOUT, "one clock tells all of them");
}

pub(super) async fn clocks_never_go_back(fixture: Fixture) {
    let terms = terms();
    let mut last = fixture.applied(once(&terms)).await.at.expect("there must be a record");
    for _ in 0..50 {
        let at = fixture.applied(refresh(&terms)).await.at.expect("there must be a record");
        assert!(at.now >= last.now, "the wall clock went back from {last:?} to {at:?}");
        assert!(at.tick >= last.tick, "the hybrid clock went back from {last:?} to {at:?}");
        last = at;
    }
}
