//! A Redis server, if Redis is installed.

use std::path::{Path, PathBuf};

use crate::servers::{
    programs,
    runtime::run_blocking,
    server::{Program, Server, path},
};

/// A Redis server that keeps its data in memory only; it ends with this value, or with the process.
///
/// Takes `REDIS_SERVER`, the path of a `redis-server`, else the one on `PATH`.
pub struct Redis {
    server: Server,
}

impl Redis {
    /// Why none can be started here, if so.
    pub fn missing() -> Option<String> {
        found().err()
    }

    /// Starts one.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one that replicates what `primary` has, from now on and later.
    pub async fn start_replica(primary: &Self) -> Self {
        Self::start_with(&[("replicaof", &format!("127.0.0.1 {}", primary.server.port()))]).await
    }

    /// Starts one with options, as in its configuration file. With `appendonly yes` a restart finds its data.
    pub async fn start_with(options: &[(&str, &str)]) -> Self {
        let options = options.iter().map(|(name, value)| (format!("--{name}"), (*value).to_owned())).collect();
        let server = run_blocking(move || {
            let program = found().unwrap_or_else(|reason| panic!("{reason}"));
            Server::start(&Instance { program, options })
        });
        Self { server: server.await }
    }

    /// Where clients find it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Its host and port.
    #[must_use]
    pub fn address(&self) -> String {
        self.server.address()
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Starts it again on its port and in its directory, after it was killed.
    pub fn restart(&self) {
        self.server.restart();
    }

    /// Stops it where it is, SIGSTOP.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// Lets it go on, SIGCONT.
    pub fn resume(&self) {
        self.server.resume();
    }

    /// The process it runs, or last ran, in.
    pub fn process_id(&self) -> u32 {
        self.server.process_id()
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.server.home()
    }
}

fn found() -> Result<PathBuf, String> {
    programs::from_env("REDIS_SERVER")
        .or_else(|| programs::on_path("redis-server"))
        .ok_or_else(|| "Redis is not installed: there is no redis-server on PATH".into())
}

struct Instance {
    program: PathBuf,
    options: Vec<(String, String)>,
}

impl Program for Instance {
    const NAME: &str = "redis-server";
    const READY: &str = "Ready to accept connections";
    const ROOM: u64 = 64 << 20;

    fn find(&self) {}

    fn command_line(&self, port: u16, home: &Path) -> Vec<String> {
        let mut command = vec![path(&self.program)];
        let mut option = |name: &str, value: &str| command.extend([format!("--{name}"), value.to_owned()]);
        option("port", &port.to_string());
        option("bind", "127.0.0.1");
        option("dir", &path(home));
        option("save", "");
        option("repl-diskless-sync-delay", "0");
        command.extend(self.options.iter().flat_map(|(name, value)| [name.clone(), value.clone()]));
        command
    }
}
