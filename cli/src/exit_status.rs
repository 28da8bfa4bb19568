//! Exit statuses and error messages.

use std::{
    error::Error as _,
    fmt, io,
    panic::{self, UnwindSafe},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use mongoseal::Error;
use nix::libc::{SIGINT, SIGQUIT};
use rustix::process::{Resource, Rlimit, setrlimit};
use signal_hook::low_level::emulate_default_handler;

use crate::{
    ui::message::{print_error, print_note},
    ui::output::ReaderGone,
};

/// The process id of the first process of a system or a container.
const INIT: u32 = 1;

/// An exit status of the program.
///
/// `run`, `once` and `elect` exit with the status of their command, or with 128 plus the number of a signal. The program's own
/// statuses are, as those of env(1) and timeout(1), numbers that commands seldom use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    code: u8,
    /// The signal by which the program ends instead.
    signal: Option<i32>,
}

impl Status {
    pub(crate) const DONE: Self = Self::of_command(0);
    /// The answer is no, or a check failed.
    pub(crate) const NO: Self = Self::of_command(1);
    /// A later tick of the schedule is done.
    pub(crate) const SUPERSEDED: Self = Self::of_command(119);
    /// The tick of the schedule is already done.
    pub(crate) const ALREADY_DONE: Self = Self::of_command(120);
    /// The key is held, or its queue is full.
    pub(crate) const HELD: Self = Self::of_command(121);
    /// The lease was lost.
    pub(crate) const LOST: Self = Self::of_command(122);
    /// The server did not answer in time; the request may have taken effect.
    pub(crate) const UNAVAILABLE: Self = Self::of_command(123);
    /// The arguments or the deployment must be changed.
    pub(crate) const INVALID: Self = Self::of_command(125);
    /// The command could not be started.
    pub(crate) const NOT_EXECUTABLE: Self = Self::of_command(126);
    /// The command was not found.
    pub(crate) const NOT_FOUND: Self = Self::of_command(127);

    /// Returns the status of a command that exited with `code`.
    pub(crate) const fn of_command(code: u8) -> Self {
        Self { code, signal: None }
    }

    /// Returns the number of the status.
    pub(crate) const fn code(self) -> u8 {
        self.code
    }

    /// Returns the status for the end by a signal. After SIGINT and SIGQUIT the program ends by the same signal: a shell
    /// ends its loop only if the signal has ended the command.
    pub(crate) fn of_signal(signal: i32) -> Self {
        let code = u8::try_from(signal).unwrap_or_default().saturating_add(128);
        Self { code, signal: [SIGINT, SIGQUIT].contains(&signal).then_some(signal) }
    }

    /// Ends this process by the signal of the status. If it has none, returns the exit code.
    pub(crate) fn end(self) -> ExitCode {
        // The system does not deliver such a signal to process 1 of a container, which then exits with the code.
        if let Some(signal) = self.signal
            && std::process::id() != INIT
        {
            // SIGQUIT writes no core file: the cause is not in this program.
            setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).ok();
            emulate_default_handler(signal).ok();
        }
        self.into()
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status.code)
    }
}

/// Words of the library's messages, and the same with the option of the program.
const OPTIONS: [(&str, &str); 11] = [
    ("`min_hold`", "--min-hold"),
    ("`max_hold`", "--max-hold"),
    ("`operation_timeout`", "--timeout"),
    ("`retention`", "--retention"),
    ("the retention of idle records", "the retention of idle records (--retention)"),
    ("`shared_up_to`", "--shared"),
    ("`by`", "--by"),
    ("`reason`", "--reason"),
    ("set `allow_sharded` (--allow-sharded)", "pass --allow-sharded"),
    ("acquire the key without `shared`, or `upgrade` the lease", "acquire the key without --shared"),
    // The program has no such option.
    (", or raise `queue_limit`", ""),
];

