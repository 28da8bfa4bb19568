//! The metrics of a handle.

mod random;
mod recorder;

use std::{future::IntoFuture, sync::Arc};

use metrics::Unit;
use mongoseal::{
    Builder, Error, Lease, LeaseId, LeaseState, LossCause, Mongoseal, Retry, metrics::MetricsObserver, record::Request,
};
use recorder::Recorded;

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
    let holder = seal.acquire("k").await.unwrap();
    assert!(seal.acquire("k").await.is_err());
    assert!(seal.acquire("k").retry(Retry::fixed(secs(1)).attempts(3)).await.is_err());
    assert!(seal.acquire("k").wait(secs(5)).await.is_err());
    recorded.assert_sums([
        ("mongoseal.acquire.duration{mode=once,outcome=granted}", 0.0),
        ("mongoseal.acquire.duration{mode=once,outcome=held}", 0.0),
        ("mongoseal.acquire.duration{mode=retry,outcome=retries_exhausted}", 2.0),
        ("mongoseal.acquire.duration{mode=wait,outcome=held}", 5.0),
    ]);

    let waiter = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    tokio::time::sleep(secs(1)).await;
    assert!(seal.acquire("k").wait(secs(60)).await.is_err());
    recorded.assert_sums([("mongoseal.acquire.duration{mode=wait,outcome=queue_full}", 0.0)]);
    waiter.abort();
    drop(waiter.await);
    settle().await;
    recorded.assert_sums([("mongoseal.acquire.duration{mode=wait,outcome=abandoned}", 1.0)]);

    store.script(|call| matches!(call, Call::Apply(Request::Acquire(_))).then_some(Fault::Hang));
    assert!(matches!(seal.acquire("other").await, Err(Error::Unavailable { .. })));
    store.script(|call| matches!(call, Call::Apply(Request::Acquire(_))).then_some(Fault::Refuse));
    assert!(matches!(seal.acquire("other").await, Err(Error::Invalid { .. })));
    recorded.assert_sums([
        ("mongoseal.acquire.duration{mode=once,outcome=unavailable}", 2.0),
        ("mongoseal.acquire.duration{mode=once,outcome=invalid}", 0.0),
    ]);
    assert_eq!(recorded.with("acquire.duration").len(), 8);
    drop(holder);
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
        let (recorded, _guard) = Recorded::install();
        let (store, seal) = open();
        let acquire = seal.acquire("k").group("g");
        let lease = match end {
            "maximum hold" => acquire.max_hold(secs(100)).await,
            "no progress" => acquire.stalled_after(secs(100)).await,
            _ => acquire.await,
        };
        let lease = lease.unwrap();
        recorded.assert_sums([("mongoseal.leases", 1.0)]);
        tokio::time::sleep(secs(50)).await;
        end_lease(&store, &seal, lease, end).await;
        settle().await;

        recorded.assert_sums([("mongoseal.leases", 0.0)]);
        assert_eq!(recorded.with("held.duration"), [format!("mongoseal.lease.held.duration{{end={label}}}")], "{end}");
        let duration = format!("mongoseal.lease.held.duration{{end={label}}}");
        let held = recorded.sum(&duration).unwrap();
        assert!((50.0..=101.0).contains(&held) && recorded.updates(&duration) == 1, "{end}: {held}");
        let counted = if is_counted { vec![format!("mongoseal.lease.lost{{cause={label}}}")] } else { Vec::new() };
        assert_eq!(recorded.with("lease.lost"), counted, "{end}");
    }
}

