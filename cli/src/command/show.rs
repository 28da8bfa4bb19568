//! `mongoseal show`.

use mongoseal::inspect::{HolderInfo, Inspection, StoreTime, WaiterInfo};
use serde_json::{Value, json};

use crate::{
    arguments::Show,
    connection::Connection,
    exit_status::{Failure, Status},
    tick, time,
    ui::escape,
    ui::json::{self, HolderView},
    ui::output,
    ui::table::Table,
    ui::wrap,
};

/// How many characters of a value are shown at most. `mongoseal value` prints all.
const SHOWN: usize = 50;
/// The room for what is beside them in their line.
const BESIDE: usize = 26;

pub(crate) async fn perform(connection: &Connection, options: Show) -> Result<Status, Failure> {
    let found = connection.with_handle(async |seal| seal.inspect(&options.key).await).await??;
    let Some(record) = found else {
        return Err(Failure::new(
            Status::NO,
            format!("{:?} has no record: it was never used, or its idle record was deleted", options.key),
        ));
    };
    if options.json {
        output::json(&record_json(&record))?;
    } else {
        output::lines(&text(&record, output::width()))?;
    }
    Ok(Status::DONE)
}

/// Describes the record as JSON.
fn record_json(record: &Inspection) -> Value {
    let read_at = record.read_at;
    let history = record.history.iter().map(|past| {
        json!({
            "by": past.by,
            "reason": past.reason,
            "at": past.at.to_string(),
            "tokens": past.tokens.iter().map(|token| token.get()).collect::<Vec<_>>(),
        })
    });
    json!({
        "key": record.key.as_str(),
        "version": record.version.get(),
        "read_at": read_at.to_string(),
        "last_seen": record.last_seen.to_string(),
        "holders": record.holders.iter().map(|holding| HolderView::of(holding, read_at)).collect::<Vec<_>>(),
        "queue": record.queue.iter().map(|waiting| waiter_json(waiting, read_at)).collect::<Vec<_>>(),
        "history": history.collect::<Vec<_>>(),
        "done": record.done.as_ref().map(|done| json!({
            "tick": done.tick,
            // `null` if the number is not that of a time.
            "time": tick::time_of(done.tick),
            "token": done.token.get(),
            "by": done.by,
            "at": done.at.to_string(),
        })),
        "value": record.value.as_ref().map(json::value),
    })
}

fn waiter_json(waiting: &WaiterInfo, read_at: StoreTime) -> Value {
    json!({
        "owner": waiting.owner.as_str(),
        // 1 for the next in line.
        "position": waiting.position.saturating_add(1),
        "shared": !waiting.sharing.is_exclusive(),
        "limit": json::finite(waiting.sharing),
        "since": waiting.since.to_string(),
        "waited_ms": time::millis(read_at.since(waiting.since)),
        "last_seen": waiting.last_seen.to_string(),
        "remaining_ms": time::millis(waiting.remaining),
        "group": waiting.group.as_ref().map(mongoseal::Group::as_str),
        "metadata": json::metadata(&waiting.metadata),
    })
}

/// Formats the record as lines and tables.
fn text(record: &Inspection, width: Option<usize>) -> Vec<String> {
    let ago = |time: StoreTime| format!("{} ago", time::brief(record.read_at.since(time)));
    let labelled = |label: &str, text: &str| wrap::labelled(&format!("{label:9}"), text, width);
    let mut lines = labelled("Key", &escape::visible(record.key.as_str()));
    lines.extend(labelled("Version", &format!("{} (the next token is larger)", record.version)));
    lines.extend(labelled("Changed", &ago(record.last_seen)));
    if let Some(done) = &record.done {
        let number = tick::time_of(done.tick).map(|_| format!(", number {}", done.tick)).unwrap_or_default();
        let (tick, by) = (tick::text(done.tick), escape::visible(&done.by));
        lines.extend(labelled("Done", &format!("tick {tick}{number}, {} by {by}", ago(done.at))));
    }
    if let Some(value) = &record.value {
        let content = value.content.to_string();
        let fits = width.map_or(SHOWN, |width| width.saturating_sub(BESIDE).min(SHOWN));
        let shown: String = content.chars().take(fits).collect();
        let rest = if shown.len() < content.len() { format!("… ({} bytes)", content.len()) } else { String::new() };
        let (shown, token, at) = (escape::visible_json(&shown), value.token, ago(value.at));
        lines.push(format!("Value    {shown}{rest}"));
        lines.extend(labelled("", &format!("written {at} with token {token}")));
    }
    lines.push(String::new());
    if record.holders.is_empty() {
        lines.push("No holders.".into());
    } else {
        lines.extend(holders(record).lines(width));
        lines.extend(record.holders.iter().flat_map(|holding| limits(holding, record.read_at, width)));
    }
    if !record.queue.is_empty() {
        lines.push(String::new());
        lines.extend(queue(record).lines(width));
    }
    if !record.history.is_empty() {
        let mut table = Table::new(["REVOKED", "BY", "REASON", "TOKENS"]);
        for past in &record.history {
            let tokens: Vec<String> = past.tokens.iter().map(ToString::to_string).collect();
            table.row([ago(past.at), past.by.clone(), past.reason.clone(), tokens.join(" ")]);
        }
        lines.push(String::new());
        lines.extend(table.lines(width));
    }
    lines
}

/// Describes when a lease was released, and its minimum and maximum hold, if it has these.
fn limits(holding: &HolderInfo, read_at: StoreTime, width: Option<usize>) -> Vec<String> {
    let released = holding.released_at.map(|at| format!("released {} ago", time::brief(read_at.since(at))));
    let hold = |name: &str, end: StoreTime| {
        let (whole, left) = (time::brief(end.since(holding.since)), end.since(read_at));
        let end = if left.is_zero() { "over".into() } else { format!("ends in {}", time::brief(left)) };
        format!("{name} {whole}, {end}")
    };
    let minimum = holding.held_until.map(|end| hold("minimum", end));
    // With the grace.
    let maximum = holding.not_after.map(|end| hold("maximum", end));
    let limits: Vec<String> = [released, minimum, maximum].into_iter().flatten().collect();
    if limits.is_empty() {
        return Vec::new();
    }
    wrap::labelled(&format!("token {}: ", holding.token), &limits.join("; "), width)
}

fn holders(record: &Inspection) -> Table<8> {
    let mut table = Table::new(["HOLDER", "TOKEN", "HELD", "LAST SEEN", "FREE IN", "MODE", "GROUP", "METADATA"]);
    for holding in &record.holders {
        table.row([
            holding.owner.to_string(),
            holding.token.to_string(),
            time::brief(record.read_at.since(holding.since)),
            format!("{} ago", time::brief(record.read_at.since(holding.last_seen))),
            json::free_in(holding),
            json::mode(holding.sharing),
            holding.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            json::metadata_text(&holding.metadata),
        ]);
    }
    table
}

fn queue(record: &Inspection) -> Table<7> {
    let mut table = Table::new(["WAITER", "POSITION", "WAITED", "LAST SEEN", "MODE", "GROUP", "METADATA"]);
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
