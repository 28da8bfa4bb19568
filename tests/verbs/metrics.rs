//! The metrics of a handle, and the observers that make them. They are made of all events.

mod recorder;

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
    time::Duration,
};

use metrics::Unit;
use mongoseal::{
    Builder, Lease, LeaseId, LeaseState, Mongoseal, Result, Retry, metrics::MetricsObserver, observe::HandleEvent,
    record::Request,
};
use recorder::Recorded;
use tokio::{task::JoinSet, time::timeout};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

fn observed() -> Builder {
    Mongoseal::builder().observer(Arc::new(MetricsObserver::new()))
}

/// A store, and an observed handle on it.
fn open() -> (Faulty, Mongoseal) {
    let store = Faulty::new();
    let seal = store.build(observed());
    (store, seal)
}

/// Waits until all tasks are idle. Time is paused, so no time passes but this.
async fn settle() {
    tokio::time::sleep(millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn each_acquire_is_timed_by_its_outcome_and_its_mode() {
    let (recorded, _guard) = Recorded::install();
    let store = Faulty::new();
    let seal = store.build(observed().queue_limit(1).operation_timeout(secs(2)));
    let acquire = |key: &str| seal.acquire(key);
    let _holder = acquire("k").await.unwrap();
    assert!(acquire("k").await.is_err());
    assert!(acquire("k").retry(Retry::fixed(secs(1)).attempts(3)).await.is_err());
    assert!(acquire("k").wait(secs(5)).await.is_err());
    let (dropped, full) = tokio::join!(timeout(secs(1), acquire("k").wait(secs(60))), acquire("k").wait(secs(60)));
    assert!(dropped.is_err() && full.is_err());
    settle().await;
    for fault in [Fault::Hang, Fault::Refuse] {
        store.script(move |call| matches!(call, Call::Apply(Request::Acquire(_))).then_some(fault));
        assert!(acquire("other").await.is_err());
    }
    recorded.assert_sums([
        ("mongoseal.acquire.duration{mode=once,outcome=granted}", 0.0),
        ("mongoseal.acquire.duration{mode=once,outcome=held}", 0.0),
        ("mongoseal.acquire.duration{mode=retry,outcome=retries_exhausted}", 2.0),
        ("mongoseal.acquire.duration{mode=wait,outcome=held}", 5.0),
        ("mongoseal.acquire.duration{mode=wait,outcome=queue_full}", 0.0),
        ("mongoseal.acquire.duration{mode=wait,outcome=abandoned}", 1.0),
        ("mongoseal.acquire.duration{mode=once,outcome=unavailable}", 2.0),
        ("mongoseal.acquire.duration{mode=once,outcome=invalid}", 0.0),
    ]);
    assert_eq!(recorded.with("acquire.duration").len(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_timed_by_what_ended_it_and_a_loss_is_counted_unless_its_holder_chose_it() {
    for (end, label, is_counted) in [
        ("release", "released", false),
        ("drop", "released", false),
        ("orphan", "released", false),
        ("group", "revoked", true),
        ("revoke", "revoked", true),
        ("expire", "expired", true),
        ("delete", "removed", true),
        ("maximum hold", "held_too_long", true),
        ("no progress", "stalled", true),
        ("transfer", "transferred", false),
        ("shut down", "shut_down", false),
    ] {
        let (store, seal) = open();
        // A recorder that is installed later records what happens from then on.
        seal.acquire("before").await.unwrap().release().await.unwrap();
        let (recorded, _guard) = Recorded::install();
        let acquire = seal.acquire("k").group("g");
        let lease = match end {
            "maximum hold" => acquire.max_hold(secs(100)).await,
            "no progress" => acquire.stalled_after(secs(100)).await,
            _ => acquire.await,
        };
        let lease = lease.unwrap();
        recorded.assert_sums([("mongoseal.leases", 1.0)]);
        tokio::time::sleep(secs(50)).await;
        match end {
            "release" => drop(lease.release().await.unwrap()),
            "drop" => drop(lease),
            "orphan" => lease.orphan(),
            "transfer" => drop(lease.transfer(LeaseId::random()).await.unwrap()),
            "shut down" => seal.shutdown().await,
            _ => {
                match end {
                    "group" => drop(store.seal().release_group("g").await.unwrap()),
                    "revoke" => drop(store.seal().revoke("k").await.unwrap()),
                    "expire" => store.always(Fault::Hang),
                    "delete" => store.records.remove(lease.key()),
                    _ => {}
                }
                drop(lease.cancelled().await);
            }
        }
        settle().await;

        recorded.assert_sums([("mongoseal.leases", 0.0)]);
        let duration = format!("mongoseal.lease.held.duration{{end={label}}}");
        assert_eq!(recorded.with("held.duration"), [duration.as_str()], "{end}");
        let held = recorded.sum(&duration).unwrap();
        assert!((50.0..=101.0).contains(&held) && recorded.updates(&duration) == 1, "{end}: {held}");
        let counted = if is_counted { vec![format!("mongoseal.lease.lost{{cause={label}}}")] } else { Vec::new() };
        assert_eq!(recorded.with("lease.lost"), counted, "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_is_timed_once_for_all_its_leases_and_a_failure_has_the_type_of_its_error() {
    let (recorded, _guard) = Recorded::install();
    let store = Faulty::new();
    let seal = store.build(observed().ttl(secs(30)));
    let leases = [seal.acquire("a").await.unwrap(), seal.acquire("b").await.unwrap()];
    tokio::time::sleep(secs(11)).await;
    assert_eq!(recorded.updates("mongoseal.refresh.duration{outcome=confirmed}"), 1);

    store.script(|call| match call {
        Call::Apply(Request::Refresh(_)) => Some(Fault::DelayReply(secs(1))),
        _ => None,
    });
    leases[0].refresh().await.unwrap();
    recorded.assert_sums([("mongoseal.refresh.duration{outcome=confirmed}", 1.0)]);

    store.script(|call| matches!(call, Call::Apply(Request::Refresh(_)) | Call::Jointly(_)).then_some(Fault::Fail));
    leases[0].cancelled().await;
    leases[1].cancelled().await;
    assert!(recorded.updates("mongoseal.refresh.duration{error.type=unavailable,outcome=failed}") > 1);
    recorded.assert_sums([("mongoseal.lease.at_risk", 2.0), ("mongoseal.lease.lost{cause=expired}", 2.0)]);

    store.script(|call| matches!(call, Call::Watch).then_some(Fault::Refuse));
    let seal = store.build(observed());
    let lease = seal.acquire("c").await.unwrap();
    seal.revoke("c").await.unwrap();
    assert!(lease.refresh().await.is_err());
    assert_eq!(recorded.updates("mongoseal.refresh.duration{outcome=refused}"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_timed_by_its_outcome() {
    let (recorded, _guard) = Recorded::install();
    let store = Faulty::new();
    let seal = store.build(observed().operation_timeout(secs(2)));
    for (fault, is_released) in [(Fault::DelayReply(secs(1)), true), (Fault::Hang, false)] {
        store.script(move |call| matches!(call, Call::Apply(Request::Release(_))).then_some(fault));
        let lease = seal.acquire(format!("{fault:?}")).await.unwrap();
        assert_eq!(lease.release().await.is_ok(), is_released);
    }
    store.heal();
    let lease = seal.acquire("c").await.unwrap();
    store.seal().revoke("c").await.unwrap();
    lease.cancelled().await;
    settle().await;
    recorded.assert_sums([
        ("mongoseal.release.duration{outcome=released}", 1.0),
        ("mongoseal.release.duration{error.type=unavailable,outcome=failed}", 2.0),
        ("mongoseal.release.duration{outcome=already_lost}", 0.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn a_name_has_one_leader_and_a_candidate_is_none() {
    let (recorded, _guard) = Recorded::install();
    let store = Faulty::new();
    let other = store.seal().campaign("scheduler").await.unwrap();
    let seal = store.build(observed());
    let leader = "mongoseal.leader{name=scheduler}";
    let candidate = tokio::spawn(seal.campaign("scheduler").into_future());
    tokio::time::sleep(secs(100)).await;
    recorded.assert_sums([(leader, 0.0), ("mongoseal.waiters", 1.0), ("mongoseal.leases", 0.0)]);
    other.resign().await.unwrap();
    let leading = candidate.await.unwrap().unwrap();
    recorded.assert_sums([(leader, 1.0), ("mongoseal.waiters", 0.0), ("mongoseal.leases", 1.0)]);
    // The wait of a candidate is apart from those of other waiters.
    recorded.assert_sums([
        ("mongoseal.acquire.duration{mode=campaign,outcome=granted}", 100.0),
        ("mongoseal.hand_over.duration", 0.0),
    ]);
    assert_eq!(recorded.updates("mongoseal.hand_over.duration"), 1);

    // A second handle of the process is a candidate of the same name: the process leads.
    let second = store.build(observed());
    let candidate = tokio::spawn(second.campaign("scheduler").into_future());
    settle().await;
    recorded.assert_sums([(leader, 1.0)]);
    leading.resign().await.unwrap();
    let leading = candidate.await.unwrap().unwrap();
    recorded.assert_sums([(leader, 1.0)]);
    seal.revoke("scheduler").await.unwrap();
    leading.lease().cancelled().await;
    settle().await;
    recorded.assert_sums([(leader, 0.0), ("mongoseal.lease.lost{cause=revoked}", 1.0)]);
}

#[tokio::test(start_paused = true)]
async fn the_stream_is_counted_as_it_opens_and_closes_and_a_handle_that_polls() {
    let (recorded, _guard) = Recorded::install();
    let (store, seal) = open();
    recorded.assert_sums([("mongoseal.stream.opened", 0.0), ("mongoseal.polling.started", 0.0)]);
    let lease = seal.acquire("k").await.unwrap();
    tokio::time::sleep(secs(5)).await;
    drop(lease);
    seal.shutdown().await;
    settle().await;
    recorded.assert_sums([("mongoseal.stream.opened", 1.0), ("mongoseal.stream.closed", 1.0)]);

    store.script(|call| matches!(call, Call::Watch).then_some(Fault::Fail));
    let seal = store.build(observed());
    let _lease = seal.acquire("k").await.unwrap();
    assert!(seal.acquire("k").wait(millis(500)).await.is_err());
    recorded.assert_sums([("mongoseal.stream.closed{error.type=unavailable}", 1.0)]);
    store.script(|call| matches!(call, Call::Watch).then_some(Fault::Refuse));
    // The listener is retried after a second, and then half a second later at the earliest.
    assert!(seal.acquire("k").wait(millis(900)).await.is_err());
    recorded.assert_sums([("mongoseal.stream.closed{error.type=invalid}", 1.0), ("mongoseal.polling.started", 1.0)]);
}

#[tokio::test(start_paused = true)]
async fn no_label_has_a_key_but_its_class_if_the_caller_maps_keys_to_classes() {
    let (recorded, _guard) = Recorded::install();
    let store = Faulty::new();
    let observer =
        MetricsObserver::new().key_class(|key| key.as_str().split('/').next().unwrap_or_default().to_owned());
    let seal = store.build(Mongoseal::builder().observer(Arc::new(observer)));
    let lease = seal.acquire("reports/secret-1").await.unwrap();
    let waiter = tokio::spawn(seal.acquire("reports/secret-1").wait(secs(60)).into_future());
    settle().await;
    lease.release().await.unwrap();
    let lease = waiter.await.unwrap().unwrap();
    store.always(Fault::Hang);
    lease.cancelled().await;
    assert_eq!(recorded.with("secret"), Vec::<String>::new());
    recorded.assert_sums([
        ("mongoseal.acquire.duration{class=reports,mode=once,outcome=granted}", 0.0),
        ("mongoseal.hand_over.duration{class=reports}", 0.0),
        ("mongoseal.lease.held.duration{class=reports,end=released}", 0.0),
        ("mongoseal.lease.at_risk{class=reports}", 1.0),
        ("mongoseal.lease.lost{cause=expired,class=reports}", 1.0),
    ]);

    let plain = store.build(observed());
    store.heal();
    plain.acquire("secret-2").await.unwrap().release().await.unwrap();
    assert_eq!(recorded.with("secret"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn each_metric_has_its_unit_and_its_description_when_the_observer_is_made() {
    let (recorded, _guard) = Recorded::install();
    drop(MetricsObserver::new());
    let described = recorded.described.lock().unwrap();
    for (name, (kind, unit)) in &*described {
        let is_duration = name.ends_with(".duration");
        assert_eq!(*unit, if is_duration { Unit::Seconds } else { Unit::Count }, "{name}");
        assert_eq!(*kind == "histogram", is_duration, "{name}");
    }
    assert_eq!(described.len(), 13);
}

/// Counts the leases that are held of what a call has returned before it was dropped.
type Held = Box<dyn Fn() -> usize + Send>;

async fn kept<T: Send + 'static>(
    dropped_after: Duration,
    call: impl Future<Output = Result<T>>,
    leases: fn(&T) -> Vec<&Lease>,
) -> Option<Held> {
    let granted = timeout(dropped_after, call).await.ok()?.ok()?;
    let is_held = |lease: &&Lease| matches!(lease.state(), LeaseState::Held | LeaseState::AtRisk);
    Some(Box::new(move || leases(&granted).into_iter().filter(is_held).count()))
}

#[tokio::test(start_paused = true)]
async fn gauges_agree_with_the_leases_whatever_becomes_of_calls_and_return_to_zero() {
    let mut faults = vec![None];
    for fault in [Fault::Hang, Fault::Fail, Fault::LoseReply, Fault::Delay(secs(2)), Fault::DelayReply(secs(2))] {
        faults.extend([millis(0), millis(500)].map(|begins| Some((begins, fault))));
    }
    let mut most = 0;
    for (fault, dropped_after) in faults.into_iter().flat_map(|fault| [1, 4, 600].map(|after| (fault, secs(after)))) {
        let (recorded, _guard) = Recorded::install();
        let store = Faulty::new();
        let seal = store.build(observed().ttl(secs(10)).operation_timeout(secs(3)));
        let left = store.seal().acquire("left").await.unwrap();
        let (id, token) = (left.id(), left.token());
        left.orphan();
        let mut calls = JoinSet::new();
        for key in ["k", "free"] {
            calls.spawn(kept(dropped_after, seal.acquire(key).wait(secs(60)).into_future(), |lease| vec![lease]));
            let all = seal.acquire_all([key, "l"]).wait(secs(60)).into_future();
            calls.spawn(kept(dropped_after, all, |set| set.into_iter().collect()));
        }
        calls.spawn(kept(dropped_after, seal.campaign("k").into_future(), |leader| vec![leader.lease()]));
        calls.spawn(kept(dropped_after, seal.campaign("x").into_future(), |leader| vec![leader.lease()]));
        calls.spawn(kept(dropped_after, seal.resume("left", id, token).into_future(), |lease| vec![lease]));
        if let Some((begins, fault)) = fault {
            tokio::time::sleep(begins).await;
            store.always(fault);
            tokio::time::sleep(secs(20)).await;
            store.heal();
        }
        // Requests of before end by their timeouts.
        tokio::time::sleep(secs(120)).await;
        let mut returned = Vec::new();
        while let Some(call) = calls.try_join_next() {
            returned.extend(call.unwrap());
        }
        let held: usize = returned.iter().map(|held| held()).sum();
        recorded.assert_sums([("mongoseal.leases", u32::try_from(held).unwrap().into())]);
        most = most.max(held);
        drop(calls);
        seal.shutdown().await;
        drop(returned);
        settle().await;
        recorded.assert_sums([("mongoseal.leases", 0.0), ("mongoseal.waiters", 0.0)]);
        for leader in recorded.with("mongoseal.leader") {
            recorded.assert_sums([(&leader, 0.0)]);
        }
    }
    assert!(most >= 4, "{most}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_observer_ends_no_lease_and_other_observers_go_on() {
    let (recorded, _guard) = Recorded::install();
    let kinds = Arc::<Mutex<Vec<_>>>::default();
    let kept = Arc::clone(&kinds);
    let panics = move |event: &HandleEvent<'_>| {
        kept.lock().unwrap().push(event.kind());
        panic!("a defect");
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let builder = Mongoseal::builder().observer(Arc::new(panics)).observer(Arc::new(MetricsObserver::new()));
    let lease = builder.in_memory().unwrap().acquire("k").await.unwrap();
    tokio::time::sleep(secs(60)).await;
    assert!(lease.is_valid());
    lease.release().await.unwrap();
    std::panic::set_hook(hook);
    assert!(recorded.updates("mongoseal.refresh.duration{outcome=confirmed}") >= 5);
    recorded.assert_sums([("mongoseal.lease.held.duration{end=released}", 60.0)]);
    for kind in ["acquire_finished", "refresh_finished", "ended", "release_finished"] {
        assert!(kinds.lock().unwrap().contains(&kind), "{kind}");
    }
}

#[test]
fn an_acquire_whose_runtime_ends_is_reported_as_abandoned() {
    let (recorded, _guard) = Recorded::install();
    let (store, seal) = open();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let holding = runtime();
    let _holder = holding.block_on(store.seal().acquire("k").into_future()).unwrap();
    let waiting = runtime();
    waiting.block_on(async {
        drop(tokio::spawn(seal.acquire("k").wait(secs(60)).into_future()));
        while recorded.sum("mongoseal.waiters") != Some(1.0) {
            tokio::task::yield_now().await;
        }
    });
    drop(waiting);
    recorded.assert_sums([("mongoseal.waiters", 0.0)]);
    assert_eq!(recorded.updates("mongoseal.acquire.duration{mode=wait,outcome=abandoned}"), 1);
}
