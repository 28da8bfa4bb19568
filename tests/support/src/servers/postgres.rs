//! A PostgreSQL server, if PostgreSQL is installed.

use std::{
    fs,
    ops::Deref,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

use crate::servers::{
    programs,
    runtime::run_blocking,
    server::{Program, Server, path},
};

/// A PostgreSQL server with a database of its own; it ends with this value, or with the process.
///
/// Takes `POSTGRES`, the path of a `postgres`, else the one on `PATH`, else the newest of Debian's packages.
pub struct Postgres {
    server: Server,
}

impl Postgres {
    /// Why none can be started here, if so.
    pub fn missing() -> Option<String> {
        Cluster::here().err()
    }

    /// Starts one.
    pub async fn start() -> Self {
        let server = run_blocking(|| Server::start(&Cluster::here().unwrap_or_else(|reason| panic!("{reason}")))).await;
        Self { server }
    }

    /// Where clients find its database.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.server.address())
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// What is installed, and who may run it.
struct Cluster {
    programs: PathBuf,
    /// PostgreSQL refuses to run as root.
    user: Option<User>,
}

struct User {
    id: u32,
    group: u32,
}

impl Cluster {
    fn here() -> Result<Self, String> {
        let postgres = programs::from_env("POSTGRES")
            // A link may lead to a directory without the other programs.
            .or_else(|| programs::on_path("postgres")?.canonicalize().ok())
            .or_else(debian_s)
            .ok_or("PostgreSQL is not installed: there is no postgres on PATH or in /usr/lib/postgresql/*/bin")?;
        let programs = postgres.parent().map(Path::to_owned).unwrap_or_default();
        if !programs.join("initdb").is_file() {
            return Err(format!("PostgreSQL is not installed: there is no initdb in {}", programs.display()));
        }
        let user = if rustix::process::geteuid().is_root() { Some(unprivileged()?) } else { None };
        Ok(Self { programs, user })
    }
}

/// The server of the newest version that Debian's packages have installed.
fn debian_s() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let programs = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let program = entry.path().join("bin/postgres");
        program.is_file().then_some((version, program))
    });
    programs.max().map(|(_, program)| program)
}

/// The user that Debian's packages make for it.
fn unprivileged() -> Result<User, String> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = users.lines().find_map(|line| {
        let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
        Some(User { id: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
    });
    user.ok_or_else(|| "PostgreSQL does not run as root, and there is no user postgres to run it as".into())
}

/// `$0` is where the programs are, `$1` the directory, `$2` the port. Nothing is synced: a test's data need not
/// outlive a crash of the machine. Shared memory goes to files in the directory, which are removed with it.
///
/// With its trap the shell ends once `initdb` has, which would otherwise go on in a directory that is being
/// removed, and leave shared memory behind.
const SCRIPT: &str = r#"
trap exit TERM
cd "$1" || exit
[ -d data ] || "$0/initdb" --pgdata data --username postgres --auth trust --no-sync --locale C --encoding UTF8 || exit
exec "$0/postgres" -D data -p "$2" -h 127.0.0.1 -k '' -F -c shared_buffers=16MB -c dynamic_shared_memory_type=mmap
"#;

impl Program for Cluster {
    const NAME: &str = "postgres";
    const READY: &str = "database system is ready to accept connections";
    /// An immediate shutdown: it takes its children along, and what it has in the kernel. The second is for the
    /// shell before it, which ignores the first, as all do that a shell starts in the background.
    const END: &str = "QUIT TERM";
    const ROOM: u64 = 256 << 20;

    fn command_line(&self, port: u16, home: &Path) -> Vec<String> {
        let mut command = Vec::new();
        if let Some(User { id, group }) = &self.user {
            chown(home, Some(*id), Some(*group)).expect("root can give a directory away");
            command.extend(["setpriv".into(), "--clear-groups".into()]);
            command.extend([format!("--reuid={id}"), format!("--regid={group}")]);
        }
        command.extend(["sh", "-c", SCRIPT].map(str::to_owned));
        command.extend([path(&self.programs), path(home), port.to_string()]);
        command
    }

    /// Not the target directory, which another user may not reach.
    fn disk() -> PathBuf {
        std::env::temp_dir()
    }
}
