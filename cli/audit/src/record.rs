//! A record as an entry shows it, and whether the state machine allows a change of it.
//!
//! Mechanism: the rules compare the record before and after a write. They do not know the request. So they allow what some
//! request does: if a lease ends early, a process that knows its id may have released it.

use mongoseal::mongodb::bson::{Bson, Document};

/// A lease that holds the key, or one that was released before its minimum hold was over.
pub(super) struct Holder {
    pub(super) token: i64,
    /// How many may hold the key together.
    pub(super) limit: usize,
    pub(super) expires_at: i64,
    pub(super) is_released: bool,
    /// The acquire that was granted the key.
    caller: Option<String>,
    lease: Option<Bson>,
    since: Option<i64>,
    not_after: Option<i64>,
    /// The ttl and the grace.
    lasts: Option<i64>,
}

/// An acquire that waits.
struct Waiter {
    caller: String,
    /// One that is queued again has another.
    since: i64,
    last_seen: i64,
}

/// What an entry shows of a record. Times are in milliseconds since the Unix epoch.
#[derive(Default)]
pub(super) struct Record {
    /// When it was written.
    pub(super) now: Option<i64>,
    pub(super) holders: Vec<Holder>,
    version: Option<i64>,
    /// The next one first.
    queue: Vec<Waiter>,
    expires_at: Option<i64>,
    /// The token and the id of the last write of the value.
    value: Option<(i64, i64)>,
    /// The last completed tick, and its token.
    done: Option<(i64, i64)>,
    /// The tokens and the time of the last revocation.
    revoked: (Vec<i64>, Option<i64>),
}

fn time(of: &Document, name: &str) -> Option<i64> {
    of.get_datetime(name).ok().map(|time| time.timestamp_millis())
}

fn numbers(of: &Document, [one, other]: [&str; 2]) -> Option<(i64, i64)> {
    Some((of.get_i64(one).ok()?, of.get_i64(other).ok()?))
}

impl Holder {
    fn read(entry: &Bson) -> Option<Self> {
        let of = entry.as_document()?;
        Some(Self {
            token: of.get_i64("version").ok()?,
            limit: usize::try_from(of.get_i32("limit").ok()?).ok()?.max(1),
            expires_at: time(of, "expires_at")?,
            is_released: of.contains_key("released_at"),
            caller: of.get_str("caller").ok().map(str::to_owned),
            lease: of.get("lease").cloned(),
            since: time(of, "since"),
            not_after: time(of, "not_after"),
            lasts: numbers(of, ["ttl", "grace"]).map(|(ttl, grace)| ttl.saturating_add(grace)),
        })
    }

    pub(super) fn is_live(&self, now: i64) -> bool {
        !self.is_released && self.expires_at > now
    }
}

impl Waiter {
    fn is(&self, other: &Self) -> bool {
        self.caller == other.caller && self.since == other.since
    }
}

impl Record {
    /// Reads a record. `None`: one of its holders is not known.
    pub(super) fn read(of: &Document) -> Option<Self> {
        let waiter = |entry: &Bson| {
            let of = entry.as_document()?;
            let caller = of.get_str("caller").ok()?.to_owned();
            Some(Waiter { caller, since: time(of, "since")?, last_seen: time(of, "last_seen")? })
        };
        let part = |name| of.get_document(name).ok();
        let last = of.get_array("history").ok().and_then(|history| history.last()?.as_document());
        let revoked = last.map(|last| {
            let tokens = last.get_array("tokens").into_iter().flatten().filter_map(Bson::as_i64);
            (tokens.collect(), time(last, "at"))
        });
        Some(Self {
            now: time(of, "last_seen"),
            holders: of.get_array("holders").ok()?.iter().map(Holder::read).collect::<Option<_>>()?,
            version: of.get_i64("version").ok(),
            queue: of.get_array("queue").into_iter().flatten().rev().filter_map(waiter).collect(),
            expires_at: time(of, "expires_at"),
            value: part("value").and_then(|value| numbers(value, ["token", "write"])),
            done: part("done").and_then(|done| numbers(done, ["tick", "token"])),
            revoked: revoked.unwrap_or_default(),
        })
    }

