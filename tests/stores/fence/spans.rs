//! The spans of fenced writes and transactions.

use std::{
    collections::HashMap,
    error::Error as StdError,
    fmt::Debug,
    sync::{Arc, Mutex, Once},
};

use mongodb::bson::{Document, doc};
use mongoseal::{Error, fence::Change};
use tracing::{
    Event, Instrument, Metadata, Subscriber,
    field::{Field, Visit},
    info_span, span,
};
use tracing_subscriber::{
    layer::{Context, Layer, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{Orders, one, plus, refused_by, shop};

/// Fields by name.
#[derive(Clone, Default)]
struct Fields(HashMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// A span of this crate.
#[derive(Clone)]
struct Recorded {
    id: span::Id,
    metadata: &'static Metadata<'static>,
    /// The name of its parent.
    parent: &'static str,
    fields: Fields,
    /// The errors of the events in it.
    errors: Vec<String>,
}

impl Recorded {
    fn of(&self, name: &str) -> &str {
        self.fields.0.get(name).map_or("", String::as_str)
    }
}

/// The spans of this crate that begin on this thread.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Recorded>>>);

impl Recorder {
    /// Records until the guard is dropped.
    ///
    /// Each thread without a subscriber of its own gets one that takes all and keeps nothing. Without it, a test of
    /// another thread that is the first to reach a span would turn that span off for all threads.
    fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        static EVERYWHERE: Once = Once::new();
        EVERYWHERE.call_once(|| tracing_subscriber::registry().init());
        let recorder = Self::default();
        let guard = tracing_subscriber::registry().with(recorder.clone()).set_default();
        (recorder, guard)
    }

    /// The spans of this name, as the table in the documentation has them: with its level and its fields.
    fn documented(&self, name: &str) -> Vec<Recorded> {
        let spans: Vec<_> =
            self.0.lock().unwrap().iter().filter(|span| span.metadata.name() == name).cloned().collect();
        for Recorded { metadata, .. } in &spans {
            let fields: Vec<_> = metadata.fields().iter().map(|field| format!("`{}`", field.name())).collect();
            let begin = format!("| `{name}` | `{}` |", metadata.level().to_string().to_lowercase());
            let row = include_str!("../../../docs/tracing.md").lines().find(|line| line.starts_with(&begin));
            let cells: Vec<_> = row.expect("the span has a row").split(" | ").collect();
            assert_eq!((metadata.target(), cells[3]), ("mongoseal", fields.join(", ").as_str()));
        }
        spans
    }

    fn change(&self, id: &span::Id, change: impl FnOnce(&mut Recorded)) {
        // An id is used again after its span has ended.
        if let Some(span) = self.0.lock().unwrap().iter_mut().rfind(|span| span.id == *id) {
            change(span);
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = context.span(id).and_then(|span| span.parent()).map_or("", |parent| parent.name());
        let metadata = attributes.metadata();
        self.0.lock().unwrap().push(Recorded { id: id.clone(), metadata, parent, fields, errors: Vec::new() });
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        self.change(id, |span| values.record(&mut span.fields));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let (Some(span), Some(error)) = (context.event_span(event), fields.0.remove("error")) {
            self.change(&span.id(), |span| span.errors.push(error));
        }
    }
}

#[tokio::test]
async fn a_fenced_write_is_one_span_with_its_outcome_below_its_caller() {
    let db = shop("spans_of_writes").await;
    let (recorder, _guard) = Recorder::begin();
    async { db.by(5).update_one(one(), plus()).await }.instrument(info_span!("request")).await.unwrap();
    refused_by(db.by(4).update_one(one(), plus()).await, 5);
    db.by(6).insert_one(doc! { "_id": 2 }).await.unwrap();
    db.by(7).bulk_write([Change::update_one(one(), plus())]).await.unwrap();

    let spans = recorder.documented("mongoseal.fenced_write");
    let outcomes: Vec<_> = spans.iter().map(|span| (span.of("token"), span.of("outcome"), span.parent)).collect();
    assert_eq!(
        outcomes,
        [("5", "written", "request"), ("4", "fenced", ""), ("6", "written", ""), ("7", "written", "")]
    );
    assert_eq!(spans[1].errors.len(), 1);
    let collection = db.orders().namespace().to_string();
    assert!(spans.iter().all(|span| span.of("collection") == collection));
}

#[tokio::test]
async fn a_transaction_is_one_span_with_its_outcome_below_its_caller() {
    let db = shop("spans_of_transactions").await;
    let seal = db.seal();
    let (lease, set) = (seal.acquire("k").await.unwrap(), seal.acquire_all(["a", "b"]).await.unwrap());
    let (recorder, _guard) = Recorder::begin();
    let orders = db.orders();
    let read = async |session: &mut mongodb::ClientSession| -> Result<Option<Document>, Error> {
        Ok(orders.find_one(one()).session(session).await?)
    };
    async { lease.transaction(read).await }.instrument(info_span!("request")).await.unwrap();
    set.transaction(read).await.unwrap();
    let sold_out = async |_: &mut mongodb::ClientSession| -> Result<(), Box<dyn StdError + Send + Sync>> {
        Err("sold out".into())
    };
    lease.transaction(sold_out).await.unwrap_err();
    seal.revoke("k").await.unwrap();
    lease.cancelled().await;
    assert!(matches!(lease.transaction(read).await, Err(Error::Lost { .. })));

    let spans = recorder.documented("mongoseal.transaction");
    let outcomes: Vec<_> = spans
        .iter()
        .map(|span| (span.of("leases"), span.of("key"), span.of("outcome"), span.parent, span.errors.len()))
        .collect();
    assert_eq!(
        outcomes,
        [
            ("1", "k", "committed", "request", 0),
            ("2", "", "committed", "", 0),
            ("1", "k", "failed", "", 1),
            ("1", "k", "lost", "", 1)
        ]
    );
    assert_eq!(spans[2].errors[0], "sold out");
    assert_eq!((spans[0].of("token"), spans[1].of("token")), (lease.token().to_string().as_str(), ""));
    // The transaction checks its leases, which is no operation of its own.
    assert!(recorder.documented("mongoseal.verify").is_empty());
}
