//! Starting a replica set.

use std::{
    net::Ipv4Addr,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use mongodb::{
    Client,
    bson::{Document, doc},
};
use tokio::{net::TcpListener, sync::OnceCell};

use super::{Login, Member, Owned, ReplicaSet, primary::LIMIT};
use crate::servers::{
    certificate::Certificate,
    mongod::Options,
    proxy::Proxy,
    runtime::{Waiting, run},
    server::Server,
};

/// How to start a [`ReplicaSet`].
#[derive(Clone)]
#[must_use = "a set is started by `start().await`"]
pub struct Builder {
    members: usize,
    election_timeout: Duration,
    chaining: bool,
    proxied: bool,
    options: Options,
}

impl Default for Builder {
    fn default() -> Self {
        let builder = Self {
            members: 1,
            election_timeout: Duration::from_secs(1),
            chaining: true,
            proxied: false,
            options: Options::default(),
        };
        // The first allows fail points, and has members send the `hostInfo` by which a proxy knows them.
        builder.parameter("enableTestCommands", "1").parameter("ttlMonitorSleepSecs", "1")
    }
}

impl Builder {
    /// The number of members. 1 by default.
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// After how long without a primary the others elect one. 1 s by default.
    ///
    /// On a busy machine a short one gives elections that no fault asked for: no test may assert
    /// that there was none.
    pub fn election_timeout(mut self, timeout: Duration) -> Self {
        self.election_timeout = timeout;
        self
    }

    /// Has every secondary replicate from the primary and never from another secondary
    /// (`settings.chainingAllowed: false`). By default a secondary chooses.
    pub fn without_chaining(mut self) -> Self {
        self.chaining = false;
        self
    }

    /// Puts a [`Proxy`] in front of every member.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Controls access. The set's own clients are root; see [`ReplicaSet::add_user`] for others.
    pub fn auth(mut self) -> Self {
        self.options.key = Some("bW9uZ29zZWFsLXRlc3Qtc2V0".to_owned());
        self
    }

    /// Speaks TLS and nothing else, with one certificate for these names and addresses, good for so long from
    /// now on, of an authority made for it: see [`ReplicaSet::authority`]. Members and the set's own
    /// clients go by `127.0.0.1`.
    pub fn tls(mut self, names: &[&str], lasts: Duration) -> Self {
        assert!(!self.proxied, "a proxy reads along, so it cannot stand in front of TLS");
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        self.options.certificate = Some(Certificate::new(&names, lasts));
        self
    }

    /// Gives each member a clock that [`ReplicaSet::set_clock`] can shift.
    pub fn own_clocks(mut self) -> Self {
        self.options.own_clock = true;
        self
    }

    /// Keeps the files of each member in a new directory in `folder`, which must exist. By default they are in memory,
    /// where no write waits for a disk. The directories vanish with the set.
    pub fn on_disk(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.folder = Some(folder.into());
        self
    }

    /// How often each member writes its journal where no write waits for it. 100 ms by default, which is that of MongoDB,
    /// and 5 ms in a set of one member: there, a linearizable read waits for it.
    pub fn journal_interval(mut self, interval: Duration) -> Self {
        self.options.journal_interval = Some(interval);
        self
    }

    /// How large the oplog of each member may grow. 64 MB by default.
    pub fn oplog_megabytes(mut self, megabytes: u32) -> Self {
        self.options.oplog_megabytes = Some(megabytes);
        self
    }

    /// A `--setParameter` for every member, over the default for it.
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.options.parameters.retain(|(other, _)| other != name);
        self.options.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the set and waits until all members take part and it accepts majority writes.
    pub async fn start(self) -> ReplicaSet {
        let set = run(self.launch()).await;
        set.settled().await;
        set
    }

    async fn launch(self) -> ReplicaSet {
        let mut options = self.options;
        options.replica_set = Some(new_name());
        if self.members == 1 {
            options.journal_interval.get_or_insert(Duration::from_millis(5));
        }
        let starting: Vec<_> = (0..self.members)
            .map(|_| {
                let options = options.clone();
                tokio::task::spawn_blocking(move || Server::start(&options))
            })
            .collect();
        let mut members = Vec::new();
        for server in starting {
            let server = server.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            members.push(Member { server, client: OnceCell::new() });
        }
        let mut owned = Owned {
            name: options.replica_set.clone().unwrap_or_default(),
            hosts: members.iter().map(|member| member.server.address()).collect(),
            members,
            proxy: None,
            tls: options.certificate.is_some(),
            root: None,
        };
        if self.proxied {
            owned.put_behind_proxy().await;
        }
        let config = configuration(&owned.name, &owned.hosts, self.election_timeout, self.chaining);
        owned.initiate(config, options.key.is_some()).await;
        ReplicaSet::of(owned)
    }
}

/// A name unlike any other set's, lest a member talk to one of another set that has the port it
/// knows.
fn new_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("set-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Owned {
    async fn put_behind_proxy(&mut self) {
        let mut listeners = Vec::new();
        for host in &mut self.hosts {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a proxy finds a free port");
            *host = listener.local_addr().expect("a listener has an address").to_string();
            listeners.push(listener);
        }
        let ports: Vec<_> = self.members.iter().map(|member| member.server.port()).collect();
        self.proxy = Some(Proxy::start(listeners, &ports));
    }

    /// Makes a set of the members, and its root user if it has one.
    async fn initiate(&mut self, config: Document, auth: bool) {
        // Until there is a user, a server with access control lets clients from its own host do
        // just this.
        let client = Client::with_uri_str(self.direct_uri(0, None)).await.expect("the URI of a member is valid");
        let admin = client.database("admin");
        // A member of a busy machine may answer the check of the configuration later than within its heartbeat timeout.
        let waiting = Waiting::new("for the members to answer the first", LIMIT);
        while let Err(error) = admin.run_command(doc! { "replSetInitiate": &config }).await {
            waiting.pause(error).await;
        }
        if !auth {
            return;
        }
        let root = Login { name: "root".into(), password: "secret".into(), db: "admin".into() };
        let command = doc! {
            "createUser": &root.name,
            "pwd": &root.password,
            "roles": ["root"],
            "writeConcern": { "w": "majority" },
        };
        let waiting = Waiting::new("for the first primary to make the root user", LIMIT);
        while let Err(error) = admin.run_command(command.clone()).await {
            waiting.pause(error).await;
        }
        self.root = Some(root);
    }
}

fn configuration(name: &str, hosts: &[String], election_timeout: Duration, chaining: bool) -> Document {
    let millis = i64::try_from(election_timeout.as_millis()).expect("an election timeout is short");
    // Several heartbeats must fit into the timeout.
    let heartbeat = match millis {
        ..2000 => 200,
        2000..10_000 => 500,
        _ => 2000,
    };
    let members: Vec<_> = (0i32..).zip(hosts).map(|(id, host)| doc! { "_id": id, "host": host }).collect();
    doc! {
        "_id": name,
        "members": members,
        "settings": {
            "chainingAllowed": chaining,
            "electionTimeoutMillis": millis,
            "heartbeatIntervalMillis": heartbeat,
            "heartbeatTimeoutSecs": (millis / 1000).max(1),
            "catchUpTimeoutMillis": 2000,
        },
    }
}
