//! `watch` on a terminal, which script(1) provides.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use mongoseal_test_support::{eventually, secs};
use nix::{sys::signal::Signal, unistd::Pid};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, Command},
};

use crate::{Console, ended::without_settings};

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

/// A terminal of 80 columns and 24 rows.
struct Terminal {
    folder: PathBuf,
    child: Child,
    keys: ChildStdin,
}

impl Terminal {
    /// Runs a line of a shell, with `$M` for the program and `$F` for a folder of its own. The file `$F/tty` gets the name
    /// of the terminal.
    fn run(console: &Console, line: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("screen-{}", console.db.database.name()));
        fs::remove_dir_all(&folder).unwrap_or_default();
        fs::create_dir_all(&folder).unwrap();
        let mut script = without_settings("script");
        script.args(["-qec", &format!("stty cols 80 rows 24; tty >$F/tty; {line}"), "/dev/null"]);
        script.env("SHELL", "/bin/sh").env("TERM", "xterm").env("PS1", "");
        script.env("F", &folder).env("MONGODB_URI", &console.uri);
        let shown = File::create(folder.join("shown")).unwrap();
        let mut child = script.stdin(Stdio::piped()).stdout(shown).spawn().unwrap();
        let keys = child.stdin.take().unwrap();
        Self { folder, child, keys }
    }

    /// Runs `watch`. When it has ended, the terminal shows its status and the modes.
    fn watch(console: &Console, arguments: &str) -> Self {
        let program = format!("echo $$ >$F/id; exec $M watch {arguments}");
        Self::run(console, &format!("sh -c '{program}'; echo status $?; stty -a"))
    }

    /// Runs an interactive shell.
    fn shell(console: &Console) -> Self {
        Self::run(console, "exec bash --norc --noprofile -i")
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("shown")).unwrap()).into_owned()
    }

    /// Waits until the terminal has shown this so many times.
    async fn has_shown(&self, text: &str, count: usize) {
        let what = format!("{text:?} is shown {count} times");
        eventually(secs(60), &what, async || self.shown().matches(text).count() >= count).await;
    }

    async fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).await.unwrap();
    }

    fn signal(&self, signal: Signal) {
        let id = fs::read_to_string(self.folder.join("id")).unwrap();
        crate::ended::signal(Pid::from_raw(id.trim().parse().unwrap()), signal);
    }

    /// Waits for the end. Returns all that was shown.
    async fn end(mut self) -> String {
        tokio::time::timeout(secs(60), self.child.wait()).await.expect("it ends").unwrap();
        self.shown()
    }

    /// Waits for the end. Returns the last table: after the last full screen, and before this status and the modes.
    async fn last_table(self, status: &str) -> String {
        let shown = self.end().await;
        assert_eq!(shown.matches(ENTER).count(), 1);
        let rest = shown.rsplit_once(LEAVE).and_then(|(_, rest)| rest.split_once(status));
        let (last, report) = rest.unwrap_or_else(|| panic!("{shown:?}"));
        assert!(has_its_modes_back(report), "{report}");
        last.to_owned()
    }
}

/// Whether this is the report of stty(1) on a terminal that echoes, and hands lines on.
fn has_its_modes_back(report: &str) -> bool {
    let modes: Vec<&str> = report.split_whitespace().collect();
    modes.contains(&"echo") && modes.contains(&"icanon")
}

#[tokio::test]
async fn the_key_q_ends_the_screen_and_no_key_is_echoed_and_the_last_table_stays() {
    let console = Console::new("screen_q").await;
    let lease = console.seal("alice").acquire("k").ttl(secs(600)).await.unwrap();
    let mut terminal = Terminal::watch(&console, "");
    terminal.has_shown("alice", 1).await;
    terminal.press("xyz\r").await;
    lease.release().await.unwrap();
    let next = console.seal("bob").acquire("other").ttl(secs(600)).await.unwrap();
    terminal.has_shown("bob", 1).await;
    terminal.press("q").await;
    terminal.has_shown(LEAVE, 1).await;
    let shown = terminal.shown();
    assert!(!shown.contains("xyz"), "{shown:?}");
    assert!(shown.contains("\u{1b}[?25l") && shown.contains(&format!("\u{1b}[?25h{LEAVE}")), "{shown:?}");
    let last = terminal.last_table("status 0").await;
    let lines: Vec<&str> = last.lines().filter(|line| !line.is_empty()).collect();
    let has = |line: &str, words: &[&str]| words.iter().all(|word| line.contains(word));
    assert!(lines.len() == 5 && has(lines[1], &["other", "bob", &next.token().to_string()]), "{last}");
    assert!(has(lines[3], &["released", "k", "alice"]) && has(lines[4], &["granted", "other", "bob"]), "{last}");
}

#[tokio::test]
async fn a_signal_ends_the_screen_with_status_0_and_restores_the_terminal() {
    let console = Console::new("screen_signals").await;
    let _lease = console.seal("alice").acquire("k").ttl(secs(600)).await.unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let terminal = Terminal::watch(&console, "k");
        terminal.has_shown("alice", 1).await;
        terminal.signal(signal);
        assert!(terminal.last_table("status 0").await.contains("alice"), "{signal}");
    }
}

