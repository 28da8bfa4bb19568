//! A holder in a worker: checks its lease, writes, and releases the lease or drops it.

mod documents;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

pub(crate) use documents::contents;
use fastrand::Rng;
use mongoseal::{
    EndReason, Error, FencingToken, Lease, LeaseId, LeaseState, LossCause, ReleaseOutcome, Result, election::Leader,
};
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

    async fn release(self) -> Result<ReleaseOutcome> {
        match self {
            Self::Lease(lease) => lease.release().await,
            Self::Leader(leader) => leader.resign().await,
        }
    }
}

/// Whose lease it is, or was: what events tell of it.
#[derive(Clone, Copy)]
struct Who<'a> {
    worker: &'a Worker,
    plan: &'a Plan,
    number: u64,
    token: FencingToken,
}

/// A lease, and what the worker reports of it.
struct Holder<'a> {
    who: Who<'a>,
    held: Held,
    /// How many values it has begun to write.
    values: AtomicU64,
}

/// Holds a key to its end. Gives the lease id that it was handed on to, where it was, and when that began.
pub(super) async fn hold(worker: &Worker, plan: &Plan, held: Held, number: u64, rng: &mut Rng) -> Option<Transferred> {
    let (token, id) = (held.lease().token(), held.lease().id());
    let who = Who { worker, plan, number, token };
    let holder = Holder { who, held, values: AtomicU64::new(0) };
    if who.has_value() {
        holder.read_value().await;
    }
    let until = now() + micros(plan.hold);
    loop {
        let lease = holder.held.lease();
        if !holder.write() {
            holder.lost(rng).await;
            worker.notes.forget(id);
            if plan.aim == Aim::Fence {
                who.write(token).await;
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
                tokio::time::timeout(longest, lease.cancelled()).await.ok();
            }
            0 if plan.aim == Aim::Keep => drop(client::inspect(worker, &plan.key).await),
            _ if plan.aim == Aim::Keep => sleep(Duration::from_micros(left.min(rng.u64(50_000..200_000)))).await,
            _ if plan.aim == Aim::Outstay => sleep(Duration::from_micros(left.min(rng.u64(20_000..60_000)))).await,
            0 => who.call("refresh", lease.refresh()).await,
            10..14 if who.has_value() => holder.put_value().await,
            14 if who.has_value() => holder.read_value().await,
            1 if worker.has_documents() => who.call("verify", lease.verify()).await,
            2..10 if plan.group.is_some() && worker.has_documents() => who.refresh_group().await,
            _ if plan.aim == Aim::Fence => who.write(lease).await,
            _ if plan.aim == Aim::Transaction => who.transact(lease).await,
            _ => sleep(Duration::from_micros(left.min(rng.u64(5_000..60_000)))).await,
        }
    }
    let handed_to = holder.end(rng).await;
    worker.notes.forget(id);
    if plan.aim == Aim::Fence && rng.bool() {
        // A part of its work that knows the token and not that the lease is over. The fence refuses it if a later holder
        // has written.
        sleep(Duration::from_millis(rng.u64(1..600))).await;
        who.write(token).await;
    }
    handed_to
}

impl Who<'_> {
    /// The worker, the number of the lease, the key and the token.
    fn ids(&self) -> (u32, u64, String, u64) {
        (self.worker.spec.worker, self.number, self.plan.key.clone(), self.token.get())
    }

    fn say_write(&self, at: u64, valid: bool) {
        let (worker, lease, key, token) = self.ids();
        say(&Event::Write(Write { worker, lease, key, token, at, valid, accepted: None }));
    }

    fn say_call(&self, verb: &str, begin: u64, outcome: &str) {
        let (worker, lease, key, token) = self.ids();
        let (verb, outcome, within) = (verb.to_owned(), outcome.to_owned(), micros(OPERATION_TIMEOUT));
        say(&Event::Call(Call { worker, lease, key, token, verb, begin, end: now(), within, outcome }));
    }

    fn say_value(&self, verb: &str, content: (u64, u64), begin: Micros, outcome: &str) {
        let (worker, _, key, token) = self.ids();
        let (verb, outcome) = (verb.to_owned(), outcome.to_owned());
        say(&Event::Value(Value { worker, key, token, verb, content, begin, end: now(), outcome }));
    }

    fn ends(&self, how: &str) {
        let (worker, lease, key, token) = self.ids();
        say(&Event::Ends { worker, lease, key, token, at: now(), how: how.into() });
    }

    /// Makes a call and tells of it.
    async fn call<T>(&self, verb: &str, call: impl Future<Output = Result<T>>) {
        let begin = now();
        let answer = call.await;
        self.say_call(verb, begin, &said(&answer));
    }

    /// Which refreshes this lease, where it answers that it did.
    async fn refresh_group(&self) {
        let Some(group) = &self.plan.group else { return };
        let begin = now();
        let answer = self.worker.handles.seal.refresh_group(group.as_str(), self.plan.ttl).await;
        let end = now();
        let ours = |lease: &mongoseal::inspect::ListedLease| lease.holder.token == self.token;
        let outcome = match &answer {
            Ok(group) if group.refreshed.iter().any(ours) => {
                let (worker, lease, key, token) = self.ids();
                say(&Event::Refreshed { worker, lease, key, token, begin, end });
                "ok".into()
            }
            Ok(_) => "missed".into(),
            error => said(error),
        };
        self.say_call("refresh-group", begin, &outcome);
    }

    /// Whether it reads and writes the value of its key. Records of other keys are deleted soon, and those with a value are
    /// not.
    fn has_value(&self) -> bool {
        let key = self.plan.key.as_str();
        self.plan.limit == 0 && (HOT_KEYS.contains(&key) || WRITTEN_KEYS.contains(&key))
    }
}

