//! `mongoseal ls`.

use std::{mem, time::Duration};

use mongoseal::{Leases, ListedLease, Mongoseal};

use crate::{
    arguments::Ls,
    connection::Connection,
    exit_status::{Failure, Status},
    json::{self, LeaseTable, LeaseView},
    output,
};

/// The number of leases that are printed at a time, and of keys whose waiters are counted concurrently.
const BATCH: usize = 64;

pub(crate) async fn perform(connection: &Connection, options: Ls) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    let listed = list(&seal, &options).await;
    seal.shutdown().await;
    listed.map(|()| Status::DONE)
}

/// Applies the filters of the options.
fn filtered(seal: &Mongoseal, options: &Ls) -> Leases {
    let mut leases = seal.leases();
    if let Some(prefix) = &options.prefix {
        leases = leases.prefix(prefix);
    }
    if let Some(owner) = &options.owner {
        leases = leases.owner(owner);
    }
    if let Some(group) = &options.group {
        leases = leases.group(group);
    }
    if options.exclusive {
        leases = leases.exclusive();
    }
    if options.shared {
        leases = leases.shared();
    }
    if let Some(time) = options.expiring {
        leases = leases.remaining_less_than(time);
    }
    if options.expired { leases.with_expired() } else { leases }
}

/// Whether the options restrict the list.
fn has_filters(options: &Ls) -> bool {
    let Ls { prefix, owner, group, exclusive, shared, older, expiring, expired: _, json: _ } = options;
    prefix.is_some()
        || owner.is_some()
        || group.is_some()
        || *exclusive
        || *shared
        || older.is_some()
        || expiring.is_some()
}

async fn list(seal: &Mongoseal, options: &Ls) -> Result<(), Failure> {
    let older = options.older.unwrap_or(Duration::ZERO);
    let mut stream = filtered(seal, options).await?;
    let mut list = List { json: options.json, table: LeaseTable::new(), read: Vec::new() };
    while let Some(lease) = stream.next().await {
        let lease = lease?;
        // `read_at` is the store's clock when the lease was read.
        if lease.read_at.since(lease.holder.since) >= older {
            list.read.push(lease);
        }
        if list.read.len() >= BATCH {
            list.flush(seal).await?;
        }
    }
    list.flush(seal).await?;
    list.finish(options)
}

struct List {
    json: bool,
    table: LeaseTable,
    /// Leases that are neither printed nor in the table yet.
    read: Vec<ListedLease>,
}

impl List {
    /// Counts the waiters of the leases that were read, then prints the leases or adds them to the table.
    async fn flush(&mut self, seal: &Mongoseal) -> Result<(), Failure> {
        let read = mem::take(&mut self.read);
        let waiting = json::count_waiters(seal, &read).await;
        for lease in &read {
            let waiting = waiting.get(&lease.key).copied();
            if self.json {
                output::json(&LeaseView::of(lease, waiting))?;
            } else {
                self.table.row(lease, waiting);
            }
        }
        Ok(())
    }

    /// Prints the table, if there is one.
    fn finish(self, options: &Ls) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        if self.table.is_empty() {
            let message = match &options.prefix {
                Some(prefix) => format!("No matching leases of keys that begin with {prefix:?}."),
                None if has_filters(options) => "No matching leases.".into(),
                None => "No leases.".into(),
            };
            anstream::eprintln!("{message}");
            return Ok(());
        }
        Ok(output::lines(&output::with_bold_header(self.table.lines(output::width())))?)
    }
}
