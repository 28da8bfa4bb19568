//! A holder in a worker: checks its lease, writes, and releases the lease or drops it.

use std::time::Duration;

use fastrand::Rng;
use mongodb::bson::doc;
use mongoseal::{
    EndReason, Error, Fence, FencingToken, Lease, LeaseState, LossCause, ReleaseOutcome, Result, fence::FencedWriter,
};
use tokio::time::{sleep, timeout};

use super::{
    HOT_KEYS, OPERATION_TIMEOUT, WRITTEN_KEYS, Worker,
    client::{self, Aim, Plan},
    say,
};
use crate::words::{Call, Event, Micros, micros, now};

/// How long the work of a transaction may take.
const WORK: Duration = Duration::from_secs(1);

/// Whose lease it is, or was: what events tell of it.
struct Holder<'a> {
    worker: &'a Worker,
    plan: &'a Plan,
    number: u64,
    token: FencingToken,
    /// How many values it has begun to write.
    values: u64,
}

/// Holds a key to its end.
pub(super) async fn hold(worker: &Worker, plan: &Plan, lease: Lease, number: u64, rng: &mut Rng) {
    let (token, id) = (lease.token(), lease.id());
    let mut holder = Holder { worker, plan, number, token, values: 0 };
    if holder.has_value() {
        holder.read_value(&lease).await;
    }
    let until = now() + micros(plan.hold);
    loop {
        let at = now();
        let valid = lease.is_valid();
        say(&Event::Looked { worker: worker.spec.worker, lease: number, at, valid });
        if !valid {
            holder.say_lost(&lease);
            break;
        }
        let left = until.saturating_sub(now());
        if left == 0 || worker.is_ending() {
            holder.end(lease, rng).await;
            break;
        }
        match rng.u8(..40) {
            _ if plan.aim == Aim::Last => {
                timeout(Duration::from_micros(left.min(1_000_000)), lease.cancelled()).await.ok();
            }
            0 if plan.aim == Aim::Keep => drop(client::is_gone(worker, &plan.key).await),
            _ if plan.aim == Aim::Keep => sleep(Duration::from_micros(left.min(rng.u64(50_000..200_000)))).await,
            _ if plan.aim == Aim::Outstay => sleep(Duration::from_micros(left.min(rng.u64(20_000..60_000)))).await,
            0 => holder.call("refresh", lease.refresh()).await,
            10..14 if holder.has_value() => holder.put_value(&lease).await,
            14 if holder.has_value() => holder.read_value(&lease).await,
            1 if worker.has_documents() => holder.call("verify", lease.verify()).await,
            _ if plan.aim == Aim::Fence => holder.write(&lease).await,
            _ if plan.aim == Aim::Transaction => holder.transact(&lease).await,
            _ => sleep(Duration::from_micros(left.min(rng.u64(5_000..60_000)))).await,
        }
    }
    worker.notes.forget(id);
    if plan.aim == Aim::Fence && rng.bool() {
        // A part of its work that knows the token and not that the lease is over. The fence refuses it if a later holder
        // has written.
        sleep(Duration::from_millis(rng.u64(1..600))).await;
        holder.write(token).await;
    }
}

