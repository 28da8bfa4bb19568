//! What the judges find, entry by entry.

use mongoseal::mongodb::bson::{DateTime, Document, doc};

use super::{Auditor, Finding, Kind};

/// A judge of the keys of `a.leases` and of the documents of `a.orders`.
struct Bench(Auditor);

/// A holder with this token, of which so many may hold the key, until this time.
fn holder(token: i64, limit: i32, expires_at: i64) -> Document {
    doc! { "version": token, "limit": limit, "expires_at": DateTime::from_millis(expires_at) }
}

impl Bench {
    fn new() -> Self {
        Self(Auditor::new("a.leases", [("a.orders", "fence")]))
    }

    fn see(&mut self, entry: &Document) -> Vec<Finding> {
        self.0.judge(entry)
    }

    /// The record of the key `k` at time 0.
    fn record(&mut self, version: i64, holders: &[Document]) -> Vec<Finding> {
        let now = DateTime::from_millis(0);
        let record = doc! { "_id": "k", "version": version, "holders": holders, "last_seen": now };
        self.see(&doc! { "op": "u", "ns": "a.leases", "o": record, "o2": { "_id": "k" } })
    }

    /// A write of the document 1 that leaves this token, at this time.
    fn write(&mut self, token: i64, at: i64) -> Vec<Finding> {
        let whole = doc! { "_id": 1, "fence": token };
        self.see(
            &doc! { "op": "u", "ns": "a.orders", "o": whole, "o2": { "_id": 1 }, "wall": DateTime::from_millis(at) },
        )
    }
}

fn kinds(findings: &[Finding]) -> Vec<Kind> {
    findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn a_write_is_late_from_the_expiry_on_though_the_holder_is_still_in_the_record() {
    let mut bench = Bench::new();
    bench.record(5, &[holder(5, 0, 100)]);
    assert_eq!(kinds(&bench.write(5, 99)), []);
    assert_eq!(kinds(&bench.write(5, 100)), [Kind::Late]);
    bench.record(6, &[holder(6, 0, 200)]);
    assert_eq!(kinds(&bench.write(5, 101)), [Kind::Exposed]);
    assert_eq!(kinds(&bench.write(6, 101)), []);
    assert_eq!(kinds(&bench.write(5, 102)), [Kind::Violation]);
}

#[test]
fn sharers_hold_a_key_together_up_to_the_least_of_their_limits() {
    let mut bench = Bench::new();
    bench.record(5, &[holder(5, 2, 100)]);
    assert_eq!(kinds(&bench.record(6, &[holder(5, 2, 100), holder(6, 2, 100)])), []);
    assert_eq!(kinds(&bench.write(5, 50)), [], "it holds the key beside a later sharer");
    let three = [holder(5, 2, 100), holder(6, 2, 100), holder(7, 3, 100)];
    assert_eq!(kinds(&bench.record(7, &three)), [Kind::Violation]);
}

#[test]
fn a_version_that_falls_is_told_once_and_a_token_must_be_above_it() {
    let mut bench = Bench::new();
    bench.record(5, &[]);
    assert_eq!(kinds(&bench.record(900, &[])), [], "an operator raised it");
    assert_eq!(kinds(&bench.record(901, &[holder(900, 0, 100)])), [Kind::Violation]);
    assert_eq!(kinds(&bench.record(450, &[])), [Kind::Violation]);
    assert_eq!(kinds(&bench.record(450, &[])), []);
    // The record was deleted after its retention. What was granted counts, and what it was raised to does not.
    let mut bench = Bench::new();
    bench.record(5, &[holder(5, 0, 100)]);
    bench.record(900, &[]);
    bench.see(&doc! { "op": "d", "ns": "a.leases", "o": { "_id": "k" } });
    assert_eq!(kinds(&bench.record(6, &[holder(6, 0, 100)])), []);
    bench.see(&doc! { "op": "d", "ns": "a.leases", "o": { "_id": "k" } });
    assert_eq!(kinds(&bench.record(6, &[holder(6, 0, 100)])), [Kind::Violation], "a token is granted once");
}

#[test]
fn a_document_that_is_gone_keeps_its_token_and_another_collection_in_its_place_has_none() {
    let mut bench = Bench::new();
    bench.record(5, &[holder(5, 2, 100)]);
    bench.record(6, &[holder(5, 2, 100), holder(6, 2, 100)]);
    bench.write(6, 50);
    bench.see(&doc! { "op": "d", "ns": "a.orders", "o": { "_id": 1 } });
    let again = bench.write(5, 50);
    assert!(again[0].what.contains("inserted it again"), "{again:?}");
    bench.write(6, 50);
    let rename = doc! { "renameCollection": "a.other", "to": "a.orders" };
    assert_eq!(kinds(&bench.see(&doc! { "op": "c", "ns": "a.$cmd", "o": rename })), []);
    assert_eq!(kinds(&bench.write(5, 50)), [Kind::Exposed], "and no violation");
    assert_eq!(bench.0.summary().unread, 1);
}

#[test]
fn a_transaction_that_writes_a_record_covers_its_documents_and_may_take_no_token_away() {
    let mut bench = Bench::new();
    bench.record(5, &[holder(5, 0, 100)]);
    bench.write(5, 50);
    let mut both = |o: Document, id: i32| {
        let renewed = doc! { "op": "u", "ns": "a.leases", "o": { "$v": 2, "diff": { "u": { "refreshes": 1_i64 } } }, "o2": { "_id": "k" } };
        let write = doc! { "op": "u", "ns": "a.orders", "o": o, "o2": { "_id": id } };
        kinds(&bench.see(&doc! { "op": "c", "ns": "admin.$cmd", "o": { "applyOps": [write, renewed] } }))
    };
    assert_eq!(both(doc! { "_id": 2, "n": 1 }, 2), []);
    assert_eq!(both(doc! { "_id": 1, "n": 1 }, 1), [Kind::Violation]);
}

type Change = fn(&mut Document);

/// A record that is complete, at time 50.
fn whole() -> Document {
    let date = DateTime::from_millis;
    let terms = |caller: &str| doc! { "caller": caller, "lease": caller, "ttl": 60_i64, "grace": 10_i64, "limit": 0, "since": date(40) };
    let waiter = |caller: &str| {
        let mut waiter = terms(caller);
        waiter.extend(doc! { "last_seen": date(45), "expires_at": date(90) });
        waiter
    };
    let mut holder = terms("a");
    holder.extend(doc! { "version": 5_i64, "expires_at": date(110) });
    doc! {
        "_id": "k", "version": 5_i64, "last_seen": date(50), "expires_at": date(200), "history": [], "holders": [holder],
        "queue": [waiter("c"), waiter("b")], "value": { "token": 5_i64, "write": 1_i64 }, "done": { "tick": 7_i64, "token": 4_i64 },
    }
}

fn inner<'a>(record: &'a mut Document, array: &str) -> &'a mut Vec<mongoseal::mongodb::bson::Bson> {
    record.get_array_mut(array).unwrap()
}

