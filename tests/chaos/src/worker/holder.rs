//! A holder in a worker: checks its lease, writes, and releases the lease or drops it.

mod documents;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use documents::Writer;
pub(crate) use documents::contents;
use fastrand::Rng;
use mongoseal::{EndReason, Error, Leader, Lease, LeaseId, LeaseState, LossCause, ReleaseOutcome};
use tokio::time::sleep;

use super::{
    HOT_KEYS, OPERATION_TIMEOUT, WRITTEN_KEYS, Worker,
    client::{self, Aim, Plan, Transferred},
    say,
};
use crate::words::{Call, Event, Micros, Value, Write, micros, now};

/// A key that is held, or a leadership, which is one.
pub(crate) enum Held {
    Lease(Lease),
    Leader(Leader),
}

impl Held {
    pub(crate) fn lease(&self) -> &Lease {
        match self {
            Self::Lease(lease) => lease,
            Self::Leader(leader) => leader.lease(),
        }
    }

    async fn release(self) -> mongoseal::Result<ReleaseOutcome> {
        match self {
            Self::Lease(lease) => lease.release().await,
            Self::Leader(leader) => leader.resign().await,
        }
    }
}

/// A lease and what is told of it.
struct Holder<'a> {
    worker: &'a Worker,
    plan: &'a Plan,
    held: Held,
    number: u64,
    token: u64,
    /// How many values it has begun to write.
    values: AtomicU64,
}

/// Holds a key to its end. Gives the lease id that it was handed on to, where it was, and when that began.
pub(super) async fn hold(worker: &Worker, plan: &Plan, held: Held, number: u64, rng: &mut Rng) -> Option<Transferred> {
    let (token, id) = (held.lease().token(), held.lease().id());
    let writer = Writer { worker, plan, number, token };
    let holder = Holder { worker, plan, held, number, token: token.get(), values: AtomicU64::new(0) };
    if holder.has_value() {
        holder.read_value().await;
    }
    let until = now() + micros(plan.hold);
    loop {
        if !holder.write() {
            holder.lost(rng).await;
            worker.notes.forget(id);
            if plan.aim == Aim::Fence {
                writer.write(token).await;
            }
            return None;
        }
        let left = until.saturating_sub(now());
        if left == 0 || worker.is_ending() {
            break;
        }
        match rng.u8(..40) {
            _ if plan.aim == Aim::Last => {
                let longest = Duration::from_micros(left.min(1_000_000));
                tokio::time::timeout(longest, holder.held.lease().cancelled()).await.ok();
            }
            0 if plan.aim == Aim::Keep => drop(client::inspect(worker, &plan.key).await),
            _ if plan.aim == Aim::Keep => sleep(Duration::from_micros(left.min(rng.u64(50_000..200_000)))).await,
            _ if plan.aim == Aim::Outstay => sleep(Duration::from_micros(left.min(rng.u64(20_000..60_000)))).await,
            0 => holder.refresh().await,
            10..14 if holder.has_value() => holder.put_value().await,
            14 if holder.has_value() => holder.read_value().await,
            1 if worker.has_documents() => holder.verify().await,
            2..10 if plan.group.is_some() && worker.has_documents() => holder.refresh_group().await,
            _ if plan.aim == Aim::Fence => writer.write(holder.held.lease()).await,
            _ if plan.aim == Aim::Transaction => writer.transact(holder.held.lease()).await,
            _ => sleep(Duration::from_micros(left.min(rng.u64(5_000..60_000)))).await,
        }
    }
    let handed_to = holder.end(rng).await;
    worker.notes.forget(id);
    if plan.aim == Aim::Fence && rng.bool() {
        // A part of its work that knows the token and not that the lease is over. The fence refuses it if a later holder
        // has written.
        sleep(Duration::from_millis(rng.u64(1..600))).await;
        writer.write(token).await;
    }
    handed_to
}

