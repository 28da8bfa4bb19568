//! Proxies between the members of a set and its clients, with faults of the network.

mod forwarder;
mod link;
mod rules;
mod wire;

use std::{sync::Arc, time::Duration};

use mongodb::bson::Document;
use tokio::net::TcpListener;

use rules::Rules;

pub use forwarder::Forwarder;
pub use rules::Hits;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A member of the set.
    Member(usize),
    /// The clients with this `appName`; those without have the empty one.
    Client(String),
    /// In a rule: every client and member.
    Anyone,
}

impl Peer {
    /// The clients with this `appName`.
    #[must_use]
    pub fn client(app_name: impl Into<String>) -> Self {
        Self::Client(app_name.into())
    }

    /// Whether `other`, an actual end of a connection, is meant by this one.
    fn covers(&self, other: &Self) -> bool {
        *self == Self::Anyone || self == other
    }
}

/// What a cut does to messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// They are held, as by a network that drops packets: nobody is told, and TCP delivers them
    /// once it is healed, even if the sender gave up meanwhile.
    Blackhole,
    /// Their connections are closed, present ones and new ones.
    Reset,
}

/// Which way a message goes between a client and a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client.
    Request,
    /// To the client.
    Reply,
}

/// Changes the document of a message of the client of this `appName`, and says whether it did.
pub(crate) type Tamper = dyn Fn(&str, Way, &mut Document) -> bool + Send + Sync;

/// A proxy in front of every member of a set.
///
/// Members are known to each other and to clients by the address of their proxy, so every
/// connection is covered, except those of [`ReplicaSet::admin`](crate::ReplicaSet::admin) and
/// [`direct_uri`](crate::ReplicaSet::direct_uri).
///
/// One address per member serves everybody, so each proxy has to find out who is calling: members
/// with test commands enabled sign their first message with `hostInfo` (made for MongoDB's own
/// mongobridge), drivers with their `appName`.
pub struct Proxy {
    members: usize,
    rules: Arc<Rules>,
    accepting: Vec<tokio::task::AbortHandle>,
}

impl Proxy {
    /// Starts to forward what arrives at `listeners` to the members listening on `ports`, in the
    /// same order. To be called on the runtime that shall do so.
    pub(crate) fn start(listeners: Vec<TcpListener>, ports: &[u16]) -> Self {
        let rules = Arc::new(Rules::new(ports, true));
        let accept = |(member, listener)| tokio::spawn(link::accept(listener, member, rules.clone())).abort_handle();
        let accepting = listeners.into_iter().enumerate().map(accept).collect();
        Self { members: ports.len(), rules, accepting }
    }

    /// Cuts what `from` sends to `to`, requests and replies alike, and not what `to` sends to
    /// `from`.
    ///
    /// Where several cuts cover a connection, the last one counts.
    pub fn cut(&self, from: Peer, to: Peer, how: How) {
        self.rules.cut(from, to, how);
    }

    /// Cuts both directions.
    pub fn cut_both(&self, one: &Peer, other: &Peer, how: How) {
        self.cut(one.clone(), other.clone(), how);
        self.cut(other.clone(), one.clone(), how);
    }

    /// Cuts a member off from all others. Clients still reach it.
    pub fn isolate_member(&self, member: usize, how: How) {
        for other in (0..self.members).filter(|other| *other != member) {
            self.cut_both(&Peer::Member(member), &Peer::Member(other), how);
        }
    }

    /// Ends all cuts and all rules below. Held messages are delivered.
    pub fn heal(&self) {
        self.rules.clear();
    }

    /// Lets the next `times` requests of the client `app_name` with one of these `commands` be executed, but
    /// drops their replies and closes their connections. Spaces separate the names of commands.
    pub fn swallow_reply(&self, app_name: &str, commands: &str, times: u32) -> Hits {
        self.rules.add(|rules| &mut rules.swallows, app_name, commands, times)
    }

    /// Forwards requests of the client `app_name` with one of these `commands` late by `by`, even those
    /// whose sender gave up. Spaces separate the names of commands.
    pub fn delay(&self, app_name: &str, commands: &str, by: Duration) -> Hits {
        self.rules.add(|rules| &mut rules.delays, app_name, commands, by)
    }

    /// Delays each reply to the client `app_name` by the same time.
    ///
    /// The delay counts from the arrival of the reply at the proxy, so several replies of one connection are
    /// on their way at a time. The rule covers all connections of the client, those of the driver's monitoring
    /// among them. If several such rules name a client, the last one counts. The hits count replies.
    pub fn delay_replies(&self, app_name: &str, by: Duration) -> Hits {
        self.rules.add(|rules| &mut rules.latencies, app_name, "", by)
    }

    /// Accepts the next `times` connections of the client `app_name` and answers nothing on them, until the proxy is
    /// healed. The hits count connections.
    pub fn silence_next(&self, app_name: &str, times: u32) -> Hits {
        self.rules.add(|rules| &mut rules.silences, app_name, "", times)
    }

    /// Changes what clients and members tell each other, for ever: a client broken on purpose, without
    /// another build of it. To be called once.
    pub fn tamper_with(&self, tamper: impl Fn(&str, Way, &mut Document) -> bool + Send + Sync + 'static) {
        self.rules.tamper_with(Box::new(tamper));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.iter().for_each(tokio::task::AbortHandle::abort);
        // Connections end with the servers behind them, unless they are held.
        self.heal();
    }
}
