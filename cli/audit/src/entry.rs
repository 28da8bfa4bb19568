//! The writes in an entry of the oplog.

use std::collections::HashMap;

use mongoseal::mongodb::bson::{Bson, Document};

/// A write of one document.
#[derive(Debug, PartialEq)]
pub(super) struct Write {
    pub(super) namespace: String,
    pub(super) id: Bson,
    pub(super) change: Change,
}

#[derive(Debug, PartialEq)]
pub(super) enum Change {
    Insert(Document),
    Replace(Document),
    /// What changed, as the member `diff` of `$v: 2`.
    Delta(Document),
    Delete,
}

#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "nearly all steps are writes")]
pub(super) enum Step {
    Write(Write),
    /// A collection is no more, or a whole database if the name ends with a dot.
    Dropped(String),
    /// What is not understood, with its namespace.
    Unread(String),
}

/// Lists the documents in an array of a document.
fn documents<'a>(of: &'a Document, array: &str) -> impl Iterator<Item = &'a Document> + use<'a> {
    of.get_array(array).into_iter().flatten().filter_map(Bson::as_document)
}

/// Reads entries, and keeps those of transactions that have not ended.
#[derive(Default)]
pub(super) struct Reader {
    /// The operations of each transaction.
    open: HashMap<String, Vec<Document>>,
}

