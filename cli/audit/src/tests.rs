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
