//! Clauses on many leases at once.

use super::bench::{Bench, LONG, once, terms, wait};
use crate::{
    FencingToken,
    record::{BatchRequest, LeaseRefs, LeaseSpec, Outcome, Record},
};

impl Bench {
    async fn jointly(&self, leases: &LeaseRefs, joint: BatchRequest) -> bool {
        let done = self.store.apply_batch(leases, &joint, self.deadline()).await;
        done.unwrap_or_else(|error| panic!("{joint:?} is done: {error}"))
    }

    /// A holder of a key beside this one.
    async fn held_beside(&self, name: &str, terms: &LeaseSpec) -> (Self, FencingToken) {
        let other = self.beside(name);
        let token = other.granted(once(terms)).await;
        (other, token)
    }
}

fn refresh(ttl: u64, least: u64) -> BatchRequest {
    BatchRequest::Refresh { ttl, least }
}

fn versions(record: &Record) -> Vec<FencingToken> {
    record.holders.iter().map(|holder| holder.version).collect()
}

pub(super) async fn a_joint_release_gives_back_what_it_names_and_hands_it_over(bench: Bench) {
    let sharing = || LeaseSpec { limit: 9, ..terms() };
    let (first, one) = bench.held_beside("first", &sharing()).await;
    let two = first.granted(once(&sharing())).await;
    let kept = first.granted(once(&sharing())).await;
    let (second, three) = bench.held_beside("second", &terms()).await;
    let waiter = terms();
    assert!(matches!(second.send(wait(&waiter)).await, Outcome::Queued { .. }));
    // The same token under the other key is somebody else's.
    let leases: LeaseRefs = vec![(second.key.clone(), vec![three]), (first.key.clone(), vec![two, one])];
    assert!(bench.jointly(&leases, BatchRequest::Release).await, "all were held");
    assert_eq!(versions(&first.record().await), [kept], "of a key what is lease_refs, and nothing else");
    let after = second.record().await;
    assert_eq!(after.holders.first().map(|holder| holder.terms.lease), Some(waiter.lease), "who waited holds");
    assert!(after.version > three && after.handover.len() == 1, "with a larger token, and is told: {after:?}");
    assert!(!bench.jointly(&leases, BatchRequest::Release).await, "they are held no more");
    assert_eq!(second.record().await, after, "and nobody else is touched");
}

pub(super) async fn a_joint_release_of_a_key_is_of_all_that_are_named_or_of_none(bench: Bench) {
    let (first, one) = bench.held_beside("first", &LeaseSpec { limit: 9, ..terms() }).await;
    let (second, two) = bench.held_beside("second", &terms()).await;
    let nobody = FencingToken::MIN;
    let leases = vec![(first.key.clone(), vec![one, nobody]), (second.key.clone(), vec![two])];
    let before = first.record().await;
    assert!(!bench.jointly(&leases, BatchRequest::Release).await, "one is not held");
    assert_eq!(first.record().await, before, "so its key stays as it is");
    assert_eq!(versions(&second.record().await), [], "and the other is released");
    let never = vec![(bench.beside("never").key, vec![nobody])];
    assert!(!bench.jointly(&never, BatchRequest::Release).await, "what is not there is not created");
    assert_eq!(bench.beside("never").seen().await.0, None);
}

pub(super) async fn a_joint_revocation_is_remembered_with_its_tokens(bench: Bench) {
    let holder = LeaseSpec { limit: 9, ..terms() };
    let (key, one) = bench.held_beside("one", &holder).await;
    let two = key.granted(once(&LeaseSpec { lease: crate::LeaseId::random(), ..holder.clone() })).await;
    let revoke = BatchRequest::Revoke { by: "$ops".into(), reason: "$$ROOT".into() };
    assert!(bench.jointly(&vec![(key.key.clone(), vec![one])], revoke).await);
    let record = key.record().await;
    assert_eq!(versions(&record), [two]);
    let event = record.history.last().expect("the record remembers it");
    assert_eq!((event.by.as_str(), event.reason.as_str(), &event.tokens), ("$ops", "$$ROOT", &vec![one]));
    assert_eq!(record.handover, [(holder.caller, None)], "whose lease it was is told");
}

pub(super) async fn a_joint_refresh_keeps_all_that_it_names_or_none(bench: Bench) {
    let (long, one) = bench.held_beside("long", &terms()).await;
    let (short, two) = bench.held_beside("short", &LeaseSpec { ttl: LONG / 6, ..terms() }).await;
    let leases = vec![(long.key.clone(), vec![one]), (short.key.clone(), vec![two])];
    let before = (long.record().await, short.record().await);
    assert!(!bench.jointly(&leases, refresh(LONG * 2, LONG / 2)).await, "one has too little time left");
    assert_eq!((long.record().await, short.record().await), before, "so none is refreshed");
    assert!(bench.jointly(&leases, refresh(LONG * 2, 0)).await, "they are held");
    for key in [&long, &short] {
        let record = key.record().await;
        let holder = record.holders.first().expect("it holds");
        assert_eq!(holder.expires_at, record.last_seen.after(LONG * 2), "for the new ttl from then on");
        assert_eq!(holder.terms.ttl, LONG * 2);
        assert!(holder.refreshes > 0 && record.expires_at >= holder.expires_at);
    }
    assert!(bench.jointly(&leases, refresh(1, 0)).await);
    assert!(
        short.holders().await.iter().all(|holder| holder.expires_at > holder.last_seen.after(LONG)),
        "never sooner"
    );
}

pub(super) async fn what_is_kept_is_kept_though_another_key_is_not(bench: Bench) {
    let sharing = || LeaseSpec { limit: 9, grace: LONG, ..terms() };
    let (first, one) = bench.held_beside("first", &sharing()).await;
    let two = first.granted(once(&sharing())).await;
    let (second, three) = bench.held_beside("second", &terms()).await;
    let nobody = FencingToken::MIN;
    let keep = BatchRequest::Keep { ttl: LONG * 2 };
    let before = second.record().await;
    let leases = vec![(second.key.clone(), vec![three, nobody]), (first.key.clone(), vec![one, two])];
    assert!(!bench.jointly(&leases, keep.clone()).await, "one is not held");
    assert_eq!(second.record().await, before, "so its key stays as it is");
    let after = first.record().await;
    for holder in &after.holders {
        assert_eq!(holder.expires_at, after.last_seen.after(LONG * 3), "the other is kept, each lease with its grace");
    }
    assert!(bench.jointly(&leases[1..].to_vec(), keep.clone()).await, "that alone was done to all");
    assert!(bench.jointly(&leases[1..].to_vec(), keep).await, "and is a second time");
}
