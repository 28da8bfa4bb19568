//! The requests of the pipe protocol. `protocol/pipe.md` describes each member.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value};

use super::refusal::Refusal;

/// The longest id that is a string, in bytes.
const MAX_ID: usize = 64;
/// The largest id that is a number: larger ones are no integers in every language.
const MAX_NUMBER: u64 = (1 << 53) - 1;

/// The id of a request, and the name of the lease that it begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub(super) enum Id {
    Number(u64),
    Text(String),
}

impl Id {
    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => number.as_u64().filter(|number| *number <= MAX_NUMBER).map(Self::Number),
            Value::String(text) if (1..=MAX_ID).contains(&text.len()) => Some(Self::Text(text.clone())),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Id,
    pub(super) action: Action,
}

#[derive(Debug)]
pub(super) enum Action {
    Begin(Box<Begin>),
    OfLease { lease: Id, verb: Box<Verb> },
    Unobserve { observation: Id },
}

/// A request that begins a lease or an observation.
#[derive(Debug)]
pub(super) enum Begin {
    Lease(BeginLease),
    /// The name of the leadership.
    Observe(String),
}

#[derive(Debug)]
pub(super) enum BeginLease {
    Acquire(Acquire),
    Once(Once),
    Campaign(Campaign),
}

/// A request about a lease.
#[derive(Debug)]
pub(super) enum Verb {
    Progress,
    Ask(Ask),
    End(Ending),
}

/// A request that leaves the lease as it is.
#[derive(Debug)]
pub(super) enum Ask {
    Refresh(Option<Duration>),
    Verify,
    PutValue(NewValue),
    ClearValue,
    Value,
    Proclaim(String),
}

/// A request that ends the lease.
#[derive(Debug)]
pub(super) enum Ending {
    Release(Option<NewValue>),
    Complete(Complete),
    Resign,
}

/// A value of a key, and for how long it is kept.
#[derive(Debug)]
pub(super) struct NewValue {
    pub(super) content: Value,
    pub(super) keep_for: Option<Duration>,
}

