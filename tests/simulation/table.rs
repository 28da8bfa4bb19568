//! A table of bytes in memory that can compare and swap, and checks of each swap.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mongoseal::{
    Key,
    inspect::StoreTime,
    record::{Record, StoreClock},
    store::{Clock, HandleId, HybridTime, Loaded, LoadedKeys, Swap},
};
use serde::Deserialize;
use tokio::sync::mpsc::UnboundedSender;

use crate::{link::Defect, run::Weather, secs, wire::Call, world::World};

/// The time of the table's clock at its start.
const START: Duration = secs(1_735_689_600);

/// A clone shares the rows.
#[derive(Clone)]
pub(crate) struct Table {
    /// What is wrong with the stores on it.
    pub(crate) defect: Option<Defect>,
    clock: Clock,
    rows: Arc<Mutex<Rows>>,
}

#[derive(Default)]
struct Rows {
    by_key: BTreeMap<Key, Row>,
    listeners: Vec<(HandleId, UnboundedSender<Vec<u8>>)>,
    /// How many stores were opened on the table.
    stores: u64,
    /// The last reading of the clock.
    last: Duration,
}

struct Row {
    bytes: Vec<u8>,
    /// A blank has none.
    record: Option<Record>,
    /// The store that wrote it.
    written_by: u64,
    /// When the table deletes the row by itself.
    kept_until: Duration,
}

/// The part of the bytes that the checks read.
#[derive(Deserialize)]
struct Stored {
    record: Option<Record>,
}

impl Table {
    pub(crate) fn new(defect: Option<Defect>) -> Self {
        Self { defect, clock: Clock::tokio(), rows: Arc::default() }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// The rows, without those that have expired, and the time. Two readings differ.
    fn open(&self, world: &World) -> (MutexGuard<'_, Rows>, Duration) {
        // A check that fails in another task poisons them.
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.last = (START + self.clock.now().since_origin()).max(rows.last + Duration::from_micros(1));
        let now = rows.last;
        rows.by_key.retain(|key, row| {
            if now < row.kept_until {
                return true;
            }
            world.count("a key expires by itself");
            world.note(format_args!("{key:?} expires by itself"));
            world.check_holders(row.record.as_ref(), None, store_time(now), |_| false);
            false
        });
        (rows, now)
    }

    pub(crate) fn load(&self, world: &World, key: &Key) -> Loaded {
        let (rows, now) = self.open(world);
        Loaded { bytes: rows.by_key.get(key).map(|row| row.bytes.clone()), now }
    }

    pub(crate) fn list(&self, world: &World) -> LoadedKeys {
        let (rows, now) = self.open(world);
        let values = rows.by_key.iter().map(|(key, row)| (key.to_string(), row.bytes.clone())).collect();
        LoadedKeys { values, now }
    }

    /// The record of a key and the clock.
    pub(crate) fn snapshot(&self, world: &World, key: &Key) -> (Option<Record>, StoreClock) {
        let (rows, now) = self.open(world);
        let record = rows.by_key.get(key).and_then(|row| row.record.clone());
        let ordinal = u64::from(now.subsec_micros());
        (record, StoreClock { now: store_time(now), hlc: HybridTime { seconds: now.as_secs(), ordinal } })
    }

    /// The number of another store on the table.
    pub(crate) fn next_store(&self) -> u64 {
        let mut rows = self.rows.lock().unwrap();
        rows.stores += 1;
        rows.stores
    }

    /// Swaps, and checks the change. `calls` are those that it is for, and `store` is the number of their store.
    pub(crate) fn swap(&self, world: &World, calls: &[Arc<Call>], swap: &Swap, store: u64) -> bool {
        let (mut rows, now) = self.open(world);
        let before = rows.by_key.get(&swap.key);
        if before.map(|row| &row.bytes) != swap.loaded.as_ref() {
            world.count("a swap is overtaken");
            // Where nothing goes wrong, a store applies the requests for a key together, or one after another.
            let is_own = world.weather != Weather::Faulty && before.is_some_and(|before| before.written_by == store);
            assert!(!is_own, "own: a swap of {:?} is overtaken by one of the same store", swap.key);
            return false;
        }
        if now > swap.now + swap.max_age {
            world.count("only its age refuses a swap");
            return false;
        }
        let Stored { record } = serde_json::from_slice(&swap.bytes).expect("the bytes of a record");
        let before = before.and_then(|row| row.record.as_ref());
        let now_at_load = store_time(swap.now);
        world.check_holders(before, record.as_ref(), now_at_load, |held| calls.iter().any(|call| call.may_end(held)));
        let held = before.into_iter().flat_map(|before| &before.holders);
        let revoked = held.filter(|held| calls.iter().any(|call| call.revokes(held))).map(|held| held.version);
        world.excuse(&swap.key, revoked);
        world.check_comers(before, record.as_ref(), |lease| calls.iter().any(|call| call.may_bring(lease)));
        match &record {
            Some(record) => world.check_grants(&swap.key, before, record),
            None => world.count("a blank is written"),
        }
        let (bytes, kept_until) = (swap.bytes.clone(), now + swap.keep_for);
        rows.by_key.insert(swap.key.clone(), Row { bytes, record, written_by: store, kept_until });
        rows.listeners.retain(|(_, messages)| !messages.is_closed());
        for (handle, message) in &swap.publish {
            for (_, messages) in rows.listeners.iter().filter(|(listener, _)| listener == handle) {
                // A receiver that is dropped now is removed the next time.
                drop(messages.send(message.clone()));
            }
        }
        true
    }

    pub(crate) fn listen(&self, handle: HandleId, messages: UnboundedSender<Vec<u8>>) {
        drop(messages.send(Vec::new()));
        self.rows.lock().unwrap().listeners.push((handle, messages));
    }

    /// Deletes a row, as an operator might.
    pub(crate) fn remove(&self, world: &World, key: &Key) {
        let (mut rows, now) = self.open(world);
        if let Some(row) = rows.by_key.remove(key) {
            world.forget_record(key, row.record.as_ref(), store_time(now));
        }
    }
}

fn store_time(now: Duration) -> StoreTime {
    StoreTime::from_millis(i64::try_from(now.as_millis()).unwrap())
}
