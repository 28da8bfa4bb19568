//! Commands whose larger part is encoded once.
//!
//! Of a request's command only a few values differ from the next one's of the same verb. To build and
//! encode the rest for each took 0.15 ms, of 2.4 for the whole round trip.

use std::sync::LazyLock;

use mongodb::bson::{Document, RawDocumentBuf, doc};

use super::{
    document, fault, pipeline,
    verb::{self, Verb},
};
use crate::{
    Key, Result,
    record::{Acquire, Image, Request},
};

/// What all commands of a verb have in common, encoded, by verb.
static COMMON: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| Verb::OF_REQUESTS.map(|verb| encoded(&common(verb)).unwrap_or_default()).into());

fn common(verb: Verb) -> Document {
    doc! {
        "update": pipeline::update(verb),
        "fields": document::view(verb),
        "upsert": matches!(verb, Verb::Acquire | Verb::Wait),
    }
}

/// The command that applies `request`, beginning with what `head` says.
pub(super) fn command(head: Document, request: &Request) -> Result<RawDocumentBuf> {
    filled(head, Verb::of(request), verb::constants(request), request.image())
}

/// The command that applies acquires of a key that wait, beginning with what `head` says.
pub(super) fn waits<'a>(head: Document, acquires: impl IntoIterator<Item = &'a Acquire>) -> Result<RawDocumentBuf> {
    filled(head, Verb::Wait, verb::waits(acquires), Image::After)
}

fn filled(mut head: Document, verb: Verb, constants: Document, image: Image) -> Result<RawDocumentBuf> {
    head.insert("let", verb::literals(constants));
    head.insert("new", image == Image::After);
    let common = Verb::OF_REQUESTS.iter().position(|each| *each == verb).and_then(|index| COMMON.get(index));
    joined(&encoded(&head)?, common.map_or(&[], Vec::as_slice))
}

/// The command that applies acquires that do not wait, each as an update of its own, beginning with what
/// `head` says.
pub(super) fn acquires(head: &Document, asked: &[(Key, Request)]) -> Result<RawDocumentBuf> {
    static UPDATE: LazyLock<Vec<u8>> =
        LazyLock::new(|| encoded(&doc! { "u": pipeline::update(Verb::Acquire), "upsert": true }).unwrap_or_default());
    let mut updates = Vec::new();
    for (number, (key, request)) in asked.iter().enumerate() {
        let own = doc! { "q": { "_id": key.as_str() }, "c": verb::constants(request) };
        // An element of an array is a document under the name of its number.
        updates.push(ELEMENT_DOCUMENT);
        updates.extend_from_slice(number.to_string().as_bytes());
        updates.push(0);
        updates.extend_from_slice(joined(&encoded(&own)?, &UPDATE)?.as_bytes());
    }
    let updates = [&[ELEMENT_ARRAY], b"updates\0".as_slice(), &of_fields(&updates)].concat();
    joined(&encoded(head)?, &of_fields(&updates))
}

/// What begins an element: <https://bsonspec.org/spec.html>.
const ELEMENT_DOCUMENT: u8 = 3;
const ELEMENT_ARRAY: u8 = 4;

fn encoded(document: &Document) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    document.to_writer(&mut bytes).map_err(fault::unreadable)?;
    Ok(bytes)
}

/// One document of the fields of two.
fn joined(first: &[u8], second: &[u8]) -> Result<RawDocumentBuf> {
    let fields = |document: &[u8]| document.get(4..document.len().saturating_sub(1)).unwrap_or_default().to_vec();
    let fields = [fields(first), fields(second)].concat();
    RawDocumentBuf::from_bytes(of_fields(&fields)).map_err(fault::unreadable)
}

/// A document of these fields: its length, they, and a zero.
fn of_fields(fields: &[u8]) -> Vec<u8> {
    let length = i32::try_from(fields.len().saturating_add(5)).unwrap_or(i32::MAX).to_le_bytes();
    [&length, fields, &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_documents_are_joined_to_the_one_of_their_fields() {
        let (first, second) = (doc! { "a": 1, "b": { "c": [2] } }, doc! { "d": "text" });
        let one = joined(&encoded(&first).unwrap(), &encoded(&second).unwrap()).unwrap();
        let mut both = first;
        both.extend(second);
        assert_eq!(Document::try_from(&*one).unwrap(), both);
    }
}
