//! `mongoseal show`.

use std::collections::BTreeMap;

use mongoseal::{Inspection, StoreTime, WaiterInfo};
use serde::Serialize;

use crate::{
    arguments::Show,
    connection::Connection,
    escape,
    exit_status::{Failure, Status},
    json::{self, HoldingView},
    output,
    table::{Column, Table},
    time,
};

pub(crate) async fn perform(connection: &Connection, options: Show) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    let found = seal.inspect(&options.key).await;
    seal.shutdown().await;
    let Some(record) = found? else {
        return Err(Failure::new(
            Status::NO,
            format!(
                "there is no record of {:?}: nobody has asked for it since its last one was collected",
                options.key
            ),
        ));
    };
    if options.json {
        output::json(&RecordView::of(&record))?;
    } else {
        output::lines(&described(&record, output::width()))?;
    }
    Ok(Status::DONE)
}

#[derive(Serialize)]
struct RecordView<'a> {
    key: &'a str,
    version: u64,
    read_at: String,
    last_seen: String,
    holders: Vec<HoldingView<'a>>,
    queue: Vec<WaitingView<'a>>,
    history: Vec<RevocationView<'a>>,
}

#[derive(Serialize)]
struct WaitingView<'a> {
    owner: &'a str,
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
            holders: record.holders.iter().map(|holding| HoldingView::of(holding, read_at)).collect(),
            queue: record.queue.iter().map(|waiting| WaitingView::of(waiting, read_at)).collect(),
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
        }
    }
}

impl<'a> WaitingView<'a> {
    fn of(waiting: &'a WaiterInfo, read_at: StoreTime) -> Self {
        Self {
            owner: waiting.owner.as_str(),
            position: waiting.position,
            shared: waiting.limit.is_some(),
            limit: json::bound(waiting.limit),
            since: time::of_store(waiting.since),
            waited_ms: time::millis(read_at.since(waiting.since)),
            last_seen: time::of_store(waiting.last_seen),
            remaining_ms: time::millis(waiting.remaining),
            group: waiting.group.as_ref().map(mongoseal::Group::as_str),
            metadata: json::metadata(&waiting.metadata),
        }
    }
}

/// The record in words and tables.
fn described(record: &Inspection, width: Option<usize>) -> Vec<String> {
    let ago = |time: StoreTime| format!("{} ago", time::brief(record.read_at.since(time)));
    let mut lines = vec![
        format!("Key      {}", escape::visible(record.key.as_str())),
        format!("Version  {}, below each token to come", record.version),
        format!("Changed  {}", ago(record.last_seen)),
        String::new(),
    ];
    if record.holders.is_empty() {
        lines.push("Nobody holds it.".into());
    } else {
        lines.extend(output::with_bold_header(holders(record).lines(width)));
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

fn holders(record: &Inspection) -> Table<8> {
    let mut table = Table::new([
        Column::cut("HOLDER"),
        Column::whole("TOKEN"),
        Column::whole("HELD"),
        Column::whole("HEARD OF"),
        Column::whole("LEFT"),
        Column::whole("SHARED"),
        Column::cut("GROUP"),
        Column::cut("METADATA"),
    ]);
    for holding in &record.holders {
        table.row([
            holding.owner.to_string(),
            holding.token.to_string(),
            time::brief(record.read_at.since(holding.since)),
            format!("{} ago", time::brief(record.read_at.since(holding.last_seen))),
            if holding.is_expired() { "over".into() } else { time::left(holding.remaining) },
            json::sharing(holding.limit),
            holding.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            json::words(&holding.metadata),
        ]);
    }
    table
}

fn queue(record: &Inspection) -> Table<7> {
    let mut table = Table::new([
        Column::cut("WAITER"),
        Column::whole("PLACE"),
        Column::whole("WAITS FOR"),
        Column::whole("HEARD OF"),
        Column::whole("SHARED"),
        Column::cut("GROUP"),
        Column::cut("METADATA"),
    ]);
    for waiting in &record.queue {
        table.row([
            waiting.owner.to_string(),
            (waiting.position + 1).to_string(),
            time::brief(record.read_at.since(waiting.since)),
            format!("{} ago", time::brief(record.read_at.since(waiting.last_seen))),
            json::sharing(waiting.limit),
            waiting.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            json::words(&waiting.metadata),
        ]);
    }
    table
}
