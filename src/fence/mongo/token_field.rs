//! What a fenced write adds to a write: the condition on the token, and the token.

use mongodb::{
    bson::{Bson, Document, doc},
    options::UpdateModifications,
};

use crate::types::{
    error::{Error, Result},
    token::FencingToken,
};

/// A token, and the field of documents that has the token of the last writer.
#[derive(Clone, Debug)]
pub(super) struct TokenField {
    field: String,
    token: FencingToken,
}

impl TokenField {
    /// The token in a field of the document itself. A path could lead into an array, of which one matching element
    /// would be enough.
    pub(super) fn new(field: &str, token: FencingToken) -> Result<Self> {
        if field.is_empty() || field == "_id" || field.contains(['$', '.', '\0']) {
            return Err(Error::invalid(format!(
                "{field:?} cannot name the field of the token: choose a name of a field of the document itself, without `$` and `.`"
            )));
        }
        Ok(Self { field: field.to_owned(), token })
    }

    /// Matches documents that admit this token: their token is no larger, or they have none. `$lte` and `$type` look at
    /// each element of an array, so a condition of its own refuses arrays.
    fn passes(&self) -> Document {
        doc! { "$and": [
            { &self.field: { "$not": { "$type": "array" } } },
            { "$or": [
                { &self.field: { "$lte": self.token, "$type": "long" } },
                { &self.field: Bson::Null },
            ] },
        ] }
    }

    /// Matches the documents of the caller's filter that admit this token.
    pub(super) fn passing_filter(&self, filter: &Document) -> Document {
        doc! { "$and": [filter.clone(), self.passes()] }
    }

    /// Matches the documents of the caller's filter that refuse this token.
    pub(super) fn blocked_filter(&self, filter: &Document) -> Document {
        doc! { "$and": [filter.clone(), { "$nor": [self.passes()] }] }
    }

    /// The projection of the token's field.
    pub(super) fn projection(&self) -> Document {
        doc! { "_id": 0, &self.field: 1 }
    }

    /// Returns the error of a document that refuses the token. If the document admits it, returns `Ok`.
    pub(super) fn refused_by(&self, found: &Document) -> Result<()> {
        match found.get(&self.field) {
            None | Some(Bson::Null) => Ok(()),
            Some(Bson::Int64(number)) => match FencingToken::try_from(*number) {
                Ok(newer) if newer > self.token => Err(Error::Fenced { newer }),
                Ok(_) => Ok(()),
                // A number below 1 is smaller than each token, so any token passes. No token is too large, so another
                // program wrote that number.
                Err(_) if *number < 1 => Ok(()),
                Err(error) => Err(self.not_a_token("a number but no token").caused_by(error)),
            },
            Some(other) => Err(self.not_a_token(&format!("of type {:?}", other.element_type()))),
        }
    }

    fn not_a_token(&self, what: &str) -> Error {
        Error::invalid(format!(
            "the field `{}` of the document is {what} and not a fencing token, so it was left as it is: unset it, or choose another field for tokens",
            self.field
        ))
    }

    /// The update, with the token.
    pub(super) fn on_update(&self, update: UpdateModifications) -> Result<UpdateModifications> {
        match update {
            UpdateModifications::Document(operators) => self.on_operators(operators).map(Into::into),
            UpdateModifications::Pipeline(stages) => self.on_pipeline(stages).map(Into::into),
            _ => Err(not_an_update()),
        }
    }

    fn on_operators(&self, mut update: Document) -> Result<Document> {
        for (operator, fields) in &update {
            if !operator.starts_with('$') {
                return Err(Error::invalid(format!(
                    "{operator:?} is no update operator: use `$set`, or replace the whole document"
                )));
            }
            let renamed = |(name, to): (&String, &Bson)| {
                self.touches(name) || (operator == "$rename" && to.as_str().is_some_and(|to| self.touches(to)))
            };
            if fields.as_document().is_some_and(|fields| fields.iter().any(renamed)) {
                return Err(self.field_is_taken());
            }
        }
        match update.get_mut("$set") {
            None => {
                update.insert("$set", doc! { &self.field: self.token });
            }
            Some(Bson::Document(fields)) => {
                fields.insert(&self.field, self.token);
            }
            Some(_) => return Err(Error::invalid("`$set` takes a document of fields: pass one")),
        }
        Ok(update)
    }

