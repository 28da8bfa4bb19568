//! What an observer receives.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::{
    AcquireMode, AcquireOutcome, Builder, Error, HandleEvent, LeaseState, LossCause, Mongoseal, Observer, OnceOutcome,
    RefreshOutcome, ReleaseOutcome, Retry, Tick, record::Request,
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
                format!("{key} queued behind {position}{}", campaign(*is_campaign))
            }
            HandleEvent::AcquireFinished { key, mode, outcome, waited, position, is_campaign, .. } => {
                let mode = match mode {
                    AcquireMode::Wait => "waited",
                    AcquireMode::Retry => "retried",
                    _ => "once",
                };
                let outcome = match outcome {
                    AcquireOutcome::Granted(_) => "granted",
                    AcquireOutcome::Failed(Error::Held { .. }) => "held",
                    AcquireOutcome::Failed(Error::RetriesExhausted { .. }) => "exhausted",
                    AcquireOutcome::Failed(Error::Unavailable { .. }) => "unavailable",
                    AcquireOutcome::Failed(_) => "failed",
                    _ => "abandoned",
                };
                format!("{key} {mode} {waited:?} from {position:?}: {outcome}{}", campaign(*is_campaign))
            }
            HandleEvent::HandedOver { key, took, .. } => format!("{key} handed over in {took:?}"),
            HandleEvent::Resumed { key, .. } => format!("{key} resumed"),
            HandleEvent::RefreshFinished { key, leases, outcome, .. } => {
                let key = key.map_or("batch", |key| key.as_str());
                let outcome = match outcome {
                    RefreshOutcome::Confirmed => "confirmed",
                    RefreshOutcome::Refused => "refused",
                    _ => "failed",
                };
                format!("{key} refresh of {leases}: {outcome}")
            }
            HandleEvent::AtRisk { key, .. } => format!("{key} at risk"),
            HandleEvent::Lost { key, cause, held, is_campaign, .. } => {
                format!("{key} lost after {held:?}: {cause:?}{}", campaign(*is_campaign))
            }
            HandleEvent::Ended { key, reason, held, is_campaign, .. } => {
                format!("{key} {} after {held:?}{}", reason.kind(), campaign(*is_campaign))
            }
            HandleEvent::ReleaseFinished { key, outcome, .. } => match outcome {
                Ok(ReleaseOutcome::Released) => format!("{key} released at the store"),
                Ok(outcome) => format!("{key}: {outcome:?}"),
                Err(_) => format!("{key} not released"),
            },
            HandleEvent::StreamOpened => "stream opened".into(),
            HandleEvent::StreamClosed { error, .. } => format!("stream closed, failed: {}", error.is_some()),
            HandleEvent::PollingStarted { .. } => "polling".into(),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(text);
    }
}

fn campaign(is_campaign: bool) -> &'static str {
    if is_campaign { ", campaign" } else { "" }
}

impl Seen {
    fn builder(&self) -> Builder {
        Mongoseal::builder().observer(Arc::new(self.clone()))
    }

    /// What it has received since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// How often it has received an event with this text.
    fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|seen| seen.contains(text)).count()
    }
}

