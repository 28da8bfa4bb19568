//! Applies the `updateDescription` of a change event to the document as it was before.

use mongodb::bson::{Bson, Document};

/// The fields that are followed: those of a record, without the queue and without the fields of other programs.
const FOLLOWED_FIELDS: [&str; 7] = ["v", "version", "holders", "handover", "last_seen", "expires_at", "history"];

/// Applies an `updateDescription`. `None`: it does not fit the document.
///
/// No name in a record has a dot in it, so a path is unambiguous.
pub(super) fn apply(document: Document, update: &Document) -> Option<Document> {
    let mut root = Bson::Document(document);
    for truncated in entries(update, "truncatedArrays") {
        let truncated = truncated.as_document()?;
        let path = truncated.get_str("field").ok()?;
        if is_followed(path) {
            let size = usize::try_from(truncated.get_i32("newSize").ok()?).ok()?;
            let (parent, name) = find(&mut root, path)?;
            child(parent, name)?.as_array_mut()?.truncate(size);
        }
    }
    for (path, value) in update.get_document("updatedFields").ok().into_iter().flatten() {
        if is_followed(path) {
            match find(&mut root, path)? {
                (Bson::Document(fields), name) => drop(fields.insert(name, value.clone())),
                (Bson::Array(items), name) if name.parse() == Ok(items.len()) => items.push(value.clone()),
                (parent, name) => *child(parent, name)? = value.clone(),
            }
        }
    }
    for path in entries(update, "removedFields") {
        let path = path.as_str()?;
        if is_followed(path) {
            // The server never removes an element of an array: it rewrites the elements behind it.
            let (parent, name) = find(&mut root, path)?;
            parent.as_document_mut()?.remove(name);
        }
    }
    match root {
        Bson::Document(document) => Some(document),
        _ => None,
    }
}

fn entries<'a>(update: &'a Document, name: &str) -> impl Iterator<Item = &'a Bson> {
    update.get_array(name).ok().into_iter().flatten()
}

fn is_followed(path: &str) -> bool {
    FOLLOWED_FIELDS.contains(&path.split('.').next().unwrap_or_default())
}

/// Follows a path up to its last name.
fn find<'a, 'p>(mut value: &'a mut Bson, mut path: &'p str) -> Option<(&'a mut Bson, &'p str)> {
    while let Some((name, rest)) = path.split_once('.') {
        (value, path) = (child(value, name)?, rest);
    }
    Some((value, path))
}

/// The field of a document, or the element of an array, with this name.
fn child<'a>(value: &'a mut Bson, name: &str) -> Option<&'a mut Bson> {
    match value {
        Bson::Document(fields) => fields.get_mut(name),
        Bson::Array(items) => items.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn record() -> Document {
        doc! {
            "version": 1_i64, "handover": "",
            "holders": [{ "owner": "a", "metadata": { "0": "x" } }, { "owner": "b" }],
            "history": [{ "leases": [1, 2] }],
        }
    }

    fn applied(update: &Document) -> Option<Document> {
        apply(record(), update)
    }

    #[test]
    fn fields_elements_and_lengths_change_where_the_path_says() {
        let update = doc! {
            "updatedFields": {
                "version": 2_i64, "holders.0.owner": "c", "holders.0.metadata.0": "y", "holders.0.metadata.1": "z",
                "holders.1": { "owner": "d" }, "history.1": { "leases": [] },
            },
            "removedFields": ["handover"],
            "truncatedArrays": [{ "field": "history.0.leases", "newSize": 1 }],
        };
        let expected = doc! {
            "version": 2_i64,
            "holders": [{ "owner": "c", "metadata": { "0": "y", "1": "z" } }, { "owner": "d" }],
            "history": [{ "leases": [1] }, { "leases": [] }],
        };
        assert_eq!(applied(&update), Some(expected));
        let shorter = doc! { "truncatedArrays": [{ "field": "holders", "newSize": 0 }] };
        assert!(applied(&shorter).unwrap().get_array("holders").unwrap().is_empty());
    }

    #[test]
    fn what_is_not_followed_is_left_alone() {
        let update = doc! {
            "updatedFields": { "queue.7.owner": "c", "theirs.a.b": 1, "holdersx": 1 },
            "removedFields": ["queue.0.since", "other"],
            "truncatedArrays": [{ "field": "queue", "newSize": 3 }],
        };
        assert_eq!(applied(&update), Some(record()));
        assert_eq!(applied(&doc! {}), Some(record()));
    }

    /// From 6.1 on, an update can have `disambiguatedPaths`. Later servers may add more.
    #[test]
    fn fields_of_later_servers_and_a_null_on_a_dotted_path_change_nothing_else() {
        let update = doc! {
            "updatedFields": { "holders.0.metadata.0": Bson::Null, "holders.1.owner": "d" },
            "removedFields": [],
            "truncatedArrays": [],
            "disambiguatedPaths": { "holders.0.metadata.0": ["holders", 0, "metadata", "0"] },
            "ofALaterServer": { "holders": [] },
        };
        let mut expected = record();
        expected.insert("holders", vec![doc! { "owner": "a", "metadata": { "0": Bson::Null } }, doc! { "owner": "d" }]);
        assert_eq!(applied(&update), Some(expected));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for update in [
            doc! { "updatedFields": { "holders.3": {} } },
            doc! { "updatedFields": { "holders.3.owner": "c" } },
            doc! { "updatedFields": { "holders.x": {} } },
            doc! { "updatedFields": { "version.low": 1 } },
            doc! { "removedFields": ["holders.0"] },
            doc! { "truncatedArrays": [{ "field": "version", "newSize": 1 }] },
        ] {
            assert_eq!(applied(&update), None, "{update}");
        }
    }
}
