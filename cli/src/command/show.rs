//! `mongoseal show`.

use std::collections::BTreeMap;

use mongoseal::{HolderInfo, Inspection, StoreTime, WaiterInfo};
use serde::Serialize;

use crate::{
    arguments::Show,
    connection::Connection,
    exit_status::{Failure, Status},
    tick, time,
    ui::escape,
    ui::json::{self, HolderView},
    ui::output,
    ui::table::{Column, Table},
};

pub(crate) async fn perform(connection: &Connection, options: Show) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    let found = seal.inspect(&options.key).await;
    seal.shutdown().await;
    let Some(record) = found? else {
        return Err(Failure::new(
            Status::NO,
            format!("{:?} has no record: it was never used, or its idle record was deleted", options.key),
        ));
    };
    if options.json {
        output::json(&RecordView::of(&record))?;
    } else {
        output::lines(&text(&record, output::width()))?;
    }
    Ok(Status::DONE)
}

#[derive(Serialize)]
struct RecordView<'a> {
    key: &'a str,
    version: u64,
    read_at: String,
    last_seen: String,
    holders: Vec<HolderView<'a>>,
    queue: Vec<WaiterView<'a>>,
    history: Vec<RevocationView<'a>>,
    done: Option<CompletionView<'a>>,
}

#[derive(Serialize)]
struct CompletionView<'a> {
    tick: u64,
    /// The time of the tick; `null` if its number is not that of a time.
    time: Option<String>,
    token: u64,
    by: &'a str,
    at: String,
}

#[derive(Serialize)]
struct WaiterView<'a> {
    owner: &'a str,
    /// 1 for the next in line.
    position: usize,
    shared: bool,
    limit: Option<u32>,
    since: String,
    waited_ms: u64,
    last_seen: String,
    remaining_ms: u64,
    group: Option<&'a str>,
    metadata: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct RevocationView<'a> {
    by: &'a str,
    reason: &'a str,
    at: String,
    tokens: Vec<u64>,
}

impl<'a> RecordView<'a> {
    fn of(record: &'a Inspection) -> Self {
        let read_at = record.read_at;
        Self {
            key: record.key.as_str(),
            version: record.version.get(),
            read_at: time::of_store(read_at),
            last_seen: time::of_store(record.last_seen),
            holders: record.holders.iter().map(|holding| HolderView::of(holding, read_at)).collect(),
            queue: record.queue.iter().map(|waiting| WaiterView::of(waiting, read_at)).collect(),
            history: record
                .history
                .iter()
                .map(|past| RevocationView {
                    by: &past.by,
                    reason: &past.reason,
                    at: time::of_store(past.at),
                    tokens: past.tokens.iter().map(|token| token.get()).collect(),
                })
                .collect(),
            done: record.done.as_ref().map(|done| CompletionView {
                tick: done.tick,
                time: tick::time_of(done.tick),
                token: done.token.get(),
                by: &done.by,
                at: time::of_store(done.at),
            }),
        }
    }
}

impl<'a> WaiterView<'a> {
    fn of(waiting: &'a WaiterInfo, read_at: StoreTime) -> Self {
        Self {
            owner: waiting.owner.as_str(),
            position: waiting.position.saturating_add(1),
            shared: !waiting.sharing.is_exclusive(),
            limit: json::finite(waiting.sharing),
            since: time::of_store(waiting.since),
            waited_ms: time::millis(read_at.since(waiting.since)),
            last_seen: time::of_store(waiting.last_seen),
            remaining_ms: time::millis(waiting.remaining),
            group: waiting.group.as_ref().map(mongoseal::Group::as_str),
            metadata: json::metadata(&waiting.metadata),
        }
    }
}