impl Holder<'_> {
    /// Looks, and writes whatever it saw: the fence is there for those who did not look.
    fn write(&self) -> bool {
        let at = now();
        let valid = self.held.lease().is_valid();
        self.who.say_write(at, valid);
        valid
    }

    async fn lost(self, rng: &mut Rng) {
        let (cause, newer) = match self.held.lease().state() {
            LeaseState::Lost { cause: LossCause::Expired } => ("expired", None),
            LeaseState::Lost { cause: LossCause::TakenOver { token } } => ("taken-over", Some(token.get())),
            LeaseState::Lost { cause: LossCause::Revoked { .. } } => ("revoked", None),
            LeaseState::Lost { cause: LossCause::Removed } => ("removed", None),
            LeaseState::Lost { .. } => ("other", None),
            LeaseState::Ended { reason: EndReason::ShutDown } => ("shut-down", None),
            state => return self.who.say_call("hold", now(), &format!("is not valid and {state:?}")),
        };
        let (worker, lease, key, token) = self.who.ids();
        say(&Event::Lost { worker, lease, key, token, at: now(), cause: cause.into(), newer });
        // It does not know yet, and writes once more.
        if rng.bool() && !self.who.worker.is_ending() {
            sleep(Duration::from_millis(rng.u64(1..800))).await;
            self.who.say_write(now(), false);
        }
    }

    async fn end(self, rng: &mut Rng) -> Option<Transferred> {
        let Who { worker, plan, .. } = self.who;
        match (&plan.group, rng.u8(..20)) {
            _ if plan.aim == Aim::Drop => {
                self.who.ends("drop");
                drop(self.held);
            }
            (Some(group), ..12) => {
                self.who.ends("group");
                self.who.call("release-group", worker.handles.seal.release_group(group.as_str())).await;
            }
            // Who takes up one that is shared may ask after others who were granted the key later.
            (None, 16) if plan.aim == Aim::Hold && plan.limit == 0 => return self.transfer().await,
            (_, 19) if plan.aim != Aim::Lead => {
                self.who.ends("orphan");
                if let Held::Lease(lease) = self.held {
                    lease.orphan();
                }
            }
            (_, 17..) => {
                self.who.ends("drop");
                drop(self.held);
            }
            (_, 15) if self.who.has_value() && matches!(self.held, Held::Lease(_)) => self.release_with_value().await,
            _ => self.release().await,
        }
        None
    }

    /// The next value that it writes.
    fn next_value(&self) -> (u64, u64) {
        (self.who.token.get(), self.values.fetch_add(1, Ordering::Relaxed) + 1)
    }

    async fn read_value(&self) {
        let begin = now();
        let read = self.held.lease().value::<(u64, u64)>().await;
        let content = read.as_ref().ok().and_then(Option::as_ref).map_or((0, 0), |value| value.content);
        self.who.say_value("read", content, begin, &said(&read));
    }

    async fn put_value(&self) {
        let (begin, content) = (now(), self.next_value());
        let put = self.held.lease().put_value(&content).await;
        self.who.say_value("put", content, begin, &said(&put));
    }

    async fn release_with_value(self) {
        self.who.ends("release");
        let (begin, content) = (now(), self.next_value());
        let Held::Lease(held) = self.held else { return };
        let outcome = said(&held.release_with_value(&content).await);
        self.who.say_value("release-with", content, begin, &outcome);
        let outcome = match outcome.as_str() {
            "ok" => "ours",
            "lost" => "gone",
            other => other,
        };
        self.who.say_call("release", begin, outcome);
    }

    /// Transfers the lease, which another client resumes if the transfer is confirmed.
    async fn transfer(self) -> Option<Transferred> {
        self.who.ends("transfer");
        let Held::Lease(held) = self.held else { return None };
        let (since, id) = (now(), LeaseId::random());
        let transferred = held.transfer(id).await;
        self.who.say_call("transfer", since, &said(&transferred));
        Some(Transferred { id, token: transferred.ok()?, since })
    }

    async fn release(self) {
        self.who.ends("release");
        let begin = now();
        let outcome = match self.held.release().await {
            Ok(ReleaseOutcome::Released) => "ours".into(),
            Ok(ReleaseOutcome::Unknown) => "unknown".into(),
            Ok(ReleaseOutcome::AlreadyLost { .. } | ReleaseOutcome::AlreadyTransferred) => "gone".into(),
            other => said(&other),
        };
        self.who.say_call("release", begin, &outcome);
    }
}

/// `ok`, or an error in one word, where it is one that can be expected.
fn said<T>(answer: &Result<T>) -> String {
    match answer {
        Ok(_) => "ok".into(),
        Err(Error::Unavailable { .. }) => "unavailable".into(),
        Err(Error::Lost { .. } | Error::Ended { .. }) => "lost".into(),
        Err(Error::Fenced { .. }) => "fenced".into(),
        Err(error) => error.to_string(),
    }
}
