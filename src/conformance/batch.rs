//! Requirements on requests for many leases.

use super::fixture::{Fixture, LONG, once, terms, wait};
use crate::{
    record::{BatchRequest, LeaseRefs, LeaseSpec, Outcome, Record},
    types::sharing::Sharing,
    types::token::FencingToken,
};

impl Fixture {
    pub(super) async fn apply_batch(&self, leases: &LeaseRefs, batch: BatchRequest) -> bool {
        let done = self.store.apply_batch(leases, &batch, self.deadline()).await;
        done.unwrap_or_else(|error| panic!("{batch:?} must be applied: {error}"))
    }

    /// Acquires another key, which begins with this one.
    async fn held_beside(&self, name: &str, terms: &LeaseSpec) -> (Self, FencingToken) {
        let other = self.beside(name);
        let token = other.granted(once(terms)).await;
        (other, token)
    }
}

fn versions(record: &Record) -> Vec<FencingToken> {
    record.holders.iter().map(|holder| holder.version).collect()
}

pub(super) async fn a_batch_release_releases_what_it_names_and_hands_the_keys_over(fixture: Fixture) {
    let sharing = || LeaseSpec { sharing: Sharing::UpTo(9), ..terms() };
    let (first, one) = fixture.held_beside("first", &sharing()).await;
    let two = first.granted(once(&sharing())).await;
    let kept = first.granted(once(&sharing())).await;
    let (second, three) = fixture.held_beside("second", &terms()).await;
    let waiter = terms();
    assert!(matches!(second.send(wait(&waiter)).await, Outcome::Queued { .. }));
    // The same token under the other key would name another lease.
    let leases: LeaseRefs = vec![(second.key.clone(), vec![three]), (first.key.clone(), vec![two, one])];
    assert!(fixture.apply_batch(&leases, BatchRequest::Release).await, "all named leases are held");
    assert_eq!(versions(&first.record().await), [kept], "only the named leases of a key must be released");
    let after = second.record().await;
    assert_eq!(
        after.holders.first().map(|holder| holder.terms.lease),
        Some(waiter.lease),
        "the waiter must hold the key"
    );
    assert!(
        after.version > three && after.handover.len() == 1,
        "the waiter must get a larger token and a notification: {after:?}"
    );
    assert!(!fixture.apply_batch(&leases, BatchRequest::Release).await, "the leases were released before");
    assert_eq!(second.record().await, after, "no other lease must change");
}

pub(super) async fn a_batch_release_of_a_key_is_of_all_named_leases_or_of_none(fixture: Fixture) {
    let (first, one) = fixture.held_beside("first", &LeaseSpec { sharing: Sharing::UpTo(9), ..terms() }).await;
    let (second, two) = fixture.held_beside("second", &terms()).await;
    // A new store in memory may issue the smallest token.
    let nobody = FencingToken::MAX;
    let leases = vec![(first.key.clone(), vec![one, nobody]), (second.key.clone(), vec![two])];
    let before = first.record().await;
    assert!(!fixture.apply_batch(&leases, BatchRequest::Release).await, "one named lease is not held");
    assert_eq!(first.record().await, before, "the record of that key must not change");
    assert_eq!(versions(&second.record().await), [], "the lease of the other key must be released");
    let never = vec![(fixture.beside("never").key, vec![nobody])];
    assert!(!fixture.apply_batch(&never, BatchRequest::Release).await, "the key has no record");
    assert_eq!(fixture.beside("never").seen().await.0, None);
}

pub(super) async fn a_batch_revocation_is_recorded_with_its_tokens(fixture: Fixture) {
    let holder = LeaseSpec { sharing: Sharing::UpTo(9), ..terms() };
    let (key, one) = fixture.held_beside("one", &holder).await;
    let two = key.granted(once(&LeaseSpec { lease: crate::LeaseId::random(), ..holder.clone() })).await;
    let revoke = BatchRequest::Revoke { by: "$ops".into(), reason: "$$ROOT".into() };
    assert!(fixture.apply_batch(&vec![(key.key.clone(), vec![one])], revoke).await);
    let record = key.record().await;
    assert_eq!(versions(&record), [two]);
    let event = record.history.last().expect("the history must have the revocation");
    assert_eq!((event.by.as_str(), event.reason.as_str(), &event.tokens), ("$ops", "$$ROOT", &vec![one]));
    assert_eq!(record.handover, [(holder.acquire_id, None)], "the holder must be notified");
}

pub(super) async fn a_key_is_kept_though_another_key_of_its_batch_is_not(fixture: Fixture) {
    let sharing = || LeaseSpec { sharing: Sharing::UpTo(9), grace: LONG, ..terms() };
    let (first, one) = fixture.held_beside("first", &sharing()).await;
    let two = first.granted(once(&sharing())).await;
    let (second, three) = fixture.held_beside("second", &terms()).await;
    // A new store in memory may issue the smallest token.
    let nobody = FencingToken::MAX;
    let keep = BatchRequest::Keep { ttl: LONG * 2 };
    let before = second.record().await;
    let leases = vec![(second.key.clone(), vec![three, nobody]), (first.key.clone(), vec![one, two])];
    assert!(!fixture.apply_batch(&leases, keep.clone()).await, "one named lease is not held");
    assert_eq!(second.record().await, before, "the record of that key must not change");
    let after = first.record().await;
    for holder in &after.holders {
        assert_eq!(
            holder.expires_at,
            after.last_seen.after(LONG * 3),
            "each lease of the other key must be extended, with its own grace"
        );
    }
    assert!(fixture.apply_batch(&leases[1..].to_vec(), keep.clone()).await, "both leases of the key are held");
    assert!(fixture.apply_batch(&leases[1..].to_vec(), keep).await, "a repeated request must succeed");
    assert!(fixture.apply_batch(&leases[1..].to_vec(), BatchRequest::Keep { ttl: 1 }).await);
    assert!(
        first.holders().await.iter().all(|holder| holder.expires_at > holder.last_seen.after(LONG)),
        "a refresh must never shorten a lease"
    );
}