    fn holder(&self, token: i64) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.token == token)
    }

    /// Returns what is wrong with the record after a write of this one.
    pub(super) fn broken_by(&self, after: &Self) -> Vec<String> {
        let Some(now) = after.now else { return Vec::new() };
        let mut broken = Vec::new();
        if after.expires_at < self.expires_at {
            broken.push("its record stops to matter sooner than before".into());
        }
        for holder in &after.holders {
            match self.holder(holder.token) {
                Some(before) => broken.extend(before.broken_by(holder, now)),
                None => broken.extend(self.broken_by_grant(holder, after, now)),
            }
        }
        let cut = self.holders.iter().filter(|one| one.is_released && one.expires_at > now);
        let cut = cut.filter(|one| after.holder(one.token).is_none() && !after.revoked.0.contains(&one.token));
        broken.extend(cut.map(|one| format!("the minimum hold of token {} was cut short", one.token)));
        if after.revoked != self.revoked {
            let back = after.revoked.0.iter().filter(|token| after.holder(**token).is_some());
            broken.extend(back.map(|token| format!("token {token} holds it after its revocation")));
        }
        if !after.stays_in_order(self) {
            broken.push("its queue has another order".into());
        }
        broken.extend(self.broken_by_value(after.value, now));
        broken.extend(self.broken_by_tick(after.done));
        broken
    }

    /// Returns what is wrong with a holder that is new after a write of this record.
    fn broken_by_grant(&self, new: &Holder, after: &Self, now: i64) -> Option<String> {
        let token = new.token;
        // A transfer gives the lease of an acquire another token.
        let ended = || self.holders.iter().filter(|one| after.holder(one.token).is_none());
        if new.caller.is_some() && ended().any(|one| one.caller == new.caller) {
            return None;
        }
        let is_new = |waiter: &Waiter| Some(&waiter.caller) == new.caller.as_ref();
        let place = self.queue.iter().position(is_new);
        let begin = place.map_or(now, |place| self.queue[place].last_seen.max(now));
        if new.lasts.is_some_and(|lasts| new.expires_at > begin.saturating_add(lasts)) {
            return Some(format!("token {token} lasts longer than its ttl and its grace"));
        }
        let before = self.queue.iter().take(place.unwrap_or(self.queue.len()));
        if let Some(passed) = before.into_iter().find(|one| after.has_queued(one)) {
            return Some(format!("token {token} was granted before {}, which was queued sooner", passed.caller));
        }
        // The write that ends a lease grants the key to waiters. An acquire ends no lease.
        let prior = ended().find(|one| one.is_live(now) && !after.revoked.0.contains(&one.token));
        let prior = prior.filter(|_| place.is_none() && new.caller.is_some())?;
        Some(format!("token {token} was granted while token {} held it", prior.token))
    }

    fn has_queued(&self, waiter: &Waiter) -> bool {
        self.queue.iter().any(|one| one.is(waiter))
    }

    /// Whether the waiters of this record that waited before are in the order of then, and before the others.
    fn stays_in_order(&self, before: &Self) -> bool {
        let stayed = before.queue.iter().filter(|one| self.has_queued(one));
        stayed.zip(&self.queue).all(|(then, now)| then.is(now))
    }

    /// Returns what is wrong with the value after a write of this record.
    fn broken_by_value(&self, after: Option<(i64, i64)>, now: i64) -> Option<String> {
        if after == self.value {
            return None;
        }
        let Some((token, _)) = after else { return Some("its value is gone".into()) };
        let writer = self.holder(token).filter(|one| one.is_live(now) && one.limit == 1);
        writer.is_none().then(|| format!("token {token} wrote its value without holding it exclusively"))
    }

    /// Returns what is wrong with the last completed tick after a write of this record.
    fn broken_by_tick(&self, after: Option<(i64, i64)>) -> Option<String> {
        if after == self.done {
            return None;
        }
        let Some((tick, token)) = after else { return Some("its last completed tick is gone".into()) };
        let before = self.done.filter(|(before, _)| *before >= tick);
        if let Some((before, of)) = before.filter(|(_, of)| *of != token) {
            return Some(format!("token {token} completed tick {tick} after tick {before} of token {of}"));
        }
        // A lease that expired completes its tick, unless a later one was granted. A reset keeps the token.
        let is_its = before.is_some() || self.holder(token).is_some() || self.version == Some(token);
        (!is_its).then(|| format!("token {token} completed tick {tick} without holding it"))
    }
}

impl Holder {
    /// Returns what is wrong with this holder after a write at this time.
    fn broken_by(&self, after: &Self, now: i64) -> Option<String> {
        let token = self.token;
        let is_released_now = after.is_released && !self.is_released;
        if is_released_now {
            return None;
        }
        if after.expires_at < self.expires_at {
            return Some(format!("token {token} expires sooner than before"));
        }
        if after.expires_at > self.expires_at {
            if self.expires_at <= now {
                return Some(format!("token {token} was extended after it had expired"));
            }
            if after.lasts.is_some_and(|lasts| after.expires_at > now.saturating_add(lasts)) {
                return Some(format!("token {token} was extended by more than its ttl and its grace"));
            }
        }
        let is_same = (self.since, self.not_after, self.is_released)
            == (after.since, after.not_after, after.is_released)
            && self.lease == after.lease;
        (!is_same).then(|| format!("token {token} became another lease"))
    }
}
