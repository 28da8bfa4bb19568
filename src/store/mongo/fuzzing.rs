//! The functions of the fuzz targets. They exist only in fuzzing builds.

use mongodb::bson::{Document, RawDocument};

use super::{document, update_description, watch};
use crate::types::{
    acquire_id::{AcquireId, HandleId},
    group::Group,
    key::Key,
    lease_id::LeaseId,
    owner::Owner,
    token::FencingToken,
};

/// Reads a document in each way in which records are read.
pub fn document(bytes: &[u8]) {
    if let Some(document) = decoded(bytes) {
        read(&document);
    }
}

/// Reads an event, applies it to the document behind it, and reads the result.
pub fn event(bytes: &[u8]) {
    let length = bytes.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let Some((event, document)) = bytes.split_at_checked(length) else { return };
    let Some(event) = decoded(event) else { return };
    drop(watch::hand_overs_of(&event, HandleId::random()));
    if let Some(document) = decoded(document).and_then(|document| update_description::apply(document, &event)) {
        read(&document);
    }
}

/// Parses a text as each text type. What parses must be shown as it was read.
pub fn text(text: &str) {
    same(text, text.parse::<Key>().ok());
    same(text, text.parse::<Owner>().ok());
    same(text, text.parse::<Group>().ok());
    drop(text.parse::<LeaseId>().map(|id| assert_eq!(id.expose().parse::<LeaseId>().ok(), Some(id))));
    drop(text.parse::<FencingToken>().map(|token| assert_eq!(token.sortable().parse().ok(), Some(token))));
    drop(text.parse::<AcquireId>().map(|acquire_id| assert_eq!(acquire_id.to_string().parse().ok(), Some(acquire_id))));
    drop(document::decode_handover(text));
}

fn same(text: &str, word: Option<impl ToString>) {
    assert!(word.is_none_or(|word| word.to_string() == text));
}

fn decoded(bytes: &[u8]) -> Option<Document> {
    Document::try_from(RawDocument::from_bytes(bytes).ok()?).ok()
}

fn read(found: &Document) {
    if let Ok(key) = "k".parse::<Key>() {
        drop(document::decode(&key, found));
        drop(document::decode_places(found));
    }
    drop(document::decode_listed(found));
}
