//! The route of a process to the store: requests are delayed, lost, duplicated or cut off.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use mongoseal::{
    Error, Result,
    store::{BoxFuture, Deadline},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

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
}

/// What is sent.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    /// The longest delay of it, in milliseconds.
    longest: u64,
    can_be_sent_twice: bool,
    /// What is counted if it is late, if it is done after its deadline, and if its answer is lost.
    late: &'static str,
    ghost: &'static str,
    lost: &'static str,
}

impl Sent {
    /// A request to a store.
    pub(crate) const REQUEST: Self = Self {
        longest: 9_000,
        can_be_sent_twice: true,
        late: "a request is late",
        ghost: "a ghost arrives",
        lost: "a reply is lost",
    };
    /// A load of a backend.
    pub(crate) const LOAD: Self = Self {
        longest: 9_000,
        can_be_sent_twice: false,
        late: "a load is late",
        ghost: "a ghost load arrives",
        lost: "the answer to a load is lost",
    };
    /// A swap of a backend. Its longest delay exceeds the age limit of its load.
    pub(crate) const SWAP: Self = Self {
        longest: 14_000,
        can_be_sent_twice: false,
        late: "a swap is late",
        ghost: "a ghost swap arrives",
        lost: "the answer to a swap is lost",
    };
}

/// From when on a delay counts as late.
const LATE: Duration = millis(1_000);

/// The route of one process.
pub(crate) struct Route {
    pub(crate) world: Arc<World>,
    /// Until when it is cut off; for ever, once the process died.
    pub(crate) cut: Mutex<Duration>,
}

pub(crate) fn away() -> Error {
    Error::unavailable("the store is away")
}

impl Route {
    pub(crate) fn new(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self { world: Arc::clone(world), cut: Mutex::default() })
    }

    pub(crate) fn is_cut(&self) -> bool {
        *self.cut.lock().unwrap() > self.world.now()
    }

    fn fate(&self, sent: Sent) -> Fate {
        let mut rng = self.world.rng.lock().unwrap();
        let quick = |rng: &mut Rng| millis(rng.u64(..8));
        if !self.world.is_faulty() {
            return Fate::Takes(quick(&mut rng), quick(&mut rng));
        }
        let long = |rng: &mut Rng| millis(rng.u64(..sent.longest));
        match rng.u8(..40) {
            0 | 1 | 10 | 11 => Fate::Fails,
            2 | 3 => Fate::LosesReply,
            4 => Fate::Hangs,
            5 | 6 => Fate::Takes(long(&mut rng), Duration::ZERO),
            7 | 8 => Fate::Takes(Duration::ZERO, long(&mut rng)),
            9 if sent.can_be_sent_twice => Fate::Twice(long(&mut rng)),
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
                            busy.count(sent.late);
                        }
                        if deadline.has_passed() {
                            busy.count(sent.ghost);
                        }
                        let answer = work().await;
                        tokio::time::sleep(after).await;
                        answer
                    }
                    Fate::Fails => Err(away()),
                    Fate::LosesReply => {
                        busy.count(sent.lost);
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

    /// Awaits the answer of a server to so many commands, unless the process is cut off, and notes how long one takes.
    pub(crate) fn observe<T: Send + 'static>(
        self: &Arc<Self>,
        deadline: Deadline,
        commands: u32,
        answer: BoxFuture<Result<T>>,
    ) -> BoxFuture<Result<T>> {
        let route = Arc::clone(self);
        Box::pin(async move {
            let began = route.world.now();
            let answer = if route.is_cut() { Err(away()) } else { answer.await };
            route.world.note_answer(route.world.now().saturating_sub(began) / commands);
            if route.is_cut() {
                tokio::time::sleep(deadline.remaining()).await;
                return Err(away());
            }
            answer
        })
    }

    /// Relays what `watch` tells to the process, unless the watch does not begin, and until it breaks off. Each message
    /// arrives after the delay that `arrives` gives, or is lost.
    pub(crate) fn relay<T: Send + 'static>(
        &self,
        breaks_off: &'static str,
        watch: impl FnOnce(UnboundedSender<T>) -> BoxFuture<Result<()>>,
        tell: UnboundedSender<T>,
        arrives: impl Fn(&World, &T) -> Option<Duration> + Send + Sync + 'static,
    ) -> BoxFuture<Result<()>> {
        let world = Arc::clone(&self.world);
        let (fate, breaks, faulty) = (world.below(8), millis(world.below(20_000)), world.is_faulty());
        if self.is_cut() || (faulty && fate == 0) {
            return Box::pin(async { Err(away()) });
        }
        let (first, mut told) = unbounded_channel();
        let watching = watch(first);
        Box::pin(async move {
            let relaying = async {
                while let Some(what) = told.recv().await {
                    let Some(delay) = arrives(&world, &what) else { continue };
                    if !delay.is_zero() {
                        tokio::time::sleep(delay).await;
                    }
                    if tell.send(what).is_err() {
                        break;
                    }
                }
            };
            tokio::select! {
                biased;
                ended = watching => ended,
                () = relaying => Ok(()),
                () = tell.closed() => Ok(()),
                () = tokio::time::sleep(breaks), if faulty && fate < 4 => {
                    world.count(breaks_off);
                    Err(away())
                }
            }
        })
    }
}
