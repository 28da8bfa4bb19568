//! What whoever watches the traces can see.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
};

use mongoseal::{Mongoseal, Retry};
use tracing::{
    Dispatch, Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    layer::{Context, Layer, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{
    faulty::{Fault, Faulty},
    millis, secs,
};

/// Fields by name.
#[derive(Clone, Debug, Default)]
struct Fields(HashMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Fields {
    fn of(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

/// A subscriber that sees all and is there to the end. With one subscriber at a time, a callsite that another thread meets first
/// is off for all threads.
static OTHER: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::registry().with(Seen::default())));

/// The spans and events of this crate, as they were seen.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Traces>>);

#[derive(Default)]
struct Traces {
    spans: Vec<(Id, &'static str, Fields)>,
    /// With the name of the span they happened in.
    events: Vec<(Level, String, Fields)>,
}

impl Seen {
    /// Watches the thread from now on.
    fn watch() -> (Self, DefaultGuard) {
        LazyLock::force(&OTHER);
        let seen = Self::default();
        let guard = tracing_subscriber::registry().with(seen.clone()).set_default();
        (seen, guard)
    }

    fn spans(&self, name: &str) -> Vec<Fields> {
        let traces = self.0.lock().unwrap();
        traces.spans.iter().filter(|span| span.1 == name).map(|span| span.2.clone()).collect()
    }

    /// The levels at which something was said that contains this.
    fn said(&self, what: &str) -> Vec<Level> {
        let traces = self.0.lock().unwrap();
        traces.events.iter().filter(|event| event.2.of("message").contains(what)).map(|event| event.0).collect()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        self.0.lock().unwrap().spans.push((id.clone(), attributes.metadata().name(), fields));
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        let mut traces = self.0.lock().unwrap();
        // Ids are used again once a span has closed: the last one is meant.
        record.record(&mut traces.spans.iter_mut().rev().find(|span| span.0 == *id).unwrap().2);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let span = context.event_span(event).map_or("", |span| span.name()).to_owned();
        self.0.lock().unwrap().events.push((*event.metadata().level(), span, fields));
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_is_one_span_with_key_owner_token_position_and_the_time_waited() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let holder = store.build(Mongoseal::builder().owner("first")).acquire("k").await.unwrap();
    let second = tokio::spawn(store.seal().acquire("k").wait(secs(60)).into_future());
    tokio::time::sleep(millis(10)).await;
    let waiting = store.build(Mongoseal::builder().owner("third")).acquire("k").wait(secs(60));
    let third = tokio::spawn(waiting.into_future());
    tokio::time::sleep(secs(3)).await;
    holder.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
    let lease = third.await.unwrap().unwrap();

    let spans = seen.spans("acquire");
    assert_eq!(spans.len(), 3);
    assert_eq!((spans[0].of("owner"), spans[0].of("position"), spans[0].of("waited")), ("first", "", "0ns"));
    let third = &spans[2];
    assert_eq!((third.of("key"), third.of("owner")), ("k", "third"));
    assert_eq!(third.of("token"), lease.token().get().to_string());
    assert_eq!(third.of("position"), "1");
    assert_eq!(third.of("waited"), "3s");
    let waiting = seen.said("waiting");
    assert!(waiting.len() >= 2 && waiting.iter().all(|level| *level == Level::DEBUG), "{waiting:?}");
}

#[tokio::test(start_paused = true)]
async fn contention_is_said_at_debug_and_nothing_above() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let _holder = store.seal().acquire("k").await.unwrap();
    assert!(store.seal().acquire("k").await.is_err());
    assert!(store.seal().acquire("k").wait(secs(1)).await.is_err());
    assert!(store.seal().acquire("k").retry(Retry::fixed(secs(1)).attempts(2)).await.is_err());
    assert_eq!(seen.said("not granted"), [Level::DEBUG; 3]);
    let traces = seen.0.lock().unwrap();
    assert!(traces.events.iter().all(|event| event.0 >= Level::DEBUG && event.1 == "acquire"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_at_risk_and_one_that_is_lost_are_warned_of_once_with_key_and_token() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    let lease = store.seal().acquire("k").await.unwrap();
    store.always(Fault::Fail);
    lease.cancelled().await;
    assert_eq!(seen.said("the lease is at risk"), [Level::WARN]);
    assert_eq!(seen.said("the lease is lost"), [Level::WARN]);
    let traces = seen.0.lock().unwrap();
    for (_, span, fields) in traces.events.iter().filter(|event| event.0 == Level::WARN) {
        assert_eq!(span, "acquire", "{fields:?}");
        assert_eq!((fields.of("key"), fields.of("token")), ("k", lease.token().to_string().as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_tell_is_warned_of_once() {
    let store = Faulty::new();
    let (seen, _guard) = Seen::watch();
    store.script(|call| matches!(call, crate::faulty::Call::Watch).then_some(Fault::Refuse));
    let seal = store.seal();
    let _holder = seal.acquire("k").await.unwrap();
    for _ in 0..3 {
        assert!(seal.acquire("k").wait(secs(5)).await.is_err());
    }
    assert_eq!(seen.said("cannot listen"), [Level::WARN]);
}
