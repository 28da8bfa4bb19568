//! A record in the notation of `protocol/vectors.json`.

use mongoseal::{
    AcquireId, FencingToken, Group,
    record::{CompletedTick, Holder, LeaseSpec, PastRevocation, PastRun, Record, StoreTime, StoredValue, Waiter},
};
use serde_json::{Map, Value, json};

use crate::notation::{Notation, acquire_id_of};

impl Notation<'_> {
    /// A record without the fields that have their default.
    pub(crate) fn write_record(&self, record: Option<&Record>) -> Value {
        let Some(record) = record else { return Value::Null };
        let holder = |holder: &Holder| {
            let mut entry = Self::write_terms(&holder.terms);
            entry.insert("version".into(), self.write_token(holder.version));
            entry.insert("refreshes".into(), holder.refreshes.into());
            entry.insert("since".into(), self.write_time(holder.since));
            entry.insert("last_seen".into(), self.write_time(holder.last_seen));
            entry.insert("expires_at".into(), self.write_time(holder.expires_at));
            entry.insert("not_after".into(), holder.not_after.map(|time| self.write_time(time)).into());
            entry.insert("released_at".into(), holder.released_at.map(|time| self.write_time(time)).into());
            self.without_defaults(entry, &["terms", "holder"])
        };
        let waiter = |waiter: &Waiter| {
            let mut entry = Self::write_terms(&waiter.terms);
            entry.insert("wait_ttl".into(), waiter.wait_ttl.into());
            entry.insert("refreshes".into(), waiter.refreshes.into());
            entry.insert("since".into(), self.write_time(waiter.since));
            entry.insert("last_seen".into(), self.write_time(waiter.last_seen));
            entry.insert("expires_at".into(), self.write_time(waiter.expires_at));
            self.without_defaults(entry, &["terms", "waiter"])
        };
        let handed = |(acquire_id, token): &(AcquireId, Option<FencingToken>)| json!({ "caller": acquire_id.to_string(), "token": token.map(|token| self.write_token(token)) });
        let revocation = |revocation: &PastRevocation| {
            let tokens: Vec<Value> = revocation.tokens.iter().map(|token| self.write_token(*token)).collect();
            json!({ "by": revocation.by, "reason": revocation.reason, "at": self.write_time(revocation.at), "tokens": tokens })
        };
        let completion = |CompletedTick { tick, token, by, at }: &CompletedTick| json!({ "tick": tick, "token": self.write_token(*token), "by": by, "at": self.write_time(*at) });
        let run = |run: &PastRun| {
            let entry = json!({
                "tick": run.tick, "token": self.write_token(run.token), "by": run.by, "since": self.write_time(run.since),
                "at": self.write_time(run.at), "failed": run.is_failed, "note": run.note, "period": run.period,
            });
            let Value::Object(entry) = entry else { unreachable!("it is an object") };
            self.without_defaults(entry, &["run"])
        };
        let stored = |StoredValue { content, token, write, at }: &StoredValue| {
            let mut entry = json!({ "token": self.write_token(*token), "write": write, "at": self.write_time(*at) });
            if let Some(content) = content {
                entry["content"] = content.parse().unwrap();
            }
            entry
        };
        let entry = json!({
            "version": self.write_token(record.version),
            "holders": record.holders.iter().map(holder).collect::<Vec<_>>(),
            "queue": record.queue.iter().map(waiter).collect::<Vec<_>>(),
            "handover": record.handover.iter().map(handed).collect::<Vec<_>>(),
            "last_seen": self.write_time(record.last_seen),
            "expires_at": self.write_time(record.expires_at),
            "history": record.history.iter().map(revocation).collect::<Vec<_>>(),
            "done": record.done.as_ref().map(completion),
            "runs": record.runs.iter().map(run).collect::<Vec<_>>(),
            "value": record.value.as_ref().map(stored),
        });
        let Value::Object(entry) = entry else { unreachable!("it is an object") };
        self.without_defaults(entry, &["record"])
    }

    fn without_defaults(&self, mut entry: Map<String, Value>, kinds: &[&str]) -> Value {
        entry.retain(|name, value| kinds.iter().all(|kind| self.defaults[kind].get(name) != Some(value)));
        entry.into()
    }

    fn write_time(&self, time: StoreTime) -> Value {
        (time.millis() - self.now.millis()).into()
    }

    fn write_terms(terms: &LeaseSpec) -> Map<String, Value> {
        let number = terms.lease.to_bytes()[0];
        let metadata: Map<String, Value> =
            terms.metadata.iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
        let mut entry = Map::new();
        entry.insert("lease".into(), number.into());
        if terms.acquire_id != acquire_id_of(number) {
            entry.insert("caller".into(), terms.acquire_id.to_string().into());
        }
        entry.insert("owner".into(), terms.owner.as_str().into());
        entry.insert("limit".into(), terms.sharing.limit().into());
        entry.insert("ttl".into(), terms.ttl.into());
        entry.insert("grace".into(), terms.grace.into());
        entry.insert("group".into(), terms.group.as_ref().map(Group::as_str).into());
        entry.insert("metadata".into(), metadata.into());
        entry.insert("min_hold".into(), terms.hold.min.unwrap_or_default().into());
        entry.insert("max_hold".into(), terms.hold.max.unwrap_or_default().into());
        entry
    }
}
