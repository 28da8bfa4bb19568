//! The faults of servers of Redis.

use std::time::Duration;

use fastrand::Rng;
use mongoseal_test_support::{How, Way};
use tokio::time::sleep;

use super::{Chaos, Kind, how, millis};
use crate::{
    crew::SLOTS,
    servers::{MEMBERS, Servers, redis::RedisServers},
    words::{Fault, micros, now},
    worker::{HOT_KEYS, OPERATION_TIMEOUT, OUTSTAYED_KEYS, REDIS_RETENTION, SMALLEST_GRACE, SMALLEST_TTL},
};

/// How long an orderly promotion may take before it is given up.
const PROMOTION: Duration = Duration::from_secs(2);

impl Chaos<RedisServers> {
    /// Does it and heals it; says what it was.
    pub(crate) async fn inflict(&self, kind: Kind, rng: &mut Rng) -> Fault {
        match kind {
            Kind::Kill => self.kill(rng).await,
            Kind::Pause => self.pause(rng).await,
            Kind::Partition => self.partition(rng).await,
            Kind::DeafClient => self.deaf_client(rng).await,
            Kind::Minority => self.minority(rng).await,
            Kind::Promote => return self.promote(rng).await,
            Kind::Failover => return self.failover(rng).await,
            Kind::SplitBrain => return self.split_brain(rng).await,
            Kind::SwallowReply => return self.swallow_reply(rng).await,
            Kind::Latency => return self.latency(rng).await,
            Kind::Outage => self.outage(rng).await,
            Kind::Drop => self.delete(rng).await,
            Kind::ScriptFlush => self.on_primary(&["SCRIPT", "FLUSH"]).await,
            Kind::KillMessages => self.on_primary(&["CLIENT", "KILL", "TYPE", "pubsub"]).await,
            Kind::ClockJump => self.clock_jump(self.victim(rng), rng).await,
            _ => return self.hurt_client(kind, rng).await,
        }
        .into()
    }

    /// Mostly the primary.
    fn victim(&self, rng: &mut Rng) -> usize {
        if rng.u8(..4) == 0 { self.servers.any_replica(rng) } else { self.servers.primary() }
    }

    /// A server is killed, and starts again with what its file has.
    async fn kill(&self, rng: &mut Rng) -> String {
        let server = self.victim(rng);
        self.servers.servers[server].kill();
        sleep(millis(rng, 300..3500)).await;
        self.servers.servers[server].restart();
        format!("server {server}")
    }

    async fn pause(&self, rng: &mut Rng) -> String {
        let (server, length) = (self.victim(rng), millis(rng, 500..5000));
        self.servers.servers[server].pause();
        sleep(length).await;
        self.servers.servers[server].resume();
        format!("server {server} for {length:?}")
    }

    /// Some workers, or all, do not reach the primary.
    async fn partition(&self, rng: &mut Rng) -> String {
        let (how, all) = (how(rng), rng.bool());
        let slots: Vec<_> = (0..SLOTS).filter(|_| all || rng.bool()).collect();
        for slot in &slots {
            self.servers.clients[*slot as usize].cut_both(how);
        }
        self.heal_after(rng).await;
        format!("{how:?} of slots {slots:?}")
    }

    /// The requests of all slots but one arrive, and the answers do not until it is over.
    async fn deaf_client(&self, rng: &mut Rng) -> String {
        let (spared, length) = (rng.usize(..SLOTS as usize), millis(rng, 1600..2900));
        for (slot, forwarder) in self.servers.clients.iter().enumerate() {
            if slot != spared {
                forwarder.cut(Way::Reply, How::Blackhole);
            }
        }
        sleep(length).await;
        self.servers.heal();
        format!("all slots but {spared} for {length:?}")
    }

    /// The primary is cut off from its replicas, and workers still reach it.
    async fn minority(&self, rng: &mut Rng) -> String {
        let (primary, how) = (self.servers.primary(), how(rng));
        self.servers.replication[primary].cut_both(how);
        self.heal_after(rng).await;
        format!("{how:?} around server {primary}")
    }

    async fn heal_after(&self, rng: &mut Rng) {
        sleep(millis(rng, 1000..5000)).await;
        self.servers.heal();
    }

    /// A replica that has all writes takes over from a primary that takes no more.
    async fn promote(&self, rng: &mut Rng) -> Fault {
        let (servers, old, new) = (&self.servers, self.servers.primary(), self.servers.any_replica(rng));
        let (port, limit) = (servers.replication[new].port().to_string(), PROMOTION.as_millis().to_string());
        let order = ["FAILOVER", "TO", "127.0.0.1", &port, "TIMEOUT", &limit];
        let begun: redis::RedisResult<()> = servers.send(old, &order).await;
        begun.expect("a primary with replicas can hand over");
        let until = now() + micros(2 * PROMOTION);
        while !servers.is_primary(new).await {
            if now() > until {
                // The primary goes on.
                return format!("server {new} was too slow").into();
            }
            sleep(Duration::from_millis(10)).await;
        }
        // For a while the workers find a server that has become a replica.
        sleep(millis(rng, 0..800)).await;
        servers.note_primary(new);
        let reset = rng.bool();
        if reset {
            servers.reset_clients();
        }
        // All records are there. A record that was deleted when it had been idle long enough is not.
        let bound = Some(micros(REDIS_RETENTION));
        Fault { what: format!("server {new} after {old}, connections reset: {reset}"), bound, ..Fault::default() }
    }

