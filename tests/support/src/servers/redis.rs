//! A Redis server, if Redis is installed.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
};

use crate::servers::{
    certificate::Certificate,
    clock::{self, Notices},
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
        Self::start_instance(Instance::new(options)).await
    }

    /// Starts one with options, whose clock a test can [set](Self::set_clock).
    pub async fn start_with_own_clock(options: &[(&str, &str)]) -> Self {
        Self::start_instance(Instance { own_clock: true, ..Instance::new(options) }).await
    }

    /// Starts one that speaks TLS only. The certificate of its authority is in its [directory](Server::directory), as
    /// `authority.pem`.
    pub async fn start_tls() -> Self {
        let day = std::time::Duration::from_secs(24 * 3600);
        let certificate = Certificate::new(&["127.0.0.1".into()], day);
        Self::start_instance(Instance { certificate: Some(certificate), ..Instance::new(&[]) }).await
    }

    async fn start_instance(instance: Instance) -> Self {
        Self { server: run_blocking(move || Server::start(&instance)).await }
    }

    /// Where clients find it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Shifts the clock of one with [its own](Self::start_with_own_clock): `-1h`, `+30`, `+0`, as libfaketime reads it.
    /// The server notices it at once.
    pub fn set_clock(&self, shift: &str) {
        clock::set(self.server.directory(), shift);
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn found() -> Result<PathBuf, String> {
    programs::from_env("REDIS_SERVER")
        .or_else(|| programs::on_path("redis-server"))
        .ok_or_else(|| "Redis is not installed: there is no redis-server on PATH".into())
}

fn program() -> PathBuf {
    found().unwrap_or_else(|reason| panic!("{reason}"))
}

struct Instance {
    options: Vec<(String, String)>,
    certificate: Option<Certificate>,
    own_clock: bool,
}

impl Instance {
    fn new(options: &[(&str, &str)]) -> Self {
        let options = options.iter().map(|(name, value)| (format!("--{name}"), (*value).to_owned())).collect();
        Self { options, certificate: None, own_clock: false }
    }
}

impl Program for Instance {
    const NAME: &str = "redis-server";
    const READY: &str = "Ready to accept connections";
    const ROOM: u64 = 64 << 20;

    fn find(&self) {
        program();
        if self.own_clock {
            programs::libfaketime();
        }
    }

    fn command_line(&self, port: u16, home: &Path) -> Vec<String> {
        // Redis mostly has jemalloc, which looks at the clock before libfaketime can be ready. The other library has
        // the memory functions of the C library, and so keeps jemalloc out.
        let own_clock = || clock::shifting(home, Notices::AtOnce, &["libc_malloc_debug.so.0"]);
        let mut command = if self.own_clock { own_clock() } else { Vec::new() };
        command.push(path(&program()));
        let mut option = |name: &str, value: &str| command.extend([format!("--{name}"), value.to_owned()]);
        if let Some(certificate) = &self.certificate {
            let file = |name, text| {
                let file = home.join(name);
                fs::write(&file, text).expect("its directory can be written");
                path(&file)
            };
            option("port", "0");
            option("tls-port", &port.to_string());
            option("tls-ca-cert-file", &file("authority.pem", &certificate.authority));
            let own = file("own.pem", &certificate.own);
            option("tls-cert-file", &own);
            option("tls-key-file", &own);
            option("tls-auth-clients", "no");
        } else {
            option("port", &port.to_string());
        }
        option("bind", "127.0.0.1");
        option("dir", &path(home));
        option("save", "");
        option("repl-diskless-sync-delay", "0");
        command.extend(self.options.iter().flat_map(|(name, value)| [name.clone(), value.clone()]));
        command
    }
}