    /// The token comes last, so no earlier stage can remove it.
    fn on_pipeline(&self, mut stages: Vec<Document>) -> Result<Vec<Document>> {
        let names = |stage: &Document| {
            stage.iter().any(|(name, what)| match (name.as_str(), what) {
                ("$set" | "$addFields" | "$project", Bson::Document(fields)) => {
                    fields.keys().any(|name| self.touches(name))
                }
                ("$unset", Bson::String(name)) => self.touches(name),
                ("$unset", Bson::Array(names)) => names.iter().filter_map(Bson::as_str).any(|name| self.touches(name)),
                _ => false,
            })
        };
        if stages.iter().any(names) {
            return Err(self.field_is_taken());
        }
        stages.push(doc! { "$set": { &self.field: self.token } });
        Ok(stages)
    }

    /// The whole document, with this token in place of the field's value: a document that was read before has an older
    /// token.
    pub(super) fn on_document(&self, mut document: Document) -> Result<Document> {
        if document.keys().any(|name| name.starts_with('$')) {
            return Err(Error::invalid(
                "a document to insert or replace has fields and no operators: use an update for operators",
            ));
        }
        document.insert(&self.field, self.token);
        Ok(document)
    }

    fn touches(&self, path: &str) -> bool {
        path.split('.').next() == Some(self.field.as_str())
    }

    fn field_is_taken(&self) -> Error {
        Error::invalid(format!(
            "the update writes `{}`, where the token goes: leave that field out, or choose another for tokens",
            self.field
        ))
    }
}

/// The error of a form of update that this version of the crate does not know.
pub(super) fn not_an_update() -> Error {
    Error::invalid("a fenced update is a document of operators or a pipeline: pass one of these")
}

