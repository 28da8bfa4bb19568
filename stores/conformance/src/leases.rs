//! Requirements on the leases of one key. [`Fixture::send`] compares each request with the state machine.

use std::time::Duration;

use super::fixture::{Fixture, LONG, leave, once, refresh, release, terms, wait};
use mongoseal::{
    FencingToken, LeaseId, Metadata, Sharing,
    record::{Downgrade, LeaseSpec, Outcome, Raise, Request, Revoke, Transfer},
    store::HybridTime,
};
use tokio::task::JoinSet;

pub(super) async fn a_free_key_is_granted_and_read_at_once(fixture: Fixture) {
    assert_eq!(fixture.seen().await.0, None, "a new key must have no record");
    fixture.granted(once(&terms())).await;
}

pub(super) async fn a_held_key_is_refused_and_its_record_stays_as_it_is(fixture: Fixture) {
    fixture.granted(once(&terms())).await;
    let applied = fixture.applied(once(&terms())).await;
    let Outcome::Refused { holder } = applied.outcome else { panic!("a held key must be refused: {applied:?}") };
    let left = holder.expires_at.since(applied.at.expect("there must be a record").now);
    assert!(left > Duration::from_millis(LONG / 2), "a refusal must have the remaining time: {left:?}");
}

pub(super) async fn the_same_request_again_keeps_its_token(fixture: Fixture) {
    let terms = terms();
    let token = fixture.granted(once(&terms)).await;
    assert_eq!(fixture.granted(once(&terms)).await, token, "the same acquire must keep its token");
}

pub(super) async fn an_acquire_whose_lease_id_is_in_the_record_under_another_acquire_id_changes_nothing(
    fixture: Fixture,
) {
    let (holder, mut waiter) = (LeaseSpec { sharing: Sharing::UpTo(2), ..terms() }, terms());
    waiter.hold.max = Some(LONG);
    let token = fixture.granted(once(&holder)).await;
    assert!(matches!(fixture.send(wait(&waiter)).await, Outcome::Queued { .. }), "the second acquire must wait");
    let before = fixture.record();
    for spec in [&holder, &waiter] {
        let other =
            LeaseSpec { acquire_id: terms().acquire_id, sharing: Sharing::UpTo(2), hold: holder.hold, ..spec.clone() };
        for request in [once(&other), wait(&other), leave(&other)] {
            let outcome = fixture.send(request.clone()).await;
            let is_believed = matches!(outcome, Outcome::Granted { .. } | Outcome::Queued { .. } | Outcome::Released);
            assert!(!is_believed, "{request:?} must not be answered with {outcome:?}");
            assert_eq!(fixture.record(), before, "{request:?} must change nothing");
        }
    }
    assert_eq!(fixture.send(release(&holder, token)).await, Outcome::Released);
    fixture.granted(wait(&waiter)).await;
}

pub(super) async fn tokens_grow_over_release_and_expiry(fixture: Fixture) {
    let mut last = None;
    for ttl in [LONG, fixture.short(), LONG] {
        let terms = LeaseSpec { ttl, ..terms() };
        let token = fixture.granted(once(&terms)).await;
        assert!(Some(token) > last, "{token} must be larger than {last:?}");
        last = Some(token);
        if ttl < LONG {
            fixture.pass(fixture.holders()[0].expires_at).await;
        } else {
            assert_eq!(fixture.send(release(&terms, token)).await, Outcome::Released, "the lease must be released");
        }
    }
}