fn first_holder(record: &mut Document) -> &mut Document {
    inner(record, "holders")[0].as_document_mut().unwrap()
}

/// Grants the key to the next waiter, with this token.
fn grant(record: &mut Document, token: i64) {
    let mut next = inner(record, "queue").pop().unwrap().as_document().unwrap().clone();
    next.extend(
        doc! { "version": token, "since": DateTime::from_millis(60), "expires_at": DateTime::from_millis(130) },
    );
    inner(record, "holders").push(next.into());
    record.insert("version", token);
}

/// What is found when so much of a record changes at time 60.
fn found(before: impl Fn(&mut Document), change: impl Fn(&mut Document)) -> Vec<String> {
    let mut bench = Bench::new();
    let mut record = whole();
    before(&mut record);
    bench.see(&doc! { "op": "i", "ns": "a.leases", "o": record.clone() });
    record.insert("last_seen", DateTime::from_millis(60));
    change(&mut record);
    let found = bench.see(&doc! { "op": "u", "ns": "a.leases", "o": record, "o2": { "_id": "k" } });
    found.into_iter().map(|finding| finding.what).collect()
}

#[test]
fn changes_that_a_request_makes_are_no_findings() {
    let date = DateTime::from_millis;
    let allowed: [(&str, Change); 7] = [
        ("refresh", |record| drop(first_holder(record).insert("expires_at", DateTime::from_millis(130)))),
        ("leave", |record| drop(inner(record, "queue").remove(1))),
        ("hand-over", |record| {
            inner(record, "holders").clear();
            grant(record, 6);
        }),
        ("transfer", |record| {
            first_holder(record).extend(doc! { "version": 6_i64, "lease": "z", "since": DateTime::from_millis(60) });
            record.insert("version", 6_i64);
        }),
        ("put", |record| drop(record.insert("value", doc! { "token": 5_i64, "write": 2_i64 }))),
        ("complete", |record| {
            inner(record, "holders").clear();
            record.insert("done", doc! { "tick": 8_i64, "token": 5_i64 });
        }),
        ("reset", |record| drop(record.insert("done", doc! { "tick": 6_i64, "token": 4_i64 }))),
    ];
    for (name, change) in allowed {
        assert_eq!(found(|_| {}, change), Vec::<String>::new(), "{name}");
    }
    let early =
        |record: &mut Document| first_holder(record).extend(doc! { "released_at": date(60), "expires_at": date(80) });
    assert_eq!(found(|_| {}, early), Vec::<String>::new(), "a release before the end of a minimum hold");
    let complete = |record: &mut Document| drop(record.insert("done", doc! { "tick": 8_i64, "token": 5_i64 }));
    let expired = |record: &mut Document| inner(record, "holders").clear();
    assert_eq!(found(expired, complete), Vec::<String>::new(), "a completion after the expiry");
    let raised = |record: &mut Document| drop(record.insert("version", 9_i64));
    assert_eq!(found(raised, complete), Vec::<String>::new(), "a completion after a raise");
}

