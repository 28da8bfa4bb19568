//! Where the connection string comes from, and how it is hidden from the other users of the machine.

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    fs, io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::PermissionsExt,
    },
    path::Path,
};

use nix::unistd::execve;

use super::Connection;
use crate::{exit_status::Failure, process::this_program, process::to_c_strings, ui::message::print_warning};

/// The environment variable that [`hide_uri`] moves the connection string to. Commands that this program runs do not
/// inherit it.
pub(crate) const HIDDEN_URI: &str = "MONGOSEAL_KEPT_URI";

impl Connection {
    /// Returns the connection string, without the space around it: a variable that was read from a file can end with a newline.
    pub(super) fn uri(&self) -> Result<String, Failure> {
        self.given_uri().map(|uri| uri.trim().to_owned())
    }

    fn given_uri(&self) -> Result<String, Failure> {
        let hidden = env::var_os(HIDDEN_URI).map(|uri| uri.into_string().map_err(|_| not_utf8("--uri"))).transpose()?;
        match (hidden, &self.uri_file) {
            (Some(_), Some(_)) => Err(Failure::invalid("there are two connection strings: pass --uri or --uri-file")),
            (Some(uri), None) => Ok(uri),
            (None, Some(path)) => match self.read_uri.get() {
                Some(uri) => Ok(uri.clone()),
                None => read_uri(path).map(|uri| self.read_uri.get_or_init(|| uri).clone()),
            },
            (None, None) => self.uri.clone().ok_or_else(|| {
                Failure::invalid(
                    "no connection string: set MONGODB_URI or MONGOSEAL_URI, or pass --uri-file or --uri, for example mongodb://db0,db1,db2/app?replicaSet=rs0 or redis://redis0:6379/0",
                )
            }),
        }
    }
}

fn not_utf8(place: &str) -> Failure {
    Failure::invalid(format!(
        "the connection string of {place} is not UTF-8: percent-encode the other bytes, such as %ff"
    ))
}

/// Reads a connection string from a file, without the space around it.
fn read_uri(path: &Path) -> Result<String, Failure> {
    let cannot_read = |error| Failure::invalid(format!("cannot read --uri-file {}: {error}", path.display()));
    // A pipe has no other readers than those to which it was given.
    if let Ok(metadata) = path.metadata()
        && metadata.is_file()
        && metadata.permissions().mode() & 0o004 != 0
    {
        let path = path.display();
        print_warning(&format!("all users can read --uri-file {path}: run chmod o-r {path} if it has a password"));
    }
    let text = String::from_utf8(fs::read(path).map_err(cannot_read)?)
        .map_err(|_| not_utf8(&format!("--uri-file {}", path.display())))?;
    match text.trim() {
        "" => {
            Err(Failure::invalid(format!("--uri-file {} is empty: write the connection string to it", path.display())))
        }
        uri => Ok(uri.to_owned()),
    }
}

/// Moves a connection string from the arguments to the environment, by executing this program again: all users of the
/// machine can read the arguments, and only this user can read the environment.
///
/// Returns if the arguments have no connection string, or with an error.
pub(crate) fn hide_uri() -> io::Result<()> {
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    let Some((uri, rest)) = without_uri(arguments) else { return Ok(()) };
    let mut hidden = OsString::from(format!("{HIDDEN_URI}="));
    hidden.push(uri);
    let inherited = env::vars_os().filter(|(name, _)| name != HIDDEN_URI).map(|(mut variable, value)| {
        variable.push("=");
        variable.push(value);
        variable
    });
    let program = CString::new(this_program()?.into_os_string().into_vec())?;
    let arguments = to_c_strings(std::iter::once(name).chain(rest))?;
    let environment = to_c_strings(inherited.chain([hidden]))?;
    // The standard library's exec would unblock all signals, and the command inherits the mask.
    match execve(&program, &arguments, &environment) {
        Ok(never) => match never {},
        Err(error) => Err(error.into()),
    }
}

/// Splits the arguments into the connection string, the last if there are several, and the others.
fn without_uri(arguments: impl Iterator<Item = OsString>) -> Option<(OsString, Vec<OsString>)> {
    let (mut uri, mut rest) = (None, Vec::new());
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        if let Some(value) = argument.as_bytes().strip_prefix(b"--uri=") {
            uri = Some(OsStr::from_bytes(value).to_owned());
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

    fn split(line: &str) -> Option<(String, String)> {
        let (uri, rest) = without_uri(line.split(' ').map(OsString::from))?;
        Some((uri.into_string().unwrap(), rest.join(OsStr::new(" ")).into_string().unwrap()))
    }

    #[test]
    fn a_connection_string_is_taken_out_of_the_arguments_wherever_it_stands_before_the_command() {
        let found = |uri: &str, rest: &str| Some((uri.to_owned(), rest.to_owned()));
        assert_eq!(split("--uri a ls"), found("a", "ls"));
        assert_eq!(split("ls --uri=a --json"), found("a", "ls --json"));
        assert_eq!(split("run k --uri a -- psql --uri b --uri=c"), found("a", "run k -- psql --uri b --uri=c"));
        assert_eq!(split("--uri a ls --uri=b"), found("b", "ls"));
        assert_eq!(split("run k -- psql --uri b"), None);
        assert_eq!(split("ls --uri"), None);
        assert_eq!(split("ls --uri --json"), None);
        assert_eq!(split("ls uri --urix a"), None);
    }
}
