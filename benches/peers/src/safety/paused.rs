//! A holder that is silent for longer than its ttl.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use crate::peer::{Client, Held, Peer, Result, Setup};

/// etcd has none that is shorter.
pub(super) const TTL: Duration = Duration::from_secs(2);

/// What came of a pause.
pub(super) struct Paused {
    /// Whether the lock went to another one.
    pub(super) ended: bool,
    /// If so, whether the release of who had it before let a third one in.
    pub(super) freed: Option<bool>,
}

/// A holder that goes on for longer than its ttl: whether it keeps the lock.
pub(super) async fn works_on(peer: &Arc<dyn Peer>) -> Result<bool> {
    let holder = Holder::start(peer, "works", Meanwhile::WorksOn).await?;
    let mut other = Waiter::start(peer.as_ref(), "works").await?;
    let taken = other.has_it_within(TTL * 2).await?;
    holder.release().await?;
    other.end().await?;
    Ok(!taken)
}

/// A holder that stands still with all that it runs, and later releases what it takes for its own.
pub(super) async fn stands_still(peer: &Arc<dyn Peer>) -> Result<Paused> {
    let holder = Holder::start(peer, "paused", Meanwhile::StandsStill).await?;
    let mut second = Waiter::start(peer.as_ref(), "paused").await?;
    let ended = second.has_it_within(TTL * 3).await?;
    if !ended {
        holder.release().await?;
        second.end().await?;
        return Ok(Paused { ended, freed: None });
    }
    let mut third = Waiter::start(peer.as_ref(), "paused").await?;
    holder.release().await?;
    // Longer than any of them takes to look again.
    let freed = third.has_it_within(Duration::from_millis(1_500)).await?;
    second.end().await?;
    third.end().await?;
    Ok(Paused { ended, freed: Some(freed) })
}

/// What a holder does until it is told to release.
#[derive(Clone, Copy)]
enum Meanwhile {
    WorksOn,
    StandsStill,
}

/// One who holds a key on a thread of its own, as in a process of its own.
struct Holder {
    go_on: mpsc::Sender<()>,
    released: oneshot::Receiver<Result<()>>,
}

impl Holder {
    /// Starts one, and waits until it holds the key.
    async fn start(peer: &Arc<dyn Peer>, key: &'static str, meanwhile: Meanwhile) -> Result<Self> {
        let peer = Arc::clone(peer);
        let ((go_on, told), (holds, held), (done, released)) =
            (mpsc::channel(), oneshot::channel(), oneshot::channel());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime for one thread can be made");
            let outcome = runtime.block_on(hold(peer.as_ref(), key, meanwhile, holds, &told));
            // Whoever asked may be gone.
            done.send(outcome).ok();
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        if held.await.is_ok() {
            return Ok(Self { go_on, released });
        }
        Err(released.await?.err().unwrap_or_else(|| "it ended before it held the key".into()))
    }

    /// Wakes it, and waits until it has released the key.
    async fn release(self) -> Result<()> {
        self.go_on.send(())?;
        self.released.await?
    }
}

/// What runs on the thread of a holder.
async fn hold(
    peer: &dyn Peer,
    key: &str,
    meanwhile: Meanwhile,
    holds: oneshot::Sender<()>,
    told: &mpsc::Receiver<()>,
) -> Result<()> {
    let client = peer.client(&Setup { ttl: TTL, ..Setup::default() }).await?;
    let held = client.acquire(key).await?;
    holds.send(()).map_err(|()| "nobody waits for it")?;
    match meanwhile {
        Meanwhile::WorksOn => {
            while let Err(mpsc::TryRecvError::Empty) = told.try_recv() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        // The whole thread, and so whatever would refresh, too.
        Meanwhile::StandsStill => told.recv()?,
    }
    held.release().await?;
    // One peer releases in the background.
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.close().await;
    Ok(())
}

/// A client, and what it holds.
type Has = (Box<dyn Client>, Box<dyn Held>);

/// One who waits for a key.
struct Waiter {
    acquiring: JoinHandle<Result<Has>>,
    has: Option<Has>,
}

impl Waiter {
    async fn start(peer: &dyn Peer, key: &'static str) -> Result<Self> {
        let client = peer.client(&Setup::default()).await?;
        let acquiring = tokio::spawn(async move {
            let held = client.acquire(key).await?;
            Ok((client, held))
        });
        Ok(Self { acquiring, has: None })
    }

    /// Whether it has the key by then; it goes on waiting if not.
    async fn has_it_within(&mut self, time: Duration) -> Result<bool> {
        if let Ok(acquired) = timeout(time, &mut self.acquiring).await {
            self.has = Some(acquired??);
        }
        Ok(self.has.is_some())
    }

    /// Waits until it has the key, and releases it.
    async fn end(self) -> Result<()> {
        let (client, held) = match self.has {
            Some(has) => has,
            None => self.acquiring.await??,
        };
        let released = held.release().await;
        client.close().await;
        released
    }
}
