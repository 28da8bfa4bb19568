//! The table of the holders, kept from the events of a watch.

use std::{collections::BTreeMap, time::Duration};

use mongoseal::{Event, EventKind, FencingToken, HolderInfo, Key};

use crate::{
    json,
    table::{Column, Table},
    time,
};

/// The holders in the order of their tokens, as `ls` lists them.
#[derive(Default)]
pub(super) struct Holders(BTreeMap<(FencingToken, Key), Held>);

struct Held {
    holder: HolderInfo,
    /// For how long it had held the key when its event arrived, and when that was, on the boot-time clock.
    age: Duration,
    seen: Duration,
}

impl Holders {
    /// Applies an event that has arrived at this time on the boot-time clock.
    pub(super) fn apply(&mut self, event: &Event, now: Duration) {
        match &event.kind {
            EventKind::Holds { holding } | EventKind::Granted { holding } => self.add(event, holding, now),
            EventKind::Transferred { to } => {
                self.remove(event);
                self.add(event, to, now);
            }
            EventKind::Released | EventKind::Expired | EventKind::Revoked { .. } | EventKind::Removed => {
                self.remove(event);
            }
            _ => {}
        }
    }

    fn add(&mut self, event: &Event, holder: &HolderInfo, now: Duration) {
        let age = event.at.since(holder.since);
        self.0.insert((holder.token, event.key.clone()), Held { holder: holder.clone(), age, seen: now });
    }

    fn remove(&mut self, event: &Event) {
        self.0.remove(&(event.token, event.key.clone()));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Formats a table of at most `room` lines. If there are more holders, the last line is their number.
    pub(super) fn lines(&self, now: Duration, room: usize, columns: usize) -> Vec<String> {
        if self.0.is_empty() {
            return vec!["No leases.".into()];
        }
        let all = self.0.len();
        let shown = if all < room { all } else { room.saturating_sub(2) };
        let mut table = Table::new([
            Column::cut("KEY"),
            Column::cut("OWNER"),
            Column::whole("TOKEN"),
            Column::whole("HELD"),
            Column::whole("MODE"),
            Column::cut("GROUP"),
        ]);
        for ((token, key), Held { holder, age, seen }) in self.0.iter().take(shown) {
            table.row([
                key.to_string(),
                holder.owner.to_string(),
                token.to_string(),
                time::brief(age.saturating_add(now.saturating_sub(*seen))),
                json::mode(holder.limit),
                holder.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            ]);
        }
        let mut lines = table.lines(Some(columns));
        if shown < all {
            lines.push(format!("… and {} more", all - shown));
        }
        lines
    }
}
