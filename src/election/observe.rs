//! The verb `observe`: the leaders of a name, as they change.

use super::LeaderInfo;
use crate::{
    action::watch::{EventStream, Watched},
    handle::Mongoseal,
    record::{KeyFilter, Record, StoreTime},
    types::{error::Result, into_name::IntoName, key::Key},
};

impl Mongoseal {
    /// Observes the leadership of a name: returns the present leader, or that there is none, and then each change. See
    /// [`LeaderStream`].
    ///
    /// # Errors
    ///
    /// As [`watch`](Self::watch).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the observation and changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::Mongoseal;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let mut leaders = seal.observe("scheduler").await?;
    /// assert_eq!(leaders.next().await.expect("it goes on")?, None);
    ///
    /// let leader = seal.campaign("scheduler").value("10.0.0.7:4000").await?;
    /// let current = leaders.next().await.expect("it goes on")?.expect("there is a leader");
    /// assert_eq!((current.value.as_str(), current.token), ("10.0.0.7:4000", leader.token()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn observe(&self, name: impl IntoName<Key>) -> Result<LeaderStream> {
        LeaderStream::begin(&self.handle.context, KeyFilter::Key(name.into_name()?)).await
    }
}

/// The leaders of a name, in order, and `None` while there is none.
///
/// It is the [`EventStream`] of a [watch](Mongoseal::watch) of the name, with its guarantees and costs, and with leaders as
/// its items. It returns a leader when it is elected and when it proclaims another value. It returns `None` when a
/// leadership was resigned or expired and no candidate was waiting, and when the leader lets sharers in. Sharers do not lead. If
/// changes are missing, it does not report that: it returns the present leader, if that is another one.
pub type LeaderStream = EventStream<Option<LeaderInfo>>;

impl Watched for Option<LeaderInfo> {
    fn first(_key: &Key, record: Option<&Record>, at: StoreTime) -> Vec<Self> {
        vec![leader(record, at)]
    }

    fn changes(_key: &Key, before: Option<&Record>, after: Option<&Record>, at: StoreTime) -> Vec<Self> {
        // The earlier record still has its holders, although they may have expired by now.
        let (before, after) = (leader(before, StoreTime::default()), leader(after, at));
        let [was, is] = [&before, &after].map(|leader| leader.as_ref().map(LeaderInfo::visible_part));
        if was == is { vec![] } else { vec![after] }
    }

    /// The stream goes on with the leader of then.
    fn missed(_since: StoreTime, _until: StoreTime) -> Option<Self> {
        None
    }
}

fn leader(record: Option<&Record>, at: StoreTime) -> Option<LeaderInfo> {
    LeaderInfo::of(record?, at)
}
