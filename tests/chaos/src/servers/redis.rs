//! A primary of Redis and its replicas, behind forwarders.
//!
//! Each slot of workers has a forwarder of its own, which leads to the primary, or to what the workers of that slot take for
//! it. Each server has another one, by which its replicas find it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use fastrand::Rng;
use mongoseal::{Builder, Mongoseal};
use mongoseal_redis::RedisBackend;
use mongoseal_test_support::{Forwarder, Redis};
use redis::{ErrorKind, FromRedisValue, RedisError, RedisResult, Value};
use tokio::time::{sleep, timeout};

use super::{MEMBERS, Servers};
use crate::{
    crew::SLOTS,
    faults::{Chaos, Kind},
    history::History,
    options::Options,
    sabotage::Sabotage,
    words::{Event, Fault, Micros, now},
    worker::{Backing, REDIS_RETENTION},
};

/// How long the answer to a command may take, and how long servers need until they all take part.
const ANSWER: Duration = Duration::from_secs(3);
const SETTLING: Duration = Duration::from_secs(60);

pub(crate) struct RedisServers {
    pub(crate) servers: Vec<Redis>,
    /// By which replicas find a server.
    pub(crate) replication: Vec<Forwarder>,
    /// By which the workers of a slot find the primary.
    pub(crate) clients: Vec<Forwarder>,
    control: Forwarder,
    primary: AtomicUsize,
    changes: AtomicI64,
    replicas: u32,
}

impl RedisServers {
    /// The server that is the primary now.
    pub(crate) fn primary(&self) -> usize {
        self.primary.load(Ordering::Relaxed)
    }

    /// Another server than the primary.
    pub(crate) fn any_replica(&self, rng: &mut Rng) -> usize {
        (self.primary() + rng.usize(1..MEMBERS)) % MEMBERS
    }

    /// Sends a command to a server, past all forwarders.
    pub(crate) async fn send<T: FromRedisValue>(&self, server: usize, command: &[&str]) -> RedisResult<T> {
        let answer = async {
            let client = redis::Client::open(self.servers[server].url())?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
        };
        let late = |_| RedisError::from((ErrorKind::Io, "the server does not answer"));
        timeout(ANSWER, answer).await.map_err(late)?
    }

    /// Makes a server a replica of another one.
    pub(crate) async fn follow(&self, server: usize, primary: usize) -> RedisResult<()> {
        let port = self.replication[primary].port().to_string();
        self.send(server, &["REPLICAOF", "127.0.0.1", &port]).await
    }

    /// Makes a replica a primary, whatever it has.
    pub(crate) async fn promote(&self, server: usize) {
        let () = self.send(server, &["REPLICAOF", "NO", "ONE"]).await.expect("a replica can be promoted");
    }

    /// Lets a slot find this server. Its open connections stay where they are.
    pub(crate) fn lead(&self, slot: u32, server: usize) {
        self.clients[slot as usize].set_target(self.servers[server].port());
    }

