//! The notation of `protocol/vectors.json`, which `protocol/README.md` describes: what its values stand for at a time.

use mongoseal::{
    FencingToken, Json, LeaseId, Metadata, Sharing,
    record::{
        Acquire, BatchRequest, Complete, Downgrade, HoldLimits, Holder, LeaseSpec, Leave, Outcome, PutValue, Raise,
        Record, Refresh, Release, Request, Reset, Revoke, RunReport, StoreTime, Transfer, WaitSpec,
    },
    store::{AcquireId, HybridTime},
};
use serde_json::{Map, Value, json};

/// How far a token with a symbol is from the symbol at most.
const NEAR: u64 = 1_000;

/// What a case sends.
#[derive(Debug)]
pub(crate) enum Sent {
    One(Request),
    /// At the same time, in this order.
    Together(Vec<Request>),
    /// For the holders with these tokens.
    Batch(Vec<FencingToken>, BatchRequest),
}

/// The values of fields that an entry leaves out, and the times and tokens that numbers and symbols stand for.
#[derive(Clone, Copy)]
pub(crate) struct Notation<'a> {
    pub(crate) defaults: &'a Value,
    /// The time 0.
    pub(crate) now: StoreTime,
    /// The token of the hybrid clock.
    pub(crate) clock: u64,
    /// A token two hours ahead of it.
    pub(crate) ahead: u64,
}

impl<'a> Notation<'a> {
    /// At a reading of the store's clocks.
    pub(crate) fn at(defaults: &'a Value, now: StoreTime, tick: HybridTime) -> Self {
        let second = u64::try_from(now.millis()).unwrap() / 1_000 + 7_200;
        let ahead = number(HybridTime { seconds: second, ordinal: 0 });
        Self { defaults, now, clock: number(tick), ahead }
    }

    fn field<'v>(&'v self, entry: &'v Value, kinds: &[&str], name: &str) -> &'v Value {
        let by_default = kinds.iter().find_map(|kind| self.defaults[kind].get(name));
        entry.get(name).or(by_default).unwrap_or_else(|| panic!("{entry} has no {name}"))
    }

    /// An entry as the JSON of a record has it, with its defaults. Refuses a member that nothing reads.
    fn entry(&self, of: &Value, kinds: &[&str], fixed: &[&str]) -> Value {
        let mut entry = Map::new();
        for kind in kinds {
            entry.extend(self.defaults[kind].as_object().expect("a kind has defaults").clone());
        }
        for (name, value) in of.as_object().expect("an entry has members") {
            let is_known = entry.contains_key(name) || fixed.contains(&name.as_str());
            assert!(is_known, "{of} has a member {name}, which is unknown");
            entry.insert(name.clone(), value.clone());
        }
        for (name, value) in &mut entry {
            match name.as_str() {
                "since" | "last_seen" | "expires_at" | "not_after" | "released_at" | "at" if !value.is_null() => {
                    *value = (self.now.millis() + value.as_i64().expect("a time is a number")).into();
                }
                "version" | "token" => *value = json!(self.token(value)),
                "tokens" => *value = value.as_array().unwrap().iter().map(|token| json!(self.token(token))).collect(),
                "period" if value.is_null() => *value = 0.into(),
                _ => {}
            }
        }
        if kinds.contains(&"terms") {
            entry.insert("terms".into(), json!(self.terms(of)));
        }
        entry.into()
    }

    pub(crate) fn token(&self, value: &Value) -> FencingToken {
        let number = value.as_str().map_or_else(|| value.as_u64(), |text| self.symbol(text));
        number.and_then(|number| FencingToken::new(number).ok()).unwrap_or_else(|| panic!("{value} is no token"))
    }

    /// The number of `clock`, `clock+1`, `ahead-2`.
    fn symbol(&self, text: &str) -> Option<u64> {
        let symbols = [("clock", self.clock), ("ahead", self.ahead)];
        let (symbol, number) = symbols.into_iter().find(|(symbol, _)| text.starts_with(symbol))?;
        number.checked_add_signed(more(text, symbol)?)
    }

    pub(crate) fn write_token(&self, token: FencingToken) -> Value {
        for (symbol, number) in [("clock", self.clock), ("ahead", self.ahead)] {
            if token.get() == number {
                return symbol.into();
            }
            if token.get().abs_diff(number) <= NEAR {
                let more = i128::from(token.get()) - i128::from(number);
                return format!("{symbol}{more:+}").into();
            }
        }
        token.get().into()
    }

