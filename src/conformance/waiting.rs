//! Clauses on waiting.

use std::time::Duration;

use tokio::sync::mpsc;

use super::bench::{Bench, LONG, SHORT, leave, once, terms, wait};
use crate::{
    AcquireId, FencingToken, HandleId,
    record::{Acquire, LeaseSpec, Outcome, Request, Revoke, WaitSpec},
    store::Notification,
};

pub(super) async fn waiters_are_granted_the_key_in_the_order_they_came(bench: Bench) {
    let mut holder = terms();
    bench.granted(once(&holder)).await;
    let waiters: Vec<LeaseSpec> = (0..5).map(|_| terms()).collect();
    for (place, waiter) in waiters.iter().enumerate() {
        match bench.send(wait(waiter)).await {
            Outcome::Queued { position, .. } => assert_eq!(position, place, "behind those who came before"),
            other => panic!("it waits, and not {other:?}"),
        }
    }
    match bench.send(wait(&waiters[1])).await {
        Outcome::Queued { position: 1, .. } => {}
        other => panic!("asking again keeps the place, and not {other:?}"),
    }
    let mut last = bench.record().await.version;
    for waiter in waiters {
        bench.send(leave(&holder)).await;
        let holders = bench.holders().await;
        assert!(
            holders.iter().map(|holder| holder.terms.lease).eq([waiter.lease]),
            "the release grants it to the next"
        );
        assert!(holders[0].version > last, "with a larger token");
        last = holders[0].version;
        assert!(matches!(bench.send(once(&terms())).await, Outcome::Refused { .. }), "and nobody comes between");
        holder = waiter;
    }
}

pub(super) async fn a_waiter_that_is_not_heard_of_falls_out(bench: Bench) {
    let holder = terms();
    bench.granted(once(&holder)).await;
    let (dead, alive) = (terms(), terms());
    let patience = Some(WaitSpec { ttl: SHORT, queue_limit: 100 });
    bench.send(Acquire { terms: dead, wait: patience }).await;
    bench.send(wait(&alive)).await;
    let end = bench.record().await.queue[0].expires_at;
    bench.pass(end).await;
    bench.send(leave(&holder)).await;
    assert!(bench.holders().await.iter().map(|holder| holder.terms.lease).eq([alive.lease]));
}

pub(super) async fn a_full_queue_takes_nobody(bench: Bench) {
    bench.granted(once(&terms())).await;
    let patience = Some(WaitSpec { ttl: LONG, queue_limit: 2 });
    for _ in 0..2 {
        let outcome = bench.send(Acquire { terms: terms(), wait: patience }).await;
        assert!(matches!(outcome, Outcome::Queued { .. }), "{outcome:?}");
    }
    let before = bench.record().await;
    assert_eq!(bench.send(Acquire { terms: terms(), wait: patience }).await, Outcome::Full { length: 2 });
    assert_eq!(bench.record().await, before, "nothing is written");
}

/// A store that cannot tell has to say so.
pub(super) async fn a_handle_is_told_what_it_is_handed_and_robbed_of(bench: Bench) {
    let handle = HandleId::random();
    let holder = terms();
    bench.granted(once(&holder)).await;
    let own = LeaseSpec { caller: AcquireId { handle, number: 7 }, ..terms() };
    let queued = bench.applied(wait(&own)).await;
    let since = queued.at.expect("there is a record").tick;
    // Before anybody listens: it is told all the same, from that tick on.
    bench.send(leave(&holder)).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let watching = bench.store.watch(handle, since, tell);
    #[allow(clippy::disallowed_methods, reason = "ends with the receiver")]
    let watching = tokio::spawn(watching);
    let Some(first) = told.recv().await else {
        let ended = watching.await.expect("it does not panic");
        assert!(matches!(ended, Err(crate::Error::Invalid { .. })), "a store that cannot tell says so: {ended:?}");
        return;
    };
    let Notification::Started { since: heard } = first else { panic!("first it says since when: {first:?}") };
    let token = bench.record().await.version;
    if heard <= since {
        assert_eq!(next(&mut told).await, Notification::Granted { number: 7, token });
    }
    let revoke = Revoke { by: "ops".into(), reason: "drill".into(), upto: FencingToken::MAX };
    bench.send(Request::Revoke(revoke)).await;
    assert_eq!(next(&mut told).await, Notification::Revoked { number: 7 });
    // What is not its own it is not told.
    bench.granted(once(&terms())).await;
    assert!(tokio::time::timeout(Duration::from_millis(200), told.recv()).await.is_err());
}

async fn next(told: &mut mpsc::UnboundedReceiver<Notification>) -> Notification {
    let next = tokio::time::timeout(Duration::from_secs(10), told.recv()).await;
    next.expect("it is told within 10 seconds").expect("somebody tells")
}
