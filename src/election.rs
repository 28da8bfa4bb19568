//! Leader election.
//!
//! Mechanism: a leadership is a lease on a key. Candidates wait in its queue, and the holder's metadata has its value.

mod campaign;
mod elector;
mod lead;
mod leadership;
mod observe;
mod readiness;

use std::time::Duration;

pub use campaign::{Campaign, Leader};
pub use elector::Elector;
pub use leadership::{LeadershipState, LeadershipWatch};
pub use observe::LeaderStream;
pub use readiness::Readiness;

use crate::{
    handle::{Async, Mongoseal},
    record::{Holder, Record, StoreTime},
    store::answers::Snapshot,
    types::{error::Result, into_name::IntoName, key::Key, lease_id::LeaseId, owner::Owner, token::FencingToken},
};

/// The name of the metadata entry with a leader's value.
const VALUE: &str = "value";

/// A leader, as other processes see it. [`Mongoseal::leader`] and [`Mongoseal::observe`] return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderInfo {
    /// The value that the leader has published, such as its address. Empty if there is none.
    pub value: String,
    /// The leader's owner.
    pub owner: Owner,
    /// The leader's fencing token: larger than that of every earlier leader.
    pub token: FencingToken,
    /// When the leadership began, on the store's clock.
    pub since: StoreTime,
    /// When this was read, on the store's clock.
    pub seen_at: StoreTime,
    /// How long until another candidate can lead if this leader does not refresh, by the store's clock. [`Duration::MAX`]:
    /// without expiry.
    pub free_in: Duration,
    /// The secret lease id, by which a candidate recognises itself.
    lease: LeaseId,
}

impl Mongoseal {
    /// Campaigns for the leadership of this name: see [`Campaign`]. Nothing is sent until the returned builder is
    /// awaited.
    ///
    /// A leadership is a lease on the key of this name. An acquire of that key takes part in the election. A key that is
    /// [shared](crate::action::Acquire::shared) has no leader, and a candidate waits until all sharers have gone.
    pub fn campaign(&self, name: impl IntoName<Key>) -> Campaign {
        Campaign::new(self, name, Async)
    }

    /// Returns the leader by a linearizable read; `None` if there is none. The answer may be outdated a moment later: a
    /// leader that died is returned until its time is over.
    ///
    /// The leader is the holder that excludes all others. A key that is shared has no leader, also if one sharer is left;
    /// [`inspect`](Self::inspect) returns the sharers.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer and changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// assert_eq!(seal.leader("scheduler").await?, None);
    /// let leader = seal.campaign("scheduler").value("10.0.0.7:4000").await?;
    ///
    /// let current = seal.leader("scheduler").await?.expect("there is a leader");
    /// assert_eq!((current.value.as_str(), current.token), ("10.0.0.7:4000", leader.token()));
    /// leader.resign().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn leader(&self, name: impl IntoName<Key>) -> Result<Option<LeaderInfo>> {
        let (_key, snapshot) = self.read(name).await?;
        Ok(snapshot.and_then(|Snapshot { record, at }| LeaderInfo::of(&record, at.now)))
    }
}

impl LeaderInfo {
    /// The leader in a record that was read at this time: the holder that excludes all others. A sharer does not lead, also
    /// if it is alone, and neither does a released lease whose minimum hold has not ended.
    fn of(record: &Record, seen_at: StoreTime) -> Option<Self> {
        let leads = |holder: &&Holder| {
            holder.expires_at > seen_at && holder.released_at.is_none() && holder.terms.sharing.is_exclusive()
        };
        record.holders.iter().find(leads).map(|holder| Self {
            value: holder.terms.metadata.get(VALUE).unwrap_or_default().to_owned(),
            owner: holder.terms.owner.clone(),
            token: holder.version,
            since: holder.since,
            seen_at,
            free_in: holder.free_in(seen_at),
            lease: holder.terms.lease,
        })
    }

    /// The part whose change observers are notified of.
    fn visible_part(&self) -> (FencingToken, &Owner, &str) {
        (self.token, &self.owner, &self.value)
    }
}
