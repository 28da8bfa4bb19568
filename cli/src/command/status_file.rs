//! The file of `run --status-file`: how the run ended. It tells a status of the command from one of this program.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    exit_status::{Failure, Status},
    job::{End, guard::protocol::Exit},
    leases::Leases,
    ui::message::print_error,
};

/// The file, which exists and is empty until the end.
pub(super) struct StatusFile {
    path: PathBuf,
    file: File,
}

/// What is known of the run before its end.
#[derive(Default)]
pub(super) struct Run {
    leases: Vec<Value>,
    end: Option<End>,
}

impl Run {
    pub(super) fn granted(&mut self, leases: &Leases<'_>) {
        let view = |lease: &mongoseal::Lease| json!({ "key": lease.key().as_str(), "token": lease.token().get() });
        self.leases = leases.iter().map(view).collect();
    }

    pub(super) fn ended(&mut self, end: End) {
        self.end = Some(end);
    }
}

impl StatusFile {
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| Failure::invalid(cannot_write(path, &error)))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the file. If that fails, prints why: the run has its status already.
    pub(super) fn write(mut self, run: &Run, result: &Result<Status, Failure>) {
        let (status, message) = match result {
            Ok(status) => (*status, None),
            Err(failure) => (failure.status(), Some(failure.message()).filter(|message| !message.is_empty())),
        };
        let (end, command) = match run.end {
            None => ("not_started", Value::Null),
            Some(End::Itself(Exit::Code(code))) => ("by_itself", json!({ "status": code })),
            Some(End::Itself(Exit::Signal(signal))) => ("by_itself", json!({ "signal": signal })),
            Some(End::Signalled) => ("by_mongoseal", Value::Null),
            Some(End::Unguarded) => ("guard_killed", Value::Null),
            Some(End::Never) => ("not_ended", Value::Null),
        };
        let view = json!({
            "leases": &run.leases,
            "end": end,
            "command": command,
            "status": status.code(),
            "message": message,
        });
        if let Err(error) = writeln!(self.file, "{view}") {
            print_error(&cannot_write(&self.path, &error));
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write --status-file {}: {error}", path.display())
}
