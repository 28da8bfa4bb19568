//! A step of a track: calls the verb, and checks what each call returns.

#![allow(clippy::large_futures, reason = "the future of a step has those of all verbs, and runs in a test")]

use std::{pin::pin, task::Poll, time::Duration};

use mongodb::bson::{Document, doc};
use mongoseal::{
    BeginOutcome, CancellationToken, EndReason, Error, Fence, FencingToken, Key, Lease, LeaseId, LeaseSet, LeaseState,
    LossCause, Metadata, Mongoseal, OnceOutcome, Result, Retry, Sharing, Tick, TickLease, election::Leader,
    fence::Change,
};

use crate::{
    beliefs::Belief,
    choices::{
        Axis,
        Choice::{self, *},
    },
    link::Defect,
    millis,
    process::{LONGEST, OPERATION, Process, SLACK},
    program::{KEYS, Step},
    secs,
    world::World,
};

/// Acquires, and works under what is granted or holds it. A macro, because no name covers the builders for a key and for
/// several keys.
macro_rules! acquire {
    ($actor:expr, $acquire:expr, $held:path, $granted:pat => $leases:expr) => {{
        let (actor, acquire) = ($actor, $acquire);
        if actor.has(With) {
            actor.with(acquire.with(async |$granted| actor.work($leases).await)).await;
        } else if actor.has(TriesWith) {
            actor.with(acquire.try_with(async |$granted| actor.try_work($leases).await)).await;
        } else {
            actor.keep(acquire, $held).await;
        }
    }};
}

const GROUP_TTL: Duration = secs(6);

/// Sets the options of a builder that the step names.
macro_rules! set {
    ($builder:expr, $step:expr, $($choice:ident => $setter:ident($($value:expr),*)),+ $(,)?) => {{
        let mut builder = $builder;
        $(if $step.has($choice) { builder = builder.$setter($($value),*); })+
        builder
    }};
}

/// The options that each verb of one key has.
macro_rules! set_common {
    ($builder:expr, $step:expr) => {
        set!($builder, $step,
            WaitsBriefly => wait(secs(1)),
            WaitsLong => wait(secs(20)),
            Ttl1s => ttl(secs(1)),
            Ttl6s => ttl(secs(6)),
            RefreshedOften => refresh_every(millis(300)),
        )
    };
}

macro_rules! set_hold {
    ($builder:expr, $step:expr) => {
        set!($builder, $step,
            Retries => retry(Retry::fixed(millis(300)).max_elapsed(secs(5))),
            NoGrace => grace(Duration::ZERO),
            LongGrace => grace(secs(2)),
            AtLeast2s => min_hold(secs(2)),
            AtMost4s => max_hold(secs(4)),
            Progresses => stalled_after(millis(1_500)),
            Stalls => stalled_after(millis(1_500)),
            Labelled => metadata("step", "labelled"),
        )
    };
}

macro_rules! set_acquire {
    ($builder:expr, $step:expr, $group:expr) => {
        set!(set_hold!(set_common!($builder, $step), $step), $step,
            Shared => shared(),
            SharedByTwo => shared_up_to(2),
            NeverExpires => without_expiry(),
            RefreshedByHand => without_refresh(),
            InAGroup => group($group),
        )
    };
}

/// What a step was granted.
enum Held {
    Lease(Lease),
    Set(LeaseSet),
    Tick(TickLease),
    Leader(Leader),
}

impl Held {
    fn leases(&self) -> Vec<&Lease> {
        match self {
            Self::Lease(lease) => vec![lease],
            Self::Set(set) => set.iter().collect(),
            Self::Tick(tick) => vec![tick.lease()],
            Self::Leader(leader) => vec![leader.lease()],
        }
    }
}

/// A step that runs.
pub(crate) struct Running<'a> {
    pub(crate) process: &'a Process,
    pub(crate) handle: Mongoseal,
    pub(crate) which: Choice,
    /// How often the handle was shut down when the step began.
    pub(crate) shutdowns: u64,
    pub(crate) step: &'a Step,
    pub(crate) group: String,
}

