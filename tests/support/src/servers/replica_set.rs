//! A replica set: its addresses, and commands to it. The files below start it, inject faults and inspect it.

mod builder;
mod faults;
mod inspect;
mod primary;
mod shared;
mod users;

use std::{path::PathBuf, sync::Arc, time::Duration};

use mongodb::{Client, bson::Document, error};
use tokio::sync::OnceCell;

use crate::servers::{
    fail_point::Turns,
    mongod::authority_file,
    proxy::Proxy,
    runtime::{run, run_blocking},
    server::Server,
};

pub use builder::Builder;
pub use shared::shared;

/// A MongoDB replica set on loopback ports.
///
/// Each member is the child of a small shell that holds a pipe to this process and kills the member
/// when the pipe closes. So the servers and their directories vanish when this value is dropped,
/// and just as well when the process ends without dropping it: a static, a panic, Ctrl-C, SIGKILL.
///
/// Members are counted from 0, in the order of [`hosts`](Self::hosts).
pub struct ReplicaSet {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    uri: String,
    /// Of a set that is not ours: the one from `MONGOSEAL_TEST_URI`.
    outside: OnceCell<Client>,
    /// Of a set that is ours.
    owned: Option<Owned>,
    /// For tests that arm the same fail point.
    pub(crate) turns: Turns,
}

/// The processes of a set.
pub(crate) struct Owned {
    pub(crate) name: String,
    pub(crate) hosts: Vec<String>,
    pub(crate) members: Vec<Member>,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) tls: bool,
    pub(crate) root: Option<Login>,
}

/// One member, and the client for its administration.
pub(crate) struct Member {
    pub(crate) server: Server,
    pub(crate) client: OnceCell<Client>,
}

/// A user of the database `db`.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) password: String,
    pub(crate) db: String,
}

/// Monitoring by polls, often: after a fail point made the driver doubt a primary, streaming leaves
/// it in doubt for up to 10 s.
const MONITORING: &str = "heartbeatFrequencyMS=500&serverMonitoringMode=poll";

impl ReplicaSet {
    /// Options to start a set with.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a set of `members`, otherwise with the defaults of [`Builder`].
    pub async fn start(members: usize) -> Self {
        Self::builder().members(members).start().await
    }

    pub(crate) fn of(owned: Owned) -> Self {
        let uri = owned.uri(owned.root.as_ref());
        Self { inner: Arc::new(Inner { uri, outside: OnceCell::new(), owned: Some(owned), turns: Turns::default() }) }
    }

    pub(crate) fn at(uri: String) -> Self {
        Self { inner: Arc::new(Inner { uri, outside: OnceCell::new(), owned: None, turns: Turns::default() }) }
    }

    /// Where clients find the set; as root, if it has access control. Of a proxied set, by way of
    /// the proxies.
    #[must_use]
    pub fn uri(&self) -> String {
        self.inner.uri.clone()
    }

    /// [`uri`](Self::uri) with more options, such as `appName=one&w=1`.
    #[must_use]
    pub fn uri_with(&self, options: &str) -> String {
        let uri = self.uri();
        let joint = match uri.split_once('?') {
            Some(_) => "&",
            None if uri.trim_start_matches("mongodb://").contains('/') => "?",
            None => "/?",
        };
        uri + joint + options
    }

    /// [`uri`](Self::uri) for a user of the database `db`, see [`add_user`](Self::add_user).
    #[must_use]
    pub fn uri_as(&self, name: &str, password: &str, db: &str) -> String {
        self.inner.owned().uri(Some(&Login { name: name.into(), password: password.into(), db: db.into() }))
    }

    /// Where clients find just one member, whatever its state and never by way of its proxy.
    #[must_use]
    pub fn direct_uri(&self, member: usize) -> String {
        let owned = self.inner.owned();
        owned.direct_uri(member, owned.root.as_ref())
    }

