//! Starts, kills, stops and ends the worker processes.

use std::{
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::Mutex,
    task::JoinHandle,
    time::timeout,
};

use crate::{
    history::History,
    options::Options,
    servers::Servers,
    words::{Event, now},
    worker::{SPEC, Spec},
};

/// Workers are clients of this name and their slot.
pub(crate) const APP_NAME: &str = "chaos-";
pub(crate) const DATABASE: &str = "chaos";
pub(crate) const SLOTS: u32 = 5;

/// As many places as there are workers at a time.
pub(crate) struct Crew {
    /// What the runner passes to each worker, without its number.
    spec: Spec,
    /// By slot.
    uris: Vec<String>,
    started: AtomicU32,
    history: History,
    slots: Vec<Mutex<Process>>,
}

struct Process {
    worker: u32,
    child: Child,
    orders: ChildStdin,
    listening: JoinHandle<()>,
}

pub(crate) fn app_name(slot: u32) -> String {
    format!("{APP_NAME}{slot}")
}

impl Crew {
    pub(crate) fn start(servers: &impl Servers, options: &Options, least_grace: Duration, history: &History) -> Self {
        let spec = Spec {
            backing: servers.backing(),
            uri: String::new(),
            control_uri: servers.control_uri(),
            worker: 0,
            slot: 0,
            seed: options.seed,
            sabotage: options.sabotage,
            few_clients: options.few_clients,
            least_grace,
        };
        let uris = (0..SLOTS).map(|slot| servers.uri(slot)).collect();
        // The runner itself is worker 0.
        let mut crew = Self { spec, uris, started: AtomicU32::new(1), history: history.clone(), slots: Vec::new() };
        crew.slots = (0..SLOTS).map(|slot| Mutex::new(crew.process(slot))).collect();
        crew
    }

    fn process(&self, slot: u32) -> Process {
        let worker = self.started.fetch_add(1, Ordering::Relaxed);
        let spec = Spec { uri: self.uris[slot as usize].clone(), worker, slot, ..self.spec.clone() };
        // Also where another build has taken its place on the disk.
        let mut child = Command::new("/proc/self/exe")
            .env(SPEC, serde_json::to_string(&spec).expect("a spec is JSON"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a worker starts");
        let orders = child.stdin.take().expect("its input is a pipe");
        let mut lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let history = self.history.clone();
        let listening = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                // The last line of one that was killed may be half of one.
                if let Ok(event) = serde_json::from_str(&line) {
                    history.note(event);
                }
            }
        });
        Process { worker, child, orders, listening }
    }

    /// `kill -9`, and another process in its place.
    pub(crate) async fn kill(&self, slot: u32, away: Duration) {
        let mut process = self.slots[slot as usize].lock().await;
        process.child.kill().await.expect("a worker can be killed");
        // All that it said is part of the history.
        (&mut process.listening).await.expect("listening does not panic");
        tokio::time::sleep(away).await;
        *process = self.process(slot);
    }

    pub(crate) async fn pause(&self, slot: u32, away: Duration) {
        let process = self.slots[slot as usize].lock().await;
        let from = now();
        process.signal(Signal::SIGSTOP);
        tokio::time::sleep(away).await;
        process.signal(Signal::SIGCONT);
        self.history.note(Event::Stall { worker: process.worker, from, to: now() });
    }

    /// Blocks the threads of the worker's runtime. The worker itself says when they ran again.
    pub(crate) async fn block(&self, slot: u32, length: Duration) {
        let mut process = self.slots[slot as usize].lock().await;
        let order = format!("{} {}\n", crate::worker::BLOCK, length.as_millis());
        process.orders.write_all(order.as_bytes()).await.ok();
        tokio::time::sleep(length).await;
    }

    /// Lets all come to their end.
    pub(crate) async fn end(self) {
        let mut processes: Vec<_> = self.slots.into_iter().map(Mutex::into_inner).collect();
        for process in &mut processes {
            // One that has ended by itself did not say so, which is noticed below.
            process.orders.write_all(b"end\n").await.ok();
        }
        for mut process in processes {
            if timeout(Duration::from_secs(20), process.child.wait()).await.is_err() {
                self.history.note(Event::Stuck { worker: process.worker, at: now() });
                process.child.kill().await.expect("a worker can be killed");
            }
            (&mut process.listening).await.expect("listening does not panic");
        }
    }
}

impl Process {
    fn signal(&self, signal: Signal) {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        kill(Pid::from_raw(id.expect("it was not waited for yet")), signal).expect("it can be signalled");
    }
}