/// The `_id` that a filter names by equality. If the fence hides the document, the insert then fails on the `_id`;
/// otherwise it would make a second document.
pub(super) fn pinned_id(filter: &Document) -> Result<Bson> {
    let id = match filter.get("_id") {
        Some(Bson::RegularExpression(_)) | None => None,
        Some(Bson::Document(operators)) if operators.keys().any(|name| name.starts_with('$')) => {
            operators.get("$eq").filter(|_| operators.len() == 1)
        }
        id => id,
    };
    id.cloned().ok_or_else(|| {
        Error::invalid(
            "a fenced upsert needs a filter that names the `_id` by equality, because a refused one could insert a second document: add it, or insert first and then update",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token_field() -> TokenField {
        TokenField::new("fence", FencingToken::new(7).unwrap()).unwrap()
    }

    #[test]
    fn a_document_refuses_a_smaller_token_and_what_is_no_token() {
        let refused_by = |found: Document| token_field().refused_by(&found);
        for found in [doc! {}, doc! { "fence": null }, doc! { "fence": -1_i64 }, doc! { "fence": 0_i64 }] {
            assert!(refused_by(found.clone()).is_ok(), "{found}");
        }
        for number in [1_i64, 6, 7] {
            assert!(refused_by(doc! { "fence": number }).is_ok(), "{number}");
        }
        let newer = FencingToken::new(8).unwrap();
        assert!(matches!(refused_by(doc! { "fence": 8_i64 }), Err(Error::Fenced { newer: found }) if found == newer));
        for found in [doc! { "fence": 7 }, doc! { "fence": i64::MAX }] {
            assert!(matches!(refused_by(found.clone()), Err(Error::Invalid { .. })), "{found}");
        }
    }

    #[test]
    fn a_name_that_could_lead_elsewhere_is_refused() {
        for name in ["", "_id", "$fence", "a.b", "a\0b", "a$"] {
            assert!(TokenField::new(name, FencingToken::MIN).is_err(), "{name:?}");
        }
    }

    #[test]
    fn an_update_that_touches_the_field_is_refused_however_it_does() {
        let operators = [
            doc! { "$set": { "fence": 1 } },
            doc! { "$inc": { "n": 1, "fence": 1 } },
            doc! { "$unset": { "fence": "" } },
            doc! { "$setOnInsert": { "fence.deeper": 1 } },
            doc! { "$rename": { "other": "fence" } },
            doc! { "$rename": { "fence": "other" } },
        ];
        for update in operators {
            let error = token_field().on_update(update.clone().into()).unwrap_err();
            assert!(error.to_string().contains("`fence`"), "{update}: {error}");
        }
        let stages = [
            doc! { "$set": { "fence": 1 } },
            doc! { "$addFields": { "fence.a": 1 } },
            doc! { "$unset": "fence" },
            doc! { "$unset": ["a", "fence"] },
            doc! { "$project": { "fence": 0 } },
        ];
        for stage in stages {
            assert!(token_field().on_update(vec![stage.clone()].into()).is_err(), "{stage}");
        }
        assert!(token_field().on_update(doc! { "fence": 1 }.into()).is_err(), "no operator");
        assert!(token_field().on_update(doc! { "$set": 1 }.into()).is_err(), "no fields");
        for update in [
            doc! { "$set": { "fences": 1 } },
            doc! { "$set": { "other": "fence" } },
            doc! { "$rename": { "other": "another" } },
        ] {
            assert!(token_field().on_update(update.clone().into()).is_ok(), "{update} does not");
        }
    }

    #[test]
    fn every_form_of_update_carries_the_token() {
        let stamped = |update: UpdateModifications| token_field().on_update(update).unwrap();
        let UpdateModifications::Document(update) = stamped(doc! { "$set": { "a": 1 }, "$inc": { "b": 1 } }.into())
        else {
            panic!("operators stay operators")
        };
        assert_eq!(update, doc! { "$set": { "a": 1, "fence": 7_i64 }, "$inc": { "b": 1 } });
        let UpdateModifications::Pipeline(stages) = stamped(vec![doc! { "$replaceWith": { "a": 1 } }].into()) else {
            panic!("a pipeline stays one")
        };
        assert_eq!(stages.last(), Some(&doc! { "$set": { "fence": 7_i64 } }));
        let replacement = token_field().on_document(doc! { "fence": 3_i64, "a": 1 }).unwrap();
        assert_eq!(replacement, doc! { "fence": 7_i64, "a": 1 });
        assert!(token_field().on_document(doc! { "$set": {} }).is_err());
    }

    #[test]
    fn an_upsert_pins_its_id_by_equality() {
        // Any version of bson can make this.
        let regex: Bson =
            serde_json::from_value(serde_json::json!({ "$regularExpression": { "pattern": "a", "options": "" } }))
                .unwrap();
        assert!(matches!(regex, Bson::RegularExpression(_)));
        for loose in [
            doc! {},
            doc! { "n": 1 },
            doc! { "_id": { "$in": [1, 2] } },
            doc! { "_id": { "$eq": 1, "$gt": 0 } },
            doc! { "_id": regex },
            doc! { "$or": [{ "_id": 1 }] },
        ] {
            assert!(pinned_id(&loose).is_err(), "{loose}");
        }
        assert_eq!(pinned_id(&doc! { "_id": 1, "n": 2 }).unwrap(), Bson::Int32(1));
        assert_eq!(pinned_id(&doc! { "_id": { "$eq": "a" } }).unwrap(), Bson::from("a"));
        assert_eq!(pinned_id(&doc! { "_id": { "a": 1 } }).unwrap(), Bson::from(doc! { "a": 1 }));
    }
}
