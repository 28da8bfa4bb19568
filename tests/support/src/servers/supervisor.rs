//! A shell that owns one server, and ends it when this process ends.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// The parent of a server process, itself a child of ours.
///
/// It obeys orders from its standard input, a pipe of which we hold the only other end. However we
/// end, the kernel closes that end; the shell then kills the server and removes its directory. So
/// nothing depends on destructors (statics have none, SIGKILL runs none). It is in a process group
/// of its own, so that Ctrl-C reaches us and not it.
///
/// As the parent, it alone can signal the server without a chance of hitting another process that
/// got its id.
pub(crate) struct Supervisor {
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// `$1` is the server's directory, `$2` the signals that end it, the rest its command line. A stopped process
/// heeds SIGKILL only, so it goes on to heed others. The files in memory are libfaketime's, which it
/// removes only at an orderly exit. An answer to us when we are gone must not end the shell; a trap that does something
/// is not inherited by the server.
const SCRIPT: &str = r#"
trap : PIPE
home=$1; signals=$2; shift 2; pid=
end() {
    [ -n "$pid" ] || return
    for signal in $signals; do kill -"$signal" "$pid"; done; kill -CONT "$pid"; wait "$pid"
    rm -f "/dev/shm/faketime_shm_$pid" "/dev/shm/sem.faketime_sem_$pid"
    pid=
}
while read -r order; do
    case $order in
    start) "$@" </dev/null >"$home/log" 2>&1 & pid=$!; echo "$pid" ;;
    kill) end; echo done ;;
    terminate) kill "$pid"; wait "$pid"; pid=; echo done ;;
    pause) kill -STOP "$pid"; echo done ;;
    resume) kill -CONT "$pid"; echo done ;;
    esac
done
end
rm -rf "$home"
"#;

impl Supervisor {
    /// The supervisor for a server in `home` that `signals` end; the server is not started yet.
    pub(crate) fn new(home: &Path, signals: &str, command: &[String]) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "mongoseal-supervisor"])
            .arg(home)
            .arg(signals)
            .args(command)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ours would keep whoever reads it waiting for the shell to end.
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let orders = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().expect("the shell's output is piped"));
        Self { shell, orders, answers }
    }

    /// Starts the end of the server; dropping waits for it. In two steps so that several can end at
    /// once.
    pub(crate) fn dismiss(&mut self) {
        self.orders = None;
    }

    /// Gives an order: `start`, which answers with the process id; `kill`, with the signals that end the server, and `terminate`,
    /// with SIGTERM, which both wait until it is gone; `pause`; or `resume`.
    pub(crate) fn order(&mut self, order: &str) -> String {
        let orders = self.orders.as_mut().expect("the set is not used after its end");
        writeln!(orders, "{order}").expect("the supervisor takes orders");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the supervisor answers");
        answer.trim().to_owned()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.dismiss();
        let _ = self.shell.wait();
    }
}
