//! A forwarder of TCP connections, with faults of the network, for servers whose messages it does not read.

use std::{
    io,
    net::Ipv4Addr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::{mpsc, watch},
    task::AbortHandle,
    time::Instant,
};

use super::{How, Way, runtime::run, server::free_port};

/// How many chunks of a direction may be on their way at a time.
const IN_FLIGHT: usize = 64;
const CHUNK: usize = 16 << 10;

/// A port that forwards its connections to a target, which can change.
///
/// A new connection goes to the target of that moment. An open connection stays with its target until it is
/// [reset](Self::reset).
pub struct Forwarder {
    port: u16,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

struct Shared {
    rules: watch::Sender<Rules>,
    /// How many next chunks of replies are dropped, each with its connection, and how many were.
    doomed: AtomicU32,
    dropped: AtomicU32,
    open: AtomicUsize,
}

#[derive(Clone, Default)]
struct Rules {
    target: Option<u16>,
    requests: Option<How>,
    replies: Option<How>,
    latency: Duration,
    /// Counts the resets.
    resets: u64,
}

impl Rules {
    fn cut(&self, way: Way) -> Option<How> {
        match way {
            Way::Request => self.requests,
            Way::Reply => self.replies,
        }
    }
}

impl Forwarder {
    /// Starts one. It closes each connection until it has a target.
    pub async fn start() -> Self {
        run(async {
            let (port, listener) = loop {
                let port = free_port();
                if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                    break (port, listener);
                }
            };
            let shared = Arc::new(Shared {
                rules: watch::channel(Rules::default()).0,
                doomed: AtomicU32::default(),
                dropped: AtomicU32::default(),
                open: AtomicUsize::default(),
            });
            let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
            Self { port, shared, accepting }
        })
        .await
    }

    /// Its port, on the loopback address.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends new connections to this port.
    pub fn set_target(&self, port: u16) {
        self.shared.rules.send_modify(|rules| rules.target = Some(port));
    }

    /// Closes all open connections.
    pub fn reset(&self) {
        self.shared.rules.send_modify(|rules| rules.resets += 1);
    }

    /// Cuts one direction.
    pub fn cut(&self, way: Way, how: How) {
        self.shared.rules.send_modify(|rules| match way {
            Way::Request => rules.requests = Some(how),
            Way::Reply => rules.replies = Some(how),
        });
    }

    /// Cuts both directions.
    pub fn cut_both(&self, how: How) {
        self.shared.rules.send_modify(|rules| (rules.requests, rules.replies) = (Some(how), Some(how)));
    }

    /// Delays replies by this time, counted from the arrival of each.
    pub fn delay_replies(&self, by: Duration) {
        self.shared.rules.send_modify(|rules| rules.latency = by);
    }

    /// Drops the next replies that arrive, this many, and closes their connections.
    pub fn swallow_replies(&self, times: u32) {
        self.shared.doomed.store(times, Ordering::Relaxed);
    }

    /// How many replies it has dropped so.
    #[must_use]
    pub fn swallowed(&self) -> u32 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// How many connections are open.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Ends all cuts and delays. Held chunks are delivered. The target stays.
    pub fn heal(&self) {
        self.shared.doomed.store(0, Ordering::Relaxed);
        self.shared.rules.send_modify(|rules| {
            (rules.requests, rules.replies, rules.latency) = (None, None, Duration::ZERO);
        });
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        if let Ok((caller, _)) = listener.accept().await {
            let shared = Arc::clone(&shared);
            // A broken connection concerns its two ends, and both notice.
            tokio::spawn(async move {
                shared.open.fetch_add(1, Ordering::Relaxed);
                serve(caller, &shared).await.ok();
                shared.open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

async fn serve(caller: TcpStream, shared: &Shared) -> io::Result<()> {
    let resets = shared.rules.borrow().resets;
    let is_reset = |rules: &Rules| {
        rules.resets > resets || [rules.requests, rules.replies].contains(&Some(How::Reset)) || rules.target.is_none()
    };
    let mut rules = shared.rules.subscribe();
    let reset = async {
        rules.wait_for(is_reset).await.ok();
        Ok(())
    };
    tokio::select! {
        biased;
        ended = reset => ended,
        ended = forward(caller, shared) => ended,
    }
}

async fn forward(caller: TcpStream, shared: &Shared) -> io::Result<()> {
    caller.set_nodelay(true)?;
    let (requests, replies) = (Lane { way: Way::Request, shared }, Lane { way: Way::Reply, shared });
    requests.passable().await;
    let Some(target) = shared.rules.borrow().target else { return Ok(()) };
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
    server.set_nodelay(true)?;
    let (caller_in, caller_out) = caller.into_split();
    let (server_in, server_out) = server.into_split();
    tokio::select! {
        ended = requests.carry(caller_in, server_out) => ended,
        ended = replies.carry(server_in, caller_out) => ended,
    }
}

/// One direction of a connection.
struct Lane<'a> {
    way: Way,
    shared: &'a Shared,
}

impl Lane<'_> {
    async fn carry(&self, mut from: OwnedReadHalf, to: OwnedWriteHalf) -> io::Result<()> {
        let (arriving, arrived) = mpsc::channel(IN_FLIGHT);
        let arrive = async move {
            loop {
                let mut chunk = vec![0; CHUNK];
                let length = from.read(&mut chunk).await?;
                if length == 0 {
                    return io::Result::Ok(());
                }
                chunk.truncate(length);
                let due = Instant::now() + self.latency();
                if arriving.send((due, chunk)).await.is_err() {
                    return Ok(());
                }
            }
        };
        let mut deliver = pin!(self.deliver(arrived, to));
        tokio::select! {
            ended = &mut deliver => ended,
            // What is on its way is still delivered.
            ended = arrive => deliver.await.and(ended),
        }
    }

    async fn deliver(&self, mut arrived: mpsc::Receiver<(Instant, Vec<u8>)>, mut to: OwnedWriteHalf) -> io::Result<()> {
        while let Some((due, chunk)) = arrived.recv().await {
            tokio::time::sleep_until(due).await;
            self.passable().await;
            if self.is_swallowed() {
                return Ok(());
            }
            to.write_all(&chunk).await?;
        }
        Ok(())
    }

    fn latency(&self) -> Duration {
        if self.way == Way::Reply { self.shared.rules.borrow().latency } else { Duration::ZERO }
    }

    fn is_swallowed(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        let is_doomed = self.way == Way::Reply
            && self.shared.doomed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        self.shared.dropped.fetch_add(is_doomed.into(), Ordering::Relaxed);
        is_doomed
    }

    /// Waits out a blackhole. A reset ends the connection elsewhere.
    async fn passable(&self) {
        let mut rules = self.shared.rules.subscribe();
        rules.wait_for(|rules| rules.cut(self.way) != Some(How::Blackhole)).await.ok();
    }
}
