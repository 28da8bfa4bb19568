use super::*;

fn seen(mut record: Document) -> Result<(Record, StoreClock)> {
    record.insert("now", DateTime::from_millis(5));
    record.insert("hlc", Bson::Timestamp(mongodb::bson::Timestamp { time: 1, increment: 2 }));
    decode(&"k".parse().unwrap(), &record)
}

fn record() -> Document {
    doc! {
        "_id": "k", "v": 1, "version": 7_i64, "queue": [], "handover": "", "history": [],
        "holders": [{
            "lease": encode_lease(LeaseId::from_bytes([1; 16])), "caller": "0123456789abcdef/1", "owner": "me", "version": 7_i64, "limit": 0,
            "ttl": 1_i64, "grace": 0_i64, "wait_ttl": 0_i64, "refreshes": 0_i64, "since": DateTime::from_millis(1),
            "last_seen": DateTime::from_millis(1), "expires_at": DateTime::from_millis(2), "group": "", "metadata": {},
        }],
        "last_seen": DateTime::from_millis(1), "expires_at": DateTime::from_millis(2),
    }
}

#[test]
fn a_record_of_another_shape_is_corrupt_and_the_error_names_the_field() {
    assert!(seen(record()).is_ok());
    assert!(seen(doc! { "_id": "k" }).is_err());
    let breaks: [(&str, Document); 12] = [
        ("`history[0]` is not a document", doc! { "history": [1] }),
        ("`history[0].reason` is missing", doc! { "history": [{ "by": "ops" }] }),
        (
            "`history[0].tokens` is not an array",
            doc! { "history": [{ "by": "", "reason": "", "at": DateTime::from_millis(1), "tokens": 1 }] },
        ),
        ("`v` is not a format version", doc! { "v": 0 }),
        ("`v` is not a format version", doc! { "v": 1.0 }),
        ("`v` is not a format version", doc! { "v": 2_i64 }),
        ("`version` is not", doc! { "version": 7 }),
        ("`version` is not", doc! { "version": (1_i64 << 53) - 1 }),
        ("`holders` is not an array", doc! { "holders": "me" }),
        ("`holders[0]` is not a document", doc! { "holders": [1] }),
        ("`holders[0].lease` is missing", doc! { "holders": [{}] }),
        ("`history` is not an array", doc! { "history": {} }),
    ];
    for (says, part) in breaks {
        let mut broken = record();
        broken.extend(part);
        let error = seen(broken).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }));
        assert!(error.to_string().contains(says), "{error}");
    }
    let mut broken = record();
    broken.remove("v");
    let error = seen(broken).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { .. }) && error.to_string().contains("`v` is missing"), "{error}");
}

#[test]
fn a_record_of_a_newer_format_is_invalid_and_the_error_says_to_upgrade() {
    let mut newer = record();
    newer.insert("v", 2);
    newer.remove("history");
    let error = seen(newer).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    for says in ["\"k\"", "version 2", "version 1", "upgrade mongoseal"] {
        assert!(error.to_string().contains(says), "{error}");
    }
}