    /// The primary is lost, and a replica is promoted that may lack its last writes.
    async fn failover(&self, rng: &mut Rng) -> Fault {
        let (servers, old, new) = (&self.servers, self.servers.primary(), self.servers.any_replica(rng));
        let cut = match rng.u8(..3) {
            0 => "none was cut off before",
            1 => {
                servers.replication[old].cut_both(how(rng));
                "all were cut off before"
            }
            _ => {
                // The other one still acknowledges.
                let () = servers.send(new, &["REPLICAOF", "127.0.0.1", "1"]).await.expect("a replica answers");
                "the new one was cut off before"
            }
        };
        sleep(millis(rng, 200..2500)).await;
        // It is killed, or no worker reaches it any more.
        let killed = rng.bool();
        if killed {
            servers.servers[old].kill();
        } else {
            servers.servers[old].pause();
        }
        servers.clients.iter().for_each(|forwarder| forwarder.cut_both(How::Reset));
        let lost = now();
        sleep(millis(rng, 1000..3000)).await;
        let took = now() - lost;
        servers.promote(new).await;
        servers.note_primary(new);
        servers.heal();
        servers.reset_clients();
        sleep(millis(rng, 0..3000)).await;
        if killed {
            servers.servers[old].restart();
        } else {
            servers.servers[old].resume();
        }
        let what = format!("server {new} after {old}, which was killed: {killed}; {cut}");
        Fault { what, bound: Some(took), ..Fault::default() }
    }

    /// A replica is promoted while some workers still use the old primary, which does not know.
    async fn split_brain(&self, rng: &mut Rng) -> Fault {
        let (servers, old, new) = (&self.servers, self.servers.primary(), self.servers.any_replica(rng));
        let stay: Vec<_> = (0..SLOTS).filter(|_| rng.bool()).collect();
        // The third server acknowledges what the old primary writes, or what the new one writes.
        let (alone, third) = (rng.bool(), MEMBERS - old - new);
        servers.promote(new).await;
        if alone {
            servers.follow(third, new).await.ok();
        }
        servers.note_primary(new);
        for slot in 0..SLOTS {
            if stay.contains(&slot) {
                servers.lead(slot, old);
            } else {
                servers.clients[slot as usize].reset();
            }
        }
        sleep(millis(rng, 500..4000)).await;
        // It may learn of it before its workers do.
        let learns = rng.bool();
        if learns {
            servers.follow(old, new).await.ok();
            sleep(millis(rng, 100..1500)).await;
        }
        for slot in &stay {
            servers.lead(*slot, new);
            servers.clients[*slot as usize].reset();
        }
        servers.heal();
        let what = format!("server {new} beside {old}, where slots {stay:?} stayed; alone: {alone}, learns: {learns}");
        Fault { what, bound: Some(0), ..Fault::default() }
    }

    /// Requests of some clients are executed and not answered.
    async fn swallow_reply(&self, rng: &mut Rng) -> Fault {
        let (slot, times) = (rng.u32(..SLOTS), rng.u32(1..12));
        let forwarder = &self.servers.clients[slot as usize];
        let before = forwarder.swallowed();
        forwarder.swallow_replies(times);
        sleep(millis(rng, 500..2000)).await;
        let count = forwarder.swallowed() - before;
        Fault { what: format!("{count} of slot {slot}"), slot: Some(slot), ..Fault::default() }
    }

    /// Each reply to a worker, or to all, is late by the same time. A refresh takes up to three round trips.
    async fn latency(&self, rng: &mut Rng) -> Fault {
        let by = SMALLEST_TTL.mul_f64(rng.u32(4..=12).into()) / 100;
        let only = rng.bool().then(|| rng.u32(..SLOTS));
        let slots = (0..SLOTS).filter(|slot| only.is_none_or(|only| only == *slot));
        for slot in slots {
            self.servers.clients[slot as usize].delay_replies(by);
        }
        sleep(millis(rng, 4000..8000)).await;
        self.servers.heal();
        Fault { what: format!("to slots {only:?} by {by:?}"), by: Some(micros(by)), ..Fault::default() }
    }

    /// No worker reaches any server, for longer than a call may take.
    async fn outage(&self, rng: &mut Rng) -> String {
        let how = how(rng);
        self.servers.clients.iter().for_each(|forwarder| forwarder.cut_both(how));
        let length = OPERATION_TIMEOUT + millis(rng, 500..4000);
        sleep(length).await;
        self.servers.heal();
        format!("{how:?} for {length:?}")
    }

    /// All keys are deleted, or those that many workers acquire.
    async fn delete(&self, rng: &mut Rng) -> String {
        let keys: Vec<_> = HOT_KEYS.iter().chain(&OUTSTAYED_KEYS).map(|key| format!("mongoseal:{key}")).collect();
        let some: Vec<_> = std::iter::once("DEL").chain(keys.iter().map(String::as_str)).collect();
        let what = if rng.bool() { self.on_primary(&["FLUSHDB"]).await } else { self.on_primary(&some).await };
        // A server whose clock is behind becomes the primary only when it has passed the last token.
        sleep(SMALLEST_GRACE).await;
        what
    }

    async fn on_primary(&self, command: &[&str]) -> String {
        let answer: redis::RedisResult<redis::Value> = self.servers.send(self.servers.primary(), command).await;
        let answer = answer.expect("a primary that is well runs a command of an operator");
        format!("{} {}: {answer:?}", command[0], command[1..].first().unwrap_or(&""))
    }
}
