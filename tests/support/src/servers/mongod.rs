//! The arguments of a mongod.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::servers::{
    certificate::Certificate,
    programs,
    server::{Program, path},
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
    /// Whether its clock can be set, see [`clock_file`].
    pub(crate) own_clock: bool,
    /// With which certificate it speaks TLS, and nothing else.
    pub(crate) certificate: Option<Certificate>,
    /// The folder in which its directory is made, instead of in memory.
    pub(crate) folder: Option<PathBuf>,
}

impl Program for Options {
    const NAME: &str = "mongod";
    /// "Waiting for connections".
    const READY: &str = r#""id":23016"#;
    const ROOM: u64 = 2 << 30;

    fn find(&self) {
        programs::mongod();
        if self.own_clock {
            programs::libfaketime();
        }
    }

    fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn command_line(&self, port: u16, home: &Path) -> Vec<String> {
        let mut command = if self.own_clock { shifting_clock(&clock_file(home)) } else { Vec::new() };
        command.push(path(&programs::mongod()));
        let mut option = |name: &str, value: String| command.extend([format!("--{name}"), value]);
        option("port", port.to_string());
        option("bind_ip", "127.0.0.1".into());
        option("dbpath", path(home));
        option("wiredTigerCacheSizeGB", "0.25".into());
        for (name, value) in &self.parameters {
            option("setParameter", format!("{name}={value}"));
        }
        if let Some(name) = &self.replica_set {
            option("replSet", name.clone());
            option("oplogSize", "64".into());
        }
        if let Some(key) = &self.key {
            option("keyFile", path(&secret_file(home, "key", key)));
        }
        if let Some(Certificate { authority, own }) = &self.certificate {
            option("tlsMode", "requireTLS".into());
            option("tlsCertificateKeyFile", path(&secret_file(home, "certificate.pem", own)));
            fs::write(authority_file(home), authority).expect("the directory of a member is writable");
            option("tlsCAFile", path(&authority_file(home)));
            command.push("--tlsAllowConnectionsWithoutCertificates".into());
        }
        command.push("--nounixsocket".into());
        command
    }
}

/// The beginning of a command line that puts the command's clock at the mercy of `file`.
pub(crate) fn shifting_clock(file: &Path) -> Vec<String> {
    fs::write(file, "+0\n").expect("the directory of a member is writable");
    let environment = [
        ("LD_PRELOAD", path(&programs::libfaketime())),
        ("FAKETIME_TIMESTAMP_FILE", path(file)),
        ("FAKETIME_CACHE_DURATION", "1".into()),
        // Only what time it is moves: timers keep running as they did.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        // A workaround for a C library before 2.24. With a later one, waits of a mongod end late, and with a hundred
        // requests at a time each takes ten times as long.
        ("FAKETIME_FORCE_MONOTONIC_FIX", "0".into()),
    ];
    let environment = environment.map(|(name, value)| format!("{name}={value}"));
    ["env".to_owned()].into_iter().chain(environment).collect()
}

/// Shifts the clock of the server in `home`. The server notices within a second.
pub(crate) fn shift_clock(home: &Path, shift: &str) {
    let file = clock_file(home);
    assert!(file.exists(), "only a server that was started with a clock of its own has a clock to set");
    // In one step, so that no half-written shift is read.
    let next = file.with_extension("next");
    fs::write(&next, format!("{shift}\n")).expect("the directory of a server is writable");
    fs::rename(next, file).expect("the directory of a server is writable");
}

/// The file whose content shifts the clock of the server in `home`, in the language of libfaketime.
pub(crate) fn clock_file(home: &Path) -> PathBuf {
    home.join("clock")
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