/// Why the program has not done what it should: a message of one line, and the exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    status: Status,
    /// Whether something has failed. Otherwise the answer is no, or another process keeps the key or has done the work.
    is_error: bool,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl fmt::Display) -> Self {
        let is_error = ![Status::NO, Status::SUPERSEDED, Status::ALREADY_DONE, Status::HELD].contains(&status);
        let mut message = message.to_string();
        message.push_str(limit_to_raise(&message));
        Self { message, status, is_error }
    }

    pub(crate) fn invalid(message: impl fmt::Display) -> Self {
        Self::new(Status::INVALID, message)
    }

    /// The end of this program by a signal, which needs no message.
    pub(crate) fn by_signal(signal: i32) -> Self {
        Self::new(Status::of_signal(signal), "")
    }

    /// Returns the failure with another status.
    pub(crate) fn with_status(self, status: Status) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn status(&self) -> Status {
        self.status
    }

    /// Returns the code that the events of `hold` have for it.
    pub(crate) fn code(&self) -> &'static str {
        match self.status {
            Status::HELD => "held",
            Status::LOST => "lost",
            Status::UNAVAILABLE => "unavailable",
            _ => "invalid",
        }
    }

    /// Prints the message to the standard error, and returns the status.
    pub(crate) fn report(&self) -> Status {
        match self {
            Self { message, .. } if message.is_empty() => {}
            Self { message, is_error: true, .. } => print_error(message),
            Self { message, .. } => print_note(message),
        }
        self.status
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self::of(error, &OPTIONS)
    }
}

impl Failure {
    /// Returns the failure of a request, with these words of its message replaced.
    pub(crate) fn of(error: &Error, words: &[(&str, &str)]) -> Self {
        let status = match error {
            Error::Held { .. } | Error::QueueFull { .. } => Status::HELD,
            Error::Lost { .. } | Error::Ended { .. } => Status::LOST,
            Error::Unavailable { .. } => Status::UNAVAILABLE,
            _ => Status::INVALID,
        };
        let mut message = error.to_string();
        for (word, option) in words {
            message = message.replacen(word, option, 1);
        }
        let mut source = error.source();
        while let Some(cause) = source {
            // An error that wraps another often has its words.
            if let Some(text) = without_dump(&cause.to_string())
                && !is_said(&message, text)
            {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        Self::new(status, message)
    }
}

/// Whether a message has the words of its cause. An error of the driver has those of its cause behind its kind.
fn is_said(message: &str, cause: &str) -> bool {
    let words = cause.split_once("): ").map_or(cause, |(_, words)| words);
    message.contains(cause) || (!words.is_empty() && message.ends_with(words))
}

/// Returns the driver's message without the debug dump behind it. Returns `None` if the message only lists unreachable
/// servers: the library's own message names them with the cause.
fn without_dump(cause: &str) -> Option<&str> {
    let text = cause.strip_prefix("Kind: ").unwrap_or(cause);
    let text = text.split(", labels: {").next().unwrap_or(text);
    (!text.starts_with("Server selection timeout")).then_some(text)
}

/// If the reader of the output has closed the pipe, as `head` does, the program exits with 0 silently.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if ReaderGone::is_cause_of(&error) { Self::new(Status::DONE, "") } else { Self::invalid(error) }
    }
}

/// Returns what to do about a message, if a limit of this process is the cause.
fn limit_to_raise(message: &str) -> &'static str {
    let is_of_start = ["spawn worker thread", "cannot start"].iter().any(|words| message.contains(words));
    if message.contains("(ulimit") {
        ""
    } else if message.contains("Too many open files") {
        ": raise the limit of open files (ulimit -n)"
    } else if is_of_start && message.contains("Resource temporarily unavailable") {
        ": raise the limit of processes and threads (ulimit -u)"
    } else {
        ""
    }
}

