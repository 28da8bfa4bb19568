//! Requirements on waiting and on notifications. [`Fixture::send`] compares each request with the state machine.

use std::time::Duration;

use tokio::sync::mpsc;

use super::fixture::{Fixture, LONG, leave, once, queue, terms, wait};
use mongoseal::{
    FencingToken, Sharing,
    record::{LeaseSpec, Request, Revoke},
    store::{AcquireId, HandleId, Notification},
};

pub(super) async fn waiters_are_granted_the_key_in_their_order(fixture: Fixture) {
    let mut holder = terms();
    fixture.granted(once(&holder)).await;
    let waiters: Vec<LeaseSpec> = (0..5).map(|_| terms()).collect();
    for waiter in waiters.iter().chain([&waiters[1]]) {
        fixture.send(wait(waiter)).await;
    }
    for waiter in waiters {
        fixture.send(leave(&holder)).await;
        fixture.send(once(&terms())).await;
        holder = waiter;
    }
}

pub(super) async fn a_waiter_that_does_not_repeat_its_acquire_leaves_the_queue(fixture: Fixture) {
    let holder = terms();
    fixture.granted(once(&holder)).await;
    let (dead, alive) = (terms(), terms());
    fixture.send(queue(&dead, fixture.short(), 100)).await;
    let end = fixture.record().queue[0].expires_at;
    fixture.send(wait(&alive)).await;
    fixture.pass(end).await;
    fixture.send(leave(&holder)).await;
    assert_eq!(fixture.holders()[0].terms.lease, alive.lease, "the expired waiter must be skipped");
}

/// The last attempt of the exclusive waiter comes after the grant, so no write of its own reaches the sharer behind it.
pub(super) async fn a_waiter_whose_wait_ends_lets_in_those_that_it_kept_out(fixture: Fixture) {
    let sharing = || LeaseSpec { sharing: Sharing::UpTo(9), ..terms() };
    let exclusive = terms();
    for request in [once(&sharing()), wait(&exclusive), wait(&sharing()), once(&exclusive)] {
        fixture.send(request).await;
    }
}

pub(super) async fn a_full_queue_takes_no_waiter(fixture: Fixture) {
    fixture.granted(once(&terms())).await;
    for _ in 0..3 {
        fixture.send(queue(&terms(), LONG, 2)).await;
    }
}

/// A store without notifications must return `Invalid`.
pub(super) async fn a_handle_is_notified_of_its_grants_and_revocations(fixture: Fixture) {
    let handle = HandleId::random();
    let holder = terms();
    fixture.granted(once(&holder)).await;
    let own = LeaseSpec { acquire_id: AcquireId { handle, number: 7 }, ..terms() };
    let queued = fixture.applied(wait(&own)).await;
    let since = queued.at.expect("there must be a record").hlc;
    // The store must send this hand-over, too, because it comes after `since`.
    fixture.send(leave(&holder)).await;
    let (sender, mut notifications) = mpsc::unbounded_channel();
    let watching = fixture.store.notifications(handle, since, sender);
    #[allow(clippy::disallowed_methods, reason = "ends with the receiver")]
    let watching = tokio::spawn(watching);
    let Some(first) = notifications.recv().await else {
        let ended = watching.await.expect("watching must not panic");
        assert!(
            matches!(ended, Err(mongoseal::Error::Invalid { .. })),
            "a store without notifications must return Invalid: {ended:?}"
        );
        return;
    };
    let Notification::Started { since: started } = first else {
        panic!("the first notification must be Started: {first:?}")
    };
    let record = fixture.record();
    let (token, changed_at) = (record.version, record.last_seen);
    if started <= since {
        let granted = next(&fixture, &mut notifications).await;
        let Notification::Granted { number: 7, token: new, at } = granted else {
            panic!("it must be granted: {granted:?}")
        };
        assert_eq!(new, token, "the token must be that of the record");
        assert!(at.is_none_or(|at| at == changed_at), "the time must be that of the change: {at:?}");
    }
    let revoke = Revoke { by: "ops".into(), reason: "drill".into(), upto: FencingToken::MAX };
    fixture.send(Request::Revoke(revoke)).await;
    assert_eq!(next(&fixture, &mut notifications).await, Notification::Recheck { number: 7 });
    // A handle gets no notifications of other handles.
    fixture.granted(once(&terms())).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(200), notifications.recv()).await.is_err(),
        "nothing else must be sent"
    );
}

/// No write ends a lease that expires, so only a waiter that knows to be the first can find its end at once.
pub(super) async fn the_waiter_that_becomes_the_first_is_notified(fixture: Fixture) {
    let holder = terms();
    fixture.granted(once(&holder)).await;
    let (waiters, mut notifications) = queue_and_watch(&fixture, 4).await;
    fixture.send(leave(&waiters[0])).await;
    assert_eq!(
        next(&fixture, &mut notifications).await,
        Notification::Recheck { number: 8 },
        "a leave must notify the next one"
    );
    fixture.send(once(&waiters[1])).await;
    assert_eq!(
        next(&fixture, &mut notifications).await,
        Notification::Recheck { number: 9 },
        "a last attempt must notify the next one"
    );
    fixture.send(leave(&holder)).await;
    assert!(
        matches!(next(&fixture, &mut notifications).await, Notification::Granted { number: 9, .. }),
        "it is the next one"
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(200), notifications.recv()).await.is_err(),
        "a hand-over must notify nobody else"
    );
}

/// Queues so many waiters of a handle, with the numbers from 7 on, and begins to watch for their notifications.
pub(super) async fn queue_and_watch(
    fixture: &Fixture,
    count: usize,
) -> (Vec<LeaseSpec>, mpsc::UnboundedReceiver<Notification>) {
    let handle = HandleId::random();
    let waiters: Vec<LeaseSpec> =
        (7..).take(count).map(|number| LeaseSpec { acquire_id: AcquireId { handle, number }, ..terms() }).collect();
    let mut queued = Vec::new();
    for waiter in &waiters {
        queued.push(fixture.applied(wait(waiter)).await);
    }
    let since = queued[0].at.expect("there must be a record").hlc;
    let (sender, mut notifications) = mpsc::unbounded_channel();
    #[allow(clippy::disallowed_methods, reason = "ends with the receiver")]
    drop(tokio::spawn(fixture.store.notifications(handle, since, sender)));
    assert!(matches!(next(fixture, &mut notifications).await, Notification::Started { .. }), "a watch must begin");
    (waiters, notifications)
}

pub(super) async fn next(fixture: &Fixture, notifications: &mut mpsc::UnboundedReceiver<Notification>) -> Notification {
    let limit = fixture.answer_timeout();
    let next = tokio::time::timeout(limit, notifications.recv()).await;
    next.unwrap_or_else(|_| panic!("a notification must come within {limit:?}")).expect("watching must go on")
}
