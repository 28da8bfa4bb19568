//! The forms of an item of a watch: a line, the cells of a table, JSON.

use mongoseal::{Event, EventKind, StoreTime, WatchItem};
use serde::Serialize;
use serde_json::Value;

use crate::{
    time,
    ui::escape,
    ui::output,
    ui::table::{self, Column},
};

/// The name of events that may be missing.
const MISSED: &str = "missed";

/// The columns of events.
pub(super) const COLUMNS: [Column; 6] = [
    Column::whole("TIME"),
    Column::whole("EVENT"),
    Column::cut("KEY"),
    Column::whole("TOKEN"),
    Column::cut("OWNER"),
    Column::cut("DETAILS"),
];

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
        EventKind::Holds { holding } | EventKind::Granted { holding } => match holding.remaining {
            Some(remaining) => format!("{} remaining", time::brief(remaining)),
            None => "without expiry".into(),
        },
        EventKind::Revoked { by, reason } => format!("{reason} (by {by})"),
        EventKind::Transferred { to } => format!("to token {}", to.token),
        _ => String::new(),
    }
}

/// Returns the cells of an item on a terminal. Its time has no date.
pub(super) fn cells(item: &WatchItem) -> [String; 6] {
    cells_with(item, time::of_day)
}

fn cells_with(item: &WatchItem, format: fn(StoreTime) -> String) -> [String; 6] {
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

/// Formats an item as a line. On a terminal of this width, long keys, owners and details are cut.
pub(super) fn line(item: &WatchItem, width: Option<usize>) -> String {
    let Some(width) = width else {
        return table::format_row(&COLUMNS, &WIDTHS, &escaped(cells_with(item, time::of_store)), None);
    };
    let rest = width.saturating_sub(TIME + EVENT + TOKEN + GAPS);
    let owner = (rest / 3).clamp(table::MIN_WIDTH, MAX_OWNER);
    let key = (rest.saturating_sub(owner) / 2).max(table::MIN_WIDTH);
    let details = rest.saturating_sub(owner + key).max(table::MIN_WIDTH);
    table::format_row(&COLUMNS, &[TIME, EVENT, key, TOKEN, owner, details], &escaped(cells(item)), Some(width))
}

fn escaped(cells: [String; 6]) -> [String; 6] {
    cells.map(|cell| escape::visible(&cell))
}

/// Formats an item as an object.
pub(super) fn json(item: &WatchItem) -> serde_json::Result<String> {
    match item {
        WatchItem::Event(event) => event_json(event),
        WatchItem::Missed { since, until } => {
            let (at, since) = (time::of_store(*until), time::of_store(*since));
            output::json_line(&MissedView { at, event: MISSED, since })
        }
        _ => Ok(String::new()),
    }
}

fn event_json(event: &Event) -> serde_json::Result<String> {
    let mut view = EventView {
        at: time::of_store(event.at),
        event: name(&event.kind),
        key: event.key.as_str(),
        token: event.token.get(),
        owner: event.owner.as_str(),
        remaining_ms: None,
        by: None,
        reason: None,
        to: None,
    };
    match &event.kind {
        EventKind::Holds { holding } | EventKind::Granted { holding } => {
            view.remaining_ms = Some(holding.remaining.map(time::millis).into());
        }
        EventKind::Revoked { by, reason } => (view.by, view.reason) = (Some(by.as_str()), Some(reason.as_str())),
        EventKind::Transferred { to } => view.to = Some(to.token.get()),
        _ => {}
    }
    output::json_line(&view)
}

/// Events that may be missing, between two times.
#[derive(Serialize)]
struct MissedView {
    at: String,
    event: &'static str,
    since: String,
}

#[derive(Serialize)]
struct EventView<'a> {
    at: String,
    event: &'static str,
    key: &'a str,
    token: u64,
    owner: &'a str,
    /// Only of a holder; `null` if its lease has no expiry.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<u64>,
}
