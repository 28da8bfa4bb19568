//! The store on a backend that can only compare and swap.

use std::{
    collections::HashMap,
    future::IntoFuture,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongoseal::{
    Clock, Deadline, Error, Key, Mongoseal, Result,
    record::{BatchRequest, lease_refs},
    store::{Backend, BoxFuture, Capabilities, CompareAndSwap, Loaded, LoadedKeys, Store, Swap},
};

use crate::{millis, secs};

/// What happens between a load and its swap, once.
type Meanwhile = Box<dyn FnOnce(&mut HashMap<String, Vec<u8>>) + Send>;

/// A backend in memory, on tokio's clock.
#[derive(Clone)]
pub(crate) struct Table {
    clock: Clock,
    has_linearizable_reads: bool,
    /// The backend does not answer loads of this key.
    stuck: Arc<Mutex<Option<String>>>,
    /// The backend does not answer the next load.
    drops_next: Arc<AtomicBool>,
    rows: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
    /// How long the next swap takes to arrive.
    delay: Arc<Mutex<Duration>>,
    swaps: Arc<Mutex<Vec<(Swap, bool)>>>,
    lists: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Table")
    }
}

impl Table {
    pub(crate) fn new() -> Self {
        let clock = Clock::tokio();
        Self {
            clock,
            has_linearizable_reads: true,
            stuck: Arc::default(),
            drops_next: Arc::default(),
            rows: Arc::default(),
            meanwhile: Arc::default(),
            delay: Arc::default(),
            swaps: Arc::default(),
            lists: Arc::default(),
        }
    }

    fn now(&self) -> Duration {
        secs(1_735_689_600) + self.clock.now().since_origin()
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::new(CompareAndSwap::new(self.clone(), secs(3600)))
    }

    pub(crate) fn remove(&self, key: &str) {
        self.rows.lock().unwrap().remove(key);
    }

    pub(crate) fn seal(&self) -> Mongoseal {
        Mongoseal::builder().on_store(self.store()).unwrap()
    }

    fn row(&self) -> Option<Vec<u8>> {
        self.rows.lock().unwrap().get("k").cloned()
    }

    fn put(&self, bytes: &[u8]) {
        self.rows.lock().unwrap().insert("k".into(), bytes.into());
    }

    /// Does this before the next swap.
    fn meanwhile(&self, act: impl FnOnce(&mut HashMap<String, Vec<u8>>) + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some(Box::new(act));
    }

    fn drop_next_load(&self) {
        self.drops_next.store(true, Ordering::Relaxed);
    }

    pub(crate) fn swaps(&self) -> usize {
        self.swaps.lock().unwrap().len()
    }

    pub(crate) fn failed_swaps(&self) -> usize {
        self.swaps.lock().unwrap().iter().filter(|(_, is_done)| !is_done).count()
    }
}