    /// From now on this server is the primary, for all slots.
    pub(crate) fn note_primary(&self, server: usize) {
        self.primary.store(server, Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.control.set_target(self.servers[server].port());
        for slot in 0..SLOTS {
            self.lead(slot, server);
        }
    }

    /// Closes the connections of the runner and of all workers.
    pub(crate) fn reset_clients(&self) {
        self.clients.iter().chain([&self.control]).for_each(Forwarder::reset);
    }

    /// Whether a server says that it is a primary.
    pub(crate) async fn is_primary(&self, server: usize) -> bool {
        let role: RedisResult<Vec<Value>> = self.send(server, &["ROLE"]).await;
        role.is_ok_and(|role| role.first().is_some_and(|role| text(role) == "master"))
    }

    /// Whether a server replicates from the primary. If it replicates from another server, or from none, it is made to.
    async fn follows(&self, server: usize) -> bool {
        let primary = self.primary();
        let Ok(role) = self.send::<Vec<Value>>(server, &["ROLE"]).await else { return false };
        let from = role.get(2).and_then(|port| redis::from_redis_value_ref::<u16>(port).ok());
        if role.first().is_none_or(|role| text(role) != "slave") || from != Some(self.replication[primary].port()) {
            self.follow(server, primary).await.ok();
            return false;
        }
        role.get(3).is_some_and(|state| text(state) == "connected")
    }
}

fn text(value: &Value) -> String {
    redis::from_redis_value_ref(value).unwrap_or_default()
}

impl Servers for RedisServers {
    async fn start(options: &Options, _: &[Kind], own_clocks: bool) -> Self {
        let (mut servers, mut replication, mut clients) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..MEMBERS {
            let forwarder = Forwarder::start().await;
            let port = forwarder.port().to_string();
            let settings = [
                ("appendonly", "yes"),
                ("appendfsync", "always"),
                ("maxmemory-policy", "noeviction"),
                ("replica-announce-ip", "127.0.0.1"),
                ("replica-announce-port", &port),
                ("repl-ping-replica-period", "1"),
                ("repl-timeout", "5"),
            ];
            let server = if own_clocks {
                Redis::start_with_own_clock(&settings).await
            } else {
                Redis::start_with(&settings).await
            };
            forwarder.set_target(server.port());
            servers.push(server);
            replication.push(forwarder);
        }
        for _ in 0..SLOTS {
            clients.push(Forwarder::start().await);
        }
        let control = Forwarder::start().await;
        let (primary, changes) = (AtomicUsize::new(0), AtomicI64::new(0));
        let replicas = options.replicas;
        let started = Self { servers, replication, clients, control, primary, changes, replicas };
        started.note_primary(0);
        started.changes.store(0, Ordering::Relaxed);
        started
    }

    fn backing(&self) -> Backing {
        Backing::Redis { replicas: self.replicas }
    }

    fn uri(&self, slot: u32) -> String {
        format!("redis://127.0.0.1:{}", self.clients[slot as usize].port())
    }

    fn control_uri(&self) -> String {
        format!("redis://127.0.0.1:{}", self.control.port())
    }

    /// Its sabotages are done in the workers.
    fn tamper(&self, _: Sabotage) {}

    fn heal(&self) {
        self.clients.iter().chain(&self.replication).for_each(Forwarder::heal);
    }

    async fn settled(&self) {
        let following = async {
            while !self.all_follow().await {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(SETTLING, following).await.expect("all servers follow the primary in time");
    }

    async fn term(&self) -> i64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn set_clock(&self, server: usize, shift: &str) {
        self.servers[server].set_clock(shift);
    }

    async fn time(&self, server: usize) -> Option<SystemTime> {
        let (seconds, micros) = self.send::<(u64, u64)>(server, &["TIME"]).await.ok()?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros))
    }

    async fn inflict(chaos: &Chaos<Self>, kind: Kind, rng: &mut Rng) -> Fault {
        chaos.inflict(kind, rng).await
    }

    async fn seal(&self, builder: Builder) -> Mongoseal {
        let redis = RedisBackend::new(self.control_uri()).expect("the runner's connection string is valid");
        let connecting = builder.retention(REDIS_RETENTION).connect_to(redis.with_replicas(self.replicas));
        connecting.await.expect("the servers answer and the settings are valid")
    }

    async fn prepare(&self) {}

    /// Notes how many connections the workers of each slot have.
    async fn count(self: Arc<Self>, history: History, until: Micros) {
        while now() < until {
            sleep(Duration::from_secs(1)).await;
            for (slot, forwarder) in (0..).zip(&self.clients) {
                let count = u64::try_from(forwarder.open_connections()).unwrap_or(u64::MAX);
                history.note(Event::Open { slot, count, at: now() });
            }
        }
    }

    async fn read(&self, _: &History) {}
}

impl RedisServers {
    /// Whether all other servers replicate from the primary, and have what it has.
    async fn all_follow(&self) -> bool {
        let mut all = true;
        for server in (0..MEMBERS).filter(|server| *server != self.primary()) {
            all &= self.follows(server).await;
        }
        let others = MEMBERS - 1;
        all && self.send(self.primary(), &["WAIT", &others.to_string(), "1000"]).await == Ok(others)
    }
}
