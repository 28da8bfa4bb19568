//! Each verb of the library against each ambiguous result that a server or the network can produce. A push runs some of
//! the results, and judges no times.

mod cell;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cell::{Cell, VERBS, Verb, operation};
use mongodb::bson::{Bson, Document, doc};
use mongoseal::Mongoseal;
use mongoseal_test_support::{FailPoint, Hits, How, Peer, ReplicaSet, by_length, is_long};
use tokio::{sync::Barrier, task::JoinSet};

use crate::{connect, millis, secs};

/// How long what passes goes on that has no count.
const PASSES: Duration = millis(500);

/// An ambiguous result.
#[derive(Clone)]
struct Way {
    name: &'static str,
    hurt: Hurt,
}

#[derive(Clone)]
enum Hurt {
    /// By the fail point of commands.
    Command(Document),
    /// Executed, and the reply lost with its connection.
    Swallowed,
    /// Nothing arrives: of what the client sends, of what the server answers.
    Silent { requests: bool, replies: bool },
    /// No secondary applies anything, which all clients meet; and whether whoever waits for them is killed.
    Unreplicated { killed: bool },
}

/// Those that one client alone meets.
fn of_one_client() -> Vec<Way> {
    let command = |name, data| Way { name, hurt: Hurt::Command(data) };
    let error = |code: i32| doc! { "errorCode": code, "errmsg": "not executed" };
    let unconfirmed = |code: i32| doc! { "writeConcernError": { "code": code, "errmsg": "executed" } };
    let mut shutting_down = unconfirmed(91);
    shutting_down.insert("errorLabels", vec!["RetryableWriteError"]);
    let push = vec![
        Way { name: "network dead", hurt: Hurt::Silent { requests: true, replies: true } },
        Way { name: "reply lost after execution", hurt: Hurt::Swallowed },
        command("connection closed before execution", doc! { "closeConnection": true }),
        command("10107 not primary", error(10107)),
        command("write concern 64 on a committed write", unconfirmed(64)),
        command("write concern 91, labelled, committed", shutting_down),
    ];
    let night = vec![
        command("blocked for longer than an attempt", doc! { "blockConnection": true, "blockTimeMS": 1500 }),
        Way { name: "requests held up", hurt: Hurt::Silent { requests: true, replies: false } },
        Way { name: "replies held up", hurt: Hurt::Silent { requests: false, replies: true } },
        command("91 shutting down, before execution", error(91)),
        command("11600 interrupted at shutdown, before", error(11600)),
        command("11601 interrupted, before execution", error(11601)),
        command("50 out of time, before execution", error(50)),
        command("write concern 50 on a committed write", unconfirmed(50)),
        command("write concern 11602 on a committed write", unconfirmed(11602)),
    ];
    push.into_iter().chain(night.into_iter().filter(|_| is_long())).collect()
}

/// Those that all clients of three members meet.
fn of_a_majority() -> Vec<Way> {
    let not_replicated = |name, killed| Way { name, hurt: Hurt::Unreplicated { killed } };
    let killed = is_long().then(|| not_replicated("not replicated, and killed while waiting", true));
    [not_replicated("not replicated", false)].into_iter().chain(killed).collect()
}

/// What is in force: fail points, a count of those who meet it, and a task that is aborted at its end.
type Armed = (Vec<FailPoint>, Hits, JoinSet<()>);

impl Way {
    /// Whether an attempt may take all the time there is.
    fn is_slow(&self) -> bool {
        matches!(&self.hurt, Hurt::Command(data) if data.contains_key("blockConnection"))
    }

    /// How long after its end a request may still be executed that nobody waits for any more.
    fn late(&self) -> Duration {
        if self.is_slow() { millis(1500) } else { Duration::ZERO }
    }

    /// Whether it happens to so many requests, and not for so long.
    fn is_counted(&self) -> bool {
        matches!(self.hurt, Hurt::Command(_) | Hurt::Swallowed)
    }

    /// Lets it happen to the client, once if it is counted and passes, or until it is turned off.
    async fn arm(&self, set: &Arc<ReplicaSet>, app: &str, lasts: bool) -> Armed {
        let times = if lasts { 1_000_000 } else { 1 };
        let (mut points, mut hits, mut killing) = (Vec::new(), Hits::default(), JoinSet::new());
        match &self.hurt {
            Hurt::Command(data) => {
                points.push(set.fail_command(app, &["findAndModify", "update"], data.clone(), times).await);
            }
            Hurt::Swallowed => hits = set.proxy().swallow_reply(app, "findAndModify update", times),
            Hurt::Silent { requests, replies } => {
                if *requests {
                    set.proxy().cut(Peer::client(app), Peer::Anyone, How::Blackhole);
                }
                if *replies {
                    set.proxy().cut(Peer::Anyone, Peer::client(app), How::Blackhole);
                }
            }
            Hurt::Unreplicated { killed } => {
                let primary = set.primary().await;
                points = set.stop_replication().await;
                if *killed {
                    killing.spawn(kill(Arc::clone(set), primary, app.to_owned()));
                }
            }
        }
        (points, hits, killing)
    }
}

