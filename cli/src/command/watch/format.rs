//! The forms of an item of a watch: a line, the cells of a table, JSON.

use mongoseal::inspect::{Event, EventKind, StoreTime, WatchItem};
use serde_json::{Value, json};

use crate::{time, ui::escape, ui::output, ui::table};

/// The name of events that may be missing.
const MISSED: &str = "missed";

/// The columns of events.
pub(super) const COLUMNS: [&str; 6] = ["TIME", "EVENT", "KEY", "TOKEN", "OWNER", "DETAILS"];

/// The widths of the columns in a pipe. A wider cell moves the rest of its line.
const WIDTHS: [usize; 6] = [24, 11, 24, 15, 16, 0];
/// The widths on a terminal of the columns that are not cut.
const TIME: usize = 9;
const EVENT: usize = 11;
const TOKEN: usize = 15;
/// The spaces between six columns.
const GAPS: usize = 10;
/// The largest width on a terminal of an owner.
const MAX_OWNER: usize = 24;

/// Returns the name of an event.
fn name(kind: &EventKind) -> &'static str {
    match kind {
        EventKind::Holds { .. } => "holds",
        EventKind::Granted { .. } => "granted",
        EventKind::Released => "released",
        EventKind::Expired => "expired",
        EventKind::Revoked { .. } => "revoked",
        EventKind::Transferred { .. } => "transferred",
        EventKind::Removed => "removed",
        _ => "changed",
    }
}

/// Returns what an event has beside its key, token and owner. The time that remains and the reason come first: a narrow
/// terminal cuts the end.
fn details(kind: &EventKind) -> String {
    match kind {
        EventKind::Holds { holding } | EventKind::Granted { holding } => match time::finite(holding.free_in) {
            Some(time) => format!("free in {}", time::brief(time)),
            None => "without expiry".into(),
        },
        EventKind::Revoked { by, reason } => format!("{reason} (by {by})"),
        EventKind::Transferred { to } => format!("to token {}", to.token),
        _ => String::new(),
    }
}

/// Returns the cells of an item. `format`: formats its time.
pub(super) fn cells(item: &WatchItem, format: fn(StoreTime) -> String) -> [String; 6] {
    match item {
        WatchItem::Event(event) => {
            let (key, token, owner) = (event.key.to_string(), event.token.to_string(), event.owner.to_string());
            [format(event.at), name(&event.kind).into(), key, token, owner, details(&event.kind)]
        }
        WatchItem::Missed { since, until } => {
            let details = format!("events since {} may be missing", format(*since));
            [format(*until), MISSED.into(), String::new(), String::new(), String::new(), details]
        }
        _ => Default::default(),
    }
}

/// Formats an item as a line. On a terminal of this width, long keys, owners and details are cut, and the time has no date.
pub(super) fn line(item: &WatchItem, width: Option<usize>) -> String {
    let on_terminal = |width: usize| {
        let rest = width.saturating_sub(TIME + EVENT + TOKEN + GAPS);
        let owner = (rest / 3).clamp(table::MIN_WIDTH, MAX_OWNER);
        let key = (rest.saturating_sub(owner) / 2).max(table::MIN_WIDTH);
        let details = rest.saturating_sub(owner + key).max(table::MIN_WIDTH);
        [TIME, EVENT, key, TOKEN, owner, details]
    };
    let widths = width.map_or(WIDTHS, on_terminal);
    let format: fn(StoreTime) -> String = if width.is_some() { time::of_day } else { |time| time.to_string() };
    let cells = cells(item, format).map(|cell| escape::visible(&cell));
    let row = COLUMNS.into_iter().zip(widths).zip(&cells);
    table::format_row(row.map(|((title, width), cell)| (title, width, cell.as_str())), width)
}

/// Formats an item as an object.
pub(super) fn json(item: &WatchItem) -> String {
    match item {
        WatchItem::Event(event) => output::json_line(&event_json(event)),
        WatchItem::Missed { since, until } => {
            output::json_line(&json!({ "at": until.to_string(), "event": MISSED, "since": since.to_string() }))
        }
        _ => String::new(),
    }
}

fn event_json(event: &Event) -> Value {
    let mut view = json!({
        "at": event.at.to_string(),
        "event": name(&event.kind),
        "key": event.key.as_str(),
        "token": event.token.get(),
        "owner": event.owner.as_str(),
    });
    match &event.kind {
        // `null` if the lease has no expiry.
        EventKind::Holds { holding } | EventKind::Granted { holding } => {
            view["free_in_ms"] = time::finite(holding.free_in).map(time::millis).into();
        }
        EventKind::Revoked { by, reason } => {
            view["by"] = by.as_str().into();
            view["reason"] = reason.as_str().into();
        }
        EventKind::Transferred { to } => view["to"] = to.token.get().into(),
        _ => {}
    }
    view
}
