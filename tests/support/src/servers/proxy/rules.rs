//! The current faults of a proxy: what it cuts, drops and delays.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

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

/// The commands of the driver's monitoring.
const MONITORING: [&str; 3] = ["hello", "isMaster", "ismaster"];

/// The rules of one set, with a signal for each change.
pub(super) struct Rules {
    ports: Vec<u16>,
    state: Mutex<State>,
    tamper: OnceLock<Box<Tamper>>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    cuts: Vec<(Peer, Peer, How)>,
    swallows: Vec<Rule<u32>>,
    delays: Vec<Rule<Duration>>,
    /// Delays of all replies to a client.
    latencies: Vec<(Peer, Duration, Hits)>,
    /// How many connections of a client are to be silent.
    silences: Vec<(Peer, u32, Hits)>,
    /// Clients whose connections that were opened before this time are forgotten.
    forgotten: Vec<(Peer, Instant, Hits)>,
    seen: HashMap<(Peer, usize), u64>,
}

/// A rule for the requests of one client with one of these commands, whose names are separated by spaces.
struct Rule<T> {
    client: Peer,
    commands: String,
    amount: T,
    hits: Hits,
}

impl<T> Rule<T> {
    fn new(app_name: &str, commands: &str, amount: T) -> Self {
        Self { client: Peer::client(app_name), commands: commands.into(), amount, hits: Hits::default() }
    }

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
    /// No rules yet; `ports` are where the members really listen.
    pub(super) fn new(ports: Vec<u16>) -> Self {
        Self { ports, state: Mutex::default(), tamper: OnceLock::new(), changed: watch::Sender::new(()) }
    }

    pub(super) fn port(&self, member: usize) -> u16 {
        self.ports[member]
    }

    pub(super) fn cut(&self, from: Peer, to: Peer, how: How) {
        self.state().cuts.push((from, to, how));
        self.changed.send_replace(());
    }

    pub(super) fn swallow(&self, app_name: &str, commands: &str, times: u32) -> Hits {
        let rule = Rule::new(app_name, commands, times);
        let hits = rule.hits.clone();
        self.state().swallows.push(rule);
        hits
    }

    pub(super) fn delay(&self, app_name: &str, commands: &str, by: Duration) -> Hits {
        let rule = Rule::new(app_name, commands, by);
        let hits = rule.hits.clone();
        self.state().delays.push(rule);
        hits
    }

    pub(super) fn delay_replies(&self, app_name: &str, by: Duration) -> Hits {
        let hits = Hits::default();
        self.state().latencies.push((Peer::client(app_name), by, hits.clone()));
        hits
    }

    /// Returns the delay of a reply to `client`, and counts the hit.
    pub(super) fn latency(&self, client: &Peer) -> Duration {
        let state = self.state();
        let Some((_, by, hits)) = state.latencies.iter().rfind(|(covered, _, _)| covered == client) else {
            return Duration::ZERO;
        };
        hits.add();
        *by
    }

    pub(super) fn silence_next(&self, app_name: &str, times: u32) -> Hits {
        let hits = Hits::default();
        self.state().silences.push((Peer::client(app_name), times, hits.clone()));
        hits
    }

    /// If a new connection of `client` is to be silent, waits until no rule says so.
    pub(super) async fn keep_silent(&self, client: &Peer) {
        let mut changes = self.changed.subscribe();
        let is_silent = {
            let mut state = self.state();
            let rule = state.silences.iter_mut().find(|(covered, times, _)| covered == client && *times > 0);
            rule.inspect(|(_, _, hits)| hits.add()).map(|(_, times, _)| *times -= 1).is_some()
        };
        while is_silent && !self.state().silences.is_empty() {
            let _ = changes.changed().await;
        }
    }

    pub(super) fn forget_present(&self, app_name: &str) -> Hits {
        let hits = Hits::default();
        self.state().forgotten.push((Peer::client(app_name), Instant::now(), hits.clone()));
        hits
    }

    /// If a connection of `client` is forgotten, waits with this request until no rule says so.
    pub(super) async fn lose_if_forgotten(&self, client: &Peer, opened: Instant, request: &Message) {
        let is_forgotten = |rule: &&(Peer, Instant, Hits)| rule.0 == *client && opened <= rule.1;
        let mut changes = self.changed.subscribe();
        if !self.state().forgotten.iter().any(|rule| is_forgotten(&rule)) {
            return;
        }
        if request.command().is_none_or(|command| MONITORING.contains(&command.as_str())) {
            return;
        }
        let mut is_counted = false;
        loop {
            let rule = self.state().forgotten.iter().find(is_forgotten).map(|(_, _, hits)| hits.clone());
            let Some(hits) = rule else { return };
            if !std::mem::replace(&mut is_counted, true) {
                hits.add();
            }
            let _ = changes.changed().await;
        }
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
        let mut state = self.state();
        *state = State { seen: std::mem::take(&mut state.seen), ..State::default() };
        drop(state);
        self.changed.send_replace(());
    }

    pub(super) fn seen(&self) -> HashMap<(Peer, usize), u64> {
        self.state().seen.clone()
    }

    /// Finds out from its first message who opened a connection to `target`.
    pub(super) fn meet(&self, first: &Message, target: usize) -> Peer {
        let source = self.source(first);
        *self.state().seen.entry((source.clone(), target)).or_default() += 1;
        source
    }

    fn source(&self, first: &Message) -> Peer {
        let hello = first.body().unwrap_or_default();
        let port = hello.get_str("hostInfo").ok().and_then(|address| address.rsplit(':').next()?.parse().ok());
        if let Some(member) = self.ports.iter().position(|own| Some(*own) == port) {
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
        let mut changes = self.changed.subscribe();
        loop {
            let cut = self.cut_between(from, to);
            if wanted(cut) {
                return cut;
            }
            // The sender is part of the rules, which we borrow: there will be changes for as long
            // as we wait.
            let _ = changes.changed().await;
        }
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
