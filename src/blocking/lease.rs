//! What a blocking handle grants: leases, alone and in sets, leaderships, and the leases of ticks.
//!
//! Mechanism: each is that of the asynchronous API, with the threads of its handle. What reads memory is called on it directly.

use std::{ops::Deref, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    PutValue,
    executor::{Blocking, StreamIter},
};
use crate::{
    engine::lease_state::{LeaseState, ReleaseOutcome},
    lease::{Granted, state_stream::StateStream},
    record::KeyValue,
    types::{
        error::Result, json::Json, key::Key, lease_id::LeaseId, metadata::Metadata, sharing::Sharing,
        token::FencingToken,
    },
};

/// A [`Lease`] or a [`LeaseSet`] of a blocking handle.
///
/// It is that of the asynchronous API, to which it dereferences, with calls that block in place of its asynchronous methods.
/// The threads of its handle refresh it, also while the caller computes and after the handle was dropped.
///
/// # Drop
///
/// Dropping it releases the leases in the background. The drop does not block, cannot fail, and is allowed in asynchronous
/// code. If the process ends before the release is sent, the ttl ends the leases.
#[derive(Debug)]
#[must_use = "leases are released when they are dropped, and `let _ =` drops them at once: bind them to a variable"]
pub struct Held<L> {
    held: L,
    mode: Blocking,
}

/// A lease of a blocking handle: the right to act on its key until it ends, and the [`FencingToken`] for the storage.
///
/// It is a [`mongoseal::Lease`](crate::Lease) whose calls block, and has its getters, such as
/// [`token`](crate::Lease::token), [`check`](crate::Lease::check) and [`remaining`](crate::Lease::remaining).
pub type Lease = Held<crate::Lease>;

/// Leases of a blocking handle on several keys: a [`mongoseal::LeaseSet`](crate::LeaseSet) whose calls block, with the getters
/// of that.
pub type LeaseSet = Held<crate::LeaseSet>;

/// A leadership: a [lease](crate::election::Leader::lease) that other processes observe: a [`mongoseal::election::Leader`](crate::election::Leader) with
/// blocking calls. Dropping it resigns in the background.
///
/// [`Campaign::run`](super::Campaign::run) returns it.
pub type Leader = crate::election::Leader<Lease>;

/// The lease under which the work of a tick runs: a [`mongoseal::TickLease`](crate::TickLease) with blocking calls.
pub type TickLease = crate::TickLease<Lease>;

impl<L> Held<L> {
    pub(super) fn new(held: L, mode: Blocking) -> Self {
        Self { held, mode }
    }
}

impl<L: Granted> Held<L> {
    /// Runs `work` on the calling thread while all leases are held, and returns its value.
    ///
    /// The work cannot be stopped from outside. It [checks](crate::Lease::check) the lease before each step, and returns if the
    /// lease is lost. If it returns a `Result`, that is the value: `lease.run(work)??` has its value.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if a lease was lost before the work had ended: then part of it may have run without
    /// the lease. The value is dropped. If the lease was lost before the work began, the work does not run.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::blocking::Mongoseal;
    /// let seal = Mongoseal::in_memory()?;
    /// let lease = seal.acquire("import").run()?;
    /// let imported = lease.run(|lease| {
    ///     let mut imported = 0;
    ///     for _page in 0..3 {
    ///         lease.check()?;
    ///         imported += 1; // the storage receives the token with each page
    ///     }
    ///     Ok::<_, mongoseal::Error>(imported)
    /// })??;
    /// assert_eq!(imported, 3);
    /// # lease.release()?;
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn run<T>(&self, work: impl FnOnce(&Self) -> T) -> Result<T> {
        let check = || self.leases().iter().try_for_each(crate::Lease::check);
        let _at_work: Vec<_> = self.leases().iter().map(|lease| lease.lease_inner().begin_work()).collect();
        check()?;
        let value = work(self);
        check()?;
        Ok(value)
    }

    /// Checks, by a linearizable read of each key, whether the leases are held at this moment.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::verify`](crate::Lease::verify), of the first lease that fails.
    pub fn verify(&self) -> Result<()> {
        let leases = self.leases();
        self.mode.wait(async {
            for lease in leases {
                lease.verify().await?;
            }
            Ok(())
        })
    }

    /// Refreshes each lease now, as the handle does by itself.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::refresh`](crate::Lease::refresh), of the first lease that fails. The leases before it are refreshed.
    pub fn refresh(&self) -> Result<()> {
        let leases = self.leases();
        self.mode.wait(async {
            for lease in leases {
                lease.refresh().await?;
            }
            Ok(())
        })
    }

    /// Releases the leases after their work has ended. Returns an error if one of them was lost before.
    pub(super) fn end_work(self) -> Result<()> {
        self.mode.wait(self.held.release_after_work())
    }
}

impl Lease {
    /// Follows the state of the lease: each `next` blocks until the state changes. The iterator outlives the lease, and ends
    /// after the lease's end. See [`StateStream`].
    pub fn watch_state(&self) -> StreamIter<StateStream> {
        StreamIter::new(self.held.watch_state(), self.mode.clone())
    }

    /// Waits until the lease is over, and returns its last state.
    ///
    /// # Errors
    ///
    /// None: the threads of the handle run as long as the lease is there.
    pub fn cancelled(&self) -> Result<LeaseState> {
        Ok(self.mode.wait(self.held.cancelled()))
    }

    /// Refreshes the lease with another ttl, which later refreshes keep. The lease never ends sooner than before.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::extend`](crate::Lease::extend).
    pub fn extend(&self, ttl: Duration) -> Result<()> {
        self.mode.wait(self.held.extend(ttl))
    }

