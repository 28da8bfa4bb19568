//! `mongoseal ls`.

use std::{collections::BTreeMap, future::ready, time::Duration};

use mongoseal::{Mongoseal, action::Leases, inspect::ListedLease};

use crate::{
    arguments::{Ls, LsOutput, SortColumn},
    connection::Connection,
    exit_status::{Failure, Status},
    time,
    ui::json::{LeaseView, lease_row, lease_table},
    ui::message::print_answer,
    ui::output,
    ui::prometheus::Gauges,
    ui::table::Table,
};

pub(crate) async fn perform(connection: &Connection, options: Ls) -> Result<Status, Failure> {
    connection.with_handle(async |seal| list(seal, &options).await).await??;
    Ok(Status::DONE)
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
        leases = leases.free_in_less_than(time);
    }
    if options.expired { leases.with_expired() } else { leases }
}

/// Whether the options restrict the list.
fn has_filters(options: &Ls) -> bool {
    let Ls {
        prefix,
        owner,
        group,
        exclusive,
        shared,
        older,
        expiring,
        expired: _,
        sort_by: _,
        reverse: _,
        output: _,
        json: _,
    } = options;
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
    // `read_at` is the store's clock when the lease was read.
    let is_wanted = |lease: &ListedLease| lease.read_at.since(lease.holder.since) >= older;
    let mut printer = Printer::new(options);
    let mut stream = filtered(seal, options).await?;
    if options.sort_by.is_some() || options.reverse {
        let mut leases = Vec::new();
        while let Some(lease) = stream.next().await.transpose()? {
            if is_wanted(&lease) {
                leases.push(lease);
            }
        }
        match options.sort_by {
            Some(column) => sort(&mut leases, column, options.reverse),
            None => leases.reverse(),
        }
        leases.iter().try_for_each(|lease| printer.add(lease))?;
        return printer.finish(options);
    }
    loop {
        let next = tokio::select! {
            biased;
            next = stream.next() => next,
            // The next page has to be read: prints the leases before it.
            () = ready(()), if !printer.table.is_empty() => {
                printer.print_rows()?;
                continue;
            }
        };
        let Some(lease) = next.transpose()? else { break };
        if is_wanted(&lease) {
            printer.add(&lease)?;
        }
    }
    printer.finish(options)
}

/// Sorts leases by a column. Leases with equal cells stay in the order of the list.
fn sort(leases: &mut [ListedLease], column: SortColumn, reverse: bool) {
    leases.sort_by(|one, other| {
        let order = match column {
            SortColumn::Key => one.key.cmp(&other.key),
            SortColumn::Owner => one.holder.owner.as_str().cmp(other.holder.owner.as_str()),
            SortColumn::Token => one.holder.token.cmp(&other.holder.token),
            // The pages of the list are read one after the other, so the spans are not comparable.
            SortColumn::Held => other.holder.since.cmp(&one.holder.since),
            SortColumn::FreeIn => one.holder.free_in.cmp(&other.holder.free_in),
            SortColumn::Waiters => one.waiting.cmp(&other.waiting),
        };
        if reverse { order.reverse() } else { order }
    });
}

/// Prints leases as JSON, as a table, or as gauges.
struct Printer {
    json: bool,
    gauges: Option<KeyGauges>,
    table: Table<12>,
    has_printed: bool,
}

impl Printer {
    fn new(options: &Ls) -> Self {
        Self {
            json: options.json || options.output == Some(LsOutput::Json),
            gauges: (options.output == Some(LsOutput::Prometheus)).then(KeyGauges::default),
            table: lease_table(options.output == Some(LsOutput::Wide)),
            has_printed: false,
        }
    }

    /// Prints a lease as JSON, or adds it to the rest.
    fn add(&mut self, lease: &ListedLease) -> Result<(), Failure> {
        if let Some(gauges) = &mut self.gauges {
            gauges.add(lease);
        } else if self.json {
            output::json(&LeaseView::of(lease))?;
            self.has_printed = true;
        } else {
            self.table.row(lease_row(lease));
        }
        Ok(())
    }

    /// Prints the rows of the table since the last call, the first time with the header.
    fn print_rows(&mut self) -> Result<(), Failure> {
        self.has_printed = true;
        Ok(output::lines(&self.table.next_lines(output::width()))?)
    }

    /// Prints the rest of the table, or that there are no leases.
    fn finish(mut self, options: &Ls) -> Result<(), Failure> {
        if let Some(gauges) = self.gauges {
            return Ok(output::raw(&gauges.text())?);
        }
        if !self.table.is_empty() && !self.has_printed {
            output::lines(&self.table.lines(output::width()))?;
        } else if !self.table.is_empty() {
            self.print_rows()?;
        } else if !self.has_printed && !self.json {
            let message = match &options.prefix {
                Some(prefix) => format!("No matching leases of keys that begin with {prefix:?}."),
                None if has_filters(options) => "No matching leases.".into(),
                None => "No leases.".into(),
            };
            print_answer(&message);
        }
        Ok(())
    }
}

/// What Prometheus gets of each key.
#[derive(Default)]
struct KeyGauges(BTreeMap<String, OfKey>);

struct OfKey {
    leases: u32,
    waiters: usize,
    longest: Duration,
    /// The shortest time.
    free_in: Duration,
}

impl KeyGauges {
    fn add(&mut self, lease: &ListedLease) {
        let holder = &lease.holder;
        let none = OfKey { leases: 0, waiters: 0, longest: Duration::ZERO, free_in: Duration::MAX };
        let of_key = self.0.entry(lease.key.to_string()).or_insert(none);
        of_key.waiters = lease.waiting;
        if holder.is_expired() {
            return;
        }
        of_key.leases = of_key.leases.saturating_add(1);
        of_key.longest = of_key.longest.max(lease.read_at.since(holder.since));
        of_key.free_in = of_key.free_in.min(holder.free_in);
    }

    fn text(&self) -> String {
        let mut leases = Gauges::new("mongoseal_leases", "the leases of the key");
        let mut waiters = Gauges::new("mongoseal_waiters", "the waiters of the key");
        let mut held = Gauges::new("mongoseal_lease_held_seconds", "how long the oldest lease of the key is held");
        let mut free_in = Gauges::new(
            "mongoseal_lease_free_in_seconds",
            "how long until the lease of the key with the least time ends without a refresh",
        );
        for (key, of_key) in &self.0 {
            let labels = [("key", key.as_str())];
            leases.add(&labels, of_key.leases.into());
            waiters.add(&labels, u32::try_from(of_key.waiters).unwrap_or(u32::MAX).into());
            held.add(&labels, of_key.longest.as_secs_f64());
            free_in.add(&labels, time::finite(of_key.free_in).map_or(f64::INFINITY, |time| time.as_secs_f64()));
        }
        [leases, waiters, held, free_in].iter().map(Gauges::text).collect()
    }
}
