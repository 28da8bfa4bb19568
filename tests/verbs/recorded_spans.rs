//! A subscriber that keeps the spans and events of a test.

use std::{
    collections::HashMap,
    error::Error as StdError,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
};

use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};
use tracing_core::span::Current;

/// Fields by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(HashMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn StdError + 'static)) {
        let errors = std::iter::successors(Some(value), |error: &&(dyn StdError + 'static)| (*error).source());
        let texts: Vec<_> = errors.map(ToString::to_string).collect();
        self.0.insert(field.name(), texts.join(" <- "));
    }
}

impl Fields {
    pub(crate) fn of(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

/// A subscriber that sees all and is there to the end. With one subscriber at a time, a callsite that another thread meets first
/// is off for all threads.
static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Seen::default()));

/// The spans and events of this crate, as they were seen.
#[derive(Clone, Default)]
pub(crate) struct Seen(pub(crate) Arc<Mutex<Traces>>);

#[derive(Default)]
pub(crate) struct Traces {
    /// The id of a span is its number here, counted from one.
    pub(crate) spans: Vec<Span>,
    /// Those that the thread is in, the innermost last.
    pub(crate) entered: Vec<Id>,
    /// With the name of the span they happened in.
    pub(crate) events: Vec<(Level, String, Fields)>,
}

/// A span, as it was seen.
#[derive(Clone)]
pub(crate) struct Span {
    pub(crate) metadata: &'static Metadata<'static>,
    pub(crate) fields: Fields,
    /// The name of its parent.
    pub(crate) parent: &'static str,
    /// How many handles of it there are. Without one it is closed.
    pub(crate) handles: usize,
    /// The events in it that have an error.
    pub(crate) errors: Vec<Fields>,
}

impl Span {
    pub(crate) fn of(&self, name: &str) -> &str {
        self.fields.of(name)
    }
}

impl Seen {
    /// Watches the thread from now on.
    pub(crate) fn watch() -> (Self, DefaultGuard) {
        LazyLock::force(&OTHER);
        let seen = Self::default();
        let guard = tracing::subscriber::set_default(seen.clone());
        (seen, guard)
    }

    pub(crate) fn spans(&self, name: &str) -> Vec<Span> {
        let traces = self.0.lock().unwrap();
        traces.spans.iter().filter(|span| span.metadata.name() == name).cloned().collect()
    }

    /// The levels at which something was said that contains this.
    pub(crate) fn said(&self, what: &str) -> Vec<Level> {
        let traces = self.0.lock().unwrap();
        traces.events.iter().filter(|event| event.2.of("message").contains(what)).map(|event| event.0).collect()
    }
}

impl Traces {
    fn span(&mut self, id: &Id) -> &mut Span {
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
        let entered = traces.entered.last().filter(|_| attributes.is_contextual());
        let parent = attributes.parent().or(entered).cloned().map_or("", |id| traces.span(&id).metadata.name());
        traces.spans.push(Span { metadata: attributes.metadata(), fields, parent, handles: 1, errors: Vec::new() });
        Id::from_u64(traces.spans.len().try_into().unwrap())
    }

    fn record(&self, id: &Id, record: &Record<'_>) {
        record.record(&mut self.0.lock().unwrap().span(id).fields);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut traces = self.0.lock().unwrap();
        let entered = traces.entered.last().filter(|_| event.is_contextual());
        let id = event.parent().or(entered).cloned();
        let span = id.as_ref().map_or("", |id| traces.span(id).metadata.name()).to_owned();
        if let Some(id) = id.filter(|_| !fields.of("error").is_empty()) {
            traces.span(&id).errors.push(fields.clone());
        }
        traces.events.push((*event.metadata().level(), span, fields));
    }

    fn current_span(&self) -> Current {
        let mut traces = self.0.lock().unwrap();
        let Some(id) = traces.entered.last().cloned() else { return Current::none() };
        let metadata = traces.span(&id).metadata;
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

    fn clone_span(&self, id: &Id) -> Id {
        self.0.lock().unwrap().span(id).handles += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut traces = self.0.lock().unwrap();
        let span = traces.span(&id);
        span.handles -= 1;
        span.handles == 0
    }
}
