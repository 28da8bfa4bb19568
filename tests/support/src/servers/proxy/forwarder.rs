//! A proxy for servers whose messages it does not read.

use std::{
    net::Ipv4Addr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{net::TcpListener, task::AbortHandle};

use super::{How, Peer, Way, link, rules::Rules};
use crate::servers::runtime::run;

/// A port that forwards its connections to a target, which can change.
///
/// A new connection goes to the target of that moment. An open connection stays with its target until it is
/// [reset](Self::reset).
pub struct Forwarder {
    port: u16,
    rules: Arc<Rules>,
    accepting: AbortHandle,
}

/// All its clients are one, without a name.
const CALLER: Peer = Peer::Client(String::new());
const TARGET: Peer = Peer::Member(0);

impl Forwarder {
    /// Starts one. It closes each connection until it has a target.
    pub async fn start() -> Self {
        run(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a forwarder finds a free port");
            let port = listener.local_addr().expect("a listener has an address").port();
            let rules = Arc::new(Rules::new(&[0], false));
            let accepting = tokio::spawn(link::accept(listener, 0, Arc::clone(&rules))).abort_handle();
            Self { port, rules, accepting }
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
        self.rules.set_port(0, port);
    }

    /// Closes all open connections.
    pub fn reset(&self) {
        self.rules.reset();
    }

    /// Cuts one direction.
    pub fn cut(&self, way: Way, how: How) {
        match way {
            Way::Request => self.rules.cut(CALLER, TARGET, how),
            Way::Reply => self.rules.cut(TARGET, CALLER, how),
        }
    }

    /// Cuts both directions.
    pub fn cut_both(&self, how: How) {
        self.cut(Way::Request, how);
        self.cut(Way::Reply, how);
    }

    /// Delays replies by this time, counted from the arrival of each.
    pub fn delay_replies(&self, by: Duration) {
        self.rules.add(|rules| &mut rules.latencies, "", "", by);
    }

    /// Drops the next replies that arrive, this many, and closes their connections.
    pub fn swallow_replies(&self, times: u32) {
        self.rules.doomed.store(times, Ordering::Relaxed);
    }

    /// How many replies it has dropped so.
    #[must_use]
    pub fn swallowed(&self) -> u32 {
        self.rules.dropped.count()
    }

    /// How many connections are open.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.rules.open.load(Ordering::Relaxed)
    }

    /// Ends all cuts and delays. Held chunks are delivered. The target stays.
    pub fn heal(&self) {
        self.rules.clear();
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
    }
}
