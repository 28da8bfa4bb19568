//! Faults of the network: partitions and lost replies.

use std::ops::Range;

use fastrand::Rng;
use mongodb::bson::doc;
use mongoseal_test_support::{Hits, How, Peer, ReplicaSet};
use tokio::time::sleep;

use super::{Chaos, how, millis};
use crate::{
    crew::{SLOTS, app_name},
    words::{Fault, micros},
    worker::{OPERATION_TIMEOUT, SMALLEST_TTL},
};

fn one_of(slot: u32) -> Range<u32> {
    slot..slot + 1
}

impl Chaos<ReplicaSet> {
    async fn heal_after(&self, rng: &mut Rng) {
        sleep(millis(rng, 1000..5000)).await;
        self.servers.proxy().heal();
    }

    /// The primary is cut off from all.
    pub(super) async fn partition(&self, rng: &mut Rng) -> String {
        let (primary, how) = (self.servers.primary().await, how(rng));
        self.servers.proxy().cut_both(&Peer::Member(primary), &Peer::Anyone, how);
        self.heal_after(rng).await;
        format!("{how:?} of member {primary}")
    }

    /// What the primary says, or what is said to it, does not arrive.
    pub(super) async fn one_way(&self, rng: &mut Rng) -> String {
        let (primary, how, says) = (self.servers.primary().await, how(rng), rng.bool());
        let (from, to) = (Peer::Member(primary), Peer::Anyone);
        let (from, to) = if says { (from, to) } else { (to, from) };
        self.servers.proxy().cut(from, to, how);
        self.heal_after(rng).await;
        format!("{how:?} of what {} member {primary}", if says { "comes from" } else { "goes to" })
    }

    /// The primary is cut off from the other members, and clients still reach it; somebody else is made
    /// primary at once, or is elected when the time has come.
    pub(super) async fn minority(&self, rng: &mut Rng) -> String {
        let (primary, how, at_once) = (self.servers.primary().await, how(rng), rng.bool());
        self.servers.proxy().isolate_member(primary, how);
        if at_once {
            // Where it lags behind it is refused, and elected later.
            self.servers.admin((primary + 1) % 3, doc! { "replSetStepUp": 1 }).await.ok();
        }
        self.heal_after(rng).await;
        format!("{how:?} around member {primary}{}", if at_once { ", another steps up" } else { "" })
    }

    /// Some clients do not reach the primary.
    pub(super) async fn split_client(&self, rng: &mut Rng) -> String {
        let (primary, how) = (self.servers.primary().await, how(rng));
        let slots: Vec<_> = (0..SLOTS).filter(|_| rng.bool()).collect();
        for slot in &slots {
            self.servers.proxy().cut_both(&Peer::client(app_name(*slot)), &Peer::Member(primary), how);
        }
        self.heal_after(rng).await;
        format!("{how:?} between slots {slots:?} and member {primary}")
    }

    /// All but one worker are heard by the primary and hear its answers late.
    pub(super) async fn deaf_client(&self, rng: &mut Rng) -> String {
        let (primary, spared, length) = (self.servers.primary().await, rng.u32(..SLOTS), millis(rng, 1600..2900));
        for slot in (0..SLOTS).filter(|slot| *slot != spared) {
            self.servers.proxy().cut(Peer::Member(primary), Peer::client(app_name(slot)), How::Blackhole);
        }
        sleep(length).await;
        self.servers.proxy().heal();
        format!("all slots but {spared} for {length:?}")
    }

    /// Requests of some clients are executed and not answered.
    pub(super) async fn swallow_reply(&self, rng: &mut Rng) -> Fault {
        let (slot, times) = (rng.u32(..SLOTS), rng.u32(1..12));
        let hits = self.servers.proxy().swallow_reply(&app_name(slot), "findAndModify update", times);
        sleep(millis(rng, 500..2000)).await;
        Fault { what: format!("{} of slot {slot}", hits.count()), slot: Some(slot), ..Fault::default() }
    }

    /// No worker reaches any member, for longer than a call may take.
    pub(super) async fn outage(&self, rng: &mut Rng) -> String {
        let how = how(rng);
        for slot in 0..SLOTS {
            self.servers.proxy().cut_both(&Peer::client(app_name(slot)), &Peer::Anyone, how);
        }
        // Some last longer than the waiters of a worker keep their places.
        let length = OPERATION_TIMEOUT + millis(rng, 500..4000);
        sleep(length).await;
        self.servers.proxy().heal();
        format!("{how:?} for {length:?}")
    }

    /// The way between the servers and a worker, or all, is long for a while: each reply is late by the same time,
    /// which a lease of the smallest ttl can live with.
    pub(super) async fn latency(&self, rng: &mut Rng) -> Fault {
        let by = SMALLEST_TTL.mul_f64(rng.u32(10..=35).into()) / 100;
        let slots = if rng.bool() { 0..SLOTS } else { one_of(rng.u32(..SLOTS)) };
        let hits: Vec<_> = slots.clone().map(|slot| self.servers.proxy().delay_replies(&app_name(slot), by)).collect();
        sleep(millis(rng, 4000..8000)).await;
        self.servers.proxy().heal();
        let hits: u32 = hits.iter().map(Hits::count).sum();
        Fault { what: format!("{hits} replies to slots {slots:?} by {by:?}"), by: Some(micros(by)), ..Fault::default() }
    }
}
