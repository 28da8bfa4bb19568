//! The items of a watch, in the order of their times.
//!
//! The library's watch of many keys returns the changes in the order in which the store made them. The times of two keys
//! can be in the other order. So each event waits for [`WINDOW`], and an event with an earlier time overtakes it.
//!
//! Invariants: two events that arrive within the window leave in the order of their times. The events of one key stay in
//! the order of the stream, whatever their times are. No event overtakes the item that events are missing, and that item
//! overtakes none.

use std::{collections::BTreeMap, time::Duration};

use mongoseal::{
    Error, Mongoseal, Result,
    inspect::{EventStream, StoreTime, WatchItem},
    store::{Clock, Instant},
};

use crate::arguments::Watch;

/// How long an event waits for earlier ones. `docs/operating.md` names it.
const WINDOW: Duration = Duration::from_millis(200);
/// The largest number of events that wait.
const MAX_WAITING: usize = 1024;

/// The items of a watch.
pub(super) struct Events {
    stream: EventStream,
    waiting: Waiting,
    /// The error that ends the stream. It comes after the events.
    error: Option<Error>,
}

impl Events {
    pub(super) async fn open(seal: &Mongoseal, options: &Watch) -> Result<Self> {
        let (stream, window) = match &options.key {
            Some(key) if !options.prefix => (seal.watch(key.as_str()).await?, Duration::ZERO),
            prefix => (seal.watch_prefix(prefix.as_deref().unwrap_or_default()).await?, WINDOW),
        };
        Ok(Self { stream, waiting: Waiting::new(window), error: None })
    }

    /// Waits for the next item. Dropping the future loses nothing. Returns `None` after an error.
    pub(super) async fn next(&mut self) -> Option<Result<WatchItem>> {
        loop {
            let is_closed = self.error.is_some() || self.waiting.is_full();
            let due = self.waiting.due().map(|due| if is_closed { Instant::ORIGIN } else { due });
            if due.is_none()
                && let Some(error) = self.error.take()
            {
                return Some(Err(error));
            }
            tokio::select! {
                biased;
                () = Clock::Boot.sleep_until(due.unwrap_or_default()), if due.is_some() => {
                    return self.waiting.take().map(Ok);
                }
                item = self.stream.next(), if !is_closed => match item? {
                    Ok(item) => self.waiting.add(item, Clock::Boot.now()),
                    Err(error) => self.error = Some(error),
                },
            }
        }
    }

    /// Returns the items that have arrived, without waiting for earlier ones.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = WatchItem> {
        std::iter::from_fn(|| self.waiting.take())
    }
}

/// The items that wait for earlier ones.
struct Waiting {
    window: Duration,
    /// By the time and the number of the arrival. With each item, when it leaves, on the boot-time clock.
    items: BTreeMap<(StoreTime, u64), (Instant, WatchItem)>,
    /// How many items have arrived.
    count: u64,
}

impl Waiting {
    fn new(window: Duration) -> Self {
        Self { window, items: BTreeMap::new(), count: 0 }
    }

    fn add(&mut self, item: WatchItem, now: Instant) {
        // If the store's clock was set back, the item still comes after those that it must not overtake.
        let before = self.items.iter().rev().find(|(_, (_, other))| must_follow(&item, other));
        let at = match &item {
            WatchItem::Event(event) => event.at,
            WatchItem::Missed { since, .. } => *since,
            _ => StoreTime::default(),
        };
        let at = before.map_or(at, |((before, _), _)| at.max(*before));
        self.count = self.count.saturating_add(1);
        self.items.insert((at, self.count), (now.after(self.window), item));
    }

    fn is_full(&self) -> bool {
        self.items.len() >= MAX_WAITING
    }

    /// Returns when the first event leaves.
    fn due(&self) -> Option<Instant> {
        self.items.first_key_value().map(|(_, (due, _))| *due)
    }

    fn take(&mut self) -> Option<WatchItem> {
        self.items.pop_first().map(|(_, (_, item))| item)
    }
}

/// Whether an item must not overtake one that arrived before it.
fn must_follow(item: &WatchItem, before: &WatchItem) -> bool {
    match (item, before) {
        (WatchItem::Event(event), WatchItem::Event(before)) => event.key == before.key,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of these keys at these milliseconds.
    async fn events<const N: usize>(changes: [(&str, i64); N]) -> Vec<WatchItem> {
        let seal = Mongoseal::in_memory();
        let mut stream = seal.watch_prefix("").await.unwrap();
        let mut events = Vec::new();
        for (key, at) in changes {
            seal.acquire(key).shared().await.unwrap().orphan();
            let mut event = stream.next().await.unwrap().unwrap().into_event().unwrap();
            event.at = StoreTime::from_millis(at);
            events.push(WatchItem::Event(event));
        }
        events
    }

    fn taken(waiting: &mut Waiting) -> Vec<(String, i64)> {
        let described = |item| match item {
            WatchItem::Event(event) => (event.key.to_string(), event.at.millis()),
            _ => ("missed".into(), 0),
        };
        std::iter::from_fn(|| waiting.take()).map(described).collect()
    }

    #[tokio::test]
    async fn an_event_with_an_earlier_time_overtakes_those_that_arrived_before_it() {
        let mut waiting = Waiting::new(WINDOW);
        for event in events([("a", 5), ("b", 3), ("c", 5), ("d", 4)]).await {
            waiting.add(event, Instant::ORIGIN);
        }
        assert_eq!(waiting.due(), Some(Instant::at(WINDOW)));
        let order = [("b", 3), ("d", 4), ("a", 5), ("c", 5)].map(|(key, at)| (key.to_owned(), at));
        assert_eq!(taken(&mut waiting), order);
        assert_eq!(waiting.due(), None);
    }

    #[tokio::test]
    async fn the_events_of_one_key_stay_in_order_whatever_their_times_are() {
        let mut waiting = Waiting::new(WINDOW);
        for event in events([("a", 5), ("a", 1), ("b", 3), ("a", 6)]).await {
            waiting.add(event, Instant::ORIGIN);
        }
        let order = [("b", 3), ("a", 5), ("a", 1), ("a", 6)].map(|(key, at)| (key.to_owned(), at));
        assert_eq!(taken(&mut waiting), order);
    }

    #[tokio::test]
    async fn no_event_overtakes_what_was_missed() {
        let mut waiting = Waiting::new(WINDOW);
        let [since, until] = [2, 3].map(StoreTime::from_millis);
        let mut events = events([("a", 5), ("b", 7), ("c", 1), ("d", 2)]).await.into_iter();
        for event in events.by_ref().take(2) {
            waiting.add(event, Instant::ORIGIN);
        }
        waiting.add(WatchItem::Missed { since, until }, Instant::ORIGIN);
        for event in events {
            waiting.add(event, Instant::ORIGIN);
        }
        let order = [("a", 5), ("b", 7), ("missed", 0), ("c", 1), ("d", 2)].map(|(key, at)| (key.to_owned(), at));
        assert_eq!(taken(&mut waiting), order);
    }
}
