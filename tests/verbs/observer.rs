//! What an observer receives. What becomes of each kind of event is tested with the metrics, which are made of events.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
};

use mongoseal::{
    BeginOutcome, Builder, Mongoseal, Skipped, Tick,
    observe::{AcquireOutcome, HandleEvent, Observer, RefreshOutcome},
};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// Keeps what it receives as text.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Observer for Seen {
    fn observe(&self, event: &HandleEvent<'_>) {
        let text = match event {
            HandleEvent::Queued { key, position, is_campaign, .. } => {
                format!("{key} queued behind {position}, campaign: {is_campaign}")
            }
            HandleEvent::AcquireFinished { key, outcome, waited, position, .. } => {
                let outcome = match outcome {
                    AcquireOutcome::Granted(_) => "granted",
                    AcquireOutcome::Failed(_) => "failed",
                    _ => "abandoned",
                };
                format!("{key} waited {waited:?} from {position:?}: {outcome}")
            }
            HandleEvent::HandedOver { key, took, .. } => format!("{key} handed over in {took:?}"),
            HandleEvent::Resumed { key, .. } => format!("{key} resumed"),
            HandleEvent::RefreshFinished { key, leases, outcome, .. } => {
                let key = key.map_or("batch", |key| key.as_str());
                format!("{key} refresh of {leases}, confirmed: {}", matches!(outcome, RefreshOutcome::Confirmed))
            }
            HandleEvent::Lost { key, cause, held, .. } => format!("{key} lost after {held:?}: {cause:?}"),
            HandleEvent::Ended { key, reason, held, .. } => format!("{key} {} after {held:?}", reason.kind()),
            HandleEvent::ReleaseFinished { key, outcome, .. } => {
                format!("{key} at the store: {:?}", outcome.as_ref().ok())
            }
            other => other.kind().to_owned(),
        };
        self.0.lock().unwrap().push(text);
    }
}

impl Seen {
    fn builder(&self) -> Builder {
        Mongoseal::builder().observer(Arc::new(self.clone()))
    }

    /// What it has received since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// What it has received about `k` since the last call.
    fn take_of_k(&self) -> Vec<String> {
        self.take().into_iter().filter(|event| event.starts_with("k ")).collect()
    }

