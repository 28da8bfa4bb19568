//! What whoever watches the traces can see.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
};

use mongoseal::{Mongoseal, Retry};
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};
use tracing_core::span::Current;

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
static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Seen::default()));

/// The spans and events of this crate, as they were seen.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Traces>>);

#[derive(Default)]
struct Traces {
    /// The id of a span is its number here, counted from one.
    spans: Vec<(&'static Metadata<'static>, Fields)>,
    /// Those that the thread is in, the innermost last.
    entered: Vec<Id>,
    /// With the name of the span they happened in.
    events: Vec<(Level, String, Fields)>,
}

impl Seen {
    /// Watches the thread from now on.
    fn watch() -> (Self, DefaultGuard) {
        LazyLock::force(&OTHER);
        let seen = Self::default();
        let guard = tracing::subscriber::set_default(seen.clone());
        (seen, guard)
    }

    fn spans(&self, name: &str) -> Vec<Fields> {
        let traces = self.0.lock().unwrap();
        traces.spans.iter().filter(|span| span.0.name() == name).map(|span| span.1.clone()).collect()
    }

    /// The levels at which something was said that contains this.
    fn said(&self, what: &str) -> Vec<Level> {
        let traces = self.0.lock().unwrap();
        traces.events.iter().filter(|event| event.2.of("message").contains(what)).map(|event| event.0).collect()
    }
}

impl Traces {
    fn span(&mut self, id: &Id) -> &mut (&'static Metadata<'static>, Fields) {
        &mut self.spans[usize::try_from(id.into_u64()).unwrap() - 1]
    }
}

impl Subscriber for Seen {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut traces = self.0.lock().unwrap();
        traces.spans.push((attributes.metadata(), fields));
        Id::from_u64(traces.spans.len().try_into().unwrap())
    }

    fn record(&self, id: &Id, record: &Record<'_>) {
        record.record(&mut self.0.lock().unwrap().span(id).1);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut traces = self.0.lock().unwrap();
        let entered = traces.entered.last().filter(|_| event.is_contextual());
        let id = event.parent().or(entered).cloned();
        let span = id.map_or("", |id| traces.span(&id).0.name()).to_owned();
        traces.events.push((*event.metadata().level(), span, fields));
    }

    fn current_span(&self) -> Current {
        let mut traces = self.0.lock().unwrap();
        let Some(id) = traces.entered.last().cloned() else { return Current::none() };
        let metadata = traces.span(&id).0;
        Current::new(id, metadata)
    }

    fn enter(&self, id: &Id) {
        self.0.lock().unwrap().entered.push(id.clone());
    }

    fn exit(&self, id: &Id) {
        let mut traces = self.0.lock().unwrap();
        let at = traces.entered.iter().rposition(|entered| entered == id).unwrap();
        traces.entered.remove(at);
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
