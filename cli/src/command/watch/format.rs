//! The forms of an event: a line, the cells of a table, JSON.

use mongoseal::{Event, EventKind};
use serde::Serialize;
use serde_json::Value;

use crate::{
    escape, output,
    table::{self, Column},
    time,
};

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

/// Returns the cells of an event on a terminal. Its time has no date.
pub(super) fn cells(event: &Event) -> [String; 6] {
    cells_at(event, time::of_day(event.at))
}

fn cells_at(event: &Event, at: String) -> [String; 6] {
    let (key, token, owner) = (event.key.to_string(), event.token.to_string(), event.owner.to_string());
    [at, name(&event.kind).into(), key, token, owner, details(&event.kind)]
}

/// Formats an event as a line. On a terminal of this width, long keys, owners and details are cut.
pub(super) fn line(event: &Event, width: Option<usize>) -> String {
    let Some(width) = width else {
        return table::format_row(&COLUMNS, &WIDTHS, &escaped(cells_at(event, time::of_store(event.at))), None);
    };
    let rest = width.saturating_sub(TIME + EVENT + TOKEN + GAPS);
    let owner = (rest / 3).clamp(table::MIN_WIDTH, MAX_OWNER);
    let key = (rest.saturating_sub(owner) / 2).max(table::MIN_WIDTH);
    let details = rest.saturating_sub(owner + key).max(table::MIN_WIDTH);
    table::format_row(&COLUMNS, &[TIME, EVENT, key, TOKEN, owner, details], &escaped(cells(event)), Some(width))
}

fn escaped(cells: [String; 6]) -> [String; 6] {
    cells.map(|cell| escape::visible(&cell))
}

/// Formats an event as an object.
pub(super) fn json(event: &Event) -> serde_json::Result<String> {
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