#[tokio::test]
async fn an_error_ends_the_screen_and_is_shown_below_the_last_table() {
    let console = Console::new("screen_error").await;
    let lease = console.seal("alice").acquire("k").ttl(secs(600)).await.unwrap();
    let terminal = Terminal::watch(&console, "k");
    terminal.has_shown("alice", 1).await;
    // A watch of one key ends with an error if the document is no record.
    let record = mongodb::bson::doc! { "_id": "k" };
    console.db.records().replace_one(record.clone(), record).await.unwrap();
    let last = terminal.last_table("status 125").await;
    assert!(last.split_once("mongoseal: ").is_some_and(|(table, _)| table.contains("alice")), "{last}");
    drop(lease);
}

#[tokio::test]
async fn an_expired_lease_leaves_the_table_and_a_holder_of_the_beginning_is_no_event() {
    let console = Console::new("screen_expired").await;
    let seal = console.seal("alice");
    let _holds = seal.acquire("reports/held").ttl(secs(600)).await.unwrap();
    let mut terminal = Terminal::watch(&console, "reports/ --prefix");
    terminal.has_shown("reports/held", 1).await;
    seal.acquire("reports/short").ttl(Duration::from_millis(500)).without_refresh().await.unwrap().orphan();
    terminal.has_shown("expired", 1).await;
    terminal.press("q").await;
    let last = terminal.last_table("status 0").await;
    assert_eq!(last.matches("reports/held").count(), 1, "{last}");
    let (table, events) = last.split_once("EVENT").unwrap();
    assert!(!table.contains("reports/short"), "{last}");
    assert!(events.contains("granted") && events.contains("expired"), "{last}");
}

#[tokio::test]
async fn long_keys_leave_the_token_the_owner_and_the_reason_in_the_columns_of_a_terminal() {
    let console = Console::new("screen_long").await;
    let seal = console.seal("alice");
    let key = "k".repeat(200);
    for arguments in ["", "--plain"] {
        let terminal = Terminal::watch(&console, arguments);
        eventually(secs(60), "it has begun", async || terminal.folder.join("id").exists()).await;
        if arguments.is_empty() {
            terminal.has_shown(ENTER, 1).await;
        }
        let lease = seal.acquire(key.as_str()).ttl(secs(600)).await.unwrap();
        terminal.has_shown("kkkk", 1).await;
        seal.revoke(key.as_str()).by("olga").reason("stuck since Monday").await.unwrap();
        terminal.has_shown("revoked", 1).await;
        terminal.signal(Signal::SIGTERM);
        let shown = terminal.end().await;
        let line = shown.lines().find(|line| line.contains("revoked")).unwrap();
        for word in [&lease.token().to_string(), "alice", "stuck", "kkkkkkk…"] {
            assert!(line.contains(word), "{word}: {line:?}");
        }
        assert!(line.trim_start_matches("\u{1b}[K").trim_end().chars().count() <= 80, "{line:?}");
    }
}

#[tokio::test]
async fn a_terminal_with_a_new_size_is_drawn_anew() {
    let console = Console::new("screen_size").await;
    let _lease = console.seal("alice").acquire("k".repeat(200)).ttl(secs(600)).await.unwrap();
    let mut terminal = Terminal::watch(&console, "");
    terminal.has_shown("alice", 1).await;
    let name = fs::read_to_string(terminal.folder.join("tty")).unwrap();
    let mut stty = Command::new("stty");
    assert!(stty.args(["-F", name.trim(), "cols", "160"]).status().await.unwrap().success());
    terminal.has_shown(&format!("{}…", "k".repeat(90)), 1).await;
    terminal.press("q").await;
    terminal.end().await;
}

#[tokio::test]
async fn ctrl_z_gives_the_terminal_back_and_fg_draws_the_screen_again() {
    let console = Console::new("screen_stop").await;
    let _lease = console.seal("alice").acquire("k").ttl(secs(600)).await.unwrap();
    let mut terminal = Terminal::shell(&console);
    eventually(secs(60), "the shell runs", async || terminal.folder.join("tty").exists()).await;
    terminal.press("$M watch; echo ended $?\n").await;
    terminal.has_shown(ENTER, 1).await;
    terminal.has_shown("alice", 1).await;
    terminal.press("\u{1a}").await;
    terminal.has_shown(LEAVE, 1).await;
    terminal.has_shown("Stopped", 1).await;
    terminal.press("stty -a; echo the modes\"\" are here\n").await;
    terminal.has_shown("the modes are here", 1).await;
    let shown = terminal.shown();
    let (_, report) = shown.rsplit_once("Stopped").unwrap();
    // A stop shows no last table.
    assert!(has_its_modes_back(report) && !shown.rsplit_once(LEAVE).unwrap().1.contains("alice"), "{shown:?}");

    terminal.press("fg\n").await;
    terminal.has_shown(ENTER, 2).await;
    terminal.press("\u{1a}").await;
    terminal.has_shown("Stopped", 2).await;
    // In the background it stops before it draws, and still ends by a signal.
    terminal.press("bg; sleep 0.2; kill %1; wait %1; echo the end\"\" is here\n").await;
    terminal.has_shown("the end is here", 1).await;
    let shown = terminal.shown();
    assert_eq!((shown.matches(ENTER).count(), shown.matches(LEAVE).count()), (2, 2), "{shown:?}");
    terminal.press("exit\n").await;
    terminal.end().await;
}