    /// How often it has received an event with this text.
    fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|seen| seen.contains(text)).count()
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_has_a_short_name() {
    let kinds = Arc::<Mutex<Vec<_>>>::default();
    let kept = Arc::clone(&kinds);
    let observer = move |event: &HandleEvent<'_>| kept.lock().unwrap().push(event.kind());
    let seal = Mongoseal::builder().observer(Arc::new(observer)).in_memory().unwrap();
    let lease = seal.acquire("k").await.unwrap();
    lease.refresh().await.unwrap();
    lease.release().await.unwrap();
    let expected = ["acquire_finished", "refresh_finished", "ended", "release_finished"];
    assert_eq!(*kinds.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_a_tick_and_a_campaign_are_told_their_own_place_once() {
    let (seal, seen) = (Mongoseal::in_memory(), Arc::new(Mutex::new(Vec::new())));
    let holder = seal.acquire("k").await.unwrap();
    let of = |name: &'static str| {
        let seen = Arc::clone(&seen);
        move |ahead: usize| seen.lock().unwrap().push((name, ahead))
    };
    let tick = seal.once("k", Tick::number(1)).wait(secs(9)).on_queued(of("tick")).begin();
    let acquire = seal.acquire("k").wait(secs(9)).on_queued(of("acquire")).into_future();
    let campaign = seal.campaign("k").wait(secs(9)).on_queued(of("campaign")).into_future();
    let (tick, acquire, campaign) = tokio::join!(tick, acquire, campaign);
    assert!(matches!(tick, Ok(BeginOutcome::Skipped(Skipped::Busy { .. }))) && acquire.is_err() && campaign.is_err());
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.sort_by_key(|(_, ahead)| *ahead);
    let (mut names, places): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    names.sort_unstable();
    assert_eq!((names, places), (vec!["acquire", "campaign", "tick"], vec![0, 1, 2]));
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_waits_reports_its_end_with_its_place_and_the_time_waited() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let seal = store.build(seen.builder());
    let holder = store.seal().acquire("k").await.unwrap();
    let wait = async |end: &str| {
        let waiting = tokio::spawn(seal.acquire("k").wait(secs(2)).into_future());
        tokio::time::sleep(secs(1)).await;
        if end == "abandoned" {
            waiting.abort();
        }
        waiting.await
    };
    assert!(wait("failed").await.unwrap().is_err());
    assert_eq!(seen.take_of_k(), ["k queued behind 0, campaign: false", "k waited 2s from Some(0): failed"]);
    assert!(wait("abandoned").await.is_err());
    tokio::time::sleep(millis(1)).await;
    assert_eq!(seen.take_of_k()[1], "k waited 1s from Some(0): abandoned");

    let release = async {
        tokio::time::sleep(secs(1)).await;
        holder.release().await.unwrap();
    };
    let (granted, ()) = tokio::join!(wait("granted"), release);
    let expected = ["k handed over in Some(0ns)", "k waited 1s from Some(0): granted"];
    assert_eq!(seen.take_of_k()[1..], expected, "the memory store and the waiter have one clock");
    granted.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_candidate_and_a_resumed_lease_are_reported() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let lease = store.seal().acquire("k").await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    lease.orphan();
    let seal = store.build(seen.builder());
    assert!(seal.campaign("k").wait(secs(1)).await.is_err());
    assert_eq!(seen.take_of_k()[0], "k queued behind 0, campaign: true");
    seal.resume("k", id, token).await.unwrap().release().await.unwrap();
    assert_eq!(
        seen.take_of_k(),
        ["k refresh of 1, confirmed: true", "k resumed", "k released after 0ns", "k at the store: Some(Released)"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_observer_ends_no_lease_and_other_observers_go_on() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let builder = Mongoseal::builder().observer(Arc::new(|_: &HandleEvent<'_>| panic!("a defect")));
    let seal = store.build(builder.observer(Arc::new(seen.clone())));
    let lease = seal.acquire("k").await.unwrap();
    tokio::time::sleep(secs(60)).await;
    assert!(lease.is_valid());
    lease.release().await.unwrap();
    std::panic::set_hook(hook);
    assert_eq!((seen.count("granted"), seen.count("released after")), (1, 1));
    assert!(seen.count("refresh of 1, confirmed: true") >= 5);
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_set_and_of_a_group_and_one_whose_caller_is_gone_report_one_end_each() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let seal = store.build(seen.builder());
    let set = seal.acquire_all(["a", "b", "c"]).await.unwrap();
    tokio::time::sleep(secs(11)).await;
    assert_eq!(seen.count("batch refresh of 3, confirmed: true"), 1, "{:?}", seen.take());
    set.release().await.unwrap();
    let _one = seal.acquire("a").group("job").await.unwrap();
    let _two = seal.acquire("b").group("job").await.unwrap();
    seal.release_group("job").await.unwrap();
    let _other = store.seal().acquire("c").await.unwrap();
    assert!(seal.acquire_all(["a", "c"]).await.is_err());
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::DelayReply(secs(1))));
    assert!(tokio::time::timeout(millis(500), seal.acquire("gone").into_future()).await.is_err());
    tokio::time::sleep(secs(5)).await;
    assert_eq!((seen.count("gone waited"), seen.count("gone released after")), (1, 1), "{:?}", seen.take());
    seal.shutdown().await;
    assert_eq!(seen.count("granted"), seen.count(" after "), "{:?}", seen.take());
}

#[test]
fn an_acquire_whose_runtime_ends_is_reported_as_abandoned() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let seal = store.build(seen.builder());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let holding = runtime();
    let _holder = holding.block_on(store.seal().acquire("k").into_future()).unwrap();
    let waiting = runtime();
    waiting.block_on(async {
        let waiter = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
        while seen.count("k queued") == 0 {
            tokio::task::yield_now().await;
        }
        drop(waiter);
    });
    drop(waiting);
    assert_eq!((seen.count("k queued"), seen.count("abandoned")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_store_without_notifications_is_reported_once() {
    let seen = Seen::default();
    let table = crate::compare_and_swap::Table::new();
    let seal = seen.builder().on_store(table.store()).unwrap();
    let _lease = seal.acquire("k").await.unwrap();
    for _ in 0..2 {
        assert!(seal.acquire("k").wait(secs(5)).await.is_err());
    }
    assert_eq!((seen.count("polling_started"), seen.count("stream")), (1, 0));
}
