//! An etcd cluster, if etcd is installed.

use std::path::{Path, PathBuf};

use futures_util::future::join_all;

use crate::servers::{
    programs,
    runtime::run_blocking,
    server::{Program, Server, free_port, path},
};

/// A cluster of three members on loopback ports; it ends with this value, or with the process.
///
/// Takes `ETCD`, the path of an `etcd`, else the one on `PATH`.
pub struct Etcd {
    members: Vec<Server>,
}

impl Etcd {
    /// Why none can be started here, if so.
    pub fn missing() -> Option<String> {
        found().err()
    }

    /// Starts one, and waits until its members accept requests.
    pub async fn start() -> Self {
        let peers: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let named: Vec<_> = (0..3).zip(&peers).map(|(member, port)| format!("{member}={}", url(*port))).collect();
        let starting = peers.into_iter().enumerate().map(|(member, peer)| {
            let cluster = named.join(",");
            run_blocking(move || {
                let program = found().unwrap_or_else(|reason| panic!("{reason}"));
                Server::start(&Member { program, name: member.to_string(), peer, cluster })
            })
        });
        // Together: each is ready when most of them are there.
        let members = join_all(starting).await;
        Self { members }
    }

    /// Where clients find its members.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.members.iter().map(|member| url(member.port())).collect()
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn found() -> Result<PathBuf, String> {
    programs::from_env("ETCD")
        .or_else(|| programs::on_path("etcd"))
        .ok_or_else(|| "etcd is not installed: there is no etcd on PATH".into())
}

struct Member {
    program: PathBuf,
    name: String,
    /// The port at which it hears the other members.
    peer: u16,
    /// All members, by name and address.
    cluster: String,
}

impl Program for Member {
    const NAME: &str = "etcd";
    const READY: &str = "ready to serve client requests";
    // It sets aside 64 MB for each of two files of its log, and fills one.
    const ROOM: u64 = 512 << 20;

    fn command_line(&self, port: u16, home: &Path) -> Vec<String> {
        let mut command = vec![path(&self.program)];
        let mut option = |name: &str, value: &str| command.extend([format!("--{name}"), value.to_owned()]);
        option("name", &self.name);
        option("data-dir", &path(&home.join("data")));
        option("listen-client-urls", &url(port));
        option("advertise-client-urls", &url(port));
        option("listen-peer-urls", &url(self.peer));
        option("initial-advertise-peer-urls", &url(self.peer));
        option("initial-cluster", &self.cluster);
        option("initial-cluster-token", &self.cluster);
        command
    }
}
