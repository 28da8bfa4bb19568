//! The blocking handle and its verbs.

use std::{
    collections::BTreeSet,
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use serde::Serialize;
use tracing::Instrument;

use super::{
    Acquire, AcquireAll, AcquireAny, Campaign, Leases, PutValue, Resume, Revoke, RewindTick, RunOnce,
    executor::{Blocking, StreamIter},
};
use crate::{
    action::{acquire_options::several, group::RefreshedGroup, once::Tick, watch::EventStream},
    election::{LeaderInfo, LeaderStream},
    record::{Inspection, ListedLease, PastRun, StoreTime},
    store::Capabilities,
    types::{
        error::Result, group::Group, into_name::IntoName, json::Json, key::Key, lease_id::LeaseId, owner::Owner,
        token::FencingToken,
    },
};

/// A handle on a store of leases for callers without async. A clone is cheap and shares everything, also the threads.
///
/// It is a [`mongoseal::Mongoseal`](crate::Mongoseal) with threads of its own: see [its module](super). Threads of the
/// program share one handle.
///
/// # Drop
///
/// Dropping the last clone does not block. Its leases live on: their drop releases them. Then the threads end.
///
/// # Examples
///
/// ```
/// use mongoseal::blocking::Mongoseal;
///
/// # fn main() -> mongoseal::Result<()> {
/// Mongoseal::in_memory()?.scope(|seal| {
///     let token = seal.acquire("reports/nightly").with(|lease| lease.token())?;
///     println!("acted with token {token}");
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mongoseal {
    seal: crate::Mongoseal,
    pub(super) mode: Blocking,
}

impl Mongoseal {
    pub(super) fn new(seal: crate::Mongoseal, mode: Blocking) -> Self {
        Self { seal, mode }
    }

    /// The name by which other processes see this handle's leases.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        self.seal.owner()
    }

    /// What the store of this handle can do: see [`capabilities`](crate::Mongoseal::capabilities).
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.seal.capabilities()
    }

    /// Runs `work` on the calling thread with this handle, shuts the handle down, and returns the value of the work: see
    /// [`scope`](crate::Mongoseal::scope).
    ///
    /// # Panics
    ///
    /// If the work panics, with its panic.
    pub fn scope<T>(self, work: impl FnOnce(&Self) -> T) -> T {
        let ended = panic::catch_unwind(AssertUnwindSafe(|| work(&self)));
        self.shutdown();
        ended.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }

    /// Acquires a key. Nothing is sent until `run` or `with` of the [`Acquire`] is called.
    pub fn acquire(&self, key: impl IntoName<Key>) -> Acquire {
        Acquire::new(&self.seal, key.into_name(), self.mode.clone())
    }

    /// Acquires several keys, all or none. Nothing is sent until `run` or `with` of the [`AcquireAll`] is called.
    pub fn acquire_all(&self, keys: impl IntoIterator<Item: IntoName<Key>>) -> AcquireAll {
        AcquireAll::new(&self.seal, several(keys).map(BTreeSet::from_iter), self.mode.clone())
    }

    /// Acquires one key of several, the first that is free. Nothing is sent until `run` or `with` of the [`AcquireAny`] is
    /// called.
    pub fn acquire_any(&self, keys: impl IntoIterator<Item: IntoName<Key>>) -> AcquireAny {
        AcquireAny::new(&self.seal, several(keys), self.mode.clone())
    }

    /// Runs work once for a tick of a schedule. Nothing is sent until `run` or `begin` of the [`RunOnce`] is called.
    pub fn once(&self, key: impl IntoName<Key>, tick: Tick) -> RunOnce {
        RunOnce::new(&self.seal, key, tick, self.mode.clone())
    }

    /// Lowers the last completed tick of a schedule. Nothing is sent until [`run`](RewindTick::run) is called.
    pub fn rewind_tick(&self, key: impl IntoName<Key>, to: u64) -> RewindTick {
        RewindTick::new(&self.seal, key, to, self.mode.clone())
    }

    /// Takes up a lease that is still held. Nothing is sent until [`run`](Resume::run) is called.
    pub fn resume(&self, key: impl IntoName<Key>, id: LeaseId, token: FencingToken) -> Resume {
        Resume::new(&self.seal, key, id, token, self.mode.clone())
    }

    /// Campaigns for the leadership of this name. Nothing is sent until [`run`](Campaign::run) is called.
    pub fn campaign(&self, name: impl IntoName<Key>) -> Campaign {
        Campaign::new(&self.seal, name, self.mode.clone())
    }

    /// Returns the leader of this name by a linearizable read; `None` if there is none.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::leader`](crate::Mongoseal::leader).
    pub fn leader(&self, name: impl IntoName<Key>) -> Result<Option<LeaderInfo>> {
        let name = name.into_name()?;
        self.mode.wait(self.seal.leader(name))
    }

    /// Observes the leadership of a name: the present leader, or that there is none, and then each change. Each `next`
    /// blocks until a change.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::observe`](crate::Mongoseal::observe).
    pub fn observe(&self, name: impl IntoName<Key>) -> Result<StreamIter<LeaderStream>> {
        let name = name.into_name()?;
        self.mode.clone().run(self.seal.observe(name), StreamIter::new)
    }

    /// Stores the value of a key under a lease that another process holds: see
    /// [`mongoseal::Mongoseal::put_value`](crate::Mongoseal::put_value).
    pub fn put_value<T: Serialize + ?Sized>(
        &self,
        key: impl IntoName<Key>,
        id: LeaseId,
        token: FencingToken,
        content: &T,
    ) -> PutValue {
        PutValue::named(&self.seal, key, (id, token), Json::of(content), self.mode.clone())
    }

    /// Revokes the leases of a key. Nothing is sent until [`run`](Revoke::run) is called.
    pub fn revoke(&self, key: impl IntoName<Key>) -> Revoke {
        Revoke::new(&self.seal, key, self.mode.clone())
    }

    /// Releases all leases of a group. Returns them as they were, the newest first.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::release_group`](crate::Mongoseal::release_group).
    pub fn release_group(&self, group: impl IntoName<Group>) -> Result<Vec<ListedLease>> {
        let group = group.into_name()?;
        self.mode.wait(self.seal.release_group(group))
    }

    /// Refreshes the leases of a group to a ttl from now. Returns which were refreshed, and which are gone.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::refresh_group`](crate::Mongoseal::refresh_group).
    pub fn refresh_group(&self, group: impl IntoName<Group>, ttl: Duration) -> Result<RefreshedGroup> {
        let group = group.into_name()?;
        self.mode.wait(self.seal.refresh_group(group, ttl))
    }

    /// Lists leases in the order of their keys. Nothing is sent until [`run`](Leases::run) is called.
    pub fn leases(&self) -> Leases {
        Leases::new(&self.seal, self.mode.clone())
    }

    /// Reads the store's clock.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::now`](crate::Mongoseal::now).
    pub fn now(&self) -> Result<StoreTime> {
        self.mode.wait(self.seal.now())
    }

    /// Reads the record of a key by a linearizable read. Returns `None` if there is no record.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::inspect`](crate::Mongoseal::inspect).
    pub fn inspect(&self, key: impl IntoName<Key>) -> Result<Option<Inspection>> {
        let key = key.into_name()?;
        self.mode.wait(self.seal.inspect(key))
    }

    /// Reads the history of a schedule by a linearizable read: its last 32 completed runs, oldest first.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::runs`](crate::Mongoseal::runs).
    pub fn runs(&self, key: impl IntoName<Key>) -> Result<Vec<PastRun>> {
        let key = key.into_name()?;
        self.mode.wait(self.seal.runs(key))
    }

    /// Watches a key: returns what happens to its leases, in order, and whether events may be missing. Each `next` blocks
    /// until an item.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::watch`](crate::Mongoseal::watch).
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::{blocking::Mongoseal, inspect::{EventKind, WatchItem}};
    ///
    /// let seal = Mongoseal::in_memory()?;
    /// let lease = seal.acquire("reports/nightly").run()?;
    /// let stream = seal.watch("reports/nightly")?;
    /// lease.release()?;
    ///
    /// for item in stream {
    ///     match item? {
    ///         WatchItem::Event(event) if event.kind == EventKind::Released => break,
    ///         WatchItem::Event(event) => println!("{} {:?}", event.token, event.kind),
    ///         missed => println!("{missed:?}"),
    ///     }
    /// }
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn watch(&self, key: impl IntoName<Key>) -> Result<StreamIter<EventStream>> {
        let key = key.into_name()?;
        self.mode.clone().run(self.seal.watch(key), StreamIter::new)
    }

    /// Watches all keys that begin with this text: returns what happens to their leases. Each `next` blocks until an event.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::watch_prefix`](crate::Mongoseal::watch_prefix).
    pub fn watch_prefix(&self, prefix: impl Into<String>) -> Result<StreamIter<EventStream>> {
        self.mode.clone().run(self.seal.watch_prefix(prefix.into()), StreamIter::new)
    }

    /// Raises the version of a key to a token, so that each later lease has a larger one: for operators.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::raise_token_floor`](crate::Mongoseal::raise_token_floor).
    pub fn raise_token_floor(&self, key: impl IntoName<Key>, to: FencingToken) -> Result<FencingToken> {
        let key = key.into_name()?;
        self.mode.wait(self.seal.raise_token_floor(key, to))
    }

    /// Removes expired leases now, which would be removed later.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::purge`](crate::Mongoseal::purge).
    pub fn purge(&self) -> Result<Vec<ListedLease>> {
        self.mode.wait(self.seal.purge())
    }

    /// Checks the deployment now instead of with the first acquire.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Mongoseal::prepare`](crate::Mongoseal::prepare).
    pub fn prepare(&self) -> Result<()> {
        self.mode.wait(self.seal.prepare())
    }

    /// Shuts the handle down: all its leases end at once and are released at the store, and no further verb is possible. See
    /// [`mongoseal::Mongoseal::shutdown`](crate::Mongoseal::shutdown).
    ///
    /// Blocks for at most the operation timeout and 100 ms. Calls that wait on other threads return an error.
    pub fn shutdown(&self) {
        self.mode.wait(self.seal.shutdown());
    }

    /// The asynchronous handle, for futures that [`block_on`](Self::block_on) runs. It shares the threads of this one.
    #[must_use]
    pub fn as_async(&self) -> &crate::Mongoseal {
        &self.seal
    }

    /// Runs a future on the threads of this handle, and blocks until it has ended.
    ///
    /// # Panics
    ///
    /// If the future panics, with its panic.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::blocking::Mongoseal;
    /// let seal = Mongoseal::in_memory()?;
    /// let asynchronous = seal.as_async().clone();
    /// let token = seal.block_on(async move {
    ///     // An elector has no blocking form.
    ///     let elector = asynchronous.campaign("scheduler").elector();
    ///     elector.run(async |leader| -> mongoseal::Result<_> { Ok(leader.token()) }).await
    /// })?;
    /// assert!(token.is_some());
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn block_on<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        // On a task: what yields on the calling thread would wait for the runtime that may be blocked by this call.
        let task = self.mode.home.runtime().spawn(future.in_current_span());
        // Only a panic ends it early: the runtime lives as long as this handle.
        self.mode.wait(task).unwrap_or_else(|join| panic::resume_unwind(join.into_panic()))
    }
}