impl Running<'_> {
    fn world(&self) -> &World {
        &self.process.common.world
    }

    fn is_faulty(&self) -> bool {
        !self.world().is_calm()
    }

    fn has(&self, choice: Choice) -> bool {
        self.step.has(choice) && choice.is_of(self.world().place())
    }

    fn note(&self, what: &str) {
        self.process.note(what);
    }

    fn describe(&self) -> String {
        format!("process {}, key {:?}, {:?}", self.process.number, self.step.key, self.step.choices)
    }

    /// Whether the handle was shut down meanwhile.
    fn is_shut_down(&self) -> bool {
        self.process.shutdowns_of(self.which) != self.shutdowns
    }

    /// A call returns in time.
    async fn within<T>(&self, what: &str, most: Duration, call: impl IntoFuture<Output = T>) -> T {
        let began = self.world().now();
        self.note(what);
        let value = call.await;
        let took = self.world().now().saturating_sub(began);
        let is_late = self.process.common.is_late(took, most + SLACK).await;
        assert!(!is_late, "time: {what} took {took:?} and not {most:?}: {}", self.describe());
        value
    }

    pub(crate) async fn run(&self) {
        let (key, seal) = (self.step.key, &self.handle);
        match self.step.choices.verb() {
            Acquires => {
                let acquire = set_acquire!(seal.acquire(key), self.step, self.group.as_str());
                acquire!(self, acquire, Held::Lease, lease => &[lease]);
            }
            AcquiresTwo => {
                let acquire = set_acquire!(seal.acquire_all(KEYS), self.step, self.group.as_str());
                acquire!(self, acquire, Held::Set, set => &set.iter().collect::<Vec<_>>());
            }
            AcquiresAny => {
                let acquire = set_acquire!(seal.acquire_any(KEYS), self.step, self.group.as_str());
                acquire!(self, acquire, Held::Lease, lease => &[lease]);
            }
            RunsATick => self.run_tick().await,
            Campaigns => self.campaign().await,
            Resumes => {
                let given = self.process.common.given.lock().unwrap().pop();
                let Some((key, id, token)) = given else { return };
                let resume = set!(seal.resume(key, id, token), self.step,
                    Ttl1s => ttl(secs(1)),
                    Ttl6s => ttl(secs(6)),
                    RefreshedOften => refresh_every(millis(300)),
                    RefreshedByHand => without_refresh(),
                );
                match self.within("resumes", OPERATION, resume).await {
                    Ok(lease) => self.hold(Held::Lease(lease)).await,
                    Err(Error::Lost { .. }) => self.world().count("resumed too late"),
                    Err(error) => self.accept(&error),
                }
            }
            Inspects => drop(self.ask("inspects", seal.inspect(key)).await),
            Lists => drop(self.ask("lists", async { seal.leases().await?.collect().await }).await),
            Raises => {
                let version = self.ask("inspects", seal.inspect(key)).await.flatten().map(|seen| seen.version.get());
                let to = FencingToken::new(version.unwrap_or(1) + 1).unwrap();
                self.ask("raises", seal.raise_token_floor(key, to)).await;
            }
            Purges => {
                // The operation timeout bounds each of its requests: a list, and one for each key.
                match self.within("purges", 3 * OPERATION, seal.purge()).await {
                    Ok(_) => self.world().count("purged"),
                    Err(error) => self.accept(&error),
                }
            }
            Revokes => drop(self.ask("revokes", seal.revoke(key).by("operator").reason("as the program says")).await),
            other => unreachable!("{other:?} is no verb"),
        }
    }

    async fn ask<T>(&self, what: &str, call: impl IntoFuture<Output = Result<T>>) -> Option<T> {
        self.within(what, OPERATION, call).await.map_err(|error| self.accept(&error)).ok()
    }

    /// How long an acquire may take.
    fn patience(&self) -> Duration {
        let waits = match () {
            () if self.has(WaitsBriefly) => secs(1),
            () if self.has(WaitsLong) => secs(20),
            () if self.has(Retries) => secs(5) + OPERATION,
            // As long as a holder that dies may keep the key, and a second.
            () if self.has(RunsATick) => LONGEST + secs(1),
            () if self.has(Campaigns) => secs(1),
            () => Duration::ZERO,
        };
        waits + OPERATION
    }

    /// Acquires, and holds what is granted.
    async fn keep<T>(&self, acquire: impl IntoFuture<Output = Result<T>>, held: impl FnOnce(T) -> Held) {
        let half_way = if self.has(DropsHalfway) { millis(self.world().below(600)) } else { secs(3_600) };
        let acquiring = async { tokio::time::timeout(half_way, acquire).await };
        match self.within("acquires", self.patience(), acquiring).await {
            Ok(Ok(granted)) => self.hold(held(granted)).await,
            Ok(Err(error)) => self.accept(&error),
            Err(_elapsed) => self.world().count("an acquire is dropped"),
        }
    }

    /// Checks an error that a call returned.
    fn accept(&self, error: &Error) {
        self.note(&format!("is told: {error}"));
        let is_expected = match error {
            Error::Held { .. } | Error::RetriesExhausted { .. } => true,
            // A later holder has written, or a later sharer.
            Error::Fenced { .. } => {
                let shares = [Shared, SharedByTwo, Resumes].iter().any(|choice| self.has(*choice));
                shares || self.is_faulty() || self.ends_anyway() || self.is_shut_down()
            }
            Error::Lost { cause, .. } => self.may_lose(cause),
            Error::Ended { reason, .. } => self.may_end(*reason),
            // It may be revoked before its expiry is removed.
            Error::Unavailable { message, .. } => {
                self.is_faulty()
                    || self.is_shut_down()
                    || (self.has(NeverExpires) && message.starts_with("the lease ended before"))
            }
            // Only the store knows whether a resumed lease has an expiry that a ttl can be for.
            Error::Invalid { message, .. } => {
                self.step.choices.is_refused()
                    || self.is_shut_down()
                    || (self.has(Resumes) && message.contains("no expiry"))
                    || ((self.has(RunsATick) || self.has(Verifies)) && !self.handle.capabilities().linearizable_reads)
            }
            _ => false,
        };
        assert!(is_expected, "error: {error:?}: {}", self.describe());
        let text = error.to_string();
        // What an error advises, whatever the caller used.
        let advised = ["wait", "queue_limit", "operation_timeout", "maxPoolSize", "maxclients", "rediss", "redis"];
        let named = text.split('`').skip(1).step_by(2);
        for name in named.filter(|name| !advised.contains(name)) {
            let is_used = self.step.choices.functions().any(|function| function == name);
            assert!(is_used, "text: {text:?} names {name}: {}", self.describe());
        }
    }

    /// Whether a lease of this step can end although it is not released: the key is then free for others.
    fn ends_anyway(&self) -> bool {
        [RefreshedByHand, Stalls, AtMost4s, Resumes].iter().any(|choice| self.has(*choice))
    }

    /// Whether a lease of this step may be lost by this cause.
    fn may_lose(&self, cause: &LossCause) -> bool {
        match cause {
            LossCause::HeldTooLong => self.has(AtMost4s) || self.has(Resumes),
            // A call that is not answered is no progress.
            LossCause::Stalled => self.has(Stalls) || (self.has(Progresses) && self.is_faulty()),
            LossCause::Revoked { .. } => true,
            LossCause::Expired | LossCause::TakenOver { .. } => {
                self.is_faulty() || self.ends_anyway() || self.is_shut_down()
            }
            _ => self.is_faulty(),
        }
    }

    /// Whether a call on a lease of this step may find that its holder has ended it so.
    fn may_end(&self, reason: EndReason) -> bool {
        match reason {
            EndReason::Transferred => self.has(Transfers) || self.has(Upgrades),
            EndReason::ShutDown => self.is_shut_down(),
            _ => false,
        }
    }

    fn believe(&self, leases: &[&Lease]) -> Vec<Belief> {
        let Self { process, step, .. } = self;
        let place = self.world().place();
        process.common.granted.lock().unwrap().push(step.choices.all().filter(|choice| choice.is_of(place)).collect());
        let limit = match () {
            () if self.has(SharedByTwo) => 2,
            () if self.has(Shared) => u32::MAX,
            () => 1,
        };
        let believe = |lease: &&Lease| {
            let (key, token) = (lease.key(), lease.token());
            self.note(&format!("holds {key:?} with {token}"));
            // The terms of a resumed lease are known to the store.
            let limit = if self.has(Resumes) {
                self.world().limit(key, token)
            } else {
                self.world().note_believed(key, lease.id(), token, limit);
                limit
            };
            process.common.beliefs.add(self.world(), process.number, step, lease, limit)
        };
        leases.iter().map(believe).collect()
    }

    /// Works under a lease that a verb hands to its work.
    async fn work(&self, leases: &[&Lease]) {
        let beliefs = self.believe(leases);
        let _at_work: Vec<_> = beliefs.iter().map(Belief::work).collect();
        self.act(leases, &beliefs).await;
    }

    async fn try_work(&self, leases: &[&Lease]) -> Result<()> {
        self.work(leases).await;
        Ok(())
    }

    /// Awaits a verb that acquires, works and releases, and shuts down meanwhile if the step says so.
    async fn with(&self, verb: impl Future<Output = Result<()>>) {
        let most = self.patience() + self.time() + 4 * OPERATION;
        let working = Box::pin(self.beside_a_shutdown(verb));
        if let Err(error) = self.within("acquires and works", most, working).await {
            self.accept(&error);
        }
    }

    /// Awaits what runs work, and shuts down meanwhile if the step says so.
    async fn beside_a_shutdown<T>(&self, work: impl Future<Output = T>) -> T {
        let shutting = async {
            if self.has(ShutsDown) && !self.has(Holds) {
                tokio::time::sleep(self.time() / 2).await;
                self.process.shut_down(self.which).await;
            }
        };
        tokio::join!(work, shutting).0
    }

    fn time(&self) -> Duration {
        if self.has(HoldsLong) { secs(3) } else { millis(150) }
    }

    /// Works for half of the time, does what the step says, and works for the other half.
    async fn act(&self, leases: &[&Lease], beliefs: &[Belief]) {
        self.pass(self.time() / 2, leases).await;
        for (lease, belief) in leases.iter().zip(beliefs) {
            let done = match self.step.choices.of_axis(Axis::During) {
                Refreshes => self.within("refreshes", OPERATION, lease.refresh()).await,
                Verifies => self.within("verifies", OPERATION, lease.verify()).await,
                Relabels => {
                    let mut metadata = Metadata::default();
                    metadata.insert("step", "relabelled").unwrap();
                    self.within("relabels", OPERATION, lease.update_metadata(metadata)).await
                }
                Downgrades => {
                    belief.share(2);
                    self.within("downgrades", OPERATION, lease.downgrade(Sharing::UpTo(2))).await
                }
                Extends => match self.within("extends", OPERATION, lease.extend(secs(5))).await {
                    // A lease without expiry has none to extend.
                    Err(Error::Invalid { .. }) if self.has(NeverExpires) || self.has(Resumes) => Ok(()),
                    extended => extended,
                },
                during if !during.is_of(self.world().place()) => Ok(()),
                // A claim, and a write.
                WritesFenced | WritesInBulk => self.within("writes", 2 * OPERATION, Box::pin(self.write(lease))).await,
                // Its work has some time, and its commit.
                Transacts => self.within("transacts", 3 * OPERATION, Box::pin(self.transact(lease))).await,
                _ => Ok(()),
            };
            if let Err(error) = done {
                self.accept(&error);
            }
        }
        if self.has(RefreshesGroup) {
            self.ask("refreshes a group", self.handle.refresh_group(self.group.as_str(), GROUP_TTL)).await;
        }
        self.pass(self.time() / 2, leases).await;
        for belief in beliefs {
            let is_at_risk = belief.state() == LeaseState::AtRisk && !self.ends_anyway() && !self.is_faulty();
            assert!(!is_at_risk, "risk: {} is at risk: {}", belief.token, self.describe());
            if let LeaseState::Lost { cause } = belief.state() {
                self.note(&format!("has lost {}: {cause}", belief.token));
                assert!(self.may_lose(&cause), "lost: by {cause:?}: {}", self.describe());
                self.world().count("lost");
            }
        }
        if self.has(IsRevoked) {
            for lease in leases {
                let revoke = self.handle.revoke(lease.key().as_str()).token(lease.token());
                self.ask("revokes its lease", revoke).await;
            }
            self.pass(millis(200), leases).await;
        }
    }

    /// Claims the document of the key, and adds the token to it, at the fence.
    async fn write(&self, lease: &Lease) -> Result<()> {
        let (documents, key, token) = (self.world().documents(), lease.key(), lease.token());
        let (fenced, filter) = (documents.fenced(lease).operation_timeout(OPERATION), doc! { "_id": key.as_str() });
        let update = doc! { "$push": { "tokens": i64::from(token) } };
        fenced.claim(filter.clone()).upsert(true).await?;
        if self.has(WritesInBulk) {
            fenced.bulk_write([Change::update_one(filter, update).upsert(true)]).await?;
        } else {
            fenced.update_one(filter, update).upsert(true).await?;
        }
        self.world().note_written(key, token);
        Ok(())
    }

    /// The same in a transaction.
    async fn transact(&self, lease: &Lease) -> Result<()> {
        let (namespace, filter) = (self.world().documents().namespace(), doc! { "_id": lease.key().as_str() });
        let token = i64::from(lease.token());
        let update = doc! { "$push": { "tokens": token }, "$set": { "fence": token } };
        let work = lease.transaction(async |session| -> Result<()> {
            // A session is for collections of its own client.
            let documents = session.client().database(&namespace.db).collection::<Document>(&namespace.coll);
            let written = documents.update_one(filter.clone(), update.clone()).upsert(true).session(session);
            tokio::time::timeout(OPERATION / 2, written.into_future())
                .await
                .map_err(|_| Error::unavailable("the work took too long"))??;
            Ok(())
        });
        work.await?;
        self.world().note_written(lease.key(), lease.token());
        Ok(())
    }

    async fn pass(&self, time: Duration, leases: &[&Lease]) {
        let until = self.world().now() + time;
        while self.world().now() < until {
            tokio::time::sleep(millis(300).min(until - self.world().now())).await;
            if self.has(Progresses) {
                for lease in leases {
                    lease.progress();
                }
            }
        }
    }

    /// Holds what was granted, as the step says, and ends it.
    async fn hold(&self, held: Held) {
        self.work_under(&held).await;
        self.end(held).await;
    }

    async fn work_under(&self, held: &Held) {
        let leases = held.leases();
        let beliefs = self.believe(&leases);
        let working = async {
            let _at_work: Vec<_> = beliefs.iter().map(Belief::work).collect();
            self.act(&leases, &beliefs).await;
            Ok::<_, Error>(())
        };
        let untold = self.process.common.defect == Some(Defect::UntoldWork);
        let worked = match held {
            Held::Lease(_) if untold && self.has(Runs) => self.beside_a_shutdown(working).await,
            _ if self.has(StopsPolling) => {
                let mut running = pin!(held.leases()[0].run(working));
                // Work begins, unless the lease is lost already.
                std::future::poll_fn(|task| Poll::Ready(running.as_mut().poll(task).is_ready())).await;
                if self.has(ShutsDown) {
                    self.process.shut_down(self.which).await;
                }
                tokio::time::sleep(millis(100)).await;
                Ok(())
            }
            Held::Lease(lease) if self.has(Runs) => {
                self.beside_a_shutdown(lease.run(working)).await.and_then(|ended| ended)
            }
            Held::Set(set) if self.has(Runs) => self.beside_a_shutdown(set.run(working)).await.and_then(|ended| ended),
            _ => {
                self.act(&leases, &beliefs).await;
                Ok(())
            }
        };
        if let Err(error) = worked {
            self.accept(&error);
        }
        if let (Held::Leader(leader), true) = (held, self.has(Proclaims)) {
            self.ask("proclaims", leader.proclaim("elsewhere")).await;
        }
    }

    /// Notes that an upgraded lease excludes others.
    fn believe_upgraded(&self, lease: &Lease) -> Belief {
        let Self { process, step, .. } = self;
        let (key, token) = (lease.key(), lease.token());
        self.note(&format!("holds {key:?} alone with {token}"));
        self.world().count("a sharer is upgraded");
        self.world().note_believed(key, lease.id(), token, 1);
        process.common.beliefs.add(self.world(), process.number, step, lease, 1)
    }

    async fn end(&self, held: Held) {
        match held {
            _ if self.has(Drops) => {}
            held if self.has(Leaks) => std::mem::forget(held),
            _ if self.has(ShutsDown) && self.has(Holds) => self.process.shut_down(self.which).await,
            Held::Lease(lease) if self.has(Orphans) => {
                let given = (lease.key().clone(), lease.id(), lease.token());
                lease.orphan();
                self.process.common.given.lock().unwrap().push(given);
            }
            Held::Lease(lease) if self.has(Transfers) => {
                let to = LeaseId::random();
                if let Some(token) = self.ask("transfers", lease.transfer(to)).await {
                    self.process.common.given.lock().unwrap().push((lease.key().clone(), to, token));
                }
            }
            Held::Lease(lease) if self.has(Upgrades) => {
                // A refresh before it, the upgrade itself and the refresh after it have the operation timeout each.
                match self.within("upgrades", 3 * OPERATION, lease.upgrade()).await {
                    Ok(upgraded) => {
                        let beliefs = self.believe_upgraded(&upgraded);
                        self.pass(self.time() / 2, &[&upgraded]).await;
                        drop(beliefs);
                        self.ask("releases", upgraded.release()).await;
                    }
                    Err(error) => self.accept(&error),
                }
                self.ask("releases", lease.release()).await;
            }
            _ if self.has(EndsGroup) => {
                self.ask("releases a group", self.handle.release_group(self.group.as_str())).await;
            }
            Held::Lease(lease) => drop(self.ask("releases", lease.release()).await),
            Held::Set(set) => drop(self.ask("releases all", set.release()).await),
            Held::Tick(tick) => {
                let at = (tick.lease().key().clone(), tick.number());
                if self.ask("completes", tick.complete()).await.is_some() {
                    self.complete(&at);
                }
            }
            Held::Leader(leader) => drop(self.ask("resigns", leader.resign()).await),
        }
    }

    /// A tick is completed once.
    fn complete(&self, at: &(Key, u64)) {
        self.world().count("a tick is completed");
        let mut completed = self.process.common.completed.lock().unwrap();
        let times = completed.entry(at.clone()).or_default();
        *times += 1;
        let times = *times;
        drop(completed);
        let is_forgotten = self.process.common.forgotten.lock().unwrap().contains(&at.0);
        assert!(times == 1 || is_forgotten, "tick: {at:?} was completed {times} times: {}", self.describe());
    }

    async fn run_tick(&self) {
        let number = 1 + self.world().below(2);
        let once = set_hold!(set_common!(self.handle.once(self.step.key, Tick::number(number)), self.step), self.step);
        let ended = if self.has(Holds) {
            match self.within("begins a tick", self.patience(), once.begin()).await {
                Ok(BeginOutcome::Started(tick)) => return self.hold(Held::Tick(tick)).await,
                Ok(_) => return self.world().count("a tick is not begun"),
                Err(error) => Err(error),
            }
        } else {
            let running = once.run(async |tick| self.try_work(&[tick.lease()]).await);
            self.beside_a_shutdown(running).await
        };
        match ended {
            Ok(OnceOutcome::Ran(())) => self.complete(&(self.step.key.parse().unwrap(), number)),
            Ok(_) => self.world().count("a tick is not begun"),
            Err(error) => self.accept(&error),
        }
    }

    async fn campaign(&self) {
        let campaign = set_common!(self.handle.campaign(self.step.key).value("here"), self.step);
        if self.has(Holds) {
            // By default it waits for ever.
            let campaign =
                if self.has(WaitsBriefly) || self.has(WaitsLong) { campaign } else { campaign.wait(secs(1)) };
            return self.keep(campaign, Held::Leader).await;
        }
        let end = CancellationToken::new();
        let elector = campaign.elector().until(end.clone());
        let leading = elector.run(async |leader| self.try_work(&[leader.lease()]).await);
        let giving_up = async {
            tokio::time::sleep(secs(20)).await;
            end.cancel();
            std::future::pending::<()>().await;
        };
        let led = self.beside_a_shutdown(async {
            tokio::select! {
                biased;
                led = leading => led,
                () = giving_up => unreachable!("it does not end"),
            }
        });
        if let Err(error) = led.await {
            self.accept(&error);
        }
    }
}