    /// Replaces the lease's metadata and refreshes the lease.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::update_metadata`](crate::Lease::update_metadata).
    pub fn update_metadata(&self, metadata: Metadata) -> Result<()> {
        self.mode.wait(self.held.update_metadata(metadata))
    }

    /// Stores a small value with the key: see [`mongoseal::Lease::put_value`](crate::Lease::put_value).
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::blocking::Mongoseal;
    /// # let seal = Mongoseal::in_memory()?;
    /// let lease = seal.acquire("import").run()?;
    /// lease.put_value("page 7").run()?;
    /// assert_eq!(lease.value::<String>()?.unwrap().content, "page 7");
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn put_value<T: Serialize + ?Sized>(&self, content: &T) -> PutValue {
        self.held.write_value(Json::of(content).map(Some), false, self.mode.clone())
    }

    /// Clears the value of the key: see [`mongoseal::Lease::clear_value`](crate::Lease::clear_value).
    pub fn clear_value(&self) -> PutValue {
        self.held.write_value(Ok(None), false, self.mode.clone())
    }

    /// Stores a value and releases the lease, in one write: see
    /// [`mongoseal::Lease::release_with_value`](crate::Lease::release_with_value).
    pub fn release_with_value<T: Serialize + ?Sized>(&self, content: &T) -> PutValue {
        self.held.write_value(Json::of(content).map(Some), true, self.mode.clone())
    }

    /// Reads the value of the key: see [`mongoseal::Lease::value`](crate::Lease::value).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::value`](crate::Lease::value).
    pub fn value<T: DeserializeOwned>(&self) -> Result<Option<KeyValue<T>>> {
        KeyValue::of(self.mode.wait(self.held.stored_value())?).map(KeyValue::parse).transpose()
    }

    /// Lets other holders share the key, up to this many: see [`mongoseal::Lease::downgrade`](crate::Lease::downgrade).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::downgrade`](crate::Lease::downgrade).
    pub fn downgrade(&self, to: Sharing) -> Result<()> {
        self.mode.wait(self.held.downgrade(to))
    }

    /// Makes a lease that shares its key exclude others, if no other lease holds the key: see
    /// [`mongoseal::Lease::upgrade`](crate::Lease::upgrade).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::upgrade`](crate::Lease::upgrade).
    pub fn upgrade(&self) -> Result<Self> {
        self.mode.clone().run(self.held.upgrade(), Self::new)
    }

    /// Transfers the lease to another lease id, and returns its new, larger token: see
    /// [`mongoseal::Lease::transfer`](crate::Lease::transfer).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::transfer`](crate::Lease::transfer).
    pub fn transfer(&self, to: LeaseId) -> Result<FencingToken> {
        self.mode.wait(self.held.transfer(to))
    }

    /// Leaves the lease to expire instead of releasing it: see [`mongoseal::Lease::orphan`](crate::Lease::orphan). Sends
    /// nothing and does not block.
    pub fn orphan(self) {
        self.held.orphan();
    }

    /// Releases the lease, and returns whether it was held until then.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::release`](crate::Lease::release).
    pub fn release(self) -> Result<ReleaseOutcome> {
        self.mode.wait(self.held.release())
    }
}

impl LeaseSet {
    /// Waits until one of the leases is over, and returns its key and its last state.
    ///
    /// # Errors
    ///
    /// None: the threads of the handle run as long as the leases are there.
    pub fn cancelled(&self) -> Result<(Key, LeaseState)> {
        Ok(self.mode.wait(self.held.cancelled()))
    }

    /// Releases all leases by one command, and returns for each key whether its lease was held until then.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::LeaseSet::release`](crate::LeaseSet::release).
    pub fn release(self) -> Result<Vec<(Key, ReleaseOutcome)>> {
        self.mode.wait(self.held.release())
    }
}

impl Leader {
    /// Replaces the leader's value, and notifies the observers. The token stays.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::election::Leader::proclaim`](crate::election::Leader::proclaim).
    pub fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        self.lease.update_metadata(self.metadata_with(value)?)
    }

    /// Resigns, and returns whether it led until then. The next in line is elected.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`].
    pub fn resign(self) -> Result<ReleaseOutcome> {
        self.lease.release()
    }
}

impl TickLease {
    /// Completes the tick and releases the lease, in one write.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::TickLease::complete`](crate::TickLease::complete).
    pub fn complete(self) -> Result<()> {
        self.lease.mode.wait(self.complete_as(false))
    }

    /// Completes the tick of work that failed, so that it is not run again, and releases the lease.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::TickLease::complete_failed`](crate::TickLease::complete_failed).
    pub fn complete_failed(self) -> Result<()> {
        self.lease.mode.wait(self.complete_as(true))
    }

    /// Releases the lease and does not complete the tick, so that the next runner runs the work again.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`].
    pub fn release(self) -> Result<ReleaseOutcome> {
        self.lease.release()
    }
}

impl<L> Deref for Held<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.held
    }
}

impl AsRef<crate::Lease> for Lease {
    fn as_ref(&self) -> &crate::Lease {
        self
    }
}

/// A lease as the writer at a fence, for a fenced write in [`Mongoseal::block_on`](super::Mongoseal::block_on).
#[cfg(feature = "mongodb")]
impl<'a> From<&'a Lease> for crate::fence::FencedWriter<'a> {
    fn from(lease: &'a Lease) -> Self {
        lease.as_ref().into()
    }
}
