//! The spans of operations: when they end, what they are part of, and what is recorded in them.

use std::collections::BTreeSet;

use mongoseal::{Lease, LeaseId, Mongoseal, record::Request};
use mongoseal_test_support::eventually;
use tracing::{Instrument, Level, info_span};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis,
    recorded_spans::{Seen, Span},
    secs,
};

#[tokio::test(start_paused = true)]
async fn an_acquire_is_one_span_with_key_owner_token_position_and_the_time_waited() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let acquire = |owner: &str| store.build(Mongoseal::builder().owner(owner)).acquire("k");
    let holder = acquire("first").await.unwrap();
    let second = tokio::spawn(acquire("second").wait(secs(60)).into_future());
    tokio::time::sleep(millis(10)).await;
    let third = tokio::spawn(acquire("third").wait(secs(60)).into_future());
    tokio::time::sleep(millis(10)).await;
    assert!(tokio::time::timeout(millis(2_990), acquire("dropped").wait(secs(60))).await.is_err());
    holder.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
    let lease = third.await.unwrap().unwrap();

    let spans = seen.spans("mongoseal.acquire");
    assert!(spans.iter().all(|span| span.errors.is_empty() && span.of("key") == "k"));
    let fields = |span: &Span| ["owner", "outcome", "position", "waited"].map(|name| span.of(name).to_owned());
    assert_eq!(fields(&spans[0]), ["first", "granted", "", "0ns"]);
    assert_eq!(fields(&spans[2]), ["third", "granted", "1", "3s"]);
    assert_eq!(spans[2].of("token"), lease.token().get().to_string());
    assert_eq!((spans[3].of("outcome"), spans[3].handles, spans.len()), ("abandoned", 0, 4));
    let waiting = seen.said("waiting");
    assert!(waiting.len() >= 2 && waiting.iter().all(|level| *level == Level::DEBUG), "{waiting:?}");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_span_ends_with_the_grant_and_nothing_later_is_part_of_the_request_that_acquired_the_lease() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    // As a web request does: in a span that ends with the request.
    let lease = async { store.seal().acquire("k").await.unwrap() }.instrument(info_span!("request")).await;
    assert!(seen.0.lock().unwrap().spans.iter().all(|span| span.handles == 0));
    tokio::time::sleep(secs(60)).await;
    drop(lease);
    eventually(secs(10), "there is a span", async || !seen.spans("mongoseal.release").is_empty()).await;
    assert!(seen.spans("mongoseal.refresh").len() > 2);
    let traces = seen.0.lock().unwrap();
    let parents: BTreeSet<_> = traces.spans.iter().map(|span| (span.metadata.name(), span.parent)).collect();
    let of_acquire = ("mongoseal.acquire", "request");
    assert_eq!(parents, [of_acquire, ("mongoseal.refresh", ""), ("mongoseal.release", ""), ("request", "")].into());
    assert!(traces.spans.iter().all(|span| span.handles == 0));
    assert!(traces.events.iter().all(|event| event.1 != "request"));
}

#[tokio::test(start_paused = true)]
async fn each_refresh_and_verification_of_a_lease_is_one_span_with_its_outcome() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let refreshed = store.seal().acquire("k").await.unwrap();
    let verified = store.seal().acquire("l").await.unwrap();
    refreshed.refresh().await.unwrap();
    async { verified.verify().await.unwrap() }.instrument(info_span!("request")).await;
    store.script(|call| matches!(call, Call::Apply(Request::Refresh(_))).then_some(Fault::Refuse));
    refreshed.refresh().await.unwrap_err();
    store.heal();
    for key in ["k", "l"] {
        store.seal().revoke(key).await.unwrap();
    }
    refreshed.refresh().await.unwrap_err();
    verified.verify().await.unwrap_err();
    let outcomes = |name: &str, lease: &Lease| {
        let (spans, token) = (seen.spans(name), lease.token().to_string());
        assert!(spans.iter().all(|span| (span.of("key"), span.of("token")) == (lease.key().as_str(), token.as_str())));
        assert!(spans.iter().all(|span| span.handles == 0), "{name}");
        spans.iter().map(|span| format!("{}/{}", span.parent, span.of("outcome"))).collect::<Vec<_>>()
    };
    assert_eq!(outcomes("mongoseal.refresh", &refreshed), ["/confirmed", "/invalid", "/refused"]);
    assert_eq!(outcomes("mongoseal.verify", &verified), ["request/verified", "/lost"]);
}

