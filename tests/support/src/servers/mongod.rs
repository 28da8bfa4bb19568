//! The arguments of a mongod.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::servers::{
    certificate::Certificate,
    clock::{self, Notices},
    programs,
    server::Program,
};

/// What a mongod is started with, beyond what every one gets.
#[derive(Clone, Default)]
pub(crate) struct Options {
    /// The replica set it belongs to.
    pub(crate) replica_set: Option<String>,
    /// Pairs for `--setParameter`.
    pub(crate) parameters: Vec<(String, String)>,
    /// The secret its members share; with it, access is controlled.
    pub(crate) key: Option<String>,
    /// Whether its clock can be set, see [`clock::shifting`].
    pub(crate) own_clock: bool,
    /// With which certificate it speaks TLS, and nothing else.
    pub(crate) certificate: Option<Certificate>,
    /// The folder in which its directory is made, instead of in memory.
    pub(crate) folder: Option<PathBuf>,
    /// How often it writes its journal where no write waits for it, if not each 100 ms.
    pub(crate) journal_interval: Option<Duration>,
    /// How large its oplog may grow, if not to 64.
    pub(crate) oplog_megabytes: Option<u32>,
}

impl Program for Options {
    const NAME: &str = "mongod";
    /// "Waiting for connections".
    const READY: &str = r#""id":23016"#;
    const ROOM: u64 = 2 << 30;

    fn find(&self) {
        let server = programs::mongod();
        if self.own_clock {
            assert!(!server.is_windows, "libfaketime cannot shift the clock of MongoDB 7, a build for Windows");
            programs::libfaketime();
        }
    }

    fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn command_line(&self, port: u16, home: &Path) -> Vec<String> {
        let own_clock = || clock::shifting(home, Notices::WithinASecond, &[]);
        let mut command = if self.own_clock { own_clock() } else { Vec::new() };
        let server = programs::mongod();
        command.extend_from_slice(&server.command);
        let mut option = |name: &str, value: String| command.extend([format!("--{name}"), value]);
        option("port", port.to_string());
        option("bind_ip", "127.0.0.1".into());
        option("dbpath", server.path(home));
        option("wiredTigerCacheSizeGB", "0.25".into());
        if let Some(interval) = self.journal_interval {
            option("journalCommitInterval", interval.as_millis().to_string());
        }
        // No test reads the diagnostic data, and collecting them ends a server under Wine.
        option("setParameter", "diagnosticDataCollectionEnabled=false".into());
        for (name, value) in &self.parameters {
            option("setParameter", format!("{name}={value}"));
        }
        if let Some(name) = &self.replica_set {
            option("replSet", name.clone());
            option("oplogSize", self.oplog_megabytes.unwrap_or(64).to_string());
        }
        if let Some(key) = &self.key {
            option("keyFile", server.path(&secret_file(home, "key", key)));
        }
        if let Some(Certificate { authority, own }) = &self.certificate {
            option("tlsMode", "requireTLS".into());
            option("tlsCertificateKeyFile", server.path(&secret_file(home, "certificate.pem", own)));
            fs::write(authority_file(home), authority).expect("the directory of a member is writable");
            option("tlsCAFile", server.path(&authority_file(home)));
            command.push("--tlsAllowConnectionsWithoutCertificates".into());
        }
        if !server.is_windows {
            command.push("--nounixsocket".into());
        }
        command
    }
}

/// The file with the certificate of the authority that the server in `home` has its own from.
pub(crate) fn authority_file(home: &Path) -> PathBuf {
    home.join("authority.pem")
}

fn secret_file(home: &Path, name: &str, text: &str) -> PathBuf {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let file = home.join(name);
    let mut options = fs::OpenOptions::new();
    // mongod refuses a key that others may read.
    let mut open = options.write(true).create_new(true).mode(0o600).open(&file).expect("a secret file can be made");
    open.write_all(text.as_bytes()).expect("a secret file can be written");
    file
}
