//! The ambiguous results, and how each is produced.

use std::{sync::Arc, time::Duration};

use mongodb::bson::{Bson, Document, doc};
use mongoseal_test_support::{FailPoint, Hits, How, Peer, ReplicaSet, is_long};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::millis;

/// How long what passes goes on that has no count.
const PASSES: Duration = Duration::from_millis(500);

/// An ambiguous result.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) name: &'static str,
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
    /// No secondary applies anything; and whether whoever waits for them is killed.
    Unreplicated { killed: bool },
}

/// Those that one client alone meets.
pub(super) fn of_one_client() -> Vec<Way> {
    let command = |name, data| Way { name, hurt: Hurt::Command(data) };
    let error = |code: i32| doc! { "errorCode": code, "errmsg": "not executed" };
    let unconfirmed = |code: i32| doc! { "writeConcernError": { "code": code, "errmsg": "executed" } };
    let mut shutting_down = unconfirmed(91);
    shutting_down.insert("errorLabels", vec!["RetryableWriteError"]);
    let all = vec![
        command("blocked for longer than an attempt", doc! { "blockConnection": true, "blockTimeMS": 1500 }),
        Way { name: "network dead", hurt: Hurt::Silent { requests: true, replies: true } },
        Way { name: "requests held up", hurt: Hurt::Silent { requests: true, replies: false } },
        Way { name: "replies held up", hurt: Hurt::Silent { requests: false, replies: true } },
        Way { name: "reply lost after execution", hurt: Hurt::Swallowed },
        command("connection closed before execution", doc! { "closeConnection": true }),
        command("91 shutting down, before execution", error(91)),
        command("11600 interrupted at shutdown, before", error(11600)),
        command("11601 interrupted, before execution", error(11601)),
        command("10107 not primary", error(10107)),
        command("50 out of time, before execution", error(50)),
        command("write concern 64 on a committed write", unconfirmed(64)),
        command("write concern 50 on a committed write", unconfirmed(50)),
        command("write concern 91, labelled, committed", shutting_down),
        command("write concern 11602 on a committed write", unconfirmed(11602)),
    ];
    let push = [
        "network dead",
        "reply lost after execution",
        "connection closed before execution",
        "10107 not primary",
        "write concern 91, labelled, committed",
    ];
    all.into_iter().filter(|way| is_long() || push.contains(&way.name)).collect()
}

/// Those that all clients of three members meet.
pub(super) fn of_a_majority() -> Vec<Way> {
    let not_replicated = |name, killed| Way { name, hurt: Hurt::Unreplicated { killed } };
    let killed = is_long().then(|| not_replicated("not replicated, and killed while waiting", true));
    [not_replicated("not replicated", false)].into_iter().chain(killed).collect()
}

/// One that is in force.
pub(super) enum Armed {
    Point(FailPoint),
    Swallowing(Hits),
    /// Until it is told to end, or by itself.
    Until {
        end: oneshot::Sender<()>,
        ending: JoinHandle<()>,
    },
}

impl Way {
    /// Whether an attempt may take all the time there is.
    pub(super) fn is_slow(&self) -> bool {
        matches!(&self.hurt, Hurt::Command(data) if data.contains_key("blockConnection"))
    }

    /// How long after its end a request may still be executed that nobody waits for any more, if any may.
    pub(super) fn late(&self) -> Option<Duration> {
        match self.hurt {
            _ if self.is_slow() => Some(millis(1500)),
            Hurt::Silent { requests, .. } => requests.then_some(Duration::ZERO),
            _ => None,
        }
    }

    /// Whether it is not of one client alone.
    pub(super) fn is_of_all(&self) -> bool {
        matches!(self.hurt, Hurt::Unreplicated { .. })
    }

    /// Lets it happen to the client, once, or for a moment, or until it is turned off.
    pub(super) async fn arm(&self, set: &Arc<ReplicaSet>, app: &str, lasts: bool) -> Armed {
        let times = if lasts { 1_000_000 } else { 1 };
        match &self.hurt {
            Hurt::Command(data) => {
                Armed::Point(set.fail_command(app, &["findAndModify", "update"], data.clone(), times).await)
            }
            Hurt::Swallowed => Armed::Swallowing(set.proxy().swallow_reply(app, "findAndModify update", times)),
            Hurt::Silent { requests, replies } => {
                if *requests {
                    set.proxy().cut(Peer::client(app), Peer::Anyone, How::Blackhole);
                }
                if *replies {
                    set.proxy().cut(Peer::Anyone, Peer::client(app), How::Blackhole);
                }
                let healing = Arc::clone(set);
                Armed::until(lasts, async move { healing.proxy().heal() })
            }
            Hurt::Unreplicated { killed } => {
                let primary = set.primary().await;
                let points = set.stop_replication().await;
                let killing = killed.then(|| tokio::spawn(kill(Arc::clone(set), primary, app.to_owned())));
                Armed::until(lasts, async move {
                    for point in points {
                        point.off().await;
                    }
                    killing.inspect(JoinHandle::abort);
                })
            }
        }
    }
}

impl Armed {
    fn until(lasts: bool, off: impl Future<Output = ()> + Send + 'static) -> Self {
        let (end, ended) = oneshot::channel();
        let ending = tokio::spawn(async move {
            if lasts {
                ended.await.ok();
            } else {
                tokio::time::sleep(PASSES).await;
            }
            off.await;
        });
        Self::Until { end, ending }
    }

    /// Ends it, and gives how often it was met, where that is counted.
    pub(super) async fn off(self, set: &ReplicaSet) -> Option<u64> {
        match self {
            Self::Point(point) => Some(point.off().await),
            Self::Swallowing(hits) => {
                set.proxy().heal();
                Some(hits.count().into())
            }
            Self::Until { end, ending } => {
                drop(end);
                ending.await.unwrap();
                None
            }
        }
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
