//! The route of a process to the store: requests are delayed, lost, duplicated or cut off.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use mongoseal::{Deadline, Error, Result, store::BoxFuture};

use crate::{millis, world::World};

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is done after so long, and the answer takes so long.
    Takes(Duration, Duration),
    /// Nothing is done and an error comes.
    Fails,
    /// It is done, and an error comes.
    LosesReply,
    /// Nothing is done, and nothing comes.
    Hangs,
    /// It is done, and done again so much later.
    Twice(Duration),
    /// An old primary answers.
    Stale,
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// A request to a store. It can be sent twice.
    Request,
    /// A load of a backend.
    Load,
    /// A swap of a backend.
    Swap,
}

impl Sent {
    /// The longest delay of it, in milliseconds. That of a swap exceeds the age limit of its load.
    fn longest(self) -> u64 {
        match self {
            Self::Request | Self::Load => 9_000,
            Self::Swap => 14_000,
        }
    }

    fn ghost(self) -> &'static str {
        match self {
            Self::Request => "a ghost arrives",
            Self::Load => "a ghost load arrives",
            Self::Swap => "a ghost swap arrives",
        }
    }

    fn late(self) -> &'static str {
        match self {
            Self::Request => "a request is late",
            Self::Load => "a load is late",
            Self::Swap => "a swap is late",
        }
    }

    fn lost(self) -> &'static str {
        match self {
            Self::Request => "a reply is lost",
            Self::Load => "the answer to a load is lost",
            Self::Swap => "the answer to a swap is lost",
        }
    }
}

/// From when on a delay counts as late.
const LATE: Duration = millis(1_000);

/// The route of one process.
pub(crate) struct Route {
    pub(crate) world: Arc<World>,
    /// Until when it is cut off; for ever, once the process died.
    pub(crate) cut: Mutex<Duration>,
    /// The constant round trip of a process that is far away, of which nothing is lost.
    pub(crate) far: Option<Duration>,
}

pub(crate) fn away() -> Error {
    Error::unavailable("the store is away")
}

impl Route {
    pub(crate) fn new(world: &Arc<World>, far: Option<Duration>) -> Arc<Self> {
        Arc::new(Self { world: Arc::clone(world), cut: Mutex::default(), far })
    }

    pub(crate) fn is_cut(&self) -> bool {
        *self.cut.lock().unwrap() > self.world.now()
    }

    fn fate(&self, sent: Sent) -> Fate {
        if let Some(round_trip) = self.far {
            return Fate::Takes(round_trip / 2, round_trip / 2);
        }
        let mut rng = self.world.rng.lock().unwrap();
        let quick = |rng: &mut Rng| millis(rng.u64(..8));
        if !self.world.is_faulty() {
            return Fate::Takes(quick(&mut rng), quick(&mut rng));
        }
        let long = |rng: &mut Rng| millis(rng.u64(..sent.longest()));
        match rng.u8(..40) {
            0 | 1 => Fate::Fails,
            2 | 3 => Fate::LosesReply,
            4 => Fate::Hangs,
            5 | 6 => Fate::Takes(long(&mut rng), Duration::ZERO),
            7 | 8 => Fate::Takes(Duration::ZERO, long(&mut rng)),
            9 if matches!(sent, Sent::Request) => Fate::Twice(long(&mut rng)),
            10 | 11 => Fate::Stale,
            _ => Fate::Takes(quick(&mut rng), quick(&mut rng)),
        }
    }

    /// Runs the work on a task of its own, as a network does. So the store does it also if the caller has given up.
    pub(crate) fn send<T: Send + 'static>(
        &self,
        sent: Sent,
        deadline: Deadline,
        work: impl Fn() -> BoxFuture<Result<T>> + Send + 'static,
    ) -> BoxFuture<Result<T>> {
        let (world, cut, fate) = (Arc::clone(&self.world), self.is_cut(), self.fate(sent));
        Box::pin(async move {
            let busy = Arc::clone(&world);
            let doing = tokio::spawn(async move {
                match fate {
                    _ if cut => std::future::pending().await,
                    Fate::Takes(before, after) => {
                        tokio::time::sleep(before).await;
                        if before >= LATE {
                            busy.count(sent.late());
                        }
                        if deadline.has_passed() {
                            busy.count(sent.ghost());
                        }
                        let answer = work().await;
                        tokio::time::sleep(after).await;
                        answer
                    }
                    Fate::Fails | Fate::Stale => Err(away()),
                    Fate::LosesReply => {
                        busy.count(sent.lost());
                        work().await.and(Err(away()))
                    }
                    Fate::Hangs => std::future::pending().await,
                    Fate::Twice(later) => {
                        let answer = work().await;
                        tokio::spawn(async move {
                            tokio::time::sleep(later).await;
                            busy.count("a request is done twice");
                            drop(work().await);
                        });
                        answer
                    }
                }
            });
            match tokio::time::timeout(deadline.remaining(), doing).await {
                Ok(Err(panicked)) => std::panic::resume_unwind(panicked.into_panic()),
                Ok(Ok(answer)) => answer,
                Err(_elapsed) => {
                    world.count("a request times out");
                    Err(away())
                }
            }
        })
    }
}
