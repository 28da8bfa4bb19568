//! Leases of many keys, and what is over.

use std::time::Duration;

use super::bench::{Bench, LONG, SHORT, once, release, terms};
use crate::{
    Key, LeaseId,
    record::{ListedLease, Outcome, Position, Request, Selection, Sharing, Terms},
    store::{Overdue, Page},
};

impl Bench {
    /// All that a store lists, so many at a time.
    async fn listed(&self, selection: &Selection, most: u32) -> Vec<ListedLease> {
        let (mut listed, mut after) = (Vec::new(), None::<Position>);
        loop {
            let page = self.store.list(selection, after, most, self.deadline()).await;
            let Page { leases, next } = page.unwrap_or_else(|error| panic!("{selection:?} is listed: {error}"));
            assert!(leases.len() <= usize::try_from(most).unwrap(), "no more than was asked for");
            listed.extend(leases);
            let Some(next) = next else { return listed };
            after = Some(next);
        }
    }

    /// Of what this key's record, or one behind it, can be cleared first.
    async fn overdue(&self) -> Option<Overdue> {
        let backlog = self.store.overdue(Some(self.key.as_str().into()), 1, self.deadline()).await;
        backlog.expect("what is over can be looked for").overdue.into_iter().next()
    }
}

pub(super) async fn a_list_is_what_was_asked_for_in_the_order_of_tokens(bench: Bench) {
    for (name, owner, limit, ttl) in [
        ("b", "me", 0, LONG),
        ("a", "you", 3, LONG),
        ("d", "me", 2, SHORT),
        ("c", "me", 4, LONG),
        ("$x.y", "$me", 0, LONG),
    ] {
        let group = (ttl == LONG && limit > 0).then(|| "$g".parse().expect("it is a group"));
        let terms = Terms { owner: owner.parse().expect("it is an owner"), limit, ttl, group, ..terms() };
        bench.beside(name).granted(once(&terms)).await;
        if name == "a" {
            bench.beside(name).granted(once(&Terms { lease: LeaseId::random(), ..terms })).await;
        }
    }
    bench.beside("d").pass(bench.beside("d").holders().await.first().expect("it is there").expires_at).await;

    let all = Selection { prefix: format!("{}/", bench.key), with_expired: true, ..Selection::default() };
    let listed = bench.listed(&all, 100).await;
    assert_eq!(listed.len(), 6, "{listed:?}");
    let order: Vec<_> = listed.iter().map(|lease| (lease.holding.token, lease.key.clone())).collect();
    assert!(order.is_sorted(), "in the order of tokens: {order:?}");
    for lease in &listed {
        let record = Bench { key: lease.key.clone(), ..bench.clone() }.record().await;
        let holder = record.holders.into_iter().find(|holder| holder.version == lease.holding.token);
        let expected = ListedLease::of(lease.key.clone(), holder.expect("it holds"), lease.read_at);
        assert_eq!(*lease, expected, "as its record says");
    }

    let since = listed.get(2).map(|lease| lease.holding.since);
    let half = Some(Duration::from_millis(LONG / 2));
    let selections = [
        Selection { with_expired: false, ..all.clone() },
        Selection { key: Some(bench.beside("$x.y").key), ..all.clone() },
        Selection { prefix: format!("{}/$", bench.key), ..all.clone() },
        Selection { owner: "$me".parse().ok(), ..all.clone() },
        Selection { group: "$g".parse().ok(), ..all.clone() },
        Selection { sharing: Some(Sharing::Shared), ..all.clone() },
        Selection { sharing: Some(Sharing::Exclusive), owner: "me".parse().ok(), ..all.clone() },
        Selection { since_after: since, ..all.clone() },
        Selection { since_before: since, with_expired: false, ..all.clone() },
        Selection { remaining_at_least: half, ..all.clone() },
        Selection { remaining_less_than: half, ..all.clone() },
        Selection { remaining_at_least: Some(Duration::ZERO), remaining_less_than: Some(Duration::MAX), ..all.clone() },
        Selection { remaining_at_least: Some(Duration::MAX), ..all },
    ];
    for selection in selections {
        let names = |leases: &[ListedLease]| -> Vec<_> {
            leases.iter().map(|lease| (lease.key.clone(), lease.holding.token)).collect()
        };
        let wanted: Vec<_> = listed.iter().filter(|lease| selection.admits(lease)).cloned().collect();
        for most in [1, 2, 100] {
            let found = bench.listed(&selection, most).await;
            assert_eq!(names(&found), names(&wanted), "{selection:?}, {most} at a time");
        }
    }
}

pub(super) async fn a_prune_removes_what_is_over_and_nothing_else(bench: Bench) {
    let (over, live) = (bench.beside("over"), bench.beside("live"));
    live.granted(once(&terms())).await;
    let token = over.granted(once(&Terms { ttl: SHORT, ..terms() })).await;
    assert_eq!(over.send(Request::Prune).await, Outcome::Pruned { holders: vec![] }, "it is not over yet");
    over.pass(over.record().await.expires_at).await;
    assert_eq!(bench.overdue().await, Some(Overdue::Lapsed { key: over.key.clone() }), "it is found");
    match over.send(Request::Prune).await {
        Outcome::Pruned { holders } => assert!(holders.iter().map(|holder| holder.version).eq([token]), "{holders:?}"),
        other => panic!("who went is told, and not {other:?}"),
    }
    assert_eq!(live.send(Request::Prune).await, Outcome::Pruned { holders: vec![] });
    assert_eq!(live.holders().await.len(), 1, "a live lease stays");
    let ours = |key: &Key| key.as_str().starts_with(bench.key.as_str());
    match bench.overdue().await {
        Some(Overdue::Lapsed { key }) => assert!(!ours(&key), "nothing is left to clear of {key}"),
        Some(Overdue::Idle { key, .. }) => assert!(!ours(&key), "{key} is not idle for long"),
        None => {}
    }
}

pub(super) async fn a_record_is_not_deleted_before_its_retention(bench: Bench) {
    let terms = terms();
    let token = bench.granted(once(&terms)).await;
    let forgotten =
        || async { bench.store.forget(&bench.key, token, bench.deadline()).await.expect("it can be asked for") };
    assert!(!forgotten().await, "somebody holds the key");
    bench.send(release(&terms, token)).await;
    assert!(!forgotten().await, "its version still protects the tokens");
    assert_eq!(bench.record().await.version, token);
    assert!(
        !bench
            .beside("never")
            .store
            .forget(&bench.beside("never").key, token, bench.deadline())
            .await
            .expect("no error")
    );
}
