//! Electing a leader.

mod campaign;
mod elector;
mod observe;

use std::time::Duration;

pub use campaign::{Campaign, Leader};
pub use elector::{Elector, Readiness};
pub use observe::LeaderStream;

use crate::{
    FencingToken, IntoName, Key, Mongoseal, Owner, Result,
    record::{Holder, Record, StoreTime},
    store::Snapshot,
};

/// The entry of the metadata of a leader's lease that says its value.
const VALUE: &str = "value";

/// Who leads, as others see it.
///
/// Made by [`Mongoseal::leader`] and [`Mongoseal::observe`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaderInfo {
    /// What it said of itself, as where it can be reached; empty where it said nothing.
    pub value: String,
    /// Who it is, in words for people.
    pub owner: Owner,
    /// Its fencing token, larger than that of every leader before.
    pub token: FencingToken,
    /// Since when it leads, on the store's clock.
    pub since: StoreTime,
    /// When this was seen, on the store's clock.
    pub seen_at: StoreTime,
    /// How long nobody else can lead if nothing is heard of it, by the store's clock. `None` is for ever.
    pub remaining: Option<Duration>,
}

impl Mongoseal {
    /// Stands for the leadership of this name: see [`Campaign`]. Nothing is sent until the returned
    /// builder is awaited.
    ///
    /// A leadership is a lease on a key of this name. Whoever acquires that key takes part in the election.
    pub fn campaign<K>(&self, name: K) -> Campaign
    where
        K: IntoName<Key>,
    {
        Campaign::new(&self.shared, name.into_name())
    }

    /// Who leads, by a linearizable read; `None` where nobody does. It may be over the moment after: a
    /// leader that died is seen here until its time is over.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer and changes nothing.
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
    /// let incumbent = seal.leader("scheduler").await?.expect("somebody leads");
    /// assert_eq!((incumbent.value.as_str(), incumbent.token), ("10.0.0.7:4000", leader.token()));
    /// leader.resign().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn leader<K>(&self, name: K) -> Result<Option<LeaderInfo>>
    where
        K: IntoName<Key>,
    {
        let key = name.into_name()?;
        self.shared.context.ensure_open()?;
        Ok(match self.shared.context.read_record(&key, self.shared.context.operation_deadline()).await? {
            None => None,
            Some(Snapshot { record, at }) => LeaderInfo::of(&record, at.now),
        })
    }
}

impl LeaderInfo {
    /// Who leads by a record that was seen at this time.
    fn of(record: &Record, seen_at: StoreTime) -> Option<Self> {
        let leads = |holder: &&Holder| holder.expires_at > seen_at;
        record.holders.iter().find(leads).map(|holder| Self {
            value: holder.terms.metadata.get(VALUE).unwrap_or_default().to_owned(),
            owner: holder.terms.owner.clone(),
            token: holder.version,
            since: holder.since,
            seen_at,
            remaining: holder.remaining(seen_at),
        })
    }
}
