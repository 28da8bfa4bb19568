//! Clauses on waiting and on notifications.

use std::time::Duration;

use tokio::sync::mpsc;

use super::bench::{Bench, LONG, SHORT, leave, once, terms, wait};
use crate::{
    AcquireId, FencingToken, HandleId,
    record::{Acquire, LeaseSpec, Outcome, Request, Revoke, WaitSpec},
    store::Notification,
};

pub(super) async fn waiters_are_granted_the_key_in_their_order(bench: Bench) {
    let mut holder = terms();
    bench.granted(once(&holder)).await;
    let waiters: Vec<LeaseSpec> = (0..5).map(|_| terms()).collect();
    for (place, waiter) in waiters.iter().enumerate() {
        match bench.send(wait(waiter)).await {
            Outcome::Queued { position, .. } => assert_eq!(position, place, "a waiter must be behind the earlier ones"),
            other => panic!("an acquire of a held key must wait, not {other:?}"),
        }
    }
    match bench.send(wait(&waiters[1])).await {
        Outcome::Queued { position: 1, .. } => {}
        other => panic!("a repeated acquire must keep its place, not {other:?}"),
    }
    let mut last = bench.record().await.version;
    for waiter in waiters {
        bench.send(leave(&holder)).await;
        let holders = bench.holders().await;
        assert!(
            holders.iter().map(|holder| holder.terms.lease).eq([waiter.lease]),
            "the release must grant the key to the next waiter"
        );
        assert!(holders[0].version > last, "the token must grow");
        last = holders[0].version;
        assert!(
            matches!(bench.send(once(&terms())).await, Outcome::Refused { .. }),
            "no other acquire must be granted"
        );
        holder = waiter;
    }
}

pub(super) async fn a_waiter_that_does_not_repeat_its_acquire_leaves_the_queue(bench: Bench) {
    let holder = terms();
    bench.granted(once(&holder)).await;
    let (dead, alive) = (terms(), terms());
    let wait_spec = Some(WaitSpec { ttl: SHORT, queue_limit: 100 });
    bench.send(Acquire { terms: dead, wait: wait_spec }).await;
    bench.send(wait(&alive)).await;
    let end = bench.record().await.queue[0].expires_at;
    bench.pass(end).await;
    bench.send(leave(&holder)).await;
    assert!(
        bench.holders().await.iter().map(|holder| holder.terms.lease).eq([alive.lease]),
        "the expired waiter must be skipped"
    );
}

pub(super) async fn a_waiter_whose_wait_ends_lets_in_those_that_it_kept_out(bench: Bench) {
    let sharing = || LeaseSpec { limit: 9, ..terms() };
    bench.granted(once(&sharing())).await;
    let (exclusive, behind) = (terms(), sharing());
    bench.send(wait(&exclusive)).await;
    assert!(
        matches!(bench.send(wait(&behind)).await, Outcome::Queued { position: 1, .. }),
        "a sharer must wait behind an exclusive waiter"
    );
    let outcome = bench.send(once(&exclusive)).await;
    assert!(matches!(outcome, Outcome::Refused { .. }), "the last attempt must be refused, not {outcome:?}");
    assert!(
        bench.holders().await.iter().any(|holder| holder.terms.lease == behind.lease),
        "the last attempt must grant the key to the sharer behind it"
    );
}

pub(super) async fn a_full_queue_takes_no_waiter(bench: Bench) {
    bench.granted(once(&terms())).await;
    let wait = Some(WaitSpec { ttl: LONG, queue_limit: 2 });
    for _ in 0..2 {
        let outcome = bench.send(Acquire { terms: terms(), wait }).await;
        assert!(matches!(outcome, Outcome::Queued { .. }), "an acquire must wait, not {outcome:?}");
    }
    let before = bench.record().await;
    assert_eq!(bench.send(Acquire { terms: terms(), wait }).await, Outcome::Full { length: 2 });
    assert_eq!(bench.record().await, before, "a full queue must not be written");
}