    fn terms(&self, entry: &Value) -> LeaseSpec {
        let field = |name: &str| self.field(entry, &["terms"], name);
        let limit = |name: &str| Some(long(field(name))).filter(|limit| *limit > 0);
        LeaseSpec {
            lease: lease(field("lease")),
            acquire_id: acquire_id(entry),
            owner: field("owner").as_str().unwrap().parse().unwrap(),
            sharing: Sharing::from_limit(u32::try_from(long(field("limit"))).unwrap()),
            ttl: long(field("ttl")),
            grace: long(field("grace")),
            group: field("group").as_str().map(|name| name.parse().unwrap()),
            metadata: metadata(field("metadata")),
            hold: HoldLimits { min: limit("min_hold"), max: limit("max_hold") },
        }
    }

    pub(crate) fn record(&self, value: &Value) -> Option<Record> {
        let mut record = self.entry(optional(value)?, &["record"], &["version"]);
        for (name, kinds, fixed) in [
            ("holders", &["terms", "holder"][..], &["lease", "caller", "version"][..]),
            ("queue", &["terms", "waiter"], &["lease", "caller"]),
            ("history", &[], &["by", "reason", "at", "tokens"]),
            ("runs", &["run"], &["tick", "token", "by", "since", "at"]),
        ] {
            for entry in record[name].as_array_mut().expect("it is a list") {
                *entry = self.entry(entry, kinds, fixed);
            }
        }
        for (name, fixed) in [("done", ["tick", "token", "by", "at"]), ("value", ["content", "token", "write", "at"])] {
            if let Some(entry) = optional(&record[name]) {
                record[name] = self.entry(entry, &[], &fixed);
            }
        }
        for handed in record["handover"].as_array_mut().expect("it is a list") {
            *handed = json!([handed["caller"], optional(&handed["token"]).map(|token| self.token(token))]);
        }
        Some(serde_json::from_value(record).unwrap_or_else(|error| panic!("{value} is no record: {error}")))
    }

    pub(crate) fn sent(&self, value: &Value) -> Sent {
        let (name, of) = only(value);
        match name {
            "together" => Sent::Together(of.as_array().unwrap().iter().map(|one| self.request(one)).collect()),
            "batch" => {
                let tokens = of["tokens"].as_array().unwrap().iter().map(|token| self.token(token)).collect();
                let mut verb = of.clone();
                verb.as_object_mut().unwrap().remove("tokens");
                let (name, of) = only(&verb);
                let text = |name: &str| of[name].as_str().unwrap().to_owned();
                let batch = match name {
                    "release" => BatchRequest::Release,
                    "revoke" => BatchRequest::Revoke { by: text("by"), reason: text("reason") },
                    "keep" => BatchRequest::Keep { ttl: long(&of["ttl"]) },
                    other => panic!("{other} is no batch"),
                };
                Sent::Batch(tokens, batch)
            }
            _ => Sent::One(self.request(value)),
        }
    }

    fn request(&self, value: &Value) -> Request {
        let (name, of) = only(value);
        let field = |name: &str| self.field(of, &["terms"], name);
        let text = |name: &str| of[name].as_str().unwrap().to_owned();
        let wait = |of: &Value| WaitSpec {
            ttl: long(&of["ttl"]),
            queue_limit: u32::try_from(long(&of["queue_limit"])).unwrap(),
        };
        match name {
            "acquire" => Request::Acquire(Acquire { terms: self.terms(of), wait: of.get("wait").map(wait) }),
            "refresh" => Request::Refresh(Refresh {
                lease: lease(&of["lease"]),
                ttl: long(field("ttl")),
                grace: long(field("grace")),
                metadata: of.get("metadata").map(metadata),
                acquire_id: of.get("caller").map(|_| acquire_id(of)),
            }),
            "release" => Request::Release(Release { lease: lease(&of["lease"]), token: self.token(&of["token"]) }),
            "leave" => Request::Leave(Leave { lease: lease(&of["lease"]), acquire_id: acquire_id(of) }),
            "revoke" => {
                Request::Revoke(Revoke { by: text("by"), reason: text("reason"), upto: self.token(&of["upto"]) })
            }
            "transfer" | "upgrade" => {
                let (lease, token, to) = (lease(&of["lease"]), self.token(&of["token"]), lease(&of["to"]));
                let transfer = Transfer { lease, token, to };
                if name == "upgrade" { Request::Upgrade(transfer) } else { Request::Transfer(transfer) }
            }
            "downgrade" => Request::Downgrade(Downgrade {
                lease: lease(&of["lease"]),
                token: self.token(&of["token"]),
                sharing: Sharing::from_limit(u32::try_from(long(&of["limit"])).unwrap()),
            }),
            "raise" => Request::Raise(Raise { to: self.token(&of["to"]) }),
            "complete" => Request::Complete(Complete {
                lease: lease(&of["lease"]),
                token: self.token(&of["token"]),
                tick: long(&of["tick"]),
                by: text("by"),
                keep: of.get("keep").map_or(0, long),
                report: RunReport {
                    took: of.get("took").map_or(0, long),
                    is_failed: of.get("failed").is_some_and(|failed| failed.as_bool().unwrap()),
                    note: of.get("note").map_or_else(String::new, |note| note.as_str().unwrap().into()),
                    period: of.get("period").map(long),
                },
            }),
            "put_value" => Request::PutValue(PutValue {
                lease: lease(&of["lease"]),
                token: self.token(&of["token"]),
                after: long(&of["after"]),
                write: long(&of["write"]),
                content: content(of),
                keep: of.get("keep").map_or(0, long),
                releases: of.get("releases").is_some_and(|releases| releases.as_bool().unwrap()),
            }),
            "reset" => Request::Reset(Reset { tick: long(&of["tick"]), upto: self.token(&of["upto"]), by: text("by") }),
            "prune" => Request::Prune,
            other => panic!("{other} is no request"),
        }
    }

