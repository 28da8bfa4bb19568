//! One mongod: its port, its directory, its process.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rustix::fs::{Access, access, statvfs};

use crate::{fetch, programs, runtime::Waiting, supervisor::Supervisor};

/// What a mongod is started with, beyond what every one gets.
#[derive(Clone, Default)]
pub(crate) struct Options {
    /// The replica set it belongs to.
    pub(crate) replica_set: Option<String>,
    /// Pairs for `--setParameter`.
    pub(crate) parameters: Vec<(String, String)>,
    /// The secret its members share; with it, access is controlled.
    pub(crate) key: Option<String>,
    /// Whether its clock can be set, see [`Server::clock_file`].
    pub(crate) own_clock: bool,
}

/// A mongod on a loopback port of its own. Dropping it ends it and removes its directory.
pub(crate) struct Server {
    port: u16,
    home: PathBuf,
    process: Mutex<Process>,
}

struct Process {
    supervisor: Supervisor,
    id: u32,
    running: bool,
}

impl Server {
    /// Starts one and waits until it accepts connections. Blocks.
    pub(crate) fn start(options: &Options) -> Self {
        // Now, while there is no directory to leave behind should they be missing.
        programs::mongod();
        if options.own_clock {
            programs::libfaketime();
        }
        // Between our look at a port and the server's bind, another process may take it.
        for _ in 0..5 {
            match Self::try_start(options) {
                Ok(server) => return server,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("mongod ended instead of starting; the end of its log:\n{}", tail(&log)),
            }
        }
        panic!("mongod found the port taken five times in a row");
    }

    fn try_start(options: &Options) -> Result<Self, String> {
        let port = free_port();
        let home = new_home(port);
        let supervisor = Supervisor::new(&home, &command_line(options, port, &home));
        let process = Mutex::new(Process { supervisor, id: 0, running: false });
        let server = Self { port, home, process };
        server.launch()?;
        Ok(server)
    }

    /// The port it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, as in a URI.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The process it runs, or last ran, in.
    pub(crate) fn process_id(&self) -> u32 {
        self.process().id
    }

    /// Whether it was started and not killed since. A paused one is running.
    pub(crate) fn is_running(&self) -> bool {
        self.process().running
    }

    /// The file whose content shifts its clock, in the language of libfaketime.
    pub(crate) fn clock_file(&self) -> PathBuf {
        clock_file(&self.home)
    }

    /// Kills it and waits until it is gone. Blocks.
    pub(crate) fn kill(&self) {
        let mut process = self.process();
        process.supervisor.kill();
        process.running = false;
    }

    /// Starts it again on its old port and data, and waits until it accepts connections. Blocks.
    pub(crate) fn restart(&self) {
        assert!(!self.is_running(), "the mongod at {} is running: kill it before restarting it", self.address());
        if let Err(log) = self.launch() {
            panic!("the mongod at {} did not start again; the end of its log:\n{}", self.address(), tail(&log));
        }
    }

    /// Stops it where it is, SIGSTOP.
    pub(crate) fn pause(&self) {
        self.process().supervisor.pause();
    }

    /// Lets it go on, SIGCONT.
    pub(crate) fn resume(&self) {
        self.process().supervisor.resume();
    }

    /// Starts its end without waiting for it.
    pub(crate) fn dismiss(&self) {
        self.process().supervisor.dismiss();
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        // A panic of one test says nothing about the process that others share with it.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the process; an error is its log.
    fn launch(&self) -> Result<(), String> {
        let mut process = self.process();
        process.id = process.supervisor.start();
        let waiting = Waiting::new(format!("for the mongod at {} to start", self.address()), Duration::from_secs(60));
        loop {
            let log = fs::read_to_string(self.home.join("log")).unwrap_or_default();
            // "Waiting for connections". The log is our server's own, an answer from the port could
            // be another's.
            if log.contains(r#""id":23016"#) {
                process.running = true;
                return Ok(());
            }
            if has_ended(process.id) {
                return Err(log);
            }
            waiting.pause_blocking(tail(&log));
        }
    }
}

fn command_line(options: &Options, port: u16, home: &Path) -> Vec<String> {
    let mut command = if options.own_clock { shifting_clock(&clock_file(home)) } else { Vec::new() };
    command.push(path(&programs::mongod()));
    let mut option = |name: &str, value: String| command.extend([format!("--{name}"), value]);
    option("port", port.to_string());
    option("bind_ip", "127.0.0.1".into());
    option("dbpath", path(home));
    option("wiredTigerCacheSizeGB", "0.25".into());
    for (name, value) in &options.parameters {
        option("setParameter", format!("{name}={value}"));
    }
    if let Some(name) = &options.replica_set {
        option("replSet", name.clone());
        option("oplogSize", "64".into());
    }
    if let Some(key) = &options.key {
        option("keyFile", path(&key_file(home, key)));
    }
    command.push("--nounixsocket".into());
    command
}

/// The beginning of a command line that puts the command's clock at the mercy of `file`.
fn shifting_clock(file: &Path) -> Vec<String> {
    fs::write(file, "+0\n").expect("the directory of a member is writable");
    let environment = [
        ("LD_PRELOAD", path(&programs::libfaketime())),
        ("FAKETIME_TIMESTAMP_FILE", path(file)),
        ("FAKETIME_CACHE_DURATION", "1".into()),
        // Only what time it is moves: timers keep running as they did.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ];
    let environment = environment.map(|(name, value)| format!("{name}={value}"));
    ["env".to_owned()].into_iter().chain(environment).collect()
}

fn path(path: &Path) -> String {
    path.to_str().expect("directories for tests have UTF-8 names").to_owned()
}

fn clock_file(home: &Path) -> PathBuf {
    home.join("clock")
}

fn key_file(home: &Path, key: &str) -> PathBuf {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let file = home.join("key");
    let mut options = fs::OpenOptions::new();
    // mongod refuses a key that others may read.
    let mut open = options.write(true).create_new(true).mode(0o600).open(&file).expect("the key file can be made");
    open.write_all(key.as_bytes()).expect("the key file can be written");
    file
}

/// A port nobody listens on, below those the kernel gives to outgoing connections: one of these
/// could otherwise take the port of a killed server before its restart.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    // Processes started one after the other begin far from each other.
    let start = std::process::id().wrapping_mul(211);
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("ports below 32000 fit");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// An empty directory, in memory when there is room: the tests are about faults, not about disks.
fn new_home(port: u16) -> PathBuf {
    const ROOM: u64 = 2 << 30;
    let memory = Path::new("/dev/shm");
    let roomy = statvfs(memory).is_ok_and(|disk| disk.f_bavail * disk.f_frsize >= ROOM);
    let base = if roomy && access(memory, Access::WRITE_OK).is_ok() {
        memory.to_path_buf()
    } else {
        fetch::target_dir().join("tmp")
    };
    let home = base.join(format!("mongoseal-{}-{port}", std::process::id()));
    // A directory of that name is of a process that is gone, together with its supervisor.
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home).unwrap_or_else(|error| panic!("{}: {error}", home.display()));
    home
}

/// Whether the process ended and waits to be reaped. Its parent reaps it only on order, so the id
/// is still its own.
fn has_ended(process: u32) -> bool {
    // The state follows the program's name, which is in parentheses. Systems without /proc learn of
    // it by deadline.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