impl Reader {
    /// Returns what an entry did, in its order. A transaction does all with its last entry.
    pub(super) fn steps(&mut self, entry: &Document) -> Vec<Step> {
        if entry.get_str("op") != Ok("c") {
            return step(entry).into_iter().collect();
        }
        let Ok(command) = entry.get_document("o") else { return Vec::new() };
        let database = entry.get_str("ns").unwrap_or_default().split('.').next().unwrap_or_default();
        let in_database = |collection: &str| format!("{database}.{collection}");
        let name = command.keys().next().map(String::as_str).unwrap_or_default();
        match name {
            "applyOps" => {
                let operations = documents(command, "applyOps").cloned();
                let Some(transaction) = transaction(entry) else {
                    return operations.filter_map(|op| step(&op)).collect();
                };
                let mut whole = self.open.remove(&transaction).unwrap_or_default();
                whole.extend(operations);
                let is_open = ["partialTxn", "prepare"].iter().any(|flag| command.get_bool(flag) == Ok(true));
                if is_open {
                    self.open.insert(transaction, whole);
                    return Vec::new();
                }
                whole.iter().filter_map(step).collect()
            }
            "commitTransaction" => {
                let whole = transaction(entry).and_then(|transaction| self.open.remove(&transaction));
                whole.unwrap_or_default().iter().filter_map(step).collect()
            }
            "abortTransaction" => {
                transaction(entry).and_then(|transaction| self.open.remove(&transaction));
                Vec::new()
            }
            "drop" => command.get_str("drop").map(|name| Step::Dropped(in_database(name))).into_iter().collect(),
            "dropDatabase" => vec![Step::Dropped(in_database(""))],
            "renameCollection" => {
                let both = ["renameCollection", "to"].iter().filter_map(|field| command.get_str(field).ok());
                both.flat_map(|name| [Step::Dropped(name.to_owned()), Step::Unread(name.to_owned())]).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The name of the transaction of an entry, if it is of one.
fn transaction(entry: &Document) -> Option<String> {
    let (session, number) = (entry.get_document("lsid").ok()?, entry.get("txnNumber")?);
    Some(format!("{session}/{number}"))
}

/// What an operation did. `None`: nothing.
fn step(operation: &Document) -> Option<Step> {
    let namespace = operation.get_str("ns").ok()?.to_owned();
    let content = operation.get_document("o").ok();
    let read = match (operation.get_str("op").ok()?, content) {
        ("n", _) => return None,
        ("i", Some(document)) => document.get("_id").map(|id| (id.clone(), Change::Insert(document.clone()))),
        ("u", Some(update)) => operation
            .get_document("o2")
            .ok()
            .and_then(|of| of.get("_id"))
            .and_then(|id| Some((id.clone(), updated(update)?))),
        ("d", Some(of)) => of.get("_id").map(|id| (id.clone(), Change::Delete)),
        _ => None,
    };
    Some(match read {
        Some((id, change)) => Step::Write(Write { namespace, id, change }),
        None => Step::Unread(namespace),
    })
}

fn updated(update: &Document) -> Option<Change> {
    match update.get("$v") {
        None if update.keys().all(|name| !name.starts_with('$')) => Some(Change::Replace(update.clone())),
        Some(Bson::Int32(2)) => update.get_document("diff").ok().map(|diff| Change::Delta(diff.clone())),
        _ => None,
    }
}

/// Changes a document as a delta says. A part that the document does not have is left out: it is not known.
pub(super) fn apply(document: &mut Document, diff: &Document) {
    for (name, change) in diff {
        match (name.as_str(), change) {
            ("i" | "u", Bson::Document(fields)) => {
                for (field, value) in fields {
                    document.insert(field, value.clone());
                }
            }
            ("d", Bson::Document(fields)) => {
                for field in fields.keys() {
                    document.remove(field);
                }
            }
            (name, Bson::Document(inner)) if name.starts_with('s') => match document.get_mut(&name[1..]) {
                Some(Bson::Document(part)) => apply(part, inner),
                Some(Bson::Array(elements)) => apply_to_array(elements, inner),
                // What was there before is not known, so what is there now is not, either.
                _ => drop(document.remove(&name[1..])),
            },
            _ => {}
        }
    }
}

fn apply_to_array(elements: &mut Vec<Bson>, diff: &Document) {
    for (name, change) in diff {
        let index = || name[1..].parse::<usize>().ok();
        match (name.as_bytes().first(), change) {
            (Some(b'l'), length) => {
                let length = length.as_i32().and_then(|length| usize::try_from(length).ok());
                elements.truncate(length.unwrap_or(elements.len()));
            }
            (Some(b'u'), value) => {
                let Some(index) = index() else { continue };
                if elements.len() <= index {
                    elements.resize(index.saturating_add(1), Bson::Null);
                }
                elements[index] = value.clone();
            }
            (Some(b's'), Bson::Document(inner)) => match index().and_then(|index| elements.get_mut(index)) {
                Some(Bson::Document(part)) => apply(part, inner),
                Some(Bson::Array(part)) => apply_to_array(part, inner),
                _ => {}
            },
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use mongoseal::mongodb::bson::doc;

    use super::*;

    fn write(namespace: &str, change: Change) -> Step {
        Step::Write(Write { namespace: namespace.into(), id: Bson::Int32(1), change })
    }

    #[test]
    fn each_kind_of_entry_is_read_and_another_is_counted_as_unread() {
        let mut reader = Reader::default();
        let mut steps = |entry: Document| reader.steps(&entry);
        let whole = doc! { "_id": 1, "n": 1 };
        let insert = doc! { "op": "i", "ns": "a.b", "o": &whole };
        assert_eq!(steps(insert), [write("a.b", Change::Insert(whole.clone()))]);
        let replace = doc! { "op": "u", "ns": "a.b", "o": &whole, "o2": { "_id": 1 } };
        assert_eq!(steps(replace), [write("a.b", Change::Replace(whole.clone()))]);
        let diff = doc! { "u": { "n": 2 } };
        let update = doc! { "op": "u", "ns": "a.b", "o": { "$v": 2, "diff": &diff }, "o2": { "_id": 1 } };
        assert_eq!(steps(update), [write("a.b", Change::Delta(diff))]);
        assert_eq!(steps(doc! { "op": "d", "ns": "a.b", "o": { "_id": 1 } }), [write("a.b", Change::Delete)]);
        assert_eq!(steps(doc! { "op": "n", "ns": "", "o": { "msg": "periodic noop" } }), []);
        assert_eq!(steps(doc! { "op": "c", "ns": "a.$cmd", "o": { "drop": "b" } }), [Step::Dropped("a.b".into())]);
        assert_eq!(steps(doc! { "op": "c", "ns": "a.$cmd", "o": { "dropDatabase": 1 } }), [Step::Dropped("a.".into())]);
        assert_eq!(steps(doc! { "op": "c", "ns": "a.$cmd", "o": { "create": "b" } }), []);
        let unread = [
            doc! { "op": "u", "ns": "a.b", "o": { "$v": 1, "$set": { "n": 2 } }, "o2": { "_id": 1 } },
            doc! { "op": "u", "ns": "a.b", "o": { "$v": 3 }, "o2": { "_id": 1 } },
            doc! { "op": "x", "ns": "a.b" },
        ];
        for entry in unread {
            assert_eq!(steps(entry), [Step::Unread("a.b".into())]);
        }
    }

    #[test]
    fn a_transaction_of_several_entries_does_all_with_the_last_one() {
        let mut reader = Reader::default();
        let mut steps = |number: i64, o: Document| {
            reader.steps(&doc! { "op": "c", "ns": "admin.$cmd", "lsid": { "id": 1 }, "txnNumber": number, "o": o })
        };
        let insert = |id: i32| doc! { "op": "i", "ns": "a.b", "o": { "_id": id } };
        assert_eq!(steps(1, doc! { "applyOps": [insert(1)], "partialTxn": true }), []);
        assert_eq!(steps(2, doc! { "applyOps": [insert(7)], "partialTxn": true }), []);
        assert_eq!(steps(2, doc! { "abortTransaction": 1 }), []);
        assert_eq!(steps(1, doc! { "applyOps": [insert(2)], "count": 2 }).len(), 2);
        assert_eq!(steps(2, doc! { "applyOps": [insert(3)] }).len(), 1, "what was aborted is forgotten");
        assert_eq!(steps(3, doc! { "applyOps": [insert(1)], "prepare": true }), []);
        assert_eq!(steps(3, doc! { "commitTransaction": 1 }).len(), 1);
    }

    #[test]
    fn a_delta_changes_fields_documents_and_arrays() {
        let mut document = doc! { "a": 1, "b": 1, "c": { "d": 1, "e": 1 }, "f": [{ "g": 1 }, 2, 3] };
        let diff = doc! {
            "d": { "b": false }, "u": { "a": 2 }, "i": { "h": 1 },
            "sc": { "u": { "d": 2 } },
            "sf": { "a": true, "l": 2, "s0": { "u": { "g": 2 } }, "u1": 9 },
        };
        apply(&mut document, &diff);
        assert_eq!(document, doc! { "a": 2, "c": { "d": 2, "e": 1 }, "f": [{ "g": 2 }, 9], "h": 1 });
        let mut partial = doc! { "a": 1 };
        apply(&mut partial, &doc! { "sx": { "u": { "y": 1 } }, "i": { "z": 1 } });
        assert_eq!(partial, doc! { "a": 1, "z": 1 });
    }
}
