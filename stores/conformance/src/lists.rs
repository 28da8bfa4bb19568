//! Requirements on lists of leases, and on what has expired.

use std::time::Duration;

use super::fixture::{Fixture, LONG, once, queue, terms, wait};
use super::values;
use mongoseal::{
    LeaseId, Sharing,
    record::{Filter, LeaseSpec, ListedLease, Position, Request, SharingFilter},
    store::Page,
};

impl Fixture {
    /// Lists all pages of so many leases each.
    async fn listed(&self, filter: &Filter, page_size: u32) -> Vec<ListedLease> {
        let (mut listed, mut after) = (Vec::new(), None::<Position>);
        loop {
            let page = self.store.list(filter, after, page_size, self.deadline()).await;
            let Page { leases, next } = page.unwrap_or_else(|error| panic!("{filter:?} must be listed: {error}"));
            listed.extend(leases);
            let Some(next) = next else { return listed };
            after = Some(next);
        }
    }
}

pub(super) async fn a_list_has_the_wanted_leases_in_the_order_of_keys_and_then_of_tokens(fixture: Fixture) {
    for (name, owner, sharing, ttl) in [
        ("b", "me", Sharing::Exclusive, LONG),
        ("a", "you", Sharing::UpTo(3), LONG),
        ("d", "me", Sharing::UpTo(2), fixture.short()),
        ("c", "me", Sharing::UpTo(4), LONG),
        ("$x.y", "$me", Sharing::Exclusive, LONG),
    ] {
        let group = (ttl == LONG && !sharing.is_exclusive()).then(|| "$g".parse().expect("the text is a group"));
        let terms = LeaseSpec { owner: owner.parse().expect("the text is an owner"), sharing, ttl, group, ..terms() };
        let token = fixture.beside(name).granted(once(&terms)).await;
        if sharing.is_exclusive() {
            fixture.beside(name).send(values::put(&terms, token, (0, 1))).await;
        }
        if name == "a" {
            fixture.beside(name).granted(once(&LeaseSpec { lease: LeaseId::random(), ..terms })).await;
        }
    }
    let short = fixture.beside("d");
    short.pass(short.holders()[0].expires_at).await;

    let mut all = Filter::default();
    (all.prefix, all.with_expired) = (format!("{}/", fixture.key), true);
    let listed = fixture.listed(&all, 100).await;
    assert_eq!(listed.len(), 6, "all leases must be listed: {listed:?}");
    let order: Vec<_> = listed.iter().map(|lease| (lease.key.clone(), lease.holder.token)).collect();
    assert!(order.is_sorted(), "leases must be in the order of keys and then of tokens: {order:?}");
    for lease in &listed {
        let record = fixture.with_key(lease.key.clone()).record();
        let waiting = record.count_waiters(lease.read_at);
        let holder = record.holders.into_iter().find(|holder| holder.version == lease.holder.token);
        let expected = ListedLease::of(
            lease.key.clone(),
            holder.expect("the lease must hold"),
            waiting,
            record.value,
            lease.read_at,
        );
        assert_eq!(*lease, expected, "a listed lease must be as its record says");
    }

    let since = listed.get(2).map(|lease| lease.holder.since);
    let half = Some(Duration::from_millis(LONG / 2));
    let with = |change: &dyn Fn(&mut Filter)| {
        let mut filter = all.clone();
        change(&mut filter);
        filter
    };
    let filters = [
        with(&|filter| filter.with_expired = false),
        with(&|filter| filter.key = Some(fixture.beside("$x.y").key)),
        with(&|filter| filter.prefix = format!("{}/$", fixture.key)),
        with(&|filter| filter.owner = "$me".parse().ok()),
        with(&|filter| filter.group = "$g".parse().ok()),
        with(&|filter| filter.sharing = Some(SharingFilter::Shared)),
        with(&|filter| {
            (filter.sharing, filter.owner) = (Some(SharingFilter::Exclusive), "me".parse().ok());
        }),
        with(&|filter| filter.since_after = since),
        with(&|filter| (filter.since_before, filter.with_expired) = (since, false)),
        with(&|filter| filter.free_in_at_least = half),
        with(&|filter| filter.free_in_less_than = half),
        with(&|filter| {
            (filter.free_in_at_least, filter.free_in_less_than) = (Some(Duration::ZERO), Some(Duration::MAX));
        }),
        with(&|filter| filter.free_in_at_least = Some(Duration::MAX)),
    ];
    for filter in filters {
        let names = |leases: &[ListedLease]| -> Vec<_> {
            leases.iter().map(|lease| (lease.key.clone(), lease.holder.token)).collect()
        };
        let wanted: Vec<_> = listed.iter().filter(|lease| filter.admits(lease)).cloned().collect();
        for page_size in [1, 2, 100] {
            let found = fixture.listed(&filter, page_size).await;
            assert_eq!(names(&found), names(&wanted), "{filter:?}, {page_size} at a time");
        }
    }
}

pub(super) async fn a_listed_lease_has_the_number_of_live_waiters(fixture: Fixture) {
    fixture.granted(once(&terms())).await;
    let mut filter = Filter::default();
    filter.key = Some(fixture.key.clone());
    let listed =
        async || -> Vec<usize> { fixture.listed(&filter, 10).await.iter().map(|lease| lease.waiting).collect() };
    assert_eq!(listed().await, [0], "no acquire waits");
    fixture.send(queue(&terms(), fixture.short(), 100)).await;
    let end = fixture.record().queue[0].expires_at;
    for _ in 0..2 {
        fixture.send(wait(&terms())).await;
    }
    fixture.pass(end).await;
    assert_eq!(listed().await, [2], "an expired waiter does not count");
}

pub(super) async fn a_prune_removes_what_has_expired_and_nothing_else(fixture: Fixture) {
    let (over, live) = (fixture.beside("over"), fixture.beside("live"));
    live.granted(once(&terms())).await;
    over.granted(once(&LeaseSpec { ttl: fixture.short(), ..terms() })).await;
    over.send(Request::Prune).await;
    over.pass(over.record().expires_at).await;
    over.send(Request::Prune).await;
    live.send(Request::Prune).await;
    let mut all = Filter::default();
    (all.prefix, all.with_expired) = (format!("{}/", fixture.key), true);
    let left: Vec<_> = fixture.listed(&all, 100).await.into_iter().map(|lease| lease.key).collect();
    assert_eq!(left, [live.key], "what has expired must be gone, and nothing else");
}