/// A store without notifications must return `Invalid`.
pub(super) async fn a_handle_is_notified_of_its_grants_and_revocations(bench: Bench) {
    let handle = HandleId::random();
    let holder = terms();
    bench.granted(once(&holder)).await;
    let own = LeaseSpec { caller: AcquireId { handle, number: 7 }, ..terms() };
    let queued = bench.applied(wait(&own)).await;
    let since = queued.at.expect("there must be a record").tick;
    // The store must send this hand-over, too, because it comes after `since`.
    bench.send(leave(&holder)).await;
    let (sender, mut notifications) = mpsc::unbounded_channel();
    let watching = bench.store.watch(handle, since, sender);
    #[allow(clippy::disallowed_methods, reason = "ends with the receiver")]
    let watching = tokio::spawn(watching);
    let Some(first) = notifications.recv().await else {
        let ended = watching.await.expect("watching must not panic");
        assert!(
            matches!(ended, Err(crate::Error::Invalid { .. })),
            "a store without notifications must return Invalid: {ended:?}"
        );
        return;
    };
    let Notification::Started { since: started } = first else {
        panic!("the first notification must be Started: {first:?}")
    };
    let record = bench.record().await;
    let (token, changed_at) = (record.version, record.last_seen);
    if started <= since {
        let granted = next(&mut notifications).await;
        let Notification::Granted { number: 7, token: new, at } = granted else {
            panic!("it must be granted: {granted:?}")
        };
        assert_eq!(new, token, "the token must be that of the record");
        assert!(at.is_none_or(|at| at == changed_at), "the time must be that of the change: {at:?}");
    }
    let revoke = Revoke { by: "ops".into(), reason: "drill".into(), upto: FencingToken::MAX };
    bench.send(Request::Revoke(revoke)).await;
    assert_eq!(next(&mut notifications).await, Notification::Recheck { number: 7 });
    // A handle gets no notifications of other handles.
    bench.granted(once(&terms())).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(200), notifications.recv()).await.is_err(),
        "nothing else must be sent"
    );
}

/// No write ends a lease that expires, so only a waiter that knows to be the first can find its end at once.
pub(super) async fn the_waiter_that_becomes_the_first_is_notified(bench: Bench) {
    let holder = terms();
    bench.granted(once(&holder)).await;
    let (waiters, mut notifications) = queue_and_watch(&bench, 4).await;
    bench.send(leave(&waiters[0])).await;
    assert_eq!(next(&mut notifications).await, Notification::Recheck { number: 8 }, "a leave must notify the next one");
    bench.send(once(&waiters[1])).await;
    assert_eq!(
        next(&mut notifications).await,
        Notification::Recheck { number: 9 },
        "a last attempt must notify the next one"
    );
    bench.send(leave(&holder)).await;
    assert!(matches!(next(&mut notifications).await, Notification::Granted { number: 9, .. }), "it is the next one");
    assert!(
        tokio::time::timeout(Duration::from_millis(200), notifications.recv()).await.is_err(),
        "a hand-over must notify nobody else"
    );
}

/// Queues so many waiters of a handle, with the numbers from 7 on, and begins to watch for their notifications.
pub(super) async fn queue_and_watch(
    bench: &Bench,
    count: usize,
) -> (Vec<LeaseSpec>, mpsc::UnboundedReceiver<Notification>) {
    let handle = HandleId::random();
    let waiters: Vec<LeaseSpec> =
        (7..).take(count).map(|number| LeaseSpec { caller: AcquireId { handle, number }, ..terms() }).collect();
    let mut queued = Vec::new();
    for waiter in &waiters {
        queued.push(bench.applied(wait(waiter)).await);
    }
    let since = queued[0].at.expect("there must be a record").tick;
    let (sender, mut notifications) = mpsc::unbounded_channel();
    #[allow(clippy::disallowed_methods, reason = "ends with the receiver")]
    drop(tokio::spawn(bench.store.watch(handle, since, sender)));
    assert!(matches!(next(&mut notifications).await, Notification::Started { .. }), "a watch must begin");
    (waiters, notifications)
}

pub(super) async fn next(notifications: &mut mpsc::UnboundedReceiver<Notification>) -> Notification {
    let next = tokio::time::timeout(Duration::from_secs(10), notifications.recv()).await;
    next.expect("a notification must come within 10 seconds").expect("watching must go on")
}