impl Holder<'_> {
    /// A call that has ended now.
    fn called(&self, verb: &str, begin: Micros, within: Duration, outcome: &str) -> Call {
        Call {
            worker: self.worker.spec.worker,
            key: self.plan.key.clone(),
            verb: verb.into(),
            begin,
            end: now(),
            within: micros(within),
            outcome: outcome.into(),
            ..Call::default()
        }
    }

    fn say_call(&self, verb: &str, begin: Micros, outcome: &str) {
        let call = self.called(verb, begin, OPERATION_TIMEOUT, outcome);
        say(&Event::Call(Call { lease: self.number, ..call }));
    }

    fn say_value(&self, verb: &str, content: (u64, u64), begin: Micros, outcome: &str) {
        let call = self.called(verb, begin, OPERATION_TIMEOUT, outcome);
        say(&Event::Call(Call { token: self.token.get(), content, ..call }));
    }

    fn say_write<T>(&self, begin: Micros, within: Duration, answer: &Result<Option<T>>) {
        let outcome = if matches!(answer, Ok(None)) { "the document is not there".into() } else { said(answer) };
        say(&Event::Call(self.called("write", begin, within, &outcome)));
    }

    fn ends(&self, how: &str) {
        say(&Event::Ends { worker: self.worker.spec.worker, lease: self.number, at: now(), how: how.into() });
    }

    fn say_lost(&self, lease: &Lease) {
        let (cause, newer) = match lease.state() {
            LeaseState::Lost { cause: LossCause::Expired } => ("expired", None),
            LeaseState::Lost { cause: LossCause::TakenOver { token } } => ("taken-over", Some(token.get())),
            LeaseState::Lost { cause: LossCause::Removed } => ("removed", None),
            LeaseState::Lost { .. } => ("other", None),
            LeaseState::Ended { reason: EndReason::ShutDown } => ("shut-down", None),
            state => return self.say_call("hold", now(), &format!("is not valid and {state:?}")),
        };
        let (worker, lease, cause) = (self.worker.spec.worker, self.number, cause.into());
        say(&Event::Lost { worker, lease, at: now(), cause, newer });
    }

    /// Makes a call and tells of it.
    async fn call<T>(&self, verb: &str, call: impl Future<Output = Result<T>>) {
        let begin = now();
        let answer = call.await;
        self.say_call(verb, begin, &said(&answer));
    }

    /// Whether it reads and writes the value of its key. Records of other keys are deleted soon, and those with a value are
    /// not.
    fn has_value(&self) -> bool {
        let key = self.plan.key.as_str();
        self.plan.limit == 0 && (HOT_KEYS.contains(&key) || WRITTEN_KEYS.contains(&key))
    }

    /// The next value that it writes.
    fn next_value(&mut self) -> (u64, u64) {
        self.values += 1;
        (self.token.get(), self.values)
    }

    async fn read_value(&self, lease: &Lease) {
        let begin = now();
        let read = lease.value::<(u64, u64)>().await;
        let content = read.as_ref().ok().and_then(Option::as_ref).map_or((0, 0), |value| value.content);
        self.say_value("read", content, begin, &said(&read));
    }

    async fn put_value(&mut self, lease: &Lease) {
        let (begin, content) = (now(), self.next_value());
        let put = lease.put_value(&content).await;
        self.say_value("put", content, begin, &said(&put));
    }

    /// Writes the document of the key at the fence: as the holder, or as one who was it and does not know.
    async fn write(&self, by: impl Into<FencedWriter<'_>>) {
        let begin = now();
        let Some(documents) = &self.worker.handles.documents else { return };
        let fenced = documents.fenced(by).operation_timeout(OPERATION_TIMEOUT);
        let one_more = fenced.find_one_and_update(doc! { "_id": &self.plan.key }, doc! { "$inc": { "count": 1_i64 } });
        self.say_write(begin, OPERATION_TIMEOUT, &one_more.await);
    }

    /// Reads and writes the document, without a fence but the transaction.
    async fn transact(&self, lease: &Lease) {
        // Its own, or the compiler cannot tell that this can be spawned.
        let Some(documents) = self.worker.handles.documents.clone() else { return };
        let filter = doc! { "_id": &self.plan.key };
        let token = i64::from(self.token);
        let begin = now();
        let done = lease.transaction(async move |session| {
            let work = async {
                let found = documents.find_one(filter.clone()).session(&mut *session).await?;
                let update = doc! { "$inc": { "count": 1_i64 }, "$set": { "fence": token } };
                documents.update_one(filter.clone(), update).session(session).await?;
                Ok::<_, Error>(found)
            };
            timeout(WORK, work).await.unwrap_or_else(|_| Err(Error::unavailable("the work took too long")))
        });
        self.say_write(begin, 3 * OPERATION_TIMEOUT + WORK, &done.await);
    }

    async fn end(&mut self, lease: Lease, rng: &mut Rng) {
        match rng.u8(..20) {
            15 if self.plan.aim != Aim::Drop && self.has_value() => self.release_with_value(lease).await,
            19 if self.plan.aim != Aim::Drop => {
                self.ends("orphan");
                lease.orphan();
            }
            number if number >= 17 || self.plan.aim == Aim::Drop => {
                self.ends("drop");
                drop(lease);
            }
            _ => self.release(lease).await,
        }
    }

    async fn release_with_value(&mut self, lease: Lease) {
        self.ends("release");
        let (begin, content) = (now(), self.next_value());
        let outcome = said(&lease.release_with_value(&content).await);
        self.say_value("release-with", content, begin, &outcome);
        let outcome = match outcome.as_str() {
            "ok" => "ours",
            "lost" => "gone",
            other => other,
        };
        self.say_call("release", begin, outcome);
    }

    async fn release(&self, lease: Lease) {
        self.ends("release");
        let begin = now();
        let outcome = match lease.release().await {
            Ok(ReleaseOutcome::Released) => "ours".into(),
            Ok(ReleaseOutcome::Unknown) => "unknown".into(),
            Ok(ReleaseOutcome::AlreadyLost { .. } | ReleaseOutcome::AlreadyTransferred) => "gone".into(),
            other => said(&other),
        };
        self.say_call("release", begin, &outcome);
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