#[test]
fn each_change_that_no_request_makes_is_found() {
    let date = DateTime::from_millis;
    let nothing: Change = |_| {};
    let expired: Change = |record| drop(first_holder(record).insert("expires_at", DateTime::from_millis(60)));
    let held_on: Change = |record| drop(first_holder(record).insert("released_at", DateTime::from_millis(50)));
    let cases: [(&str, Change, Change); 17] = [
        ("its record stops to matter sooner than before", nothing, |record| {
            drop(record.insert("expires_at", DateTime::from_millis(199)));
        }),
        ("token 5 expires sooner than before", nothing, |record| {
            drop(first_holder(record).insert("expires_at", DateTime::from_millis(109)));
        }),
        ("token 5 was extended after it had expired", expired, |record| {
            drop(first_holder(record).insert("expires_at", DateTime::from_millis(130)));
        }),
        ("token 5 was extended by more than its ttl and its grace", nothing, |record| {
            drop(first_holder(record).insert("expires_at", DateTime::from_millis(131)));
        }),
        ("token 5 became another lease", nothing, |record| drop(first_holder(record).insert("lease", "z"))),
        ("token 5 became another lease", nothing, |record| {
            drop(first_holder(record).insert("not_after", DateTime::from_millis(500)));
        }),
        ("the minimum hold of token 5 was cut short", held_on, |record| inner(record, "holders").clear()),
        ("token 5 holds it after its revocation", nothing, |record| {
            drop(record.insert("history", vec![doc! { "tokens": [5_i64], "at": DateTime::from_millis(60) }]));
        }),
        ("its queue has another order", nothing, |record| inner(record, "queue").reverse()),
        ("token 6 was granted before b, which was queued sooner", nothing, |record| {
            inner(record, "holders").clear();
            inner(record, "queue").reverse();
            grant(record, 6);
        }),
        ("token 6 lasts longer than its ttl and its grace", nothing, |record| {
            inner(record, "holders").clear();
            grant(record, 6);
            first_holder(record).insert("expires_at", DateTime::from_millis(131));
        }),
        (
            "token 6 was granted while token 5 held it",
            |record| inner(record, "queue").clear(),
            |record| {
                first_holder(record).extend(doc! { "caller": "d", "version": 6_i64 });
                drop(record.insert("version", 6_i64));
            },
        ),
        ("its value is gone", nothing, |record| drop(record.remove("value"))),
        ("token 4 wrote its value without holding it exclusively", nothing, |record| {
            drop(record.insert("value", doc! { "token": 4_i64, "write": 2_i64 }));
        }),
        ("its last completed tick is gone", nothing, |record| drop(record.remove("done"))),
        ("token 5 completed tick 6 after tick 7 of token 4", nothing, |record| {
            drop(record.insert("done", doc! { "tick": 6_i64, "token": 5_i64 }));
        }),
        ("token 3 completed tick 8 without holding it", nothing, |record| {
            drop(record.insert("done", doc! { "tick": 8_i64, "token": 3_i64 }));
        }),
    ];
    for (what, before, change) in cases {
        assert_eq!(found(before, change), [what]);
    }
    // What a sharer writes is no value of the key.
    let share = |record: &mut Document| drop(first_holder(record).insert("limit", 2));
    let put =
        |record: &mut Document| drop(record.insert("value", doc! { "token": 5_i64, "write": 2_i64, "at": date(60) }));
    assert_eq!(found(share, put), ["token 5 wrote its value without holding it exclusively"]);
}

#[test]
fn after_missing_entries_only_tokens_are_compared() {
    let mut bench = Bench::new();
    bench.see(&doc! { "op": "i", "ns": "a.leases", "o": whole() });
    bench.write(5, 50);
    bench.0.skip();
    let delta = doc! { "$v": 2, "diff": { "u": { "expires_at": DateTime::from_millis(1) } } };
    assert!(bench.see(&doc! { "op": "u", "ns": "a.leases", "o": delta, "o2": { "_id": "k" } }).is_empty());
    let unplaced = doc! { "$v": 2, "diff": { "u": { "n": 1 } } };
    assert!(bench.see(&doc! { "op": "u", "ns": "a.orders", "o": unplaced, "o2": { "_id": 1 } }).is_empty());
    assert_eq!(kinds(&bench.record(6, &[holder(6, 0, 100)])), []);
    bench.0.skip();
    assert_eq!(kinds(&bench.record(7, &[])), []);
    assert_eq!(kinds(&bench.record(7, &[holder(6, 0, 100)])), [Kind::Violation]);
}