impl Backend for Table {
    fn load(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Loaded>> {
        let is_stuck = self.stuck.lock().unwrap().as_deref() == Some(key.as_str());
        if self.drops_next.swap(false, Ordering::Relaxed) || is_stuck {
            return Box::pin(async move {
                deadline.passed().await;
                Err(Error::unavailable("the backend does not answer"))
            });
        }
        let loaded = Loaded { bytes: self.rows.lock().unwrap().get(key.as_str()).cloned(), now: self.now() };
        Box::pin(async {
            tokio::time::sleep(millis(1)).await;
            Ok(loaded)
        })
    }

    fn swap(&self, swap: Swap, _: Deadline) -> BoxFuture<Result<bool>> {
        let (table, delay) = (self.clone(), std::mem::take(&mut *self.delay.lock().unwrap()));
        // On a task of its own, as a driver's request: it arrives although the caller has given up.
        let arrives = tokio::spawn(async move {
            tokio::time::sleep(delay + millis(1)).await;
            let mut rows = table.rows.lock().unwrap();
            if let Some(act) = table.meanwhile.lock().unwrap().take() {
                act(&mut rows);
            }
            let is_done = rows.get(swap.key.as_str()) == swap.loaded.as_ref() && table.now() <= swap.now + swap.max_age;
            if is_done {
                rows.insert(swap.key.to_string(), swap.bytes.clone());
            }
            table.swaps.lock().unwrap().push((swap, is_done));
            Ok(is_done)
        });
        Box::pin(async { arrives.await.unwrap() })
    }

    fn list(&self, _: Deadline) -> BoxFuture<Result<LoadedKeys>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let values = self.rows.lock().unwrap().clone().into_iter().collect();
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
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_of_an_operator_is_confirmed_by_a_write_and_a_refused_acquire_is_not() {
    let table = Table::new();
    let seal = table.seal();
    let lease = seal.acquire("k").await.unwrap();
    seal.raise_token_floor("k", lease.token()).await.unwrap();
    let before = table.swaps();
    seal.raise_token_floor("k", lease.token()).await.unwrap();
    assert_eq!(table.swaps() - before, 1);
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    assert_eq!(table.swaps() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn concurrent_acquires_of_one_process_queue_up_and_lose_no_swap() {
    let table = Table::new();
    let seal = table.seal();
    let mut acquires = tokio::task::JoinSet::new();
    for _ in 0..20 {
        acquires.spawn(seal.acquire("k").shared().into_future());
    }
    let leases: Vec<_> = acquires.join_all().await.into_iter().map(Result::unwrap).collect();
    assert_eq!((leases.len(), table.failed_swaps()), (20, 0));
}

#[tokio::test(start_paused = true)]
async fn a_long_list_and_a_purge_load_the_values_once() {
    let table = Table::new();
    let seal = table.seal();
    for number in 0..2_500 {
        seal.acquire(format!("{}", 10_000 - number)).ttl(secs(60)).without_refresh().await.unwrap().orphan();
    }
    let listed = seal.leases().await.unwrap().collect().await.unwrap();
    assert!(listed.is_sorted_by_key(|lease| lease.key.clone()));
    assert_eq!((listed.len(), table.lists.swap(0, Ordering::Relaxed)), (2_500, 1));
    tokio::time::sleep(secs(70)).await;
    assert_eq!(seal.purge().await.unwrap().len(), 2_500);
    assert_eq!(table.lists.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_waited_for_its_turn_counts_from_its_load() {
    let table = Table::new();
    let seal = table.seal();
    let lease = seal.acquire("k").ttl(secs(30)).without_refresh().await.unwrap();
    *table.delay.lock().unwrap() = secs(2);
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(10)).into_future());
    tokio::time::sleep(millis(10)).await;
    lease.refresh().await.unwrap();
    assert!(lease.remaining() > secs(29), "{:?}", lease.remaining());
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_swap_that_another_process_has_overtaken_is_tried_again_on_its_record() {
    let table = Table::new();
    let other = table.seal().acquire("k").await.unwrap();
    let held = table.row().unwrap();
    table.rows.lock().unwrap().clear();
    // The other process acquires between the load and the swap.
    table.meanwhile(move |rows| drop(rows.insert("k".into(), held)));
    let refused = table.seal().acquire("k").await;
    assert!(matches!(refused, Err(Error::Held { token, .. }) if token == other.token()), "{refused:?}");
    assert_eq!(table.failed_swaps(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_deleted_and_made_again_with_the_same_content_is_not_overwritten() {
    let table = Table::new();
    let seal = table.seal();
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
    *table.delay.lock().unwrap() = secs(60);
    let hasty = Mongoseal::builder().operation_timeout(secs(1)).on_store(table.store()).unwrap();
    assert!(matches!(hasty.acquire("k").await, Err(Error::Unavailable { .. })));
    let token = table.seal().acquire("k").await.unwrap().token();
    tokio::time::sleep(secs(30)).await;
    // An operator deletes the key, so the paused process finds what it has loaded: nothing.
    table.rows.lock().unwrap().clear();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(table.failed_swaps(), 1);
    let later = table.seal().acquire("k").await.unwrap();
    assert!(later.token() > token);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_loaded_nothing_writes_no_token_of_before_a_deletion() {
    let table = Table::new();
    *table.delay.lock().unwrap() = secs(5);
    let late = tokio::spawn(table.seal().acquire("k").into_future());
    tokio::time::sleep(secs(2)).await;
    let lease = table.seal().acquire("k").await.unwrap();
    let token = lease.token();
    lease.release().await.unwrap();
    // An operator deletes the key. Within the age limit, the late swap finds what the process has loaded: nothing.
    table.rows.lock().unwrap().clear();
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
    let swaps = table.swaps.lock().unwrap();
    // The first swap writes the blank.
    let kept: Vec<_> = swaps.iter().skip(1).map(|(swap, _)| swap.keep_for).collect();
    assert!(kept.iter().all(|kept| *kept >= secs(3600 + 30) && *kept < secs(3600 + 90)), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_costs_no_other_lease_of_its_handle() {
    let table = Table::new();
    let seal = table.seal();
    let broken = seal.acquire("k").ttl(secs(30)).await.unwrap();
    let mut others = Vec::new();
    for number in 0..100 {
        others.push(seal.acquire(format!("other/{number}")).ttl(secs(30)).await.unwrap());
    }
    table.put(br#"{"v":3,"nonce":"0","other":1}"#);
    tokio::time::sleep(secs(120)).await;
    assert!(others.iter().all(mongoseal::Lease::is_valid));
    assert!(!broken.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_requests_hang_costs_no_other_lease_of_its_handle() {
    let table = Table::new();
    let seal = table.seal();
    let hanging = seal.acquire("k").ttl(secs(30)).await.unwrap();
    let mut others = Vec::new();
    for number in 0..100 {
        others.push(seal.acquire(format!("other/{number}")).ttl(secs(30)).await.unwrap());
    }
    *table.stuck.lock().unwrap() = Some("k".into());
    tokio::time::sleep(secs(120)).await;
    assert!(others.iter().all(mongoseal::Lease::is_valid));
    assert!(!hanging.is_valid());
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

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_delays_no_other_request_for_its_key() {
    let table = Table::new();
    let seal = table.seal();
    let lease = seal.acquire("k").ttl(secs(30)).await.unwrap();
    table.drop_next_load();
    let lost = tokio::spawn(seal.acquire("k").into_future());
    tokio::time::sleep(millis(1)).await;
    let began = table.clock.now();
    lease.refresh().await.unwrap();
    let took = table.clock.now().since(began);
    assert!(took < millis(200), "{took:?}");
    lost.abort();
}

#[tokio::test(start_paused = true)]
async fn a_batch_changes_the_other_keys_if_one_cannot_be_read() {
    let table = Table::new();
    let seal = table.seal();
    let mut leases = vec![seal.acquire("k").await.unwrap()];
    for number in 0..100 {
        leases.push(seal.acquire(format!("other/{number}")).await.unwrap());
    }
    table.put(b"hello");
    let before = table.rows.lock().unwrap().clone();
    let refs = lease_refs(leases.iter().map(|lease| (lease.key().clone(), lease.token())));
    let keep = BatchRequest::Keep { ttl: 60_000 };
    let kept = table.store().apply_batch(&refs, &keep, Deadline::after(table.clock, secs(10))).await;
    assert_eq!(kept.ok(), Some(false));
    let after = table.rows.lock().unwrap();
    let unchanged: Vec<_> =
        before.iter().filter(|(key, row)| after.get(*key) == Some(row)).map(|(key, _)| key).collect();
    assert_eq!(unchanged, ["k"]);
}

#[tokio::test(start_paused = true)]
async fn only_a_record_with_a_value_or_a_history_has_the_newest_format() {
    let table = Table::new();
    let seal = table.seal();
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
