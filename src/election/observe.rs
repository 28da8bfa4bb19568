//! The verb `observe`: the leaders of a name, as they change.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
};

use futures_core::Stream;

use super::{LeaderInfo, SeenLeader};
use crate::{
    action::watch::{WatchItems, Watched},
    engine::context::Context,
    handle::Mongoseal,
    record::{KeyFilter, Record, StoreTime},
    types::{error::Result, into_name::IntoName, key::Key, owner::Owner, token::FencingToken},
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
    pub async fn observe<K>(&self, name: K) -> Result<LeaderStream>
    where
        K: IntoName<Key>,
    {
        LeaderStream::begin(&self.shared.context, name.into_name()?).await
    }
}

/// The leaders of a name, in order, and `None` while there is none.
///
/// It is a [`Stream`]. It returns a leader when it is elected and when it proclaims another value. It returns `None`
/// when a leadership was resigned or expired and no candidate was waiting. It is a [`watch`](Mongoseal::watch) of the
/// name, with the guarantees and the costs of an [`EventStream`](crate::EventStream). If changes are missing, it does not
/// say so: it returns the present leader, if that is another one.
#[must_use = "a stream of leaders does nothing until it is polled"]
pub struct LeaderStream {
    leaders: WatchItems<Option<SeenLeader>>,
}

impl LeaderStream {
    pub(super) async fn begin(context: &Arc<Context>, name: Key) -> Result<Self> {
        Ok(Self { leaders: WatchItems::begin(context, KeyFilter::Key(name)).await? })
    }

    /// Waits for the next leader, or for the news that there is none. Returns `None` after an error.
    ///
    /// # Errors
    ///
    /// As [`EventStream::next`](crate::EventStream::next). An error is the last item.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call returns what this one would have returned.
    pub async fn next(&mut self) -> Option<Result<Option<LeaderInfo>>> {
        Some(self.next_seen().await?.map(|seen| seen.map(|seen| seen.info)))
    }

    /// As [`next`](Self::next), with the lease id of the leader.
    pub(super) async fn next_seen(&mut self) -> Option<Result<Option<SeenLeader>>> {
        poll_fn(|task| self.leaders.poll_next(task)).await
    }
}

impl Watched for Option<SeenLeader> {
    fn first(_key: &Key, record: Option<&Record>, at: StoreTime) -> Vec<Self> {
        vec![leader(record, at)]
    }

    fn changes(_key: &Key, before: Option<&Record>, after: Option<&Record>, at: StoreTime) -> Vec<Self> {
        // The earlier record still has its holders, although they may have expired by now.
        let (before, after) = (leader(before, StoreTime::default()), leader(after, at));
        if visible_part(before.as_ref()) == visible_part(after.as_ref()) { vec![] } else { vec![after] }
    }

    /// The stream goes on with the leader of then.
    fn missed(_since: StoreTime, _until: StoreTime) -> Option<Self> {
        None
    }
}

fn leader(record: Option<&Record>, at: StoreTime) -> Option<SeenLeader> {
    SeenLeader::of(record?, at)
}

/// The part of a leader whose change is reported.
fn visible_part(seen: Option<&SeenLeader>) -> Option<(FencingToken, &Owner, &str)> {
    seen.map(|seen| seen.info.visible_part())
}

impl Stream for LeaderStream {
    type Item = Result<Option<LeaderInfo>>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        self.leaders.poll_next(task).map(|next| Some(next?.map(|seen| seen.map(|seen| seen.info))))
    }
}

impl fmt::Debug for LeaderStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderStream").finish_non_exhaustive()
    }
}