pub(super) async fn a_lease_ends_at_its_ttl_and_not_before(fixture: Fixture) {
    let short = LeaseSpec { ttl: fixture.short(), ..terms() };
    fixture.granted(once(&short)).await;
    let holder = fixture.holders().remove(0);
    assert_eq!(holder.expires_at, holder.since.after(short.ttl), "the ttl must count from the grant");
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
    // Long enough for a few requests to a busy store.
    let short = LeaseSpec { ttl: fixture.millis(2_000), ..terms() };
    fixture.send(refresh(&short)).await;
    let token = fixture.granted(once(&short)).await;
    for ttl in [1, short.ttl] {
        let refresh = refresh(&LeaseSpec { ttl, ..short.clone() });
        assert_eq!(fixture.send(refresh).await, Outcome::Refreshed { token });
    }
    fixture.pass(fixture.holders()[0].expires_at).await;
    assert_eq!(fixture.send(refresh(&short)).await, Outcome::Absent, "an expired lease must not be refreshed");
}

pub(super) async fn grace_keeps_the_key_after_the_ttl_and_a_release_ends_it(fixture: Fixture) {
    let graceful = LeaseSpec { ttl: fixture.short(), grace: LONG, ..terms() };
    let token = fixture.granted(once(&graceful)).await;
    fixture.pass(fixture.holders()[0].since.after(graceful.ttl)).await;
    fixture.send(once(&terms())).await;
    fixture.send(release(&graceful, token)).await;
    fixture.granted(once(&terms())).await;
}

pub(super) async fn a_release_ends_its_own_lease_and_no_other(fixture: Fixture) {
    let first = terms();
    let old = fixture.granted(once(&first)).await;
    for lease in [&terms(), &first, &first] {
        fixture.send(release(lease, old)).await;
    }
    fixture.granted(once(&first)).await;
    // The release is delayed, and must not end a later grant of the same lease id.
    fixture.send(release(&first, old)).await;
    fixture.send(leave(&first)).await;
}

