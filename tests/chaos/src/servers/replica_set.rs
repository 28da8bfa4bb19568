//! The replica set of MongoDB.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use fastrand::Rng;
use mongodb::{
    bson::{Document, doc},
    options::{Collation, CollationStrength},
};
use mongoseal::{Builder, FencingToken, Mongoseal};
use mongoseal_audit::Auditor;
use mongoseal_test_support::ReplicaSet;
use tokio::time::sleep;

use super::{MEMBERS, Servers};
use crate::{
    crew::{APP_NAME, DATABASE, app_name},
    faults::{Chaos, Kind},
    history::History,
    options::Options,
    sabotage::Sabotage,
    words::{Event, Fault, Micros, now},
    worker::{Backing, COLLATED, DOCUMENTS, RETENTION, WRITTEN_KEYS},
};

impl Servers for ReplicaSet {
    async fn start(_: &Options, kinds: &[Kind], own_clocks: bool) -> Self {
        let mut builder = Self::builder().members(MEMBERS).proxied().election_timeout(Duration::from_secs(2));
        builder = builder.parameter("shutdownTimeoutMillisForSignaledShutdown", "500");
        // At the end the log is judged as a whole.
        builder = builder.oplog_megabytes(2_048);
        // A worker that is killed in a transaction keeps the record locked for so long, by default for a minute: longer
        // than any offer, so that at the end of a run its key could not be had. If commits alone are refused, no transaction
        // may be left open, and one that is has to be seen.
        if kinds.iter().any(|kind| *kind != Kind::RefuseCommits) {
            builder = builder.parameter("transactionLifetimeLimitSeconds", "5");
        }
        if kinds.contains(&Kind::Login) {
            builder = builder.auth();
        }
        if own_clocks {
            builder = builder.own_clocks();
        }
        builder.start().await
    }

    fn backing(&self) -> Backing {
        Backing::MongoDb
    }

    fn uri(&self, slot: u32) -> String {
        // The pool and the resends of `Mongoseal::connect`. It opens several connections at a time: if the way to the servers is long,
        // one after another takes seconds.
        let uri = self.uri_with("maxPoolSize=64&maxConnecting=8&maxAdaptiveRetries=0&appName=");
        format!("{uri}{}", app_name(slot))
    }

    fn control_uri(&self) -> String {
        self.uri_with("appName=control")
    }

    fn tamper(&self, sabotage: Sabotage) {
        sabotage.tamper(self);
    }

    fn heal(&self) {
        self.proxy().heal();
    }

    async fn settled(&self) {
        self.settled().await;
    }

    async fn term(&self) -> i64 {
        let status = self.admin(self.primary().await, doc! { "replSetGetStatus": 1 }).await;
        status.expect("a primary tells its status").get_i64("term").expect("a status has a term")
    }

    fn set_clock(&self, server: usize, shift: &str) {
        self.set_clock(server, shift);
    }

    async fn time(&self, server: usize) -> Option<SystemTime> {
        let hello = self.admin(server, doc! { "hello": 1 }).await.ok()?;
        Some(hello.get_datetime("localTime").ok()?.to_system_time())
    }

    async fn inflict(chaos: &Chaos<Self>, kind: Kind, rng: &mut Rng) -> Fault {
        chaos.inflict(kind, rng).await
    }

    async fn seal(&self, builder: Builder) -> Mongoseal {
        let database = self.client().await.database(DATABASE);
        builder.retention(RETENTION).on_shared_client(&database).expect("the settings are valid")
    }

    async fn prepare(&self) {
        let documents = self.client().await.database(DATABASE).collection::<Document>(DOCUMENTS);
        let empty = WRITTEN_KEYS.map(|key| doc! { "_id": key, "count": 0_i64 });
        documents.insert_many(empty).await.expect("a new set takes documents");
        let collation = Collation::builder().locale("en").strength(CollationStrength::Secondary).build();
        let database = documents.client().database(DATABASE);
        database.create_collection(COLLATED).collation(collation).await.expect("a new set takes collections");
    }

    /// Reports how many change streams each process waits for. A primary that does not answer reports nothing.
    async fn count(self: Arc<Self>, history: History, until: Micros) {
        let admin = self.client().await.database("admin");
        let is_stream = doc! {
            "appName": { "$regex": format!("^{APP_NAME}") },
            "cursor.originatingCommand.pipeline.0.$changeStream": { "$exists": true },
        };
        let pipeline = [
            doc! { "$currentOp": { "allUsers": true } },
            doc! { "$match": is_stream },
            doc! { "$group": { "_id": "$appName", "count": { "$sum": 1_i64 } } },
        ];
        while now() < until {
            sleep(Duration::from_secs(1)).await;
            let Ok(mut counts) = admin.aggregate(pipeline.clone()).await else { continue };
            let at = now();
            while counts.advance().await.unwrap_or(false) {
                let counted = counts.current();
                let slot = counted.get_str("_id").ok().and_then(|name| name.strip_prefix(APP_NAME)?.parse().ok());
                let count = counted.get_i64("count").ok().and_then(|count| u64::try_from(count).ok());
                if let (Some(slot), Some(count)) = (slot, count) {
                    history.note(Event::Open { slot, count, at });
                }
            }
        }
    }

    async fn read(&self, history: &History) {
        history.note(judge_log(self, &history.events()).await.expect("the oplog can be read"));
    }
}

/// Has the log of the set judged, and looks in it for each token that a worker was granted.
async fn judge_log(set: &ReplicaSet, events: &[Event]) -> mongodb::error::Result<Event> {
    let [leases, fenced] = ["mongoseal", DOCUMENTS].map(|name| format!("{DATABASE}.{name}"));
    let mut auditor = Auditor::new(&leases, [(fenced.as_str(), "fence")]);
    let mut broken = Vec::new();
    let oplog = set.client().await.database("local").collection::<Document>("oplog.rs");
    // The log is bounded, and the record of a grant that is older than its first entry is gone.
    let first = oplog.find_one(doc! {}).sort(doc! { "$natural": 1 }).await?;
    let first = first.and_then(|entry| entry.get_timestamp("ts").ok()).map_or(0, |time| u64::from(time.time));
    let of_them = doc! { "$or": [{ "ns": { "$in": auditor.namespaces() } }, { "op": "c" }] };
    let mut entries = oplog.find(of_them).sort(doc! { "$natural": 1 }).await?;
    while entries.advance().await? {
        let findings = auditor.judge(&entries.deserialize_current()?);
        let violations = findings.into_iter().filter(|finding| finding.kind == mongoseal_audit::Kind::Violation);
        broken.extend(violations.map(|finding| finding.to_string()));
    }
    for (key, granted) in crate::judge::leases(events) {
        let tokens = granted.iter().filter_map(|lease| FencingToken::new(lease.token).ok());
        let unseen = tokens.filter(|token| token.clock_seconds() > first && !auditor.has_granted(key, *token));
        broken
            .extend(unseen.map(|token| format!("key {key:?}: no entry has token {token}, which a worker was granted")));
    }
    let summary = auditor.summary();
    Ok(Event::Log { read: summary.read, unread: summary.unread, broken })
}
