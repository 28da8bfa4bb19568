//! One server: its port, its directory, its process.

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

use crate::servers::{fetch, runtime::Waiting, supervisor::Supervisor};

/// What can be started: the words that tell servers of one kind from those of another.
pub(crate) trait Program {
    /// Its name, in messages.
    const NAME: &str;
    /// What it logs once it accepts connections. The log is our server's own; an answer from the port could be
    /// another's.
    const READY: &str;
    /// The signals that end it at once.
    const END: &str = "KILL";
    /// The bytes it may fill a directory in memory with.
    const ROOM: u64;

    /// Finds what it needs, now, while there is no directory to leave behind should that be missing.
    fn find(&self) {}

    /// Prepares the directory `home` and gives the command that runs it there, listening on `port`.
    fn command_line(&self, port: u16, home: &Path) -> Vec<String>;

    /// The folder in which its directory is made. `None`: in memory, when there is room.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Where its directory goes when there is no room in memory.
    fn disk() -> PathBuf {
        fetch::target_dir().join("tmp")
    }
}

/// A server on a loopback port of its own. Dropping it ends it and removes its directory.
pub struct Server {
    name: &'static str,
    ready: &'static str,
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
    pub(crate) fn start<P: Program>(program: &P) -> Self {
        program.find();
        // Between our look at a port and the server's bind, another process may take it.
        for _ in 0..5 {
            match Self::try_start(program) {
                Ok(server) => return server,
                Err(log) if PORT_TAKEN.iter().any(|said| log.contains(said)) => {}
                Err(log) => panic!("{} ended instead of starting; the end of its log:\n{}", P::NAME, tail(&log)),
            }
        }
        panic!("{} found the port taken five times in a row", P::NAME);
    }

    fn try_start<P: Program>(program: &P) -> Result<Self, String> {
        let port = free_port();
        let home = new_home(program, port);
        let supervisor = Supervisor::new(&home, P::END, &program.command_line(port, &home));
        let process = Mutex::new(Process { supervisor, id: 0, running: false });
        let server = Self { name: P::NAME, ready: P::READY, port, home, process };
        server.launch()?;
        Ok(server)
    }

    /// Its port, on the loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, as in a URI.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The process it runs, or last ran, in.
    pub fn process_id(&self) -> u32 {
        self.process().id
    }

    /// Whether it was started and not killed since. A paused one is running.
    pub(crate) fn is_running(&self) -> bool {
        self.process().running
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.home
    }

    /// Kills it and waits until it is gone. Blocks.
    pub fn kill(&self) {
        self.end("kill");
    }

    /// Ends it with SIGTERM, as an operator does, and waits until it is gone. Blocks.
    pub(crate) fn terminate(&self) {
        self.end("terminate");
    }

    fn end(&self, order: &str) {
        let mut process = self.process();
        process.supervisor.order(order);
        process.running = false;
    }

    /// Starts it again on its old port and data, and waits until it accepts connections. Blocks.
    pub fn restart(&self) {
        assert!(!self.is_running(), "the {} at {} is running: kill it before restarting it", self.name, self.address());
        if let Err(log) = self.launch() {
            panic!("the {} at {} did not start again; the end of its log:\n{}", self.name, self.address(), tail(&log));
        }
    }

    /// Stops it where it is, SIGSTOP.
    pub fn pause(&self) {
        self.process().supervisor.order("pause");
    }

    /// Lets it go on, SIGCONT.
    pub fn resume(&self) {
        self.process().supervisor.order("resume");
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
        process.id = process.supervisor.order("start").parse().expect("the supervisor answers with a process id");
        let waiting =
            Waiting::new(format!("for the {} at {} to start", self.name, self.address()), Duration::from_secs(60));
        loop {
            let log = fs::read_to_string(self.home.join("log")).unwrap_or_default();
            if log.contains(self.ready) {
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

/// What a server logs if its port is taken: on Linux, and on Windows.
const PORT_TAKEN: [&str; 2] = ["Address already in use", "Only one usage of each socket address"];

/// A path in a command line.
pub(crate) fn path(path: &Path) -> String {
    path.to_str().expect("directories for tests have UTF-8 names").to_owned()
}

/// A port nobody listens on, below those the kernel gives to outgoing connections: one of these
/// could otherwise take the port of a killed server before its restart.
///
/// # Panics
///
/// If each of these ports has a listener.
pub fn free_port() -> u16 {
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

/// An empty directory. Unless the program names a folder, it is in memory when there is room: the tests are about
/// faults, not about disks.
fn new_home<P: Program>(program: &P, port: u16) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let roomy = statvfs(memory).is_ok_and(|disk| disk.f_bavail * disk.f_frsize >= P::ROOM);
    let base = match program.folder() {
        Some(folder) => folder.to_path_buf(),
        None if roomy && access(memory, Access::WRITE_OK).is_ok() => memory.to_path_buf(),
        None => P::disk(),
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