async fn end_lease(store: &Faulty, seal: &Mongoseal, lease: Lease, end: &str) {
    match end {
        "release" => drop(lease.release().await.unwrap()),
        "drop" => drop(lease),
        "orphan" => lease.orphan(),
        "transfer" => drop(lease.transfer(LeaseId::random()).await.unwrap()),
        "shut down" => seal.shutdown().await,
        "group" => drop(store.seal().release_group("g").await.unwrap()),
        "revoke" => drop(store.seal().revoke("k").await.unwrap()),
        "expire" => {
            store.always(Fault::Hang);
            assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Expired });
            store.heal();
        }
        "delete" => {
            store.records.remove(lease.key());
            assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Removed });
        }
        _ => drop(lease.cancelled().await),
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
    store.script(|call| matches!(call, Call::Apply(Request::Release(_))).then_some(Fault::DelayReply(secs(1))));
    seal.acquire("a").await.unwrap().release().await.unwrap();
    recorded.assert_sums([("mongoseal.release.duration{outcome=released}", 1.0)]);
    store.script(|call| matches!(call, Call::Apply(Request::Release(_))).then_some(Fault::Hang));
    assert!(seal.acquire("b").await.unwrap().release().await.is_err());
    recorded.assert_sums([("mongoseal.release.duration{error.type=unavailable,outcome=failed}", 2.0)]);
    store.heal();
    let lease = seal.acquire("c").await.unwrap();
    store.seal().revoke("c").await.unwrap();
    lease.cancelled().await;
    settle().await;
    assert_eq!(recorded.updates("mongoseal.release.duration{outcome=already_lost}"), 1);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_counted_while_they_are_queued_and_their_hand_over_is_timed() {
    let (recorded, _guard) = Recorded::install();
    let seal = observed().in_memory().unwrap();
    recorded.assert_sums([("mongoseal.waiters", 0.0), ("mongoseal.leases", 0.0)]);
    let holder = seal.acquire("k").await.unwrap();
    let first = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    tokio::time::sleep(secs(1)).await;
    let second = tokio::spawn(seal.acquire("k").wait(secs(60)).into_future());
    tokio::time::sleep(secs(1)).await;
    recorded.assert_sums([("mongoseal.waiters", 2.0), ("mongoseal.leases", 1.0)]);
    second.abort();
    drop(second.await);
    settle().await;
    recorded.assert_sums([("mongoseal.waiters", 1.0)]);
    holder.release().await.unwrap();
    drop(first.await.unwrap().unwrap());
    settle().await;
    recorded.assert_sums([
        ("mongoseal.waiters", 0.0),
        ("mongoseal.leases", 0.0),
        ("mongoseal.hand_over.duration", 0.0),
    ]);
    assert_eq!(recorded.updates("mongoseal.hand_over.duration"), 1);
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
    recorded.assert_sums([(leader, 0.0), ("mongoseal.waiters", 1.0)]);
    other.resign().await.unwrap();
    let leading = candidate.await.unwrap().unwrap();
    recorded.assert_sums([(leader, 1.0), ("mongoseal.waiters", 0.0), ("mongoseal.leases", 1.0)]);
    let wait = recorded.sum("mongoseal.acquire.duration{mode=campaign,outcome=granted}").unwrap();
    assert!((100.0..101.0).contains(&wait), "a candidate's wait is apart from those of other waiters: {wait}");

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
    let observer = MetricsObserver::new().key_class(|key| {
        let class = key.as_str().split('/').next().unwrap_or_default();
        class.to_owned()
    });
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
    for name in recorded.names() {
        let (kind, unit) = recorded.described(&name).unwrap();
        let is_duration = name.ends_with(".duration");
        assert_eq!(unit, if is_duration { Unit::Seconds } else { Unit::Count }, "{name}");
        assert_eq!(kind == "histogram", is_duration, "{name}");
    }
    assert_eq!(recorded.names().len(), 13);
}

#[tokio::test(start_paused = true)]
async fn a_recorder_that_is_installed_later_records_what_happens_from_then_on() {
    let seal = Faulty::new().build(observed());
    drop(seal.acquire("before").await.unwrap().release().await);
    let (recorded, _guard) = Recorded::install();
    let lease = seal.acquire("k").await.unwrap();
    recorded.assert_sums([("mongoseal.leases", 1.0)]);
    assert_eq!(recorded.updates("mongoseal.acquire.duration{mode=once,outcome=granted}"), 1);
    lease.release().await.unwrap();
    recorded.assert_sums([("mongoseal.leases", 0.0)]);
}
