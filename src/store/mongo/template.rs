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
    Error, Result,
    record::{Request, ReturnDocument},
};

/// What all commands of a verb have in common, encoded, by verb.
static COMMON: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| Verb::OF_REQUESTS.map(|verb| encoded(&common(verb)).unwrap_or_default()).into());

fn common(verb: Verb) -> Document {
    doc! {
        "update": pipeline::update(verb),
        "fields": document::view(verb),
        "upsert": verb.upserts(),
    }
}

/// The command that applies `request`, beginning with what `head` says.
pub(super) fn command(head: Document, request: &Request) -> Result<RawDocumentBuf> {
    filled(head, Verb::of(request), verb::constants(request), request.image())
}

/// The command that applies several requests of a key, beginning with what `head` says.
pub(super) fn command_of_several(head: Document, requests: &[Request]) -> Result<RawDocumentBuf> {
    let Some((first, verb)) = requests.first().and_then(|first| Some((first, Verb::of_several(first)?))) else {
        return Err(Error::invalid("requests were sent together that cannot be: report this bug of mongoseal"));
    };
    filled(head, verb, verb::constants_of_several(requests), first.image())
}

fn filled(mut head: Document, verb: Verb, constants: Document, image: ReturnDocument) -> Result<RawDocumentBuf> {
    head.insert("let", verb::literals(constants));
    head.insert("new", image == ReturnDocument::After);
    let common = Verb::OF_REQUESTS.iter().position(|each| *each == verb).and_then(|index| COMMON.get(index));
    joined(&encoded(&head)?, common.map_or(&[], Vec::as_slice))
}

pub(super) fn encoded(document: &Document) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    document.to_writer(&mut bytes).map_err(fault::unreadable)?;
    Ok(bytes)
}

/// One document of the fields of two.
fn joined(first: &[u8], second: &[u8]) -> Result<RawDocumentBuf> {
    let fields = |document: &[u8]| document.get(4..document.len().saturating_sub(1)).unwrap_or_default().to_vec();
    let fields = [fields(first), fields(second)].concat();
    // A document is its length, its fields and a zero: <https://bsonspec.org/spec.html>.
    let length = i32::try_from(fields.len().saturating_add(5)).unwrap_or(i32::MAX).to_le_bytes();
    RawDocumentBuf::from_bytes([&length, fields.as_slice(), &[0]].concat()).map_err(fault::unreadable)
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
