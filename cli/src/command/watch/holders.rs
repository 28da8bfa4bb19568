//! The table of the holders, kept from the events of a watch.

use std::{collections::BTreeMap, time::Duration};

use mongoseal::{
    FencingToken, Key,
    inspect::{Event, EventKind, HolderInfo},
    store::Instant,
};

use crate::{time, ui::json, ui::table::Table};

/// The holders in the order of their tokens.
#[derive(Default)]
pub(super) struct Holders(BTreeMap<(FencingToken, Key), Held>);

struct Held {
    holder: HolderInfo,
    /// For how long it had held the key when its event arrived, and when that was, on the boot-time clock.
    age: Duration,
    seen: Instant,
}

impl Holders {
    /// Applies an event that has arrived at this time on the boot-time clock.
    pub(super) fn apply(&mut self, event: &Event, now: Instant) {
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

    fn add(&mut self, event: &Event, holder: &HolderInfo, now: Instant) {
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
    pub(super) fn lines(&self, now: Instant, room: usize, columns: usize) -> Vec<String> {
        if self.0.is_empty() {
            return vec!["No leases.".into()];
        }
        let all = self.0.len();
        let shown = if all < room { all } else { room.saturating_sub(2) };
        let mut table = Table::new(["KEY", "OWNER", "TOKEN", "HELD", "MODE", "GROUP"]).with_fixed_rows();
        for ((token, key), Held { holder, age, seen }) in self.0.iter().take(shown) {
            table.row([
                key.to_string(),
                holder.owner.to_string(),
                token.to_string(),
                time::brief(age.saturating_add(now.since(*seen))),
                json::mode(holder.sharing),
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

#[cfg(test)]
mod tests {
    use mongoseal::{LeaseId, Mongoseal};

    use super::*;

    #[tokio::test]
    async fn a_transferred_lease_has_the_new_token_and_one_that_has_ended_has_no_row() {
        let seal = Mongoseal::in_memory();
        let mut events = seal.watch_prefix("").await.unwrap();
        let lease = seal.acquire("k").await.unwrap();
        let other = seal.acquire("other").await.unwrap();
        let moved = lease.transfer(LeaseId::random()).await.unwrap();
        other.release().await.unwrap();
        let mut holders = Holders::default();
        for _ in 0..4 {
            holders.apply(&events.next().await.unwrap().unwrap().into_event().unwrap(), Instant::ORIGIN);
        }
        let lines = holders.lines(Instant::at(Duration::from_secs(7)), 10, 80);
        assert_eq!(lines.len(), 2, "{lines:?}");
        let cells: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!((cells[0], cells[2], cells[3..5].join(" ")), ("k", moved.to_string().as_str(), "7 s".into()));
    }

    #[tokio::test]
    async fn a_table_without_room_ends_with_the_number_of_further_holders() {
        let seal = Mongoseal::in_memory();
        let mut events = seal.watch_prefix("").await.unwrap();
        let mut holders = Holders::default();
        for number in 0..9 {
            seal.acquire(format!("k{number}")).await.unwrap().orphan();
            holders.apply(&events.next().await.unwrap().unwrap().into_event().unwrap(), Instant::ORIGIN);
        }
        assert_eq!(holders.lines(Instant::ORIGIN, 10, 80).len(), 10);
        for room in 3..10 {
            let lines = holders.lines(Instant::ORIGIN, room, 80);
            assert_eq!((lines.len(), lines[room - 1].clone()), (room, format!("… and {} more", 11 - room)));
        }
        assert_eq!(Holders::default().lines(Instant::ORIGIN, 10, 80), ["No leases."]);
    }
}