impl NewValue {
    fn read(name: &str, mut members: Map<String, Value>) -> Result<Self, String> {
        let content = members.remove("value").ok_or_else(|| format!("`{name}` has no `value`"))?;
        Ok(Self { content, keep_for: read::<Keep>(name, members)?.keep_for_ms.map(Millis::duration) })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Acquire {
    pub(super) key: String,
    pub(super) wait_ms: Option<Millis>,
    pub(super) ttl_ms: Option<Millis>,
    pub(super) grace_ms: Option<Millis>,
    pub(super) shared: Option<u32>,
    pub(super) min_hold_ms: Option<Millis>,
    pub(super) max_hold_ms: Option<Millis>,
    pub(super) stalled_after_ms: Option<Millis>,
    #[serde(default)]
    pub(super) without_expiry: bool,
    pub(super) group: Option<String>,
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Once {
    pub(super) key: String,
    pub(super) every_ms: Option<Millis>,
    pub(super) tick: Option<u64>,
    pub(super) period_ms: Option<Millis>,
    pub(super) keep_for_ms: Option<Millis>,
    pub(super) wait_ms: Option<Millis>,
    pub(super) ttl_ms: Option<Millis>,
    pub(super) grace_ms: Option<Millis>,
    pub(super) min_hold_ms: Option<Millis>,
    pub(super) max_hold_ms: Option<Millis>,
    pub(super) stalled_after_ms: Option<Millis>,
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Campaign {
    pub(super) name: String,
    #[serde(default)]
    pub(super) value: String,
    pub(super) ttl_ms: Option<Millis>,
    pub(super) wait_ms: Option<Millis>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Observe {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Complete {
    #[serde(default)]
    pub(super) failed: bool,
    #[serde(default)]
    pub(super) note: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refresh {
    ttl_ms: Option<Millis>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keep {
    keep_for_ms: Option<Millis>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Proclaim {
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// A duration in milliseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Millis(u64);

impl Millis {
    pub(super) fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl Request {
    /// Reads a request from a line. If it is none, returns its id, if it has one, and what is wrong.
    pub(super) fn parse(line: &[u8], limit: usize) -> Result<Self, (Option<Id>, Refusal)> {
        let malformed = |message: String| Refusal::new("malformed", message);
        if line.trim_ascii_end().len() > limit {
            return Err((id_of(line), malformed(format!("the line is longer than {limit} bytes: shorten it"))));
        }
        let mut members = match serde_json::from_slice(line) {
            Ok(Value::Object(members)) => members,
            read => {
                let why = read.err().map(|error| format!(" ({error})")).unwrap_or_default();
                let example = r#"{"id":1,"do":"acquire","key":"k"}"#;
                let message = format!("the line is no JSON object that can be read{why}: send one such as {example}");
                return Err((id_of(line), malformed(message)));
            }
        };
        let Some(id) = members.remove("id").as_ref().and_then(Id::of) else {
            let message = "`id` is no integer from 0 to 2^53 - 1 and no string of 1 to 64 bytes";
            return Err((None, malformed(message.into())));
        };
        match Action::read(members) {
            Ok(action) => Ok(Self { id, action }),
            Err(message) => Err((Some(id), malformed(message))),
        }
    }
}

/// The id of a line that is no request: who has sent it waits for an answer. It is found before the place that cannot be
/// read, and behind values that no request can have, such as 1e999.
fn id_of(line: &[u8]) -> Option<Id> {
    struct Search<'a>(&'a mut Option<Id>);

    impl<'de> Visitor<'de> for Search<'_> {
        type Value = ();

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
            while let Some(name) = members.next_key::<String>()? {
                if name == "id" {
                    *self.0 = Id::of(&members.next_value()?);
                    return Ok(());
                }
                members.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }

    let mut found = None;
    // The rest of the line, which was not read, is an error.
    drop(serde_json::Deserializer::from_slice(line).deserialize_map(Search(&mut found)));
    found
}

impl Action {
    fn read(mut members: Map<String, Value>) -> Result<Self, String> {
        let Some(Value::String(name)) = members.remove("do") else {
            return Err("`do` is no name of a request: send one such as acquire".into());
        };
        if name == "unobserve" {
            let observation = take_id(&mut members, "observation")?;
            let Nothing {} = read(&name, members)?;
            return Ok(Self::Unobserve { observation });
        }
        if let Some(begin) = Begin::read(&name, &members)? {
            return Ok(Self::Begin(Box::new(begin)));
        }
        if !VERBS.contains(&name.as_str()) {
            return Err(format!("there is no request `{name}`: see protocol/pipe.md"));
        }
        let lease = take_id(&mut members, "lease")?;
        Ok(Self::OfLease { lease, verb: Box::new(Verb::read(&name, members)?) })
    }
}

impl Begin {
    /// Reads a request that begins something. Returns `None` if it is none of these.
    fn read(name: &str, members: &Map<String, Value>) -> Result<Option<Self>, String> {
        let members = members.clone();
        Ok(Some(match name {
            "acquire" => Self::Lease(BeginLease::Acquire(read(name, members)?)),
            "once" => {
                let once: Once = read(name, members)?;
                if once.every_ms.is_some() == once.tick.is_some() || (once.period_ms.is_some() && once.tick.is_none()) {
                    return Err("`once` has either `every_ms`, or `tick` and optionally `period_ms`".into());
                }
                Self::Lease(BeginLease::Once(once))
            }
            "campaign" => Self::Lease(BeginLease::Campaign(read(name, members)?)),
            "observe" => Self::Observe(read::<Observe>(name, members)?.name),
            _ => return Ok(None),
        }))
    }
}

/// The names of the requests about a lease.
const VERBS: [&str; 10] =
    ["release", "complete", "refresh", "verify", "progress", "put_value", "clear_value", "value", "proclaim", "resign"];

impl Verb {
    fn read(name: &str, members: Map<String, Value>) -> Result<Self, String> {
        Ok(match name {
            "release" if members.contains_key("value") => {
                Self::End(Ending::Release(Some(NewValue::read(name, members)?)))
            }
            "complete" => Self::End(Ending::Complete(read(name, members)?)),
            "refresh" => Self::Ask(Ask::Refresh(read::<Refresh>(name, members)?.ttl_ms.map(Millis::duration))),
            "put_value" => Self::Ask(Ask::PutValue(NewValue::read(name, members)?)),
            "proclaim" => Self::Ask(Ask::Proclaim(read::<Proclaim>(name, members)?.value)),
            _ => {
                let Nothing {} = read(name, members)?;
                match name {
                    "release" => Self::End(Ending::Release(None)),
                    "verify" => Self::Ask(Ask::Verify),
                    "progress" => Self::Progress,
                    "clear_value" => Self::Ask(Ask::ClearValue),
                    "value" => Self::Ask(Ask::Value),
                    _ => Self::End(Ending::Resign),
                }
            }
        })
    }
}

/// Reads the members of a request that are left.
fn read<T: DeserializeOwned>(name: &str, members: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(members))
        .map_err(|error| format!("the members of `{name}` are wrong: {error}"))
}

/// Takes the id of a lease or an observation.
fn take_id(members: &mut Map<String, Value>, name: &str) -> Result<Id, String> {
    let value = members.remove(name).unwrap_or_default();
    Id::of(&value).ok_or_else(|| format!("`{name}` is not the id of the request that began it"))
}
