//! The current faults of a proxy: what it cuts, drops and delays.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{net::tcp::OwnedReadHalf, sync::watch};

use super::{How, Peer, Tamper, Way, wire::Message};

/// How often a rule met a message so far: for a test to know that its fault happened.
#[derive(Clone, Debug, Default)]
pub struct Hits(Arc<AtomicU32>);

impl Hits {
    /// The number of messages: of requests, unless the rule is one for replies.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The rules of one set, with a signal for each change.
pub(super) struct Rules {
    /// Where the members really listen; 0 if nowhere yet.
    ports: Vec<AtomicU16>,
    /// Whether messages are those of MongoDB. Of others it is not known where they end.
    is_mongodb: bool,
    state: Mutex<State>,
    tamper: OnceLock<Box<Tamper>>,
    /// How many next replies are dropped, each with its connection, whatever they reply to.
    pub(super) doomed: AtomicU32,
    pub(super) dropped: Hits,
    /// How many connections are open.
    pub(super) open: AtomicUsize,
    /// Counts the resets.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct State {
    cuts: Vec<(Peer, Peer, How)>,
    /// How many requests of a client are executed and not answered.
    pub(super) swallows: Vec<Rule<u32>>,
    pub(super) delays: Vec<Rule<Duration>>,
    /// Delays of all replies to a client.
    pub(super) latencies: Vec<Rule<Duration>>,
    /// How many connections of a client are to be silent.
    pub(super) silences: Vec<Rule<u32>>,
}

/// A rule for one client; some are for its requests with one of these commands, whose names are separated by spaces.
pub(super) struct Rule<T> {
    client: Peer,
    commands: String,
    amount: T,
    hits: Hits,
}

impl<T> Rule<T> {
    fn covers(&self, client: &Peer, command: &str) -> bool {
        self.client == *client && self.commands.split(' ').any(|covered| covered == command)
    }
}

/// What becomes of one request.
#[derive(Default)]
pub(super) struct Fate {
    /// How late it is forwarded.
    pub(super) delay: Option<Duration>,
    /// Whether its reply is dropped.
    pub(super) swallow: bool,
}

impl Rules {
    /// No rules yet.
    pub(super) fn new(ports: &[u16], is_mongodb: bool) -> Self {
        Self {
            ports: ports.iter().copied().map(AtomicU16::new).collect(),
            is_mongodb,
            state: Mutex::default(),
            tamper: OnceLock::new(),
            doomed: AtomicU32::default(),
            dropped: Hits::default(),
            open: AtomicUsize::default(),
            changed: watch::Sender::new(0),
        }
    }

    pub(super) fn port(&self, member: usize) -> u16 {
        self.ports[member].load(Ordering::Relaxed)
    }

    pub(super) fn set_port(&self, member: usize, port: u16) {
        self.ports[member].store(port, Ordering::Relaxed);
    }

    pub(super) async fn read(&self, from: &mut OwnedReadHalf) -> io::Result<Message> {
        if self.is_mongodb { Message::read(from).await } else { Message::read_chunk(from).await }
    }

    pub(super) fn resets(&self) -> u64 {
        *self.changed.borrow()
    }

    /// Closes all open connections.
    pub(super) fn reset(&self) {
        self.changed.send_modify(|resets| *resets += 1);
    }

    /// Returns once there were more resets.
    pub(super) async fn until_reset(&self, before: u64) {
        self.changed.subscribe().wait_for(|resets| *resets > before).await.ok();
    }

    fn change(&self) {
        self.changed.send_modify(|_resets| {});
    }

    pub(super) fn cut(&self, from: Peer, to: Peer, how: How) {
        self.state().cuts.push((from, to, how));
        self.change();
    }

    /// Adds a rule to one of the lists.
    pub(super) fn add<T>(
        &self,
        list: fn(&mut State) -> &mut Vec<Rule<T>>,
        app_name: &str,
        commands: &str,
        amount: T,
    ) -> Hits {
        let hits = Hits::default();
        let (client, commands) = (Peer::client(app_name), commands.into());
        list(&mut self.state()).push(Rule { client, commands, amount, hits: hits.clone() });
        hits
    }

