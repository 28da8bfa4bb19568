//! Secrets stay out of errors and logs, and oversized or foreign data does not break a client.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex, Once},
};

use mongodb::bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use mongoseal::{Error, LeaseId, Mongoseal};
use mongoseal_test_support::ReplicaSet;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{
    layer::{Context, Layer, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{TestDatabase, by_length, secs};

/// Everything that is said on this thread, at whatever level and by whomever.
#[derive(Clone, Default)]
pub(crate) struct Said(Arc<Mutex<String>>);

impl Said {
    /// Listens from now on, until the guard is dropped.
    ///
    /// Each thread without a subscriber of its own gets one that takes all events and keeps none. Without it, a test
    /// of another thread that is the first to reach an event would turn that event off for all threads.
    pub(crate) fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        static EVERYWHERE: Once = Once::new();
        EVERYWHERE.call_once(|| tracing_subscriber::registry().init());
        let said = Self::default();
        let guard = tracing_subscriber::registry().with(said.clone()).set_default();
        (said, guard)
    }

    /// What was said since this was called last.
    pub(crate) fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0.lock().unwrap(), "{field}={value:?} ").unwrap();
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut next = Some(value);
        while let Some(error) = next {
            write!(self.0.lock().unwrap(), "{field}={error} {error:?} ").unwrap();
            next = error.source();
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Said {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        attributes.record(&mut self.clone());
    }

    fn on_record(&self, _: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }
}

/// All that an error says, with whatever lies behind it.
pub(crate) fn all_of(error: &dyn std::error::Error) -> String {
    let mut said = format!("{error} {error:?} ");
    if let Some(source) = error.source() {
        said += &all_of(source);
    }
    said
}

pub(crate) struct Secrets {
    pub(crate) password: &'static str,
    pub(crate) ids: Vec<LeaseId>,
}

impl Secrets {
    /// That none of them is in a text, whole or without its first group, in whatever form bytes are shown.
    pub(crate) fn are_not_in(&self, text: &str, what: &str) {
        assert!(!text.contains(self.password), "the password is in {what}");
        for id in &self.ids {
            let (whole, bytes) = (id.expose(), id.to_bytes());
            // As base64 after the first bytes.
            let bson = Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: bytes.to_vec() }).to_string();
            let base64 = bson.rsplit(' ').next().unwrap().trim_end_matches(')');
            let forms = [
                whole[9..].to_owned(),
                whole.replace('-', "")[8..].to_owned(),
                whole.replace('-', "")[8..].to_uppercase(),
                base64[6..].to_owned(),
                format!("{:?}", &bytes[4..]).trim_matches(['[', ']']).to_owned(),
            ];
            for form in forms {
                assert!(!text.contains(&form), "a lease id is in {what}, as {form}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn no_line_of_a_log_and_no_error_carries_a_password_or_a_whole_lease_id() {
    let (said, _guard) = Said::listen();
    let mut secrets = Secrets { password: "hunter2-s3cret", ids: Vec::new() };
    let set = ReplicaSet::builder().auth().start().await;
    let actions = vec![doc! {
        "resource": { "db": "app", "collection": "mongoseal" },
        "actions": ["find", "insert", "update", "changeStream"],
    }];
    set.add_user("user", secrets.password, "app", actions).await;
    let uri = set.uri_as("user", secrets.password, "app");
    let seal = Mongoseal::builder().database("app").connect(&uri).await.unwrap();
    let mut shown = vec![format!("{seal:?}")];

    // One that is refused, one that is lost, one that nobody confirms, and one that fails at its record.
    let lease = seal.acquire("k").group("g").await.unwrap();
    secrets.ids.push(lease.id());
    shown.push(format!("{lease:?} {:?} {}", lease.id(), lease.id()));
    let mut errors = vec![seal.acquire("k").await.unwrap_err()];
    errors.push(seal.resume("k", lease.id(), lease.token()).await.unwrap_err());
    let uncertain = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
    let failing = set.fail_command("", &["findAndModify"], uncertain, 1).await;
    lease.refresh().await.unwrap();
    failing.off().await;
    let records = set.client().await.database("app").collection::<Document>("mongoseal");
    records.update_one(doc! { "_id": "k" }, doc! { "$set": { "version": "none" } }).await.unwrap();
    errors.push(lease.refresh().await.unwrap_err());
    errors.push(seal.inspect("k").await.unwrap_err());
    records.update_one(doc! { "_id": "k" }, doc! { "$set": { "version": 1_i64, "holders": 7 } }).await.unwrap();
    errors.push(seal.acquire("k").wait(secs(1)).await.unwrap_err());
    records.delete_one(doc! { "_id": "k" }).await.unwrap();
    errors.push(lease.refresh().await.unwrap_err());
    // A privilege goes while a lease is held: the server quotes the command that it refuses.
    let lease = seal.acquire("k").await.unwrap();
    secrets.ids.push(lease.id());
    let admin = set.client().await.database("app");
    admin.run_command(doc! { "updateUser": "user", "roles": [] }).await.unwrap();
    errors.push(lease.refresh().await.unwrap_err());
    errors.push(seal.release_group("g").await.unwrap_err());
    errors.push(lease.release().await.unwrap_err());
    seal.shutdown().await;
    let wrong = set.uri_as("user", &format!("{}!", secrets.password), "app");
    errors.push(Mongoseal::builder().database("app").connect(wrong).await.unwrap_err());
    // What is no connection string is quoted by nobody.
    errors.push(Mongoseal::connect(uri.replacen("mongodb", "mongodbb", 1)).await.unwrap_err());
    errors.push(Mongoseal::connect(uri.replace('?', "?maxPoolSize=many&")).await.unwrap_err());

    for error in &errors {
        secrets.are_not_in(&all_of(error), &format!("the error {error}"));
    }
    for text in shown {
        secrets.are_not_in(&text, "what a handle or a lease shows");
    }
    let said = said.take();
    assert!(!said.is_empty(), "something was heard");
    secrets.are_not_in(&said, "the log");
}

/// If a validator refuses a write, the server quotes the record in its write error.
#[tokio::test]
async fn what_a_validator_makes_the_server_quote_is_in_no_error_and_its_code_is() {
    let db = TestDatabase::new("mongoseal_validator").await;
    let seal = db.seal();
    let lease = seal.acquire("k").shared().group("g").await.unwrap();
    let other = seal.acquire("k").shared().await.unwrap();
    let secrets = Secrets { password: "unused-s3cret", ids: vec![lease.id(), other.id()] };
    let admits_none = doc! { "collMod": "mongoseal", "validator": { "version": { "$type": "string" } } };
    db.database.run_command(admits_none).await.unwrap();
    for error in [
        lease.refresh().await.unwrap_err(),
        lease.transaction(async |_session| -> mongoseal::Result<()> { Ok(()) }).await.unwrap_err(),
        seal.acquire("k").shared().await.unwrap_err(),
        seal.refresh_group("g", secs(40)).await.unwrap_err(),
        seal.release_group("g").await.unwrap_err(),
        seal.revoke("k").await.unwrap_err(),
        other.release().await.unwrap_err(),
    ] {
        secrets.are_not_in(&all_of(&error), &format!("the error {error}"));
        assert!(matches!(error, Error::Invalid { .. }) && error.code() == Some(121), "{error:?}");
    }
}

#[tokio::test]
async fn a_connection_string_that_is_misread_is_refused_without_its_password() {
    for uri in [
        "mongodb://user:hunter2?x@127.0.0.1:9/",
        "mongodb://user:hunter2/x@127.0.0.1:9/",
        "mongodb://user:hunter2#x@127.0.0.1:9/",
        "mongodb://user:%hunter2@127.0.0.1:9/",
        "mongodb://user:%a\u{e9}hunter2@127.0.0.1:9/",
        "mongodb://user:hunter2",
        "mongodb://user:hunter2@127.0.0.1:many/",
        "mongodb://user:hunter2@127.0.0.1:9/?maxPoolSize=many",
        "mongodb+srv://user:hunter2@127.0.0.1:9/",
        "",
        "localhost",
        "http://localhost",
        "mongodb://localhost/?w=-5",
    ] {
        let error = Mongoseal::connect(uri).await.expect_err(uri);
        assert!(matches!(error, Error::Invalid { .. }), "{uri}: {error:?}");
        let said = all_of(&error);
        assert!(!said.contains("hunter2"), "{uri}: {said}");
        assert!(uri.contains("hunter2") || said.contains("correct it"), "{uri}: {said}");
    }
}

#[tokio::test]
#[ignore = "night: documents of 16 MiB on a set of its own"]
async fn a_document_of_sixteen_mebibytes_under_a_key_is_an_error_and_not_the_end() {
    // The cache of the other servers has no room for such a write.
    let set = ReplicaSet::start(1).await;
    let larger = doc! { "setParameter": 1, "wiredTigerEngineRuntimeConfig": "cache_size=1G" };
    set.admin(0, larger).await.unwrap();
    let database = set.client().await.database("huge");
    let records = database.collection::<Document>("mongoseal");
    let seal = Mongoseal::on_shared_client(&database);
    let most = 16 * 1024 * 1024 - 200;
    records.insert_one(doc! { "_id": "foreign", "somebody": "x".repeat(most) }).await.unwrap();
    assert!(matches!(seal.acquire("foreign").await, Err(Error::Corrupt { .. })));
    assert!(matches!(seal.inspect("foreign").await, Err(Error::Corrupt { .. })));
    assert!(matches!(seal.watch("foreign").await, Err(Error::Corrupt { .. })));
    // A record of ours that somebody filled up: what does not fit any more is refused, and nothing is lost.
    let lease = seal.acquire("full").ttl(secs(60)).without_refresh().await.unwrap();
    let fill = doc! { "$set": { "theirs": "x".repeat(most - 900) } };
    records.update_one(doc! { "_id": "full" }, fill).await.unwrap();
    lease.verify().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let asked = seal.acquire("full").metadata("long", "x".repeat(4_000)).wait(secs(60)).into_future();
        waiting.push(tokio::time::timeout(secs(5), asked).await);
    }
    assert!(waiting.iter().any(|asked| matches!(asked, Ok(Err(Error::Invalid { .. })))), "{waiting:?}");
    lease.verify().await.unwrap();
    assert!(seal.leases().await.unwrap().next().await.unwrap().unwrap().holder.token == lease.token());
    lease.release().await.unwrap();
    drop(seal.acquire("beside").await.unwrap());
}

#[tokio::test]
async fn a_queue_full_of_foreign_entries_costs_one_request() {
    let db = TestDatabase::new("mongoseal_crowd").await;
    let seal = db.seal();
    let lease = seal.acquire("k").ttl(secs(60)).await.unwrap();
    let far = mongodb::bson::DateTime::from_millis(i64::from(i32::MAX) * 1000);
    let entries: Vec<Bson> = (0..by_length(6_000, 60_000))
        .map(|number| match number % 3 {
            0 => Bson::Int32(number),
            1 => doc! { "lease": number }.into(),
            _ => doc! { "expires_at": far, "limit": "all", "caller": "$$ROOT" }.into(),
        })
        .collect();
    db.records().update_one(doc! { "_id": "k" }, doc! { "$set": { "queue": entries } }).await.unwrap();
    lease.refresh().await.unwrap();
    assert!(seal.inspect("k").await.unwrap().unwrap().queue.is_empty(), "none of them is one that waits");
    lease.release().await.unwrap();
    drop(seal.acquire("k").await.unwrap());
}
