//! The content of the value of a key.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::types::error::{Error, Result};

/// A JSON document: the content of the value of a key. See [`Lease::put_value`](crate::Lease::put_value).
///
/// It displays as JSON text. A clone shares it.
#[derive(Clone, PartialEq)]
pub struct Json(Arc<Value>);

/// JSON has no number for which this does not hold.
impl Eq for Json {}

impl Json {
    /// The most bytes of a value, as JSON text.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// The most arrays and objects in each other. MongoDB allows 100, with those of the record.
    pub const MAX_DEPTH: usize = 64;

    /// Represents `content` in JSON, as `serde_json` does: the keys of maps become texts, and a float that is not finite
    /// becomes `null`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it cannot be represented in JSON, has more than [`MAX_BYTES`](Self::MAX_BYTES) or
    /// [`MAX_DEPTH`](Self::MAX_DEPTH), an integer above 2⁶³ − 1, or a name with a NUL, which MongoDB cannot store.
    pub fn of<T: Serialize + ?Sized>(content: &T) -> Result<Self> {
        let refused = |source| Error::invalid("the value cannot be represented in JSON").caused_by(source);
        let value = serde_json::to_value(content).map_err(refused)?;
        ensure_storable(&value, 0)?;
        let json = Self(Arc::new(value));
        let bytes = json.to_string().len();
        if bytes > Self::MAX_BYTES {
            return Err(Error::invalid(format!(
                "the value has {bytes} bytes as JSON, more than {}: store it elsewhere, with the token, and put a reference to it",
                Self::MAX_BYTES
            )));
        }
        Ok(json)
    }

    /// Reads JSON text.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the text is not JSON, and as [`of`](Self::of).
    pub fn from_text(text: &[u8]) -> Result<Self> {
        let value: Value =
            serde_json::from_slice(text).map_err(|source| Error::invalid("the text is not JSON").caused_by(source))?;
        Self::of(&value)
    }

    /// Reads the document as a value of this type.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it has another form.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&*self.0).map_err(|source| {
            Error::invalid("the value has another form than this program reads: read it as `Json` to see it")
                .caused_by(source)
        })
    }

    /// Wraps what a store has.
    #[cfg(feature = "mongodb")]
    pub(crate) fn stored(value: Value) -> Self {
        Self(Arc::new(value))
    }

    /// The document.
    #[cfg(feature = "mongodb")]
    pub(crate) fn as_value(&self) -> &Value {
        &self.0
    }
}

/// Refuses what some store cannot keep.
fn ensure_storable(value: &Value, depth: usize) -> Result<()> {
    if depth > Json::MAX_DEPTH {
        return Err(Error::invalid(format!(
            "the value has more than {} arrays and objects in each other: make it flatter",
            Json::MAX_DEPTH
        )));
    }
    let deeper = depth.saturating_add(1);
    match value {
        Value::Number(number) if number.is_u64() && !number.is_i64() => {
            Err(Error::invalid(format!("the value has the number {number}, which is above 2^63 - 1: put it as a text")))
        }
        Value::Array(items) => items.iter().try_for_each(|item| ensure_storable(item, deeper)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            if name.contains('\0') {
                return Err(Error::invalid(format!("the value has the name {name:?} with a NUL: choose another name")));
            }
            ensure_storable(value, deeper)
        }),
        _ => Ok(()),
    }
}

impl Serialize for Json {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self(Arc::new(value)))
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_store_cannot_keep_is_refused_and_says_why() {
        let deep = (0..65).fold(json!(1), |inner, _| json!([inner]));
        for (content, says) in [
            (json!(u64::MAX), "above 2^63 - 1"),
            (json!({ "a": { "b\0": 1 } }), "NUL"),
            (deep, "more than 64 arrays"),
            (json!("x".repeat(65_535)), "65537 bytes as JSON, more than 65536"),
        ] {
            let error = Json::of(&content).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        assert!(Json::of(&std::collections::BTreeMap::from([([1, 2], 3)])).is_err(), "a key that is no text");
        let allowed = (0..64).fold(json!({ "$ref": "a.b", "": [i64::MAX, i64::MIN, 0.1, null] }), |inner, depth| {
            if depth < 62 { json!([inner]) } else { inner }
        });
        assert_eq!(Json::of(&allowed).unwrap().parse::<Value>().unwrap(), allowed);
        assert!(Json::of(&json!("x".repeat(65_534))).is_ok());
    }

    #[test]
    fn a_text_is_read_as_it_is_written() {
        for text in ["null", "-0.0", "1e-7", "0.1", "123456789.12345678", r#"{"a":[1,1.0,"\u0000"]}"#] {
            let json = Json::from_text(text.as_bytes()).unwrap();
            assert_eq!(json.to_string(), text);
        }
        assert!(Json::from_text(b"{").is_err() && Json::from_text(b"").is_err());
    }
}
