//! Encodes values as the driver does.

use mongodb::bson::{Document, RawDocumentBuf};
use serde::Serialize;

use crate::types::error::{Error, Result, Source};

/// Encodes a value as the driver encodes an inserted one. Types that have a form for people, such as UUIDs, are stored
/// in the same form with and without a fence.
pub(super) fn document<T: Serialize>(value: &T) -> Result<Document> {
    let raw = either::encoded(value);
    let document = raw.and_then(|raw| Document::try_from(&*raw).map_err(Source::from));
    document.map_err(|source| {
        Error::invalid("the value cannot be written as a document: see the source of this error").caused_by(source)
    })
}

/// The function has one name in version 2 of the driver's bson and another in version 3, and any crate of the build may
/// switch it. A name that a block imports hides that of this module. A name that the import does not have is found
/// here, and leads to the other name.
#[allow(
    clippy::wildcard_imports,
    clippy::useless_conversion,
    unused_imports,
    dead_code,
    reason = "one of the two names is imported, whichever is there"
)]
mod either {
    use super::{RawDocumentBuf, Serialize, Source};

    pub(super) fn encoded<T: Serialize>(value: &T) -> Result<RawDocumentBuf, Source> {
        use mongodb::bson::*;
        to_raw_document_buf(value).map_err(Source::from)
    }

    fn to_raw_document_buf<T: Serialize>(value: &T) -> Result<RawDocumentBuf, Source> {
        use mongodb::bson::*;
        serialize_to_raw_document_buf(value).map_err(Source::from)
    }

    /// For a version that has neither name.
    fn serialize_to_raw_document_buf<T: Serialize>(_value: &T) -> Result<RawDocumentBuf, Source> {
        Err("this version of bson cannot encode".into())
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, doc};

    use super::*;

    #[derive(Serialize)]
    struct Host {
        _id: i32,
        address: std::net::Ipv4Addr,
    }

    #[test]
    fn values_are_encoded_as_the_driver_does_and_not_as_for_people() {
        let host = document(&Host { _id: 1, address: [127, 0, 0, 1].into() }).unwrap();
        assert!(matches!(host.get("address"), Some(Bson::Array(bytes)) if bytes.len() == 4), "{host}");
        assert_eq!(document(&doc! { "a": { "b": [1] } }).unwrap(), doc! { "a": { "b": [1] } });
        assert!(document(&"a text").is_err());
    }
}
