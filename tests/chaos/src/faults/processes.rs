//! Faults of the servers: members are killed or stopped, the primary changes, the collection is dropped or its TTL monitor
//! stalls.

use std::time::Duration;

use fastrand::Rng;
use mongodb::bson::{Document, doc};
use mongoseal_test_support::ReplicaSet;
use tokio::time::sleep;

use super::{Chaos, millis};
use crate::{crew::DATABASE, worker::RETENTION};

impl Chaos<ReplicaSet> {
    /// Mostly the primary.
    pub(super) async fn victim(&self, rng: &mut Rng) -> usize {
        let primary = self.servers.primary().await;
        if rng.u8(..4) == 0 { (primary + 1) % 3 } else { primary }
    }

    pub(super) async fn kill(&self, rng: &mut Rng) -> String {
        let member = self.victim(rng).await;
        self.servers.kill(member).await;
        sleep(millis(rng, 500..4000)).await;
        self.servers.restart(member).await;
        format!("member {member}")
    }

    pub(super) async fn terminate(&self, rng: &mut Rng) -> String {
        let member = self.victim(rng).await;
        self.servers.terminate(member).await;
        sleep(millis(rng, 200..2000)).await;
        self.servers.restart(member).await;
        format!("member {member}")
    }

    pub(super) async fn pause(&self, rng: &mut Rng) -> String {
        let (member, length) = (self.victim(rng).await, millis(rng, 500..5000));
        self.servers.pause(member).await;
        sleep(length).await;
        self.servers.resume(member).await;
        format!("member {member} for {length:?}")
    }

    pub(super) async fn step_up(&self, rng: &mut Rng) -> String {
        let member = (self.servers.primary().await + rng.usize(1..3)) % 3;
        self.servers.step_up(member).await;
        format!("member {member}")
    }

    /// Drops all records and the index with them, which a new handle makes again.
    pub(super) async fn drop_collection(&self) -> String {
        let database = self.servers.client().await.database(DATABASE);
        let dropped = database.collection::<Document>("mongoseal").drop().await;
        let seal = mongoseal::Mongoseal::builder()
            .ttl(Duration::from_secs(2))
            .retention(RETENTION)
            .on_shared_client(&database)
            .expect("the settings are valid");
        let prepared = seal.prepare().await;
        format!("dropped: {}, made again: {}", dropped.is_ok(), prepared.is_ok())
    }

    pub(super) async fn stall_collection(&self, rng: &mut Rng) -> String {
        let length = millis(rng, 2000..6000);
        self.collect(false).await;
        sleep(length).await;
        self.collect(true).await;
        format!("for {length:?}")
    }

    async fn collect(&self, enabled: bool) {
        for member in 0..3 {
            let mut times = 1;
            // A member that rolls back closes its connections.
            while let Err(error) =
                self.servers.admin(member, doc! { "setParameter": 1, "ttlMonitorEnabled": enabled }).await
            {
                assert!(times < 20, "a member takes a parameter: {error}");
                times += 1;
                sleep(Duration::from_millis(500)).await;
            }
        }
    }
}