pub(super) async fn one_of_many_concurrent_acquires_is_granted_the_key(fixture: Fixture) {
    // Dropped with the requirement, so that no acquire outlives it.
    let mut acquires = JoinSet::new();
    for _ in 0..24 {
        let fixture = fixture.clone();
        acquires.spawn(async move {
            loop {
                match fixture.store.apply(&fixture.key, once(&terms()), fixture.deadline()).await {
                    Ok(applied) => return Ok(matches!(applied.outcome, Outcome::Granted { .. })),
                    Err(mongoseal::Error::Unavailable { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        });
    }
    let mut granted = 0_usize;
    while let Some(ended) = acquires.join_next().await {
        let is_granted = ended.expect("a request must not panic");
        granted = granted.saturating_add(usize::from(is_granted.expect("an acquire must be answered")));
    }
    assert_eq!(granted, 1, "one of 24 acquires must be granted");
}

pub(super) async fn sharers_are_as_many_as_each_of_them_allows(fixture: Fixture) {
    let sharing = |limit| once(&LeaseSpec { sharing: Sharing::from_limit(limit), ..terms() });
    fixture.granted(sharing(3)).await;
    fixture.granted(sharing(2)).await;
    fixture.send(sharing(3)).await;
    fixture.send(sharing(0)).await;
}

pub(super) async fn a_revocation_ends_the_leases_up_to_its_token_and_is_recorded(fixture: Fixture) {
    let sharing = || once(&LeaseSpec { sharing: Sharing::UpTo(9), ..terms() });
    let upto = fixture.granted(sharing()).await;
    fixture.granted(sharing()).await;
    fixture.send(Request::Revoke(Revoke { by: "$ops".into(), reason: "$$ROOT".into(), upto })).await;
}

pub(super) async fn a_transfer_changes_the_holder_and_the_token_once(fixture: Fixture) {
    let (giver, taker) = (terms(), terms());
    let token = fixture.granted(once(&giver)).await;
    let transfer = Request::Transfer(Transfer { lease: giver.lease, token, to: taker.lease });
    for request in [transfer.clone(), transfer, refresh(&giver), refresh(&taker)] {
        fixture.send(request).await;
    }
}

pub(super) async fn an_upgrade_makes_a_sharer_that_is_alone_exclude_others(fixture: Fixture) {
    let sharing = || LeaseSpec { sharing: Sharing::UpTo(9), ..terms() };
    let (sharer, other) = (sharing(), sharing());
    let token = fixture.granted(once(&sharer)).await;
    let beside = fixture.granted(once(&other)).await;
    let to = LeaseId::random();
    let upgrade = || Request::Upgrade(Transfer { lease: sharer.lease, token, to });
    for request in [
        upgrade(),
        refresh(&sharer),
        release(&other, beside),
        wait(&terms()),
        upgrade(),
        upgrade(),
        once(&sharing()),
        refresh(&sharer),
    ] {
        fixture.send(request).await;
    }
}

pub(super) async fn a_downgrade_lets_sharers_in_and_keeps_lease_token_and_expiry(fixture: Fixture) {
    let sharing = || LeaseSpec { sharing: Sharing::UpTo(9), ..terms() };
    let holder = terms();
    let token = fixture.granted(once(&holder)).await;
    for waiter in [&sharing(), &terms(), &sharing()] {
        fixture.send(wait(waiter)).await;
    }
    let downgrade = |token, limit| {
        Request::Downgrade(Downgrade { lease: holder.lease, token, sharing: Sharing::from_limit(limit) })
    };
    for request in [
        downgrade(FencingToken::MIN, 3),
        downgrade(token, 3),
        downgrade(token, 3),
        downgrade(token, 4),
        refresh(&holder),
        release(&holder, token),
        downgrade(token, 3),
    ] {
        fixture.send(request).await;
    }
}

pub(super) async fn a_raise_lifts_the_version_and_ends_no_lease(fixture: Fixture) {
    let (holder, waiter) = (terms(), terms());
    let token = fixture.granted(once(&holder)).await;
    let hours_ahead = token.get().saturating_add(7_200 << HybridTime::ORDINAL_BITS);
    let version = FencingToken::new(hours_ahead).expect("the token is far below the largest");
    let raise = |to| Request::Raise(Raise { to });
    for request in
        [raise(version), raise(version), raise(token), refresh(&holder), wait(&waiter), release(&holder, token)]
    {
        fixture.send(request).await;
    }
    assert!(fixture.granted(wait(&waiter)).await > version, "the next token must be larger than the version");

    let unknown = fixture.beside("unknown");
    unknown.send(raise(version)).await;
    assert!(unknown.granted(once(&terms())).await > version, "a raise must create a missing record");
}

pub(super) async fn texts_of_callers_are_returned_unchanged(fixture: Fixture) {
    let mut metadata = Metadata::default();
    for (name, text) in [("a", "$version"), ("literal", "{ \"$literal\": 1 }"), ("ключ", "$$NOW")] {
        metadata.insert(name, text).expect("the text is metadata");
    }
    let owner = "$$ROOT; drop".parse().expect("the text is an owner");
    let said = LeaseSpec { owner, metadata, ..terms() };
    fixture.granted(once(&said)).await;
    assert_eq!(fixture.holders()[0].terms, said);
}

pub(super) async fn the_time_of_the_store_is_that_of_its_writes(fixture: Fixture) {
    let now = async || fixture.store.now(fixture.deadline()).await.expect("the time can be read");
    let before = now().await;
    let written = fixture.applied(once(&terms())).await.at.expect("there is a record").now;
    let after = now().await;
    assert!(before <= written && written <= after, "{before:?}, then a write at {written:?}, then {after:?}");
    assert!(after.since(before) < fixture.answer_timeout(), "one clock tells all of them");
}

pub(super) async fn clocks_never_go_back(fixture: Fixture) {
    let terms = terms();
    let mut last = fixture.applied(once(&terms)).await.at.expect("there must be a record");
    for _ in 0..50 {
        let at = fixture.applied(refresh(&terms)).await.at.expect("there must be a record");
        assert!(at.now >= last.now, "the wall clock went back from {last:?} to {at:?}");
        assert!(at.hlc >= last.hlc, "the hybrid clock went back from {last:?} to {at:?}");
        last = at;
    }
}
