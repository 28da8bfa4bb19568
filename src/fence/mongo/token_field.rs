//! What a fenced write adds to the write: the condition on the token, and the token.

use mongodb::{
    bson::{Bson, Document, doc},
    options::UpdateModifications,
};

use crate::{Error, FencingToken, Result};

/// A token, and the field in which documents carry that of their last writer.
#[derive(Clone, Debug)]
pub(super) struct TokenField {
    field: String,
    token: FencingToken,
}

impl TokenField {
    /// A token in a field of the document itself: a path could lead into an array, where one element
    /// would do for all.
    pub(super) fn new(field: &str, token: FencingToken) -> Result<Self> {
        if field.is_empty() || field == "_id" || field.contains(['$', '.', '\0']) {
            return Err(Error::invalid(format!(
                "{field:?} cannot name the field of the token: choose a name of a field of the document itself, without `$` and `.`"
            )));
        }
        Ok(Self { field: field.to_owned(), token })
    }

    /// Whether a document lets this token pass: its own is no larger, or it has none. `$lte` and
    /// `$type` take an array for each of its elements, so arrays are refused for themselves.
    fn passes(&self) -> Document {
        doc! { "$and": [
            { &self.field: { "$not": { "$type": "array" } } },
            { "$or": [
                { &self.field: { "$lte": self.token, "$type": "long" } },
                { &self.field: Bson::Null },
            ] },
        ] }
    }

    /// The documents of the caller's filter that let this token pass.
    pub(super) fn passing_filter(&self, filter: &Document) -> Document {
        doc! { "$and": [filter.clone(), self.passes()] }
    }

    /// The documents of the caller's filter that do not.
    pub(super) fn blocked_filter(&self, filter: &Document) -> Document {
        doc! { "$and": [filter.clone(), { "$nor": [self.passes()] }] }
    }

    /// What to read of a document to tell what it says of the token.
    pub(super) fn view(&self) -> Document {
        doc! { "_id": 0, &self.field: 1 }
    }

    /// Refuses for the sake of a document that was read. One that lets the token pass does not.
    pub(super) fn refused_by(&self, found: &Document) -> Result<()> {
        match found.get(&self.field) {
            None | Some(Bson::Null) => Ok(()),
            Some(Bson::Int64(number)) => match FencingToken::try_from(*number) {
                Ok(newer) if newer > self.token => Err(Error::Fenced { newer }),
                Ok(_) => Ok(()),
                // No token is as small, so any passes; and none is as large, so something else wrote it.
                Err(_) if *number < 1 => Ok(()),
                Err(error) => Err(self.foreign("a number that is no token").caused_by(error)),
            },
            Some(other) => Err(self.foreign(&format!("of type {:?}", other.element_type()))),
        }
    }

    fn foreign(&self, what: &str) -> Error {
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
            _ => Err(Error::invalid("a fenced update is a document of operators or a pipeline: pass one of these")),
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
                return Err(self.claimed());
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

    /// The token comes last, so no stage before it can take it away.
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
            return Err(self.claimed());
        }
        stages.push(doc! { "$set": { &self.field: self.token } });
        Ok(stages)
    }

    /// The whole document, with the token instead of whatever it says there: one that was read before
    /// carries an older one.
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

    fn claimed(&self) -> Error {
        Error::invalid(format!(
            "the update writes `{}`, where the token goes: leave that field out, or choose another for tokens",
            self.field
        ))
    }
}

/// The `_id` that a filter pins, if it does. Where the fence hides the document, an insert then fails on
/// the `_id`; without that, it would make a second document.
pub(super) fn pinned(filter: &Document) -> Result<Bson> {
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
        assert!(token_field().on_update(doc! { "$set": { "fences": 1 } }.into()).is_ok(), "a longer name is another");
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
        // As any version of bson makes one.
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
            assert!(pinned(&loose).is_err(), "{loose}");
        }
        assert_eq!(pinned(&doc! { "_id": 1, "n": 2 }).unwrap(), Bson::Int32(1));
        assert_eq!(pinned(&doc! { "_id": { "$eq": "a" } }).unwrap(), Bson::from("a"));
        assert_eq!(pinned(&doc! { "_id": { "a": 1 } }).unwrap(), Bson::from(doc! { "a": 1 }));
    }
}