    /// Returns the delay of a reply to `client`, and counts the hit.
    pub(super) fn latency(&self, client: &Peer) -> Duration {
        let state = self.state();
        let rule = state.latencies.iter().rfind(|rule| rule.client == *client);
        rule.inspect(|rule| rule.hits.add()).map_or(Duration::ZERO, |rule| rule.amount)
    }

    /// If a new connection of `client` is to be silent, waits until no rule says so.
    pub(super) async fn keep_silent(&self, client: &Peer) {
        let mut changes = self.changed.subscribe();
        let is_silent = {
            let mut state = self.state();
            let rule = state.silences.iter_mut().find(|rule| rule.client == *client && rule.amount > 0);
            rule.inspect(|rule| rule.hits.add()).map(|rule| rule.amount -= 1).is_some()
        };
        if is_silent {
            changes.wait_for(|_resets| self.state().silences.is_empty()).await.ok();
        }
    }

    /// Whether the next reply is to be dropped.
    pub(super) fn drops_reply(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        let is_doomed = self.doomed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if is_doomed {
            self.dropped.add();
        }
        is_doomed
    }

    pub(super) fn tamper_with(&self, tamper: Box<Tamper>) {
        assert!(self.tamper.set(tamper).is_ok(), "messages are tampered with in one way only");
    }

    /// Changes a message between a client and a member, if somebody wants to.
    pub(super) fn tamper(&self, client: &Peer, way: Way, message: &mut Message) {
        let (Some(tamper), Peer::Client(name)) = (self.tamper.get(), client) else { return };
        let Some(mut body) = message.body() else { return };
        if tamper(name, way, &mut body) {
            assert!(message.replace_body(&body), "a message to tamper with has no checksum");
        }
    }

    pub(super) fn clear(&self) {
        self.doomed.store(0, Ordering::Relaxed);
        *self.state() = State::default();
        self.change();
    }

    /// Finds out from its first message who opened a connection.
    pub(super) fn source(&self, first: &Message) -> Peer {
        let hello = first.body().unwrap_or_default();
        let port = hello.get_str("hostInfo").ok().and_then(|address| address.rsplit(':').next()?.parse().ok());
        if let Some(member) = (0..self.ports.len()).find(|member| Some(self.port(*member)) == port) {
            return Peer::Member(member);
        }
        let application = hello.get_document("client").and_then(|client| client.get_document("application"));
        let name = application.and_then(|application| application.get_str("name"));
        Peer::client(name.unwrap_or_default())
    }

    /// Decides on a request of `source`, counting the rules it meets.
    pub(super) fn decide(&self, source: &Peer, request: &Message) -> Fate {
        let mut state = self.state();
        if state.swallows.is_empty() && state.delays.is_empty() {
            return Fate::default();
        }
        let Some(command) = request.command() else {
            return Fate::default();
        };
        let mut fate = Fate::default();
        if let Some(rule) = state.delays.iter().rfind(|rule| rule.covers(source, &command)) {
            rule.hits.add();
            fate.delay = Some(rule.amount);
        }
        let mut due = state.swallows.iter_mut().filter(|rule| rule.amount > 0);
        if let Some(rule) = due.find(|rule| rule.covers(source, &command)) {
            rule.amount -= 1;
            rule.hits.add();
            fate.swallow = true;
        }
        fate
    }

    /// Waits until the way from `from` to `to` is `wanted`, and returns the cut in force then.
    pub(super) async fn until(&self, from: &Peer, to: &Peer, wanted: impl Fn(Option<How>) -> bool) -> Option<How> {
        let mut cut = None;
        let is_wanted = |_resets: &u64| {
            cut = self.cut_between(from, to);
            wanted(cut)
        };
        // The sender is part of the rules, which we borrow: there will be changes for as long as we wait.
        self.changed.subscribe().wait_for(is_wanted).await.ok();
        cut
    }

    fn cut_between(&self, from: &Peer, to: &Peer) -> Option<How> {
        let state = self.state();
        let last = state.cuts.iter().rev().find(|(source, target, _)| source.covers(from) && target.covers(to));
        last.map(|(_, _, how)| *how)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
