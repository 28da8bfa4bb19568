//! Where the leases are.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    process::Command,
    time::Duration,
};

use clap::Args;
use mongoseal::{Builder, Mongoseal};

use crate::{exit_status::Failure, this_program, time};

/// Where this program keeps, from others, a connection string that was among its arguments. Whatever it runs is
/// not given this.
pub(crate) const KEPT: &str = "MONGOSEAL_KEPT_URI";

/// Said by each command that asks MongoDB.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Connection string of the replica set
    #[arg(long, global = true, env = "MONGODB_URI", hide_env_values = true, value_name = "URI")]
    uri: Option<String>,
    /// Database of the leases; the one in the connection string, or `mongoseal`, unless it is said
    #[arg(long, global = true, env = "MONGOSEAL_DB", value_name = "NAME")]
    db: Option<String>,
    /// Collection of the leases
    #[arg(long, global = true, env = "MONGOSEAL_COLLECTION", default_value = "mongoseal", value_name = "NAME")]
    collection: String,
    /// How long one request is tried before MongoDB counts as unavailable
    #[arg(long, global = true, default_value = "10s", value_parser = time::parse, value_name = "TIME")]
    timeout: Duration,
    /// How long the records of idle keys are kept, as all users of the collection must agree
    #[arg(
        long,
        global = true,
        env = "MONGOSEAL_RETENTION",
        default_value = "24h",
        value_parser = time::parse,
        value_name = "TIME"
    )]
    retention: Duration,
    /// Accept a sharded cluster, where nothing but expiry is promised
    #[arg(long, global = true)]
    allow_sharded: bool,
}

impl Connection {
    /// The settings that every command shares.
    pub(crate) fn builder(&self) -> Builder {
        let builder =
            Mongoseal::builder().collection(&self.collection).operation_timeout(self.timeout).retention(self.retention);
        let builder = if self.allow_sharded { builder.allow_sharded() } else { builder };
        match &self.db {
            Some(db) => builder.database(db),
            None => builder,
        }
    }

    /// Connects, and checks the deployment.
    pub(crate) async fn open(&self) -> Result<Mongoseal, Failure> {
        self.open_with(self.builder()).await
    }

    /// Opens it with further settings.
    pub(crate) async fn open_with(&self, builder: Builder) -> Result<Mongoseal, Failure> {
        Ok(builder.connect(self.uri()?).await?)
    }

    pub(crate) fn uri(&self) -> Result<String, Failure> {
        let kept = env::var_os(KEPT).map(|kept| kept.into_string().map_err(|_| not_text())).transpose()?;
        kept.or_else(|| self.uri.clone()).ok_or_else(|| {
            Failure::invalid(
                "no replica set was named: give --uri, or MONGODB_URI in the environment, which others cannot read",
            )
        })
    }

    /// As it was said.
    pub(crate) fn db(&self) -> Option<&str> {
        self.db.as_deref()
    }

    pub(crate) fn collection(&self) -> &str {
        &self.collection
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn allows_sharded(&self) -> bool {
        self.allow_sharded
    }

    pub(crate) fn retention(&self) -> Duration {
        self.retention
    }
}

fn not_text() -> Failure {
    Failure::invalid("the connection string is not UTF-8: write what is not with a percent sign and two digits")
}

/// Begins this program anew without the connection string among its arguments, where there is one: everybody on the
/// machine can read them, and of the environment only its user. Comes back where there is none, or with an error.
pub(crate) fn conceal() -> io::Result<()> {
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    let Some((uri, rest)) = without_uri(arguments) else { return Ok(()) };
    Err(Command::new(this_program()?).arg0(name).args(rest).env(KEPT, uri).exec())
}

/// The connection string among these arguments, the last if it is there more than once, and the others.
fn without_uri(arguments: impl Iterator<Item = OsString>) -> Option<(OsString, Vec<OsString>)> {
    let (mut uri, mut rest) = (None, Vec::new());
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        if let Some(said) = argument.as_bytes().strip_prefix(b"--uri=") {
            uri = Some(OsStr::from_bytes(said).to_owned());
        } else if argument == "--uri" && arguments.peek().is_some_and(|next| !next.as_bytes().starts_with(b"-")) {
            uri = arguments.next();
        } else if argument == "--" {
            rest.push(argument);
            rest.extend(arguments.by_ref());
        } else {
            rest.push(argument);
        }
    }
    Some((uri?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parted(line: &str) -> Option<(String, String)> {
        let (uri, rest) = without_uri(line.split(' ').map(OsString::from))?;
        Some((uri.into_string().unwrap(), rest.join(OsStr::new(" ")).into_string().unwrap()))
    }

    #[test]
    fn a_connection_string_is_taken_out_of_the_arguments_wherever_it_stands_before_the_command() {
        let found = |uri: &str, rest: &str| Some((uri.to_owned(), rest.to_owned()));
        assert_eq!(parted("--uri a ls"), found("a", "ls"));
        assert_eq!(parted("ls --uri=a --json"), found("a", "ls --json"));
        assert_eq!(parted("run k --uri a -- psql --uri b --uri=c"), found("a", "run k -- psql --uri b --uri=c"));
        assert_eq!(parted("--uri a ls --uri=b"), found("b", "ls"));
        assert_eq!(parted("run k -- psql --uri b"), None);
        assert_eq!(parted("ls --uri"), None);
        assert_eq!(parted("ls --uri --json"), None);
        assert_eq!(parted("ls uri --urix a"), None);
    }
}