    pub(crate) fn outcome(&self, outcome: &Outcome) -> Value {
        let number = |holder: &Holder| holder.terms.lease.to_bytes()[0];
        let numbers = |holders: &[Holder]| holders.iter().map(number).collect::<Vec<_>>();
        match outcome {
            Outcome::Granted { token, value, .. } => {
                let mut granted = json!({ "token": self.write_token(*token) });
                if let Some(value) = value {
                    granted["value"] = value.write.into();
                }
                json!({ "granted": granted })
            }
            Outcome::Queued { position, version, holder } => json!({ "queued": {
                "position": position, "version": self.write_token(*version), "holder": number(holder),
            } }),
            Outcome::Full { length } => json!({ "full": { "length": length } }),
            Outcome::Refused { holder } => json!({ "refused": { "holder": number(holder) } }),
            Outcome::Refreshed { token } => json!({ "refreshed": { "token": self.write_token(*token) } }),
            Outcome::Released => json!({ "released": {} }),
            Outcome::Transferred { token } => json!({ "transferred": { "token": self.write_token(*token) } }),
            Outcome::Downgraded => json!({ "downgraded": {} }),
            Outcome::Absent => json!({ "absent": {} }),
            Outcome::Revoked { holders } => json!({ "revoked": { "holders": numbers(holders) } }),
            Outcome::Raised { version } => json!({ "raised": { "version": self.write_token(*version) } }),
            Outcome::Completed => json!({ "completed": {} }),
            Outcome::ValuePut => json!({ "value_put": {} }),
            Outcome::ValueOutdated { write } => json!({ "value_outdated": { "write": write } }),
            Outcome::Reset { done } => json!({ "reset": { "tick": done.as_ref().map(|done| done.tick) } }),
            Outcome::Pruned { holders } => json!({ "pruned": { "holders": numbers(holders) } }),
        }
    }
}

/// What a symbol adds to another: 2 of `clock+2`.
pub(crate) fn more(text: &str, symbol: &str) -> Option<i64> {
    match text.strip_prefix(symbol)? {
        "" => Some(0),
        more => more.parse().ok(),
    }
}

/// The token of a reading of the hybrid clock.
pub(crate) fn number(tick: HybridTime) -> u64 {
    FencingToken::following(None, tick, 0).get()
}

/// The name and the value of an object with one field.
pub(crate) fn only(value: &Value) -> (&str, &Value) {
    let fields = value.as_object().expect("it is an object");
    assert_eq!(fields.len(), 1, "{value} has one field");
    fields.iter().next().map(|(name, of)| (name.as_str(), of)).unwrap()
}

/// The value, unless it is null.
fn optional(value: &Value) -> Option<&Value> {
    Some(value).filter(|value| !value.is_null())
}

/// The content of a value. A field that is left out is none.
fn content(of: &Value) -> Option<Json> {
    of.get("content").map(|content| Json::of(content).unwrap())
}

fn long(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a positive number"))
}

fn lease(value: &Value) -> LeaseId {
    LeaseId::from_bytes([u8::try_from(long(value)).unwrap(); 16])
}

/// The acquire id of an entry. If it names none, the first acquire of the handle with the number of its lease.
fn acquire_id(entry: &Value) -> AcquireId {
    let by_default = || acquire_id_of(u8::try_from(long(&entry["lease"])).unwrap());
    entry.get("caller").map_or_else(by_default, |text| text.as_str().unwrap().parse().unwrap())
}

pub(crate) fn acquire_id_of(lease: u8) -> AcquireId {
    format!("{lease:016x}/1").parse().unwrap()
}

fn metadata(value: &Value) -> Metadata {
    let mut metadata = Metadata::default();
    for (name, text) in value.as_object().unwrap() {
        metadata.insert(name, text.as_str().unwrap()).unwrap();
    }
    metadata
}