    /// The file with the certificate of the authority of a set with [`tls`](Builder::tls).
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        assert!(self.inner.owned().tls, "only a set built with tls() has an authority");
        self.inner.owned().authority()
    }

    /// `host:port` of each member, as the set knows them.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.inner.owned().hosts
    }

    /// The id of the process each member runs, or last ran, in; none of a set that was started elsewhere.
    #[must_use]
    pub fn process_ids(&self) -> Vec<u32> {
        let members = self.inner.owned.iter().flat_map(|owned| &owned.members);
        members.map(|member| member.server.process_id()).collect()
    }

    /// A new client, which belongs to the caller's runtime.
    pub async fn client(&self) -> Client {
        Client::with_uri_str(self.uri()).await.expect("the URI of a replica set is valid")
    }

    /// Runs `command` on the `admin` database of one member, past any proxy, as root.
    ///
    /// On a set that is not ours, the primary runs it, whatever `member` is.
    ///
    /// # Errors
    ///
    /// Those of the driver. A member that does not answer within 30 s, such as a paused one, is an
    /// I/O error.
    pub async fn admin(&self, member: usize, command: Document) -> error::Result<Document> {
        let inner = self.inner.clone();
        run(async move { inner.command(member, "admin", command).await }).await
    }

    /// The network of a [`proxied`](Builder::proxied) set.
    #[must_use]
    pub fn proxy(&self) -> &Proxy {
        self.inner.owned().proxy.as_ref().expect("only a set built with proxied() has a proxy")
    }

    /// Blocking work with the server of one member.
    async fn with_server<T: Send + 'static>(&self, member: usize, work: fn(&Server) -> T) -> T {
        let inner = self.inner.clone();
        run_blocking(move || work(&inner.owned().members[member].server)).await
    }
}

impl Drop for ReplicaSet {
    fn drop(&mut self) {
        // A fail point may still hold on to the inside; the servers end now all the same, all at
        // once.
        if let Some(owned) = &self.inner.owned {
            owned.members.iter().for_each(|member| member.server.dismiss());
        }
    }
}

impl Inner {
    /// The processes, for what cannot be done without owning them.
    pub(crate) fn owned(&self) -> &Owned {
        self.owned.as_ref().expect(
            "this test needs a replica set whose processes it controls; the shared set is somebody else's here, \
             because MONGOSEAL_TEST_URI is set: build a set of its own for the test, or unset the variable",
        )
    }

    /// Runs a command on one member. To be called on the support runtime, to which the clients
    /// belong.
    pub(crate) async fn command(&self, member: usize, db: &str, command: Document) -> error::Result<Document> {
        let database = self.admin_client(member).await?.database(db);
        let answer = tokio::time::timeout(Duration::from_secs(30), database.run_command(command)).await;
        answer.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    pub(crate) async fn admin_client(&self, member: usize) -> error::Result<&Client> {
        let (cell, uri) = match &self.owned {
            Some(owned) => (&owned.members[member].client, owned.direct_uri(member, owned.root.as_ref())),
            None => (&self.outside, self.uri.clone()),
        };
        cell.get_or_try_init(|| Client::with_uri_str(uri)).await
    }
}

impl Owned {
    fn uri(&self, login: Option<&Login>) -> String {
        let options = format!("replicaSet={}&{MONITORING}&serverSelectionTimeoutMS=10000", self.name);
        compose(&self.hosts.join(","), &(options + &self.security()), login)
    }

    pub(crate) fn direct_uri(&self, member: usize, login: Option<&Login>) -> String {
        let options = format!("directConnection=true&{MONITORING}&serverSelectionTimeoutMS=5000");
        compose(&self.members[member].server.address(), &(options + &self.security()), login)
    }

    fn authority(&self) -> PathBuf {
        authority_file(self.members[0].server.directory())
    }

    fn security(&self) -> String {
        if self.tls { format!("&tls=true&tlsCAFile={}", self.authority().display()) } else { String::new() }
    }
}

fn compose(hosts: &str, options: &str, login: Option<&Login>) -> String {
    match login {
        None => format!("mongodb://{hosts}/?{options}"),
        Some(Login { name, password, db }) => {
            format!("mongodb://{name}:{password}@{hosts}/?authSource={db}&{options}")
        }
    }
}
