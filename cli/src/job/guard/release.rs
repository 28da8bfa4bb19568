//! The release of the leases of a holder that was killed.
//!
//! The holder gives the guard an order: the connection and the leases, in a pipe, because they are secret. If the holder is
//! gone when no process of the command is left, the guard starts this program once more, which reads the order and releases
//! the leases. The guard itself has neither a runtime nor a connection.

use std::{
    io::{self, PipeReader, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Command, ExitCode, Stdio},
};

use futures_util::future::join_all;
use mongoseal::{FencingToken, Key, LeaseId, Mongoseal};
use rustix::io::ioctl_fionbio;
use serde::{Deserialize, Serialize};

use crate::{
    connection::Connection,
    exit_status::{Failure, Status},
    leases::Leases,
    process::this_program,
};

/// The first argument that makes this program carry out an order.
pub(super) const RELEASE: &str = "__release";

/// What it takes to release leases.
#[derive(Deserialize, Serialize)]
struct Order {
    connection: Connection,
    leases: Vec<OrderedLease>,
}

#[derive(Deserialize, Serialize)]
struct OrderedLease {
    key: Key,
    id: String,
    token: FencingToken,
}

/// Writes an order to a pipe. Returns `None` if the pipe has no room for it: then the leases expire.
pub(crate) fn order(connection: &Connection, leases: &Leases<'_>) -> io::Result<Option<PipeReader>> {
    let ordered = leases.iter().map(|lease| OrderedLease {
        key: lease.key().clone(),
        id: lease.id().expose(),
        token: lease.token(),
    });
    let Ok(connection) = connection.resolved() else { return Ok(None) };
    let order = serde_json::to_vec(&Order { connection, leases: ordered.collect() }).map_err(io::Error::other)?;
    let (reader, mut writer) = io::pipe()?;
    ioctl_fionbio(&writer, true)?;
    Ok(writer.write_all(&order).is_ok().then_some(reader))
}

/// Starts a process that carries out the order. Nothing waits for it, and it prints nothing: the terminal and the pipes of the
/// command belong to others by now.
pub(super) fn start(order: OwnedFd) -> io::Result<()> {
    Command::new(this_program()?)
        .arg0("mongoseal")
        .arg(RELEASE)
        .stdin(order)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map(drop)
}

/// Carries out the order on the standard input.
pub(super) fn main() -> ExitCode {
    perform().unwrap_or_else(|failure| failure.status()).into()
}

fn perform() -> Result<Status, Failure> {
    let Order { connection, leases } = serde_json::from_reader(io::stdin().lock()).map_err(Failure::invalid)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(connection.with_handle(async |seal| {
        join_all(leases.into_iter().map(|lease| release(seal, lease))).await;
    }))?;
    Ok(Status::DONE)
}

/// Releases a lease, unless it has ended.
async fn release(seal: &Mongoseal, OrderedLease { key, id, token }: OrderedLease) {
    let Ok(id) = id.parse::<LeaseId>() else { return };
    // A lease that is not released expires.
    if let Ok(lease) = seal.resume(key, id, token).without_refresh().await {
        lease.release().await.map(drop).unwrap_or_default();
    }
}
