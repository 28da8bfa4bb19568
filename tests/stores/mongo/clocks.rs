//! Members whose clocks differ, as clients notice it.

use std::time::{Duration, SystemTime};

use mongodb::bson::doc;
use mongoseal::Mongoseal;
use mongoseal_test_support::ReplicaSet;

use crate::{eventually, secrets::Said, secs};

/// Sets the clock of the only member, and waits until it shows that.
async fn set_clock(set: &ReplicaSet, ahead: Duration) {
    set.set_clock(0, &format!("+{}", ahead.as_secs()));
    let is_shown = async || {
        let hello = set.admin(0, doc! { "hello": 1 }).await.unwrap();
        let shown = hello.get_datetime("localTime").unwrap().to_system_time();
        shown.duration_since(SystemTime::now()).unwrap_or_default().abs_diff(ahead) < secs(1)
    };
    eventually(secs(20), "the member shows it", is_shown).await;
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