/// Runs the program. A panic ends it with the status of an error: other statuses are those of commands. If the system refuses
/// a thread or a file that a library cannot do without, the library panics, and one line says so.
pub(crate) fn catch_panics(program: impl FnOnce() -> Status + UnwindSafe) -> Status {
    let print = panic::take_hook();
    let is_printed = AtomicBool::new(false);
    panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text =
            payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or_default();
        match limit_to_raise(text) {
            "" => print(panic),
            _ if is_printed.swap(true, Ordering::Relaxed) => {}
            what_to_do => print_error(&format!("{text}{what_to_do}")),
        }
    }));
    panic::catch_unwind(program).unwrap_or(Status::INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_output_turns_a_closed_pipe_into_success_and_its_other_errors_name_it() {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(Failure::from(closed()).status(), Status::INVALID);
        assert_eq!(Failure::from(ReaderGone::mark(&closed())).status(), Status::DONE);
        let full = Failure::from(ReaderGone::mark(&io::ErrorKind::StorageFull.into()));
        assert_eq!(
            (full.status(), full.message()),
            (Status::INVALID, "cannot write the standard output: no storage space")
        );
    }

    #[test]
    fn a_message_has_the_option_in_place_of_the_name_in_the_library() {
        for (message, shown) in [
            (
                "use a replica set, or set `allow_sharded` (--allow-sharded) if",
                "use a replica set, or pass --allow-sharded if",
            ),
            ("acquire the key without `shared`, or `upgrade` the lease", "acquire the key without --shared"),
            ("retry later, or raise `queue_limit`", "retry later"),
            ("`operation_timeout` must be from 10 ms", "--timeout must be from 10 ms"),
        ] {
            assert_eq!(Failure::from(Error::invalid(message)).message(), shown);
        }
    }

    #[test]
    fn a_message_names_the_limit_that_is_its_cause_and_no_other_limit() {
        let said = |message: &str| Failure::invalid(message).message;
        assert_eq!(said("no: Too many open files (os error 24)").matches("(ulimit -n)").count(), 1);
        let refused = "cannot start the guard of the command: Resource temporarily unavailable (os error 11)";
        assert!(said(refused).ends_with("(ulimit -u)"));
        let of_input = "cannot read the standard input: Resource temporarily unavailable (os error 11)";
        assert_eq!(said(of_input), of_input);
    }

    #[test]
    fn an_answer_or_a_key_that_is_held_is_no_error_whatever_its_status_is() {
        for (status, is_error) in [
            (Status::NO, false),
            (Status::SUPERSEDED, false),
            (Status::ALREADY_DONE, false),
            (Status::HELD, false),
            (Status::LOST, true),
            (Status::UNAVAILABLE, true),
            (Status::INVALID, true),
        ] {
            assert_eq!(Failure::new(status, "").with_status(Status::of_command(9)).is_error, is_error, "{status:?}");
        }
    }

    #[test]
    fn a_cause_that_repeats_the_words_before_it_is_left_out() {
        #[derive(Debug)]
        struct Wrapping(io::Error);

        impl fmt::Display for Wrapping {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl std::error::Error for Wrapping {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }

        let error = Error::unavailable("no server listens").caused_by(Wrapping(io::Error::other("refused")));
        assert_eq!(Failure::from(error).message(), "no server listens: refused");
        let words = "SCRAM failure: Command failed: Error code 18 (AuthenticationFailed): no.";
        let cause = Wrapping(io::Error::other("Command failed: Error code 18 (AuthenticationFailed): no."));
        let error = Error::invalid("refused").caused_by(io::Error::other(words));
        assert_eq!(Failure::from(error).message(), format!("refused: {words}"));
        assert!(is_said(words, &cause.to_string()) && is_said("SCRAM failure: no.", &cause.to_string()));
        assert!(!is_said("SCRAM failure: yes.", &cause.to_string()));
    }

    #[test]
    fn of_a_driver_its_words_are_kept_and_not_its_dump() {
        assert_eq!(without_dump("Unauthorized (code 13): no"), Some("Unauthorized (code 13): no"));
        assert_eq!(without_dump("Kind: I/O error: refused, labels: {\"a\"}, source: None"), Some("I/O error: refused"));
        assert_eq!(without_dump("Kind: Server selection timeout: No available servers. Topology: {"), None);
    }
}
