//! `mongoseal ls`.

use std::{future::ready, time::Duration};

use mongoseal::{Leases, Mongoseal};

use crate::{
    arguments::Ls,
    connection::Connection,
    exit_status::{Failure, Status},
    json::{LeaseTable, LeaseView},
    output,
};

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
    let (mut table, mut has_printed) = (LeaseTable::new(), false);
    loop {
        let next = tokio::select! {
            biased;
            next = stream.next() => next,
            // The next page has to be read: prints the leases before it.
            () = ready(()), if !table.is_empty() => {
                print_rows(&mut table, &mut has_printed)?;
                continue;
            }
        };
        let Some(lease) = next.transpose()? else { break };
        // `read_at` is the store's clock when the lease was read.
        if lease.read_at.since(lease.holder.since) < older {
            continue;
        }
        if options.json {
            output::json(&LeaseView::of(&lease))?;
            has_printed = true;
        } else {
            table.row(&lease);
        }
    }
    if !table.is_empty() && !has_printed {
        output::lines(&output::with_bold_header(table.lines(output::width())))?;
    } else if !table.is_empty() {
        print_rows(&mut table, &mut has_printed)?;
    } else if !has_printed && !options.json {
        let message = match &options.prefix {
            Some(prefix) => format!("No matching leases of keys that begin with {prefix:?}."),
            None if has_filters(options) => "No matching leases.".into(),
            None => "No leases.".into(),
        };
        anstream::eprintln!("{message}");
    }
    Ok(())
}

/// Prints the rows of the table since the last call, the first time with the header.
fn print_rows(table: &mut LeaseTable, has_printed: &mut bool) -> Result<(), Failure> {
    let lines = table.next_lines(output::width());
    let lines = if *has_printed { lines } else { output::with_bold_header(lines) };
    *has_printed = true;
    Ok(output::lines(&lines)?)
}
