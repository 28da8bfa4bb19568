//! Seeing who leads, as it changes.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
};

use futures_core::Stream;

use super::LeaderInfo;
use crate::{
    FencingToken, IntoName, Key, Mongoseal, Owner, Result,
    action::watch::{EventDiff, KeyEvents},
    engine::context::Context,
    record::{Record, StoreTime},
};

impl Mongoseal {
    /// Observes who leads: gives the present leader, or that there is none, and from then on each change.
    /// See [`LeaderStream`].
    ///
    /// # Errors
    ///
    /// As [`watch`](Self::watch).
    ///
    /// # Cancel safety
    ///
    /// Dropping it ends the observation and changes nothing.
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
    /// let incumbent = leaders.next().await.expect("it goes on")?.expect("somebody leads");
    /// assert_eq!((incumbent.value.as_str(), incumbent.token), ("10.0.0.7:4000", leader.token()));
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

/// Who leads, one after another, and `None` while nobody does.
///
/// Also a [`Stream`]. It gives a leader when it is elected and when it proclaims another value, and `None`
/// when there is none: when a leadership was resigned or its time was over, and nobody stood behind. It is
/// a [`watch`](Mongoseal::watch) of the name, with the guarantees and the costs of an
/// [`EventStream`](crate::EventStream).
#[must_use = "leaders are told to who asks for them"]
pub struct LeaderStream {
    events: KeyEvents<Option<LeaderInfo>>,
}

impl LeaderStream {
    pub(super) async fn begin(context: &Arc<Context>, name: Key) -> Result<Self> {
        let tale = EventDiff {
            first: |record, at| vec![leader(record, at)],
            then: |before, after, at| {
                // Whoever held then is left in it, although its time may be over now.
                let (before, after) = (leader(before, StoreTime::default()), leader(after, at));
                if said(before.as_ref()) == said(after.as_ref()) { vec![] } else { vec![after] }
            },
        };
        Ok(Self { events: KeyEvents::begin(context, name, tale).await? })
    }

    /// The next leader, or that there is none; `None` after an error.
    ///
    /// # Errors
    ///
    /// As [`EventStream::next`](crate::EventStream::next). It is the last that is given.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing: the next call gives what this one would have given.
    pub async fn next(&mut self) -> Option<Result<Option<LeaderInfo>>> {
        poll_fn(|task| self.events.poll_next(task)).await
    }
}

fn leader(record: Option<&Record>, at: StoreTime) -> Option<LeaderInfo> {
    LeaderInfo::of(record?, at)
}

/// What of a leader is told when it changes.
fn said(leader: Option<&LeaderInfo>) -> Option<(FencingToken, &Owner, &str)> {
    leader.map(|leader| (leader.token, &leader.owner, leader.value.as_str()))
}

impl Stream for LeaderStream {
    type Item = Result<Option<LeaderInfo>>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next(task)
    }
}

impl fmt::Debug for LeaderStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderStream").finish_non_exhaustive()
    }
}