/// Formats the record as lines and tables.
fn text(record: &Inspection, width: Option<usize>) -> Vec<String> {
    let ago = |time: StoreTime| format!("{} ago", time::brief(record.read_at.since(time)));
    let mut lines = vec![
        format!("Key      {}", escape::visible(record.key.as_str())),
        format!("Version  {} (the next token is larger)", record.version),
        format!("Changed  {}", ago(record.last_seen)),
    ];
    if let Some(done) = &record.done {
        let number = tick::time_of(done.tick).map(|_| format!(", number {}", done.tick)).unwrap_or_default();
        let (tick, by) = (tick::text(done.tick), escape::visible(&done.by));
        lines.push(format!("Done     tick {tick}{number}, by {by} {}", ago(done.at)));
    }
    lines.push(String::new());
    if record.holders.is_empty() {
        lines.push("No holders.".into());
    } else {
        lines.extend(output::with_bold_header(holders(record).lines(width)));
        lines.extend(record.holders.iter().flat_map(|holding| limits(holding, record.read_at)));
    }
    if !record.queue.is_empty() {
        lines.push(String::new());
        lines.extend(output::with_bold_header(queue(record).lines(width)));
    }
    if !record.history.is_empty() {
        let mut table =
            Table::new([Column::whole("REVOKED"), Column::cut("BY"), Column::cut("REASON"), Column::cut("TOKENS")]);
        for past in &record.history {
            let tokens: Vec<String> = past.tokens.iter().map(ToString::to_string).collect();
            table.row([ago(past.at), past.by.clone(), past.reason.clone(), tokens.join(" ")]);
        }
        lines.push(String::new());
        lines.extend(output::with_bold_header(table.lines(width)));
    }
    lines
}

/// Describes the limits of a hold.
fn limits(holding: &HolderInfo, read_at: StoreTime) -> Vec<String> {
    let of =
        |limit: String| format!("{} with token {}: {limit}", escape::visible(holding.owner.as_str()), holding.token);
    let until = |end: StoreTime| {
        let left = end.since(read_at);
        let rest = if left.is_zero() { "over".into() } else { format!("{} left", time::brief(left)) };
        format!("until {} ({rest})", time::of_store(end))
    };
    match (holding.released_at, holding.held_until) {
        (Some(at), _) => {
            let (ago, left) = (time::brief(read_at.since(at)), time::remaining(holding.remaining));
            vec![of(format!("released {ago} ago; the minimum hold keeps the key unavailable for {left}"))]
        }
        (None, minimum) => {
            let minimum = minimum.map(|end| of(format!("minimum hold {}", until(end))));
            let maximum = holding.not_after.map(|end| of(format!("maximum hold, with the grace, {}", until(end))));
            minimum.into_iter().chain(maximum).collect()
        }
    }
}

fn holders(record: &Inspection) -> Table<8> {
    let mut table = Table::new([
        Column::cut("HOLDER"),
        Column::whole("TOKEN"),
        Column::whole("HELD"),
        Column::whole("LAST SEEN"),
        Column::whole("REMAINING"),
        Column::whole("MODE"),
        Column::cut("GROUP"),
        Column::cut("METADATA"),
    ]);
    for holding in &record.holders {
        table.row([
            holding.owner.to_string(),
            holding.token.to_string(),
            time::brief(record.read_at.since(holding.since)),
            format!("{} ago", time::brief(record.read_at.since(holding.last_seen))),
            json::remaining(holding),
            json::mode(holding.sharing),
            holding.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            json::metadata_text(&holding.metadata),
        ]);
    }
    table
}

fn queue(record: &Inspection) -> Table<7> {
    let mut table = Table::new([
        Column::cut("WAITER"),
        Column::whole("POSITION"),
        Column::whole("WAITED"),
        Column::whole("LAST SEEN"),
        Column::whole("MODE"),
        Column::cut("GROUP"),
        Column::cut("METADATA"),
    ]);
    for waiting in &record.queue {
        table.row([
            waiting.owner.to_string(),
            waiting.position.saturating_add(1).to_string(),
            time::brief(record.read_at.since(waiting.since)),
            format!("{} ago", time::brief(record.read_at.since(waiting.last_seen))),
            json::mode(waiting.sharing),
            waiting.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            json::metadata_text(&waiting.metadata),
        ]);
    }
    table
}
