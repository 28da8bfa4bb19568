//! The library on a real replica set without faults.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]

mod bad_input;
mod clocks;
mod commands;
mod crowd;
mod errors;
mod formats;
mod groups;
mod index;
mod inspect;
mod privileges;
mod refused;
mod runtimes;
mod secrets;
mod siblings;
mod tls;
mod tokens;
mod waiting;
mod watch;

use mongoseal::{
    Lease, LeaseId, Metadata, Mongoseal, Sharing,
    action::Acquire,
    record::{HoldLimits, LeaseSpec},
};
use mongoseal_test_support::{Sent, TestDatabase, by_length, eventually, millis, noting_client, secs};
use tokio::task::JoinSet;

/// An exclusive lease of the owner "me", with this ttl in milliseconds.
pub(crate) fn terms(lease: LeaseId, ttl: u64) -> LeaseSpec {
    LeaseSpec {
        lease,
        acquire_id: "0123456789abcdef/1".parse().unwrap(),
        owner: "me".parse().unwrap(),
        sharing: Sharing::Exclusive,
        ttl,
        grace: 0,
        group: None,
        metadata: Metadata::default(),
        hold: HoldLimits::default(),
    }
}

/// A prepared handle on a client of its own with these options, and the commands that it sends.
async fn noting_seal(db: &TestDatabase, options: &str) -> (Mongoseal, Sent) {
    let (client, sent) = noting_client(&db.set.uri_with(options)).await;
    let seal = Mongoseal::on_shared_client(&client.database(db.database.name()));
    seal.prepare().await.unwrap();
    (seal, sent)
}

/// How many wait for `k`, by its record.
async fn queued(db: &TestDatabase) -> usize {
    db.record("k").await.map_or(0, |record| record.get_array("queue").unwrap().len())
}

/// What comes of many acquires, of which fifty are under way at a time.
async fn acquire_all(acquires: impl IntoIterator<Item = Acquire>) -> Vec<Lease> {
    let (mut acquires, mut leases) = (acquires.into_iter(), Vec::new());
    loop {
        let asking: JoinSet<_> = acquires.by_ref().take(50).map(IntoFuture::into_future).collect();
        if asking.is_empty() {
            return leases;
        }
        leases.extend(asking.join_all().await.into_iter().map(Result::unwrap));
    }
}
