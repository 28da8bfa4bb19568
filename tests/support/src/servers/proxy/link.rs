//! One connection through a proxy: two one-way streams that end together.

use std::{
    collections::HashSet,
    io,
    net::Ipv4Addr,
    pin::pin,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::mpsc,
    time::Instant,
};

use super::{How, Peer, Way, rules::Rules, wire::Message};

/// How many replies of a connection may be on their way at a time. If the server sends more, it waits, as for
/// a full window of TCP.
const IN_FLIGHT: usize = 64;

/// Serves the proxy of `member`, for ever.
pub(super) async fn accept(listener: TcpListener, member: usize, rules: Arc<Rules>) {
    loop {
        if let Ok((caller, _)) = listener.accept().await {
            let (rules, resets) = (rules.clone(), rules.resets());
            tokio::spawn(async move {
                rules.open.fetch_add(1, Ordering::Relaxed);
                tokio::select! {
                    () = rules.until_reset(resets) => {}
                    // A broken connection concerns its two ends, and both notice.
                    _broken = serve(caller, member, &rules) => {}
                }
                rules.open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

async fn serve(caller: TcpStream, member: usize, rules: &Rules) -> io::Result<()> {
    caller.set_nodelay(true)?;
    let (mut caller_in, caller_out) = caller.into_split();
    let first = rules.read(&mut caller_in).await?;
    let source = rules.source(&first);
    rules.keep_silent(&source).await;
    let target = Peer::Member(member);

    let requests = Lane { from: &source, to: &target, rules };
    let replies = Lane { from: &target, to: &source, rules };
    if !requests.is_passable().await {
        return Ok(());
    }
    // Of a forwarder without a target it is refused.
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, rules.port(member))).await?;
    server.set_nodelay(true)?;
    let (server_in, server_out) = server.into_split();

    // Dropping a lane half-way loses what it holds, so whichever ends first ends the connection.
    let doomed = Doomed::default();
    tokio::select! {
        ended = requests.carry_requests(first, caller_in, server_out, &doomed) => ended,
        ended = replies.carry_replies(server_in, caller_out, &doomed) => ended,
        () = requests.is_reset() => Ok(()),
        () = replies.is_reset() => Ok(()),
    }
}

/// The requests whose replies are to be dropped, by their ids.
#[derive(Default)]
struct Doomed(Mutex<HashSet<i32>>);

impl Doomed {
    fn ids(&self) -> std::sync::MutexGuard<'_, HashSet<i32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One direction of a connection.
struct Lane<'a> {
    from: &'a Peer,
    to: &'a Peer,
    rules: &'a Rules,
}

impl Lane<'_> {
    async fn carry_requests(
        &self,
        first: Message,
        mut caller: OwnedReadHalf,
        mut server: OwnedWriteHalf,
        doomed: &Doomed,
    ) -> io::Result<()> {
        let mut request = first;
        loop {
            let fate = self.rules.decide(self.from, &request);
            if let Some(delay) = fate.delay {
                tokio::time::sleep(delay).await;
            }
            if !self.is_passable().await {
                return Ok(());
            }
            self.rules.tamper(self.from, Way::Request, &mut request);
            if fate.swallow {
                doomed.ids().extend(request.id());
            }
            server.write_all(request.bytes()).await?;
            request = self.rules.read(&mut caller).await?;
        }
    }

    async fn carry_replies(
        &self,
        mut server: OwnedReadHalf,
        caller: OwnedWriteHalf,
        doomed: &Doomed,
    ) -> io::Result<()> {
        let (arriving, arrived) = mpsc::channel(IN_FLIGHT);
        let arrive = async move {
            loop {
                let reply = self.rules.read(&mut server).await?;
                let due = Instant::now() + self.rules.latency(self.to);
                if arriving.send((due, reply)).await.is_err() {
                    return io::Result::Ok(());
                }
            }
        };
        let mut forward = pin!(self.forward_replies(arrived, caller, doomed));
        tokio::select! {
            ended = &mut forward => ended,
            // The server has closed the connection: the replies on their way are still delivered.
            ended = arrive => forward.await.and(ended),
        }
    }

    /// Forwards each reply when it is due.
    async fn forward_replies(
        &self,
        mut arrived: mpsc::Receiver<(Instant, Message)>,
        mut caller: OwnedWriteHalf,
        doomed: &Doomed,
    ) -> io::Result<()> {
        while let Some((due, mut reply)) = arrived.recv().await {
            tokio::time::sleep_until(due).await;
            let swallow = reply.reply_to().is_some_and(|id| doomed.ids().contains(&id));
            if swallow || !self.is_passable().await || self.rules.drops_reply() {
                return Ok(());
            }
            self.rules.tamper(self.to, Way::Reply, &mut reply);
            caller.write_all(reply.bytes()).await?;
        }
        Ok(())
    }

    /// Waits out a blackhole; false if the lane is reset instead.
    async fn is_passable(&self) -> bool {
        self.rules.until(self.from, self.to, |cut| cut != Some(How::Blackhole)).await.is_none()
    }

    /// Returns once the lane is reset.
    async fn is_reset(&self) {
        self.rules.until(self.from, self.to, |cut| cut == Some(How::Reset)).await;
    }
}