impl Holder<'_> {
    /// Looks, and writes whatever it saw: the fence is there for those who did not look.
    fn write(&self) -> bool {
        let at = now();
        let valid = self.held.lease().is_valid();
        self.say_write(at, valid);
        valid
    }

    fn say_write(&self, at: u64, valid: bool) {
        let (key, limit, token) = (self.plan.key.clone(), self.plan.limit, self.token);
        let (worker, lease) = (self.worker.spec.worker, self.number);
        say(&Event::Write(Write { worker, lease, key, limit, token, at, valid, accepted: None }));
    }

    async fn lost(self, rng: &mut Rng) {
        let (cause, newer) = match self.held.lease().state() {
            LeaseState::Lost { cause: LossCause::Expired } => ("expired", None),
            LeaseState::Lost { cause: LossCause::TakenOver { token } } => ("taken-over", Some(token.get())),
            LeaseState::Lost { cause: LossCause::Revoked { .. } } => ("revoked", None),
            LeaseState::Lost { cause: LossCause::Removed } => ("removed", None),
            LeaseState::Lost { .. } => ("other", None),
            LeaseState::Ended { reason: EndReason::ShutDown } => ("shut-down", None),
            state => return self.odd(&format!("is not valid and {state:?}")),
        };
        let (worker, lease, key, token) = (self.worker.spec.worker, self.number, self.plan.key.clone(), self.token);
        say(&Event::Lost { worker, lease, key, token, at: now(), cause: cause.into(), newer });
        // It does not know yet, and writes once more.
        if rng.bool() && !self.worker.is_ending() {
            sleep(Duration::from_millis(rng.u64(1..800))).await;
            self.say_write(now(), false);
        }
    }

    fn odd(&self, what: &str) {
        self.say_call("hold", now(), u64::MAX, what);
    }

    fn say_call(&self, verb: &str, begin: u64, within: u64, outcome: &str) {
        let (key, token) = (self.plan.key.clone(), self.token);
        let (worker, lease) = (self.worker.spec.worker, self.number);
        let (verb, outcome) = (verb.to_owned(), outcome.to_owned());
        say(&Event::Call(Call { worker, lease, key, token, verb, begin, end: now(), within, outcome }));
    }

    async fn refresh(&self) {
        let begin = now();
        let answer = self.held.lease().refresh().await;
        self.say_call("refresh", begin, micros(OPERATION_TIMEOUT), &said(answer.as_ref().err(), "ok"));
    }

    async fn verify(&self) {
        let begin = now();
        let answer = self.held.lease().verify().await;
        self.say_call("verify", begin, micros(OPERATION_TIMEOUT), &said(answer.as_ref().err(), "ok"));
    }

    /// Which refreshes this lease, where it answers that it did.
    async fn refresh_group(&self) {
        let Some(group) = &self.plan.group else { return };
        let begin = now();
        let answer = self.worker.handles.seal.refresh_group(group.as_str(), self.plan.ttl).await;
        let end = now();
        let ours = |lease: &mongoseal::ListedLease| lease.holder.token.get() == self.token;
        let outcome = match &answer {
            Ok(group) if group.refreshed.iter().any(ours) => {
                let (worker, lease, key, token) =
                    (self.worker.spec.worker, self.number, self.plan.key.clone(), self.token);
                say(&Event::Refreshed { worker, lease, key, token, begin, end });
                "ok".into()
            }
            Ok(_) => "missed".into(),
            Err(error) => said(Some(error), "ok"),
        };
        self.say_call("refresh-group", begin, micros(OPERATION_TIMEOUT), &outcome);
    }

    fn ends(&self, how: &str) {
        let (worker, lease, key, token) = (self.worker.spec.worker, self.number, self.plan.key.clone(), self.token);
        say(&Event::Ends { worker, lease, key, token, at: now(), how: how.into() });
    }

    async fn end(self, rng: &mut Rng) -> Option<Transferred> {
        match (&self.plan.group, rng.u8(..20)) {
            _ if self.plan.aim == Aim::Drop => {
                self.ends("drop");
                drop(self.held);
            }
            (Some(group), ..12) => {
                self.ends("group");
                let begin = now();
                let answer = self.worker.handles.seal.release_group(group.as_str()).await;
                let within = micros(OPERATION_TIMEOUT);
                self.say_call("release-group", begin, within, &said(answer.as_ref().err(), "ok"));
            }
            // Who takes up one that is shared may ask after others who were granted the key later.
            (None, 16) if self.plan.aim == Aim::Hold && self.plan.limit == 0 => return self.transfer().await,
            (_, 19) if self.plan.aim != Aim::Lead => {
                self.ends("orphan");
                if let Held::Lease(lease) = self.held {
                    lease.orphan();
                }
            }
            (_, 17..) => {
                self.ends("drop");
                drop(self.held);
            }
            (_, 15) if self.has_value() && matches!(self.held, Held::Lease(_)) => self.release_with_value().await,
            _ => self.release().await,
        }
        None
    }

    /// Whether it reads and writes the value of its key. Records of other keys are deleted soon, and those with a value are
    /// not.
    fn has_value(&self) -> bool {
        let key = self.plan.key.as_str();
        self.plan.limit == 0 && (HOT_KEYS.contains(&key) || WRITTEN_KEYS.contains(&key))
    }

    /// The next value that it writes.
    fn next_value(&self) -> (u64, u64) {
        (self.token, self.values.fetch_add(1, Ordering::Relaxed) + 1)
    }

    async fn read_value(&self) {
        let begin = now();
        let read = self.held.lease().value::<(u64, u64)>().await;
        let content = read.as_ref().ok().and_then(Option::as_ref).map_or((0, 0), |value| value.content);
        self.say_value("read", content, begin, read.as_ref().err());
    }

    async fn put_value(&self) {
        let (begin, content) = (now(), self.next_value());
        let put = self.held.lease().put_value(&content).await;
        self.say_value("put", content, begin, put.as_ref().err());
    }

    fn say_value(&self, verb: &str, content: (u64, u64), begin: Micros, error: Option<&Error>) {
        let (key, worker, token) = (self.plan.key.clone(), self.worker.spec.worker, self.token);
        let (verb, outcome) = (verb.to_owned(), said(error, "ok"));
        say(&Event::Value(Value { worker, key, token, verb, content, begin, end: now(), outcome }));
    }

    async fn release_with_value(self) {
        self.ends("release");
        let (begin, content, token) = (now(), self.next_value(), self.token);
        let (worker, lease, key) = (self.worker.spec.worker, self.number, self.plan.key.clone());
        let Held::Lease(held) = self.held else { return };
        let released = held.release_with_value(&content).await;
        let outcome = said(released.as_ref().err(), "ok");
        let (verb, end) = ("release-with".to_owned(), now());
        say(&Event::Value(Value {
            worker,
            key: key.clone(),
            token,
            verb,
            content,
            begin,
            end,
            outcome: outcome.clone(),
        }));
        let outcome = match outcome.as_str() {
            "ok" => "ours".into(),
            "lost" => "gone".into(),
            _ => outcome,
        };
        let (verb, within) = ("release".into(), micros(OPERATION_TIMEOUT));
        say(&Event::Call(Call { worker, lease, key, token, verb, begin, end, within, outcome }));
    }

    /// Transfers the lease, which another client resumes if the transfer is confirmed.
    async fn transfer(self) -> Option<Transferred> {
        self.ends("transfer");
        let (worker, lease, key, token) = (self.worker.spec.worker, self.number, self.plan.key.clone(), self.token);
        let Held::Lease(held) = self.held else { return None };
        let (since, id) = (now(), LeaseId::random());
        let transferred = held.transfer(id).await;
        let outcome = said(transferred.as_ref().err(), "ok");
        let (verb, within) = ("transfer".into(), micros(OPERATION_TIMEOUT));
        say(&Event::Call(Call { worker, lease, key, token, verb, begin: since, end: now(), within, outcome }));
        Some(Transferred { id, token: transferred.ok()?, since })
    }

    async fn release(self) {
        self.ends("release");
        let (worker, lease, key, token) = (self.worker.spec.worker, self.number, self.plan.key.clone(), self.token);
        let begin = now();
        let answer = self.held.release().await;
        let outcome = match &answer {
            Ok(ReleaseOutcome::Released) => "ours".into(),
            Ok(ReleaseOutcome::Unknown) => "unknown".into(),
            Ok(ReleaseOutcome::AlreadyLost { .. } | ReleaseOutcome::AlreadyTransferred) => "gone".into(),
            other => said(other.as_ref().err(), "ok"),
        };
        let (verb, within) = ("release".into(), micros(OPERATION_TIMEOUT));
        say(&Event::Call(Call { worker, lease, key, token, verb, begin, end: now(), within, outcome }));
    }
}

/// An error in one word, where it is one that can be expected.
fn said(error: Option<&Error>, otherwise: &str) -> String {
    match error {
        None => otherwise.into(),
        Some(Error::Unavailable { .. }) => "unavailable".into(),
        Some(Error::Lost { .. } | Error::Ended { .. }) => "lost".into(),
        Some(Error::Fenced { .. }) => "fenced".into(),
        Some(error) => error.to_string(),
    }
}
