//! The store on a backend that can only compare and swap.

use std::{
    collections::{BTreeSet, HashMap},
    future::IntoFuture,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use mongoseal::{
    Error, Key, Lease, Mongoseal, Result,
    record::{BatchRequest, lease_refs},
    store::{
        Backend, BoxFuture, Capabilities, Clock, CompareAndSwap, Deadline, Loaded, LoadedKeys, Store, StoreOptions,
        Swap,
    },
};

use crate::{millis, secs};

/// What happens between a load and its swap, once.
type Meanwhile = Box<dyn FnOnce(&mut HashMap<String, Vec<u8>>) + Send>;

/// A backend in memory, on tokio's clock.
#[derive(Clone)]
pub(crate) struct Table {
    clock: Clock,
    has_linearizable_reads: bool,
    collection: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The backend does not answer loads of `k`.
    is_stuck: bool,
    rows: HashMap<String, Vec<u8>>,
    meanwhile: Option<Meanwhile>,
    /// How long the next swap takes to arrive.
    delay: Duration,
    swaps: Vec<(Swap, bool)>,
    lists: usize,
    /// The threads that have called.
    threads: BTreeSet<Option<String>>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Table")
    }
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { clock: Clock::tokio(), has_linearizable_reads: true, collection: "leases".into(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn now(&self) -> Duration {
        secs(1_735_689_600) + self.clock.now().since_origin()
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::new(CompareAndSwap::new(self.clone(), secs(3600)))
    }

    pub(crate) fn remove(&self, key: &str) {
        self.state().rows.remove(key);
    }

    pub(crate) fn seal(&self) -> Mongoseal {
        Mongoseal::builder().on_store(self.store()).unwrap()
    }

    fn open() -> (Self, Mongoseal) {
        let table = Self::new();
        let seal = table.seal();
        (table, seal)
    }

    fn row(&self) -> Option<Vec<u8>> {
        self.state().rows.get("k").cloned()
    }

    fn put(&self, bytes: &[u8]) {
        self.state().rows.insert("k".into(), bytes.into());
    }

    /// Does this before the next swap.
    fn meanwhile(&self, act: impl FnOnce(&mut HashMap<String, Vec<u8>>) + Send + 'static) {
        self.state().meanwhile = Some(Box::new(act));
    }

    pub(crate) fn swaps(&self) -> usize {
        self.state().swaps.len()
    }

    fn note_thread(&self) {
        self.state().threads.insert(std::thread::current().name().map(str::to_owned));
    }

    pub(crate) fn threads(&self) -> Vec<String> {
        self.state().threads.iter().flatten().cloned().collect()
    }

    pub(crate) fn failed_swaps(&self) -> usize {
        self.state().swaps.iter().filter(|(_, is_done)| !is_done).count()
    }
}

impl Backend for Table {
    fn load(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Loaded>> {
        self.note_thread();
        if key.as_str() == "k" && self.state().is_stuck {
            return Box::pin(async move {
                deadline.passed().await;
                Err(Error::unavailable("the backend does not answer"))
            });
        }
        let loaded = Loaded { bytes: self.state().rows.get(key.as_str()).cloned(), now: self.now() };
        Box::pin(async {
            tokio::time::sleep(millis(1)).await;
            Ok(loaded)
        })
    }

    fn swap(&self, swap: Swap, _: Deadline) -> BoxFuture<Result<bool>> {
        assert_eq!(swap.max_age, secs(10), "as the documents say");
        self.note_thread();
        let (table, delay) = (self.clone(), std::mem::take(&mut self.state().delay));
        // On a task of its own, as a driver's request: it arrives although the caller has given up.
        let arrives = tokio::spawn(async move {
            tokio::time::sleep(delay + millis(1)).await;
            let mut state = table.state();
            if let Some(act) = state.meanwhile.take() {
                act(&mut state.rows);
            }
            let is_done =
                state.rows.get(swap.key.as_str()) == swap.loaded.as_ref() && table.now() <= swap.now + swap.max_age;
            if is_done {
                state.rows.insert(swap.key.to_string(), swap.bytes.clone());
            }
            state.swaps.push((swap, is_done));
            Ok(is_done)
        });
        Box::pin(async { arrives.await.unwrap() })
    }

    fn list(&self, _: Deadline) -> BoxFuture<Result<LoadedKeys>> {
        self.note_thread();
        self.state().lists += 1;
        let values = self.state().rows.clone().into_iter().collect();
        let now = self.now();
        Box::pin(async move { Ok(LoadedKeys { values, now }) })
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::ALL;
        capabilities.notifications = false;
        capabilities.linearizable_reads = self.has_linearizable_reads;
        capabilities
    }

    /// Each collection is a table of its own.
    fn sibling(&self, options: &StoreOptions) -> Result<Option<Self>> {
        match &options.collection {
            Some(name) if name.is_empty() => Err(Error::invalid("a table has a name")),
            Some(name) if *name != self.collection => Ok(Some(Self { collection: name.clone(), ..Self::new() })),
            _ => Ok(None),
        }
    }
}

/// The leases of a hundred keys.
async fn others(seal: &Mongoseal) -> Vec<Lease> {
    let mut others = Vec::new();
    for number in 0..100 {
        others.push(seal.acquire(format!("other/{number}")).ttl(secs(30)).await.unwrap());
    }
    others
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_of_an_operator_is_confirmed_by_a_write_and_a_refused_acquire_is_not() {
    let (table, seal) = Table::open();
    let lease = seal.acquire("k").await.unwrap();
    seal.raise_token_floor("k", lease.token()).await.unwrap();
    let before = table.swaps();
    seal.raise_token_floor("k", lease.token()).await.unwrap();
    assert_eq!(table.swaps() - before, 1);
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    assert_eq!(table.swaps() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_long_list_and_a_purge_load_the_values_once() {
    let (table, seal) = Table::open();
    for number in 0..2_500 {
        seal.acquire(format!("{}", 10_000 - number)).ttl(secs(60)).without_refresh().await.unwrap().orphan();
    }
    let listed = seal.leases().await.unwrap().collect().await.unwrap();
    assert!(listed.is_sorted_by_key(|lease| lease.key.clone()));
    assert_eq!((listed.len(), table.state().lists), (2_500, 1));
    tokio::time::sleep(secs(70)).await;
    assert_eq!(seal.purge().await.unwrap().len(), 2_500);
    assert_eq!(table.state().lists, 2);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_waited_for_its_turn_counts_from_its_load() {
    let (table, seal) = Table::open();
    let lease = seal.acquire("k").ttl(secs(30)).without_refresh().await.unwrap();
    table.state().delay = secs(2);
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(10)).into_future());
    tokio::time::sleep(millis(10)).await;
    lease.refresh().await.unwrap();
    assert!(lease.remaining() > secs(29), "{:?}", lease.remaining());
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_deleted_and_made_again_with_the_same_content_is_not_overwritten() {
    let (table, seal) = Table::open();
    seal.acquire("k").await.unwrap().release().await.unwrap();
    table.meanwhile(|rows| {
        // The same record, as another process would write it: with another nonce.
        let row = String::from_utf8(rows.remove("k").unwrap()).unwrap();
        let (head, tail) = row.split_once(r#""nonce":""#).unwrap();
        let made_again = format!(r#"{head}"nonce":"{:016x}{}"#, 7, &tail[16..]);
        rows.insert("k".into(), made_again.into_bytes());
    });
    let _lease = seal.acquire("k").await.unwrap();
    assert_eq!(table.failed_swaps(), 1, "the record was read again");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_paused_between_load_and_swap_writes_no_old_token() {
    let table = Table::new();
    table.state().delay = secs(60);
    let hasty = Mongoseal::builder().operation_timeout(secs(1)).on_store(table.store()).unwrap();
    assert!(matches!(hasty.acquire("k").await, Err(Error::Unavailable { .. })));
    let token = table.seal().acquire("k").await.unwrap().token();
    tokio::time::sleep(secs(30)).await;
    // An operator deletes the key, so the paused process finds what it has loaded: nothing.
    table.state().rows.clear();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(table.failed_swaps(), 1);
    assert!(table.seal().acquire("k").await.unwrap().token() > token);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_loaded_nothing_writes_no_token_of_before_a_deletion() {
    let table = Table::new();
    table.state().delay = secs(5);
    let late = tokio::spawn(table.seal().acquire("k").into_future());
    tokio::time::sleep(secs(2)).await;
    let lease = table.seal().acquire("k").await.unwrap();
    let token = lease.token();
    lease.release().await.unwrap();
    // An operator deletes the key. Within the age limit, the late swap finds what the process has loaded: nothing.
    table.state().rows.clear();
    assert!(late.await.unwrap().unwrap().token() > token);
    assert_eq!(table.failed_swaps(), 0, "the late swap was that of a blank");
}

#[tokio::test(start_paused = true)]
async fn a_foreign_value_and_a_newer_format_are_refused_and_left_as_they_are() {
    let table = Table::new();
    for (bytes, is_corrupt) in [
        (&b"hello"[..], true),
        (b"", true),
        (b"\xff\xfe", true),
        (br#"{"v":1}"#, true),
        (br#"{"v":1,"nonce":"0","record":{"version":0}}"#, true),
        (br#"{"v":3,"nonce":"0","other":1}"#, false),
    ] {
        table.put(bytes);
        for error in [table.seal().acquire("k").await.unwrap_err(), table.seal().inspect("k").await.unwrap_err()] {
            match error {
                Error::Corrupt { key, .. } if is_corrupt => assert_eq!(key.as_str(), "k"),
                Error::Invalid { message, .. } if !is_corrupt => assert!(message.contains("upgrade"), "{message}"),
                error => panic!("{error:?}"),
            }
        }
        assert!(table.seal().leases().await.is_ok(), "the list leaves it out");
        assert_eq!(table.row().unwrap(), bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn each_swap_keeps_the_record_for_its_expiry_and_the_retention() {
    let table = Table::new();
    table.seal().acquire("k").ttl(secs(30)).await.unwrap().release().await.unwrap();
    let state = table.state();
    // The first swap writes the blank.
    let kept: Vec<_> = state.swaps.iter().skip(1).map(|(swap, _)| swap.keep_for).collect();
    assert!(kept.iter().all(|kept| *kept >= secs(3600 + 30) && *kept < secs(3600 + 90)), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_record_cannot_be_read_or_whose_requests_hang_costs_no_other_lease_of_its_handle() {
    for hangs in [false, true] {
        let (table, seal) = Table::open();
        let broken = seal.acquire("k").ttl(secs(30)).await.unwrap();
        let others = others(&seal).await;
        if hangs {
            table.state().is_stuck = true;
        } else {
            table.put(br#"{"v":3,"nonce":"0","other":1}"#);
        }
        tokio::time::sleep(secs(120)).await;
        assert!(others.iter().all(Lease::is_valid) && !broken.is_valid(), "hangs: {hangs}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_needs_current_reads_is_refused_if_reads_can_be_outdated() {
    let table = Table { has_linearizable_reads: false, ..Table::new() };
    let seal = table.seal();
    assert!(!seal.capabilities().linearizable_reads);
    let lease = seal.acquire("k").await.unwrap();
    assert!(matches!(lease.verify().await, Err(Error::Invalid { .. })));
    let begun = seal.once("job", mongoseal::Tick::number(1)).begin().await;
    assert!(matches!(begun, Err(Error::Invalid { .. })), "{begun:?}");
}

/// The earlier request must not keep the turn of the key.
#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_delays_no_other_request_for_its_key() {
    let (table, seal) = Table::open();
    let lease = seal.acquire("k").ttl(secs(30)).await.unwrap();
    table.state().is_stuck = true;
    let lost = tokio::spawn(seal.acquire("k").into_future());
    tokio::time::sleep(millis(1)).await;
    table.state().is_stuck = false;
    let began = table.clock.now();
    lease.refresh().await.unwrap();
    let took = table.clock.now().since(began);
    assert!(took < millis(200), "{took:?}");
    lost.abort();
}

#[tokio::test(start_paused = true)]
async fn a_batch_changes_the_other_keys_if_one_cannot_be_read() {
    let (table, seal) = Table::open();
    let mut leases = others(&seal).await;
    leases.push(seal.acquire("k").await.unwrap());
    table.put(b"hello");
    let mut unchanged = table.state().rows.clone();
    let refs = lease_refs(leases.iter().map(|lease| (lease.key().clone(), lease.token())));
    let keep = BatchRequest::Keep { ttl: 60_000 };
    let kept = table.store().apply_batch(&refs, &keep, Deadline::after(table.clock, secs(10))).await;
    assert_eq!(kept.ok(), Some(false));
    unchanged.retain(|key, row| table.state().rows.get(key) == Some(row));
    assert!(unchanged.keys().eq(["k"]), "{unchanged:?}");
}

#[tokio::test(start_paused = true)]
async fn only_a_record_with_a_value_or_a_history_has_the_newest_format() {
    let (table, seal) = Table::open();
    let format = || serde_json::from_slice::<serde_json::Value>(&table.row().unwrap()).unwrap()["v"].as_u64();
    let lease = seal.acquire("k").await.unwrap();
    assert_eq!(format(), Some(1));
    lease.put_value("0.1").await.unwrap();
    assert_eq!(format(), Some(2), "a build that would drop the value refuses the record");
    lease.release().await.unwrap();
    assert_eq!(seal.acquire("k").await.unwrap().value::<String>().await.unwrap().unwrap().content, "0.1");
    seal.once("t", mongoseal::Tick::number(1)).run(async |_| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(format(), Some(2));
}
