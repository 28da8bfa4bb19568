//! Requirements on requests for many leases. [`Fixture::apply_batch`] compares each of them with the state machine.

use super::fixture::{Fixture, LONG, once, terms, wait};
use mongoseal::{
    FencingToken, Sharing,
    record::{BatchRequest, LeaseSpec},
};

impl Fixture {
    /// Acquires another key, which begins with this one.
    async fn held_beside(&self, name: &str, terms: &LeaseSpec) -> (Self, FencingToken) {
        let other = self.beside(name);
        let token = other.granted(once(terms)).await;
        (other, token)
    }
}

fn sharer() -> LeaseSpec {
    LeaseSpec { sharing: Sharing::UpTo(9), ..terms() }
}

pub(super) async fn a_batch_release_releases_what_it_names_and_hands_the_keys_over(fixture: Fixture) {
    let (first, one) = fixture.held_beside("first", &sharer()).await;
    let two = first.granted(once(&sharer())).await;
    first.granted(once(&sharer())).await;
    let (second, three) = fixture.held_beside("second", &terms()).await;
    second.send(wait(&terms())).await;
    // The same token under the other key would name another lease.
    let leases = vec![(second.key.clone(), vec![three]), (first.key.clone(), vec![two, one])];
    assert!(fixture.apply_batch(&leases, BatchRequest::Release).await, "all named leases are held");
    assert!(!fixture.apply_batch(&leases, BatchRequest::Release).await, "the leases were released before");
}

pub(super) async fn a_batch_release_of_a_key_is_of_all_named_leases_or_of_none(fixture: Fixture) {
    let (first, one) = fixture.held_beside("first", &sharer()).await;
    let (second, two) = fixture.held_beside("second", &terms()).await;
    // A new store in memory may issue the smallest token.
    let unheld = FencingToken::MAX;
    let leases = vec![(first.key.clone(), vec![one, unheld]), (second.key.clone(), vec![two])];
    assert!(!fixture.apply_batch(&leases, BatchRequest::Release).await, "one named lease is not held");
    let never = vec![(fixture.beside("never").key, vec![unheld])];
    assert!(!fixture.apply_batch(&never, BatchRequest::Release).await, "the key has no record");
}

pub(super) async fn a_batch_revocation_is_recorded_with_its_tokens(fixture: Fixture) {
    let (key, one) = fixture.held_beside("one", &sharer()).await;
    key.granted(once(&sharer())).await;
    let revoke = BatchRequest::Revoke { by: "$ops".into(), reason: "$$ROOT".into() };
    assert!(fixture.apply_batch(&vec![(key.key.clone(), vec![one])], revoke).await, "the named lease is held");
}

pub(super) async fn a_key_is_kept_though_another_key_of_its_batch_is_not(fixture: Fixture) {
    let sharing = || LeaseSpec { grace: LONG, ..sharer() };
    let (first, one) = fixture.held_beside("first", &sharing()).await;
    let two = first.granted(once(&sharing())).await;
    let (second, three) = fixture.held_beside("second", &terms()).await;
    // A new store in memory may issue the smallest token.
    let unheld = FencingToken::MAX;
    let keep = BatchRequest::Keep { ttl: LONG * 2 };
    let leases = vec![(second.key.clone(), vec![three, unheld]), (first.key.clone(), vec![one, two])];
    assert!(!fixture.apply_batch(&leases, keep.clone()).await, "one named lease is not held");
    assert!(fixture.apply_batch(&leases[1..].to_vec(), keep.clone()).await, "both leases of the key are held");
    assert!(fixture.apply_batch(&leases[1..].to_vec(), keep).await, "a repeated request must succeed");
    assert!(fixture.apply_batch(&leases[1..].to_vec(), BatchRequest::Keep { ttl: 1 }).await);
    assert!(
        first.holders().iter().all(|holder| holder.expires_at > holder.last_seen.after(LONG)),
        "a refresh must never shorten a lease"
    );
}