/// Kills what the client has under way at the member, again and again.
async fn kill(set: Arc<ReplicaSet>, member: usize, app: String) {
    let theirs = doc! { "currentOp": 1, "appName": app, "active": true, "command.findAndModify": { "$exists": true } };
    loop {
        let found = set.admin(member, theirs.clone()).await.expect("the member tells what it does");
        for op in found.get_array("inprog").unwrap().iter().filter_map(Bson::as_document) {
            let op = op.get("opid").unwrap();
            set.admin(member, doc! { "killOp": 1, "op": op }).await.expect("root may kill");
        }
        tokio::time::sleep(millis(50)).await;
    }
}

/// Ends it, and returns how many requests met it, if they are counted.
async fn turn_off((points, hits, killing): Armed, set: &ReplicaSet) -> u64 {
    set.proxy().heal();
    drop(killing);
    let mut count = hits.count().into();
    for point in points {
        count += point.off().await;
    }
    count
}

/// Puts these verbs through one ambiguous result, at once. Returns them while they check what is left of it.
async fn meet(set: &Arc<ReplicaSet>, way: &Way, (app, lasts): (&str, bool), cells: Vec<Cell>) -> JoinSet<()> {
    let stages = Arc::new(Barrier::new(cells.len() + 1));
    let is_missable = cells.iter().all(|cell| cell.verb == Verb::HandOver);
    let mut running: JoinSet<()> = cells.into_iter().map(|cell| cell.run(Arc::clone(&stages))).collect();
    let mut stage = async || {
        tokio::select! {
            biased;
            _ = stages.wait() => {}
            Some(failed) = running.join_next() => panic!("{}: {failed:?}", way.name),
        }
    };
    stage().await;
    let armed = way.arm(set, app, lasts).await;
    stage().await;
    let count = if lasts || way.is_counted() {
        stage().await;
        turn_off(armed, set).await
    } else {
        tokio::time::sleep(PASSES).await;
        let count = turn_off(armed, set).await;
        stage().await;
        count
    };
    stage().await;
    // One that keeps its place may have asked just before.
    assert!(count > 0 || !way.is_counted() || is_missable, "{} was not met", way.name);
    running
}

/// A client that meets the results.
async fn connect_one(set: &ReplicaSet, app: &str, retry_writes: bool) -> Mongoseal {
    let uri = set.uri_with(&format!("appName={app}&retryWrites={retry_writes}"));
    // On a busy machine the operation timeout may be too short for that.
    let began = Instant::now();
    loop {
        match Mongoseal::builder().operation_timeout(operation()).connect(&uri).await {
            Ok(one) => return one,
            Err(error) => assert!(began.elapsed() < secs(60), "{error}"),
        }
    }
}

/// Puts all verbs through these results on a set of so many members.
async fn work(members: usize, ways: Vec<Way>) {
    let set = Arc::new(ReplicaSet::builder().members(members).proxied().start().await);
    let other = connect(Mongoseal::builder().operation_timeout(secs(20)), set.uri_with("appName=other")).await;
    let all = [(true, true), (false, false), (true, false), (false, true)];
    let modes = &all[..by_length(2, 4)];
    let (mut later, mut ones) = (JoinSet::new(), Vec::new());
    for number in 0..ways.len() * modes.len() {
        let (way, (lasts, retry_writes)) = (&ways[number / modes.len()], modes[number % modes.len()]);
        let app = format!("one-{number}");
        let one = connect_one(&set, &app, retry_writes).await;
        let cell = |verb: &Verb| {
            let key = format!("{} {verb:?} {app}, lasts: {lasts}, retryWrites={retry_writes}", way.name);
            let (set, one, other) = (Arc::clone(&set), one.clone(), other.clone());
            Cell { verb: *verb, key, set, one, other, late: way.late(), lasts, is_slow: way.is_slow() }
        };
        // What passes is met by one after the other, what lasts by all at once.
        for verbs in VERBS.chunks(if lasts { VERBS.len() } else { 1 }) {
            let met = meet(&set, way, (&app, lasts), verbs.iter().map(cell).collect()).await;
            // What the next fault would meet, too, has to be waited for.
            if lasts && !matches!(way.hurt, Hurt::Unreplicated { .. }) {
                later.spawn(async move { drop(met.join_all().await) });
            } else {
                met.join_all().await;
            }
        }
        ones.push(one);
    }
    later.join_all().await;
    for one in ones {
        one.shutdown().await;
    }
}

pub(super) async fn whatever_becomes_of_a_reply_each_verb_ends_in_time_with_one_token_or_says_that_it_is_not_known() {
    let mut workers = JoinSet::new();
    workers.spawn(work(3, of_a_majority()));
    // Several servers, because each has one fail point for commands.
    let (ways, servers) = (of_one_client(), by_length(3, 7));
    for server in 0..servers {
        workers.spawn(work(1, ways.iter().skip(server).step_by(servers).cloned().collect()));
    }
    workers.join_all().await;
}