/// Keeps the kinds of what it receives.
#[derive(Clone, Default)]
struct Kinds(Arc<Mutex<Vec<&'static str>>>);

impl Observer for Kinds {
    fn observe(&self, event: &HandleEvent<'_>) {
        self.0.lock().unwrap().push(event.kind());
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_has_a_short_name() {
    let (store, kinds) = (Faulty::new(), Kinds::default());
    let seal = store.build(Mongoseal::builder().observer(Arc::new(kinds.clone())));
    let lease = seal.acquire("k").await.unwrap();
    lease.refresh().await.unwrap();
    lease.release().await.unwrap();
    let expected = ["acquire_finished", "refresh_finished", "ended", "release_finished"];
    assert_eq!(*kinds.0.lock().unwrap(), expected);
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
    assert!(matches!(tick, Ok(OnceOutcome::Busy { .. })) && acquire.is_err() && campaign.is_err());
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.sort_by_key(|(_, ahead)| *ahead);
    let (mut names, places): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    names.sort_unstable();
    assert_eq!((names, places), (vec!["acquire", "campaign", "tick"], vec![0, 1, 2]));
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_acquire_reports_its_end_with_its_mode_its_place_and_the_time_waited() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let seal = store.build(seen.builder());
    let holder = store.seal().acquire("k").await.unwrap();
    assert!(seal.acquire("k").await.is_err());
    assert!(seal.acquire("k").retry(Retry::fixed(secs(1)).attempts(2)).await.is_err());
    assert_eq!(seen.take(), ["k once 0ns from None: held", "k retried 1s from None: exhausted"]);

    assert!(seal.acquire("k").wait(secs(2)).await.is_err());
    assert_eq!(seen.take()[0], "k queued behind 0");
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    tokio::time::sleep(secs(1)).await;
    waiting.abort();
    drop(waiting.await);
    tokio::time::sleep(secs(1)).await;
    let abandoned = seen.take();
    assert!(abandoned.contains(&"k waited 1s from Some(0): abandoned".to_owned()), "{abandoned:?}");

    let waiting = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    tokio::time::sleep(secs(1)).await;
    holder.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    let events = seen.take();
    let events: Vec<_> = events.iter().filter(|event| event.starts_with("k ")).collect();
    assert_eq!(
        events,
        ["k queued behind 0", "k handed over in Some(0ns)", "k waited 1s from Some(0): granted"],
        "the memory store and the waiter have one clock"
    );
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_lease_reports_its_end_once_and_after_its_begin() {
    for (end, report) in [
        ("release", "k released after 1s"),
        ("drop", "k released after 1s"),
        ("orphan", "k released after 1s"),
        ("revoke", "k lost after 1s: Revoked"),
        ("shut down", "k shut_down after 1s"),
        ("transfer", "k transferred after 1s"),
        ("expire", "Expired"),
        ("caller gone", "k released after 0ns"),
    ] {
        let (store, seen) = (Faulty::new(), Seen::default());
        let seal = store.build(seen.builder());
        if end == "caller gone" {
            store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::DelayReply(secs(1))));
            let acquire = tokio::spawn(seal.acquire("k").into_future());
            tokio::time::sleep(millis(500)).await;
            acquire.abort();
            tokio::time::sleep(secs(5)).await;
        } else {
            let lease = seal.acquire("k").await.unwrap();
            tokio::time::sleep(secs(1)).await;
            match end {
                "release" => drop(lease.release().await.unwrap()),
                "drop" => drop(lease),
                "orphan" => lease.orphan(),
                "transfer" => drop(lease.transfer(mongoseal::LeaseId::random()).await.unwrap()),
                "revoke" => {
                    seal.revoke("k").await.unwrap();
                    lease.cancelled().await;
                }
                "expire" => {
                    store.always(Fault::Hang);
                    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Expired });
                    store.heal();
                }
                _ => seal.shutdown().await,
            }
        }
        seal.shutdown().await;
        let events = seen.take();
        let at = |text: &str| events.iter().position(|event| event.contains(text));
        let ends = events.iter().filter(|event| event.starts_with("k ") && event.contains(" after "));
        assert_eq!(ends.count(), 1, "{end}: {events:?}");
        assert!(at("granted") < at(report) && at("granted").is_some(), "{end}: {events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refreshes_and_the_risk_of_a_lease_are_reported() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let seal = store.build(seen.builder().ttl(secs(30)));
    let leases = [seal.acquire("a").await.unwrap(), seal.acquire("b").await.unwrap()];
    tokio::time::sleep(secs(11)).await;
    assert_eq!(seen.count("batch refresh of 2: confirmed"), 1, "{:?}", seen.take());
    leases[0].refresh().await.unwrap();
    assert_eq!(seen.count("a refresh of 1: confirmed"), 1);
    seen.take();
    store.script(|call| matches!(call, Call::Apply(Request::Refresh(_)) | Call::Jointly(_)).then_some(Fault::Fail));
    for lease in &leases {
        lease.cancelled().await;
    }
    assert!(seen.count("refresh of 2: failed") > 0);
    assert_eq!((seen.count("a at risk"), seen.count("b at risk")), (1, 1));
    assert_eq!(seen.count(" lost after "), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_of_a_lost_lease_is_reported_as_refused() {
    let (store, seen) = (Faulty::new(), Seen::default());
    store.script(|call| matches!(call, Call::Watch).then_some(Fault::Refuse));
    let seal = store.build(seen.builder());
    let lease = seal.acquire("k").await.unwrap();
    seal.revoke("k").await.unwrap();
    assert!(lease.refresh().await.is_err());
    assert_eq!(seen.count("k refresh of 1: refused"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_stream_reports_when_it_opens_and_closes_and_that_waiters_poll() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let seal = store.build(seen.builder());
    let lease = seal.acquire("k").await.unwrap();
    tokio::time::sleep(secs(5)).await;
    assert_eq!((seen.count("stream opened"), seen.count("stream closed")), (1, 0));
    drop(lease);
    seal.shutdown().await;
    tokio::time::sleep(secs(1)).await;
    assert_eq!((seen.count("stream opened"), seen.count("stream closed, failed: false")), (1, 1));

    seen.take();
    store.script(|call| matches!(call, Call::Watch).then_some(Fault::Refuse));
    let seal = store.build(seen.builder());
    let _lease = seal.acquire("k").await.unwrap();
    assert!(seal.acquire("k").wait(millis(400)).await.is_err());
    assert_eq!(
        (seen.count("stream opened"), seen.count("stream closed, failed: true"), seen.count("polling")),
        (0, 1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_leadership_and_a_resumed_lease_are_reported() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let seal = store.build(seen.builder());
    let leader = seal.campaign("scheduler").await.unwrap();
    let candidate = tokio::spawn(seal.campaign("scheduler").into_future());
    tokio::time::sleep(secs(1)).await;
    leader.resign().await.unwrap();
    let leader = candidate.await.unwrap().unwrap();
    assert_eq!(seen.count("scheduler queued behind 0, campaign"), 1);
    assert_eq!(seen.count("granted, campaign"), 2);
    assert_eq!(seen.count("scheduler released after 1s, campaign"), 1);
    drop(leader);

    let lease = seal.acquire("k").await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    lease.orphan();
    seal.shutdown().await;
    seen.take();
    let seal = store.build(seen.builder());
    let resumed = seal.resume("k", id, token).await.unwrap();
    resumed.release().await.unwrap();
    let events = seen.take();
    let of_lease: Vec<_> = events.iter().filter(|event| event.starts_with("k ")).map(String::as_str).collect();
    assert_eq!(of_lease, ["k refresh of 1: confirmed", "k resumed", "k released after 0ns", "k released at the store"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_observer_ends_no_lease_and_other_observers_go_on() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let builder = Mongoseal::builder().observer(Arc::new(|_: &HandleEvent<'_>| panic!("a defect")));
    let seal = store.build(builder.observer(Arc::new(seen.clone())));
    let lease = seal.acquire("k").await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(lease.is_valid());
    lease.release().await.unwrap();
    std::panic::set_hook(hook);
    assert_eq!((seen.count("granted"), seen.count("released after")), (1, 1));
    assert!(seen.count("refresh of 1: confirmed") >= 5);
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_set_and_of_a_group_report_one_end_each() {
    let (store, seen) = (Faulty::new(), Seen::default());
    let seal = store.build(seen.builder());
    let set = seal.acquire_all(["a", "b", "c"]).await.unwrap();
    set.release().await.unwrap();
    let _one = seal.acquire("a").group("job").await.unwrap();
    let _two = seal.acquire("b").group("job").await.unwrap();
    seal.release_group("job").await.unwrap();
    let _other = store.seal().acquire("c").await.unwrap();
    assert!(seal.acquire_all(["a", "c"]).await.is_err());
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
    assert_eq!((seen.count("polling"), seen.count("stream")), (1, 0));
}
