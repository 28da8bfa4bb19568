//! Members whose clocks differ, as clients notice it.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mongoseal::Mongoseal;
use mongoseal_test_support::ReplicaSet;

use crate::{millis, secrets::Said, secs};

/// Sets the clock of the only member, and waits until it shows that.
async fn set_clock(set: &ReplicaSet, ahead: Duration) {
    set.set_clock(0, &format!("+{}", ahead.as_secs()));
    let until = Instant::now() + secs(20);
    loop {
        let hello = set.admin(0, doc! { "hello": 1 }).await.unwrap();
        let shown = hello.get_datetime("localTime").unwrap().to_system_time();
        let ahead_by = shown.duration_since(std::time::SystemTime::now()).unwrap_or_default();
        if ahead_by.abs_diff(ahead) < secs(1) {
            return;
        }
        assert!(Instant::now() < until, "ahead by {ahead_by:?} and not {ahead:?}");
        tokio::time::sleep(millis(50)).await;
    }
}

#[tokio::test]
async fn connecting_warns_of_a_member_that_was_primary_with_a_clock_that_is_ahead() {
    const WARNING: &str = "the cluster time is ahead of the primary's clock";
    let set = ReplicaSet::builder().own_clocks().start().await;
    let said_by_connecting = async || {
        let (said, _guard) = Said::listen();
        // The subscriber is that of this thread.
        Mongoseal::on_shared_client(&set.client().await.database("test")).prepare().await.unwrap();
        said.take()
    };
    let said = said_by_connecting().await;
    assert!(!said.contains(WARNING), "{said}");

    // As after a failover from a member whose clock is ahead to one whose clock is right.
    set_clock(&set, secs(30)).await;
    let write = doc! { "appendOplogNote": 1, "data": {}, "writeConcern": { "w": "majority" } };
    set.admin(0, write).await.unwrap();
    set_clock(&set, secs(0)).await;
    let said = said_by_connecting().await;
    assert!(said.contains(WARNING) && said.contains("run NTP"), "{said}");
}
