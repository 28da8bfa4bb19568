//! The content of a value as BSON.
//!
//! Invariant: what is encoded is decoded to the same. A document that a person has changed is decoded, too: what JSON does
//! not have becomes text.

use mongodb::bson::{Bson, Document};
use serde_json::{Number, Value};

pub(super) fn encode(value: &Value) -> Bson {
    match value {
        Value::Null => Bson::Null,
        Value::Bool(value) => Bson::Boolean(*value),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => i32::try_from(whole).map_or(Bson::Int64(whole), Bson::Int32),
            None => Bson::Double(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Bson::String(text.clone()),
        Value::Array(items) => Bson::Array(items.iter().map(encode).collect()),
        Value::Object(fields) => {
            Bson::Document(fields.iter().map(|(name, value)| (name.clone(), encode(value))).collect::<Document>())
        }
    }
}

pub(super) fn decode(bson: &Bson) -> Value {
    match bson {
        Bson::Null => Value::Null,
        Bson::Boolean(value) => Value::Bool(*value),
        Bson::Int32(number) => Value::from(*number),
        Bson::Int64(number) => Value::from(*number),
        Bson::Double(number) => {
            Number::from_f64(*number).map_or_else(|| Value::String(number.to_string()), Value::Number)
        }
        Bson::String(text) => Value::String(text.clone()),
        Bson::Array(items) => Value::Array(items.iter().map(decode).collect()),
        Bson::Document(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), decode(value))).collect())
        }
        other => Value::String(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, oid::ObjectId};
    use serde_json::json;

    use super::*;
    use crate::types::json::Json;

    #[test]
    fn what_is_encoded_is_decoded_to_the_same() {
        let content = json!({
            "$set": { "a.b": [null, true, 0, -1, 2_147_483_648_i64, i64::MIN, 1.0, -0.0, 0.1, 1e300, "text", {}, []] }, "": "",
        });
        let json = Json::of(&content).unwrap();
        let decoded = Json::stored(decode(&encode(json.as_value())));
        assert_eq!(decoded, json);
        assert_eq!(decoded.to_string(), json.to_string());
    }

    #[test]
    fn what_json_does_not_have_becomes_text() {
        let id = ObjectId::new();
        for (bson, text) in [(Bson::from(id), id.to_hex()), (Bson::Double(f64::NAN), "NaN".to_owned())] {
            assert!(decode(&bson).as_str().unwrap().contains(&text));
        }
        assert!(decode(&DateTime::from_millis(0).into()).is_string());
    }
}