/// Two leases that are refreshed by one batch, which has a span of its own.
async fn two_in_a_batch(store: &Faulty, seen: &Seen) -> [Lease; 2] {
    let seal = store.seal();
    let leases = [seal.acquire("a").await.unwrap(), seal.acquire("b").await.unwrap()];
    eventually(secs(30), "the span of a batch ends", async || {
        let batch = seen.spans("mongoseal.refresh").into_iter().find(|span| span.of("leases") == "2");
        batch.is_some_and(|batch| (batch.handles, batch.of("key"), batch.of("token"), batch.parent) == (0, "", "", ""))
    })
    .await;
    leases
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_fails_has_its_error_in_the_warning_of_each_lease_and_a_failed_attempt_once() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let leases = two_in_a_batch(&store, &seen).await;
    store.script(|call| matches!(call, Call::Jointly(_) | Call::Apply(_)).then_some(Fault::Fail));
    for lease in &leases {
        lease.cancelled().await;
    }
    let spans = seen.spans("mongoseal.refresh");
    let (batches, alone): (Vec<_>, Vec<_>) =
        spans.iter().filter(|span| span.of("outcome") == "unavailable").partition(|span| span.of("leases") == "2");
    let warned: Vec<_> = batches.iter().flat_map(|batch| &batch.errors).map(|error| error.of("key")).collect();
    // The first one warns for each lease, and each later one has its error once.
    assert_eq!(warned.first_chunk(), Some(&["a", "b"]));
    assert!(warned.iter().skip(2).all(|key| key.is_empty()) && warned.len() == batches.len() + 1, "{warned:?}");
    assert!(batches.len() > 10 && alone.is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_end_of_a_lease_is_one_release_span_with_its_outcome() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let seal = store.seal();
    seal.acquire("orphan").await.unwrap().orphan();
    seal.acquire("given").await.unwrap().transfer(LeaseId::random()).await.unwrap();
    let lost = seal.acquire("lost").await.unwrap();
    store.seal().revoke("lost").await.unwrap();
    lost.verify().await.unwrap_err();
    lost.release().await.unwrap();
    let released = seal.acquire("released").await.unwrap();
    let token = released.token().to_string();
    async { released.release().await.unwrap() }.instrument(info_span!("request")).await;
    drop(seal.acquire("dropped").await.unwrap());
    let _held = seal.acquire("held").await.unwrap();
    seal.shutdown().await;
    let spans = seen.spans("mongoseal.release");
    let mut outcomes: Vec<_> = spans.iter().map(|span| (span.of("key"), span.of("outcome"))).collect();
    outcomes.sort_unstable();
    assert_eq!(
        outcomes,
        [
            ("dropped", "released"),
            ("given", "transferred"),
            ("held", "released"),
            ("lost", "already_lost"),
            ("orphan", "orphaned"),
            ("released", "released")
        ]
    );
    let released = spans.iter().find(|span| span.of("key") == "released").unwrap();
    assert_eq!((released.of("token"), released.parent), (token.as_str(), "request"), "below the caller that waits");
    assert!(seen.0.lock().unwrap().spans.iter().all(|span| span.handles == 0));
}

#[tokio::test(start_paused = true)]
async fn the_error_of_an_operation_is_recorded_once_with_its_source() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let lease = store.seal().acquire("k").await.unwrap();
    store.always(Fault::Refuse);
    store.seal().acquire("k").await.unwrap_err();
    lease.refresh().await.unwrap_err();
    lease.verify().await.unwrap_err();
    lease.release().await.unwrap_err();
    for name in ["mongoseal.acquire", "mongoseal.refresh", "mongoseal.verify", "mongoseal.release"] {
        let failed: Vec<_> = seen.spans(name).into_iter().filter(|span| span.of("outcome") == "invalid").collect();
        assert_eq!(failed.len(), 1, "{name}");
        assert_eq!(failed[0].errors.len(), 1, "{name}");
        assert_eq!(failed[0].errors[0].of("error"), "the store refuses <- the reason", "{name}");
    }
    let errors = || seen.0.lock().unwrap().events.iter().filter(|event| !event.2.of("error").is_empty()).count();
    assert_eq!(errors(), 4);

    // The release at the end of a scope records its error itself.
    store.script(|call| matches!(call, Call::Apply(Request::Release(_))).then_some(Fault::Refuse));
    store.seal().acquire("l").with(async |_| ()).await.unwrap();
    assert_eq!(errors(), 5);
}

/// The rows of the table of spans in the documentation: name, level and fields.
fn documented() -> BTreeSet<(String, String, Vec<String>)> {
    let rows = include_str!("../../docs/tracing.md").lines().filter_map(|line| line.strip_prefix("| `mongoseal."));
    let row = |row: &str| {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().trim_end_matches('`')).collect();
        let fields = cells[3].split(',').map(|field| field.trim().trim_matches('`').to_owned()).collect();
        (format!("mongoseal.{}", cells[0]), cells[1].trim_matches('`').to_owned(), fields)
    };
    rows.map(row).collect()
}

#[tokio::test(start_paused = true)]
async fn the_table_of_spans_has_their_names_levels_and_fields() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let leases = two_in_a_batch(&store, &seen).await;
    for lease in leases {
        lease.verify().await.unwrap();
        lease.refresh().await.unwrap();
        lease.release().await.unwrap();
    }
    let traces = seen.0.lock().unwrap();
    let made: BTreeSet<_> = traces
        .spans
        .iter()
        .map(|span| {
            assert_eq!(span.metadata.target(), "mongoseal");
            let fields = span.metadata.fields().iter().map(|field| field.name().to_owned()).collect();
            (span.metadata.name().to_owned(), span.metadata.level().to_string().to_lowercase(), fields)
        })
        .collect();
    // The fence is tested on a server.
    let of_fence = ["mongoseal.fenced_write", "mongoseal.transaction"];
    let mut rows = documented();
    rows.retain(|row| !of_fence.contains(&row.0.as_str()));
    assert_eq!(made, rows);
}
