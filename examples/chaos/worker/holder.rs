//! One who holds a key: looks whether it does, writes, and gives it back or not.

use std::time::Duration;

use fastrand::Rng;
use mongoseal::{Error, Lease, LeaseState, LossCause, Released};
use tokio::time::sleep;

use super::{OPERATION_TIMEOUT, Worker, client::Plan, say};
use crate::words::{Call, Event, Write, micros, now};

/// A lease and what is told of it.
struct Holder<'a> {
    worker: &'a Worker,
    plan: &'a Plan,
    lease: Lease,
    number: u64,
    token: u64,
}

pub(crate) async fn hold(worker: &Worker, plan: &Plan, lease: Lease, number: u64, rng: &mut Rng) {
    let token = lease.token().get();
    let holder = Holder { worker, plan, lease, number, token };
    let until = now() + micros(plan.hold);
    loop {
        if !holder.write() {
            return holder.lost(rng).await;
        }
        let left = until.saturating_sub(now());
        if left == 0 || worker.is_ending() {
            break;
        }
        match rng.u8(..40) {
            0 => holder.refresh().await,
            1 => holder.verify().await,
            _ => sleep(Duration::from_micros(left.min(rng.u64(5_000..60_000)))).await,
        }
    }
    holder.end(rng).await;
}

impl Holder<'_> {
    /// Looks, and writes whatever it saw: the fence is there for those who did not look.
    fn write(&self) -> bool {
        let at = now();
        let valid = self.lease.is_valid();
        self.say_write(at, valid);
        valid
    }

    fn say_write(&self, at: u64, valid: bool) {
        let (key, limit, token) = (self.plan.key.clone(), self.plan.limit, self.token);
        let (worker, lease) = (self.worker.spec.worker, self.number);
        say(&Event::Write(Write { worker, lease, key, limit, token, at, valid, accepted: None }));
    }

    async fn lost(self, rng: &mut Rng) {
        let cause = match self.lease.state() {
            LeaseState::Lost { cause } => cause,
            state => return self.odd(&format!("is not valid and {state:?}")),
        };
        let newer = match &cause {
            LossCause::TakenOver { token } => Some(token.get()),
            _ => None,
        };
        let cause = match cause {
            LossCause::Expired => "expired",
            LossCause::TakenOver { .. } => "taken-over",
            LossCause::Revoked { .. } => "revoked",
            LossCause::Removed => "removed",
            LossCause::ShutDown => "shut-down",
            _ => "other",
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
        let answer = self.lease.refresh().await;
        self.say_call("refresh", begin, micros(OPERATION_TIMEOUT), &said(answer.as_ref().err(), "ok"));
    }

    async fn verify(&self) {
        let begin = now();
        let answer = self.lease.verify().await;
        self.say_call("verify", begin, micros(OPERATION_TIMEOUT), &said(answer.as_ref().err(), "ok"));
    }

    fn ends(&self, how: &str) {
        let (worker, lease, key, token) = (self.worker.spec.worker, self.number, self.plan.key.clone(), self.token);
        say(&Event::Ends { worker, lease, key, token, at: now(), how: how.into() });
    }

    async fn end(self, rng: &mut Rng) {
        match (&self.plan.group, rng.u8(..20)) {
            (Some(group), ..12) => {
                self.ends("group");
                let begin = now();
                let answer = self.worker.seal.release_group(group.as_str()).await;
                let within = micros(OPERATION_TIMEOUT);
                self.say_call("release-group", begin, within, &said(answer.as_ref().err(), "ok"));
            }
            (_, 19) => {
                self.ends("orphan");
                self.lease.orphan();
            }
            (_, 17..19) => {
                self.ends("drop");
                drop(self.lease);
            }
            _ => self.release().await,
        }
    }

    async fn release(self) {
        self.ends("release");
        let (worker, lease, key, token) = (self.worker.spec.worker, self.number, self.plan.key.clone(), self.token);
        let begin = now();
        let answer = self.lease.release().await;
        let outcome = match &answer {
            Ok(Released::Ours) => "ours".into(),
            Ok(Released::Unknown) => "unknown".into(),
            Ok(Released::Gone { .. }) => "gone".into(),
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
        Some(Error::Lost { .. }) => "lost".into(),
        Some(error) => error.to_string(),
    }
}
