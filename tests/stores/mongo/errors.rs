//! What an error of the server means: its labels decide first, and then its code. One that may pass is `Unavailable`
//! and retried with backoff, in each call and in the checks before the first request.

use std::time::Duration;

use mongodb::{
    Client, Collection, Database,
    bson::{Document, doc},
    options::{ClientOptions, Collation, CollationStrength},
};
use mongoseal::{Error, Fence, FencingToken, Mongoseal};
use mongoseal_test_support::{ReplicaSet, TestDatabase, Way, by_length, eventually, is_long};

use crate::{Sent, millis, noting_client, secs};

const OVERLOADED: [&str; 2] = ["SystemOverloadedError", "RetryableError"];
const FOREVER: u32 = 1_000_000;

/// The most attempts in 2 s: the delays of the engine are at least 10, 20, 40, 80 and 160 ms, and then 320 ms.
const MOST: usize = 11;

/// The data of a fail point that refuses commands with this code and these labels.
fn refusal(code: i32, labels: &[&str]) -> Document {
    doc! { "errorCode": code, "errorLabels": labels.to_vec() }
}

fn is_unavailable<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Unavailable { .. }))
}

/// The driver boxes the source of an error, so its label and its code are behind the box.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_fails_for_a_while_is_unavailable_with_its_code_and_ends_no_wait() {
    let set = ReplicaSet::builder().auth().start().await;
    let actions = ["find", "insert", "update", "changeStream", "createIndex"];
    let leases = doc! { "db": "app", "collection": "mongoseal" };
    set.add_user("user", "pw", "app", vec![doc! { "resource": leases, "actions": actions.to_vec() }]).await;
    let uri = set.uri_as("user", "pw", "app") + "&appName=login";
    let connect = async |timeout| Mongoseal::builder().database("app").operation_timeout(timeout).connect(&uri).await;
    let others = Mongoseal::builder().database("app").connect(set.uri()).await.unwrap();
    let refusals = [(91, &[][..]), (462, &OVERLOADED[..]), (11600, &[][..])];
    for (code, labels) in refusals.into_iter().take(by_length(2, 3)) {
        let seal = connect(secs(20)).await.unwrap();
        let held = others.acquire(format!("held/{code}")).await.unwrap();
        let waiting = seal.acquire(format!("held/{code}")).ttl(secs(3)).wait(secs(3600));
        let waiting = tokio::spawn(waiting.into_future());
        let impatient = connect(secs(4)).await.unwrap();
        tokio::time::sleep(millis(300)).await;

        let point = set.fail_command("login", &["saslStart", "saslContinue"], refusal(code, labels), FOREVER).await;
        let acquiring = |seal: &Mongoseal, name| {
            let acquire = |number| tokio::spawn(seal.acquire(format!("{name}/{code}/{number}")).into_future());
            (0..by_length(8, 30)).map(acquire).collect::<Vec<_>>()
        };
        let (patient, hasty) = (acquiring(&seal, "patient"), acquiring(&impatient, "hasty"));
        let connecting = connect(secs(4)).await;
        assert!(is_unavailable(&connecting), "{code}: {connecting:?}");
        assert_eq!(connecting.unwrap_err().code(), Some(code));
        for acquire in hasty {
            let acquired = acquire.await.unwrap();
            assert!(acquired.is_ok() || is_unavailable(&acquired), "{code}: {acquired:?}");
        }
        tokio::time::sleep(secs(2)).await;
        assert!(point.off().await >= 1);
        for acquire in patient {
            acquire.await.unwrap().unwrap().release().await.unwrap();
        }
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        seal.shutdown().await;
    }
}

/// A database with a handle whose client is known by its name, and which never resends a command by itself.
struct Subject {
    db: TestDatabase,
    app: String,
    database: Database,
    sent: Sent,
}

impl Subject {
    async fn new(name: &str) -> Self {
        let db = TestDatabase::new(&format!("mongoseal_{name}")).await;
        let options = format!("appName={name}&maxAdaptiveRetries=0&retryWrites=false");
        let (client, sent) = noting_client(&db.set.uri_with(&options)).await;
        let database = client.database(db.database.name());
        Self { db, app: name.to_owned(), database, sent }
    }

    fn seal(&self, timeout: Duration) -> Mongoseal {
        Mongoseal::builder().operation_timeout(timeout).on_shared_client(&self.database).unwrap()
    }
}

/// A check that an overload refuses is no missing privilege.
#[tokio::test]
async fn a_check_that_an_overload_refuses_is_not_skipped_and_not_cached() {
    let subject = Subject::new("checks").await;
    let collation = Collation::builder().locale("en").strength(CollationStrength::Secondary).build();
    subject.db.database.create_collection("mongoseal").collation(collation).await.unwrap();
    for (code, labels) in [(462, &OVERLOADED[..]), (462, &[][..]), (13, &OVERLOADED[1..]), (2, &OVERLOADED[..1])] {
        let seal = subject.seal(millis(700));
        let point = subject.db.set.fail_command(&subject.app, &["explain"], refusal(code, labels), FOREVER).await;
        let overloaded = seal.prepare().await;
        point.off().await;
        assert!(is_unavailable(&overloaded), "{code} {labels:?}: {overloaded:?}");
        let checked = seal.prepare().await;
        assert!(
            matches!(&checked, Err(Error::Invalid { message, .. }) if message.contains("collation")),
            "{checked:?}"
        );
    }
}

/// A member whose answers have the marks of other products, as `src/store/mongo/product.rs` knows them.
#[tokio::test]
async fn a_set_without_journaled_majorities_and_another_product_are_refused_although_the_check_is_refused_at_first() {
    let set = ReplicaSet::builder().proxied().start().await;
    set.proxy().tamper_with(|client, way, reply| match (client, way) {
        ("journal", Way::Reply) => {
            let config = reply.get_document_mut("config");
            config.is_ok_and(|config| config.insert("writeConcernMajorityJournalDefault", false).is_some())
        }
        ("ferretdb", Way::Reply) if reply.contains_key("gitVersion") => {
            reply.insert("ferretdb", doc! { "version": "v2.7.0" }).is_none()
        }
        ("azure", Way::Reply) if reply.contains_key("maxWireVersion") => {
            reply.insert("internal", doc! { "documentdb_versions": ["1.111-0"], "kind": "azuredocumentdb" }).is_none()
        }
        _ => false,
    });
    for (app, command, says) in [
        ("journal", "replSetGetConfig", ["set writeConcernMajorityJournalDefault to true", ""]),
        ("ferretdb", "buildInfo", ["FerretDB", "use MongoDB 6.0 or later"]),
        // A login and the monitoring need this command, so it is not refused.
        ("azure", "", ["Azure DocumentDB", "use MongoDB 6.0 or later"]),
    ] {
        let point = set.fail_command(app, &[command], refusal(462, &OVERLOADED), 3).await;
        let connected = Mongoseal::connect(set.uri_with(&format!("appName={app}"))).await;
        assert_eq!(point.off().await, if command.is_empty() { 0 } else { 3 }, "{app}");
        let is_named = |message: &str| says.iter().all(|says| message.contains(says));
        assert!(matches!(&connected, Err(Error::Invalid { message, .. }) if is_named(message)), "{app}: {connected:?}");
    }
}

/// The codes of the table.
const PASSING: [i32; 14] = [91, 112, 10107, 11600, 11601, 50, 202, 211, 262, 365, 433, 449, 450, 462];
const NOT_PERMITTED: [i32; 5] = [13, 59, 115, 323, 8000];
/// 225 and 411 are `TransactionTooOld` and, of MongoDB 8, `QueryRejectedBySettings`. The last one stands for codes of later
/// servers that this build does not know.
const REFUSED: [i32; 6] = [2, 20, 72, 225, 411, 463];

/// The commands of the table: of calls, and of the checks that a handle makes until they have succeeded.
const COMMANDS: [&str; 7] =
    ["findAndModify", "find", "aggregate", "update", "explain", "replSetGetConfig", "buildInfo"];

/// What becomes of a call whose command is refused.
fn expected(command: &str, code: i32, labels: &[&str]) -> &'static str {
    match code {
        _ if !labels.is_empty() || PASSING.contains(&code) => "unavailable",
        // The server cannot explain an update by a pipeline.
        115 if command == "explain" => "invalid",
        _ if COMMANDS[4..].contains(&command) && NOT_PERMITTED.contains(&code) => "success",
        _ => "invalid",
    }
}

/// Makes the call whose command is refused.
async fn call(subject: &Subject, seal: &Mongoseal, command: &str, key: &str) -> Result<(), Error> {
    match command {
        "findAndModify" => seal.acquire(key).await.map(drop),
        "find" => seal.inspect(key).await.map(drop),
        "aggregate" => seal.refresh_group(key, secs(60)).await.map(drop),
        "update" => {
            let orders: Collection<Document> = subject.database.collection("orders");
            orders.fenced(FencingToken::MIN).update_one(doc! { "_id": key }, doc! {}).await.map(drop)
        }
        _ => seal.prepare().await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_is_what_its_label_and_then_its_code_says_for_each_command() {
    let subject = Subject::new("table").await;
    subject.seal(secs(10)).prepare().await.unwrap();
    let labels: [&[&str]; 5] = [
        &OVERLOADED[..1],
        &OVERLOADED[1..],
        &OVERLOADED,
        &["RetryableWriteError"],
        &["NoWritesPerformed", OVERLOADED[1]],
    ];
    let unlabelled = PASSING.into_iter().chain(NOT_PERMITTED).chain(REFUSED).map(|code| (code, &[][..]));
    let labelled = [13, 462].into_iter().flat_map(|code| labels.iter().map(move |labels| (code, *labels)));
    let of_later_servers = [225, 411, 463].map(|code| (code, &OVERLOADED[..]));
    let errors: Vec<(i32, &[&str])> = unlabelled.chain(labelled).chain(of_later_servers).collect();
    // Each row with some command, each command with some rows, and at night all with all.
    let is_due = |row: usize, command: usize| is_long() || row % 7 == command;
    let mut wrong = Vec::new();
    for (column, command) in COMMANDS.into_iter().enumerate() {
        for (row, (code, labels)) in errors.iter().enumerate().filter(|(row, _)| is_due(*row, column)) {
            let expected = expected(command, *code, labels);
            // One that may pass is retried until the call ends.
            let seal = subject.seal(if expected == "unavailable" { millis(150) } else { secs(10) });
            if column < 4 {
                eventually(secs(30), "the handle is prepared", async || seal.prepare().await.is_ok()).await;
            }
            let point = subject.db.set.fail_command(&subject.app, &[command], refusal(*code, labels), FOREVER).await;
            // On a busy machine, a call of 150 ms can end before the server has refused it.
            let mut called = call(&subject, &seal, command, &format!("{command}/{row}")).await;
            for _ in 0..5 {
                if called.as_ref().map_or_else(|error| error.code().is_some(), |()| true) {
                    break;
                }
                called = call(&subject, &seal, command, &format!("{command}/{row}")).await;
            }
            assert!(point.off().await >= 1, "{command} {code}");
            let (met, said) = match &called {
                Ok(()) => ("success", Some(*code)),
                Err(error @ Error::Unavailable { .. }) => ("unavailable", error.code()),
                Err(error) => ("invalid", error.code()),
            };
            if met != expected || said != Some(*code) {
                wrong.push(format!("{command} {code} {labels:?}: {called:?}"));
            }
            // An error such as 91 makes the driver doubt the server until it has asked it again.
            let is_asked = async || subject.database.run_command(doc! { "ping": 1 }).await.is_ok();
            eventually(secs(30), "the driver trusts the server", is_asked).await;
        }
    }
    assert!(wrong.is_empty(), "{} rows: {wrong:#?}", wrong.len());
}

/// An overload is no fault of the document: it needs no whole pipeline and no read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overload_costs_no_more_commands_than_another_error_that_passes() {
    let subject = Subject::new("commands_of_an_overload").await;
    subject.seal(secs(10)).prepare().await.unwrap();
    let seal = subject.seal(secs(2));
    seal.prepare().await.unwrap();
    let refusals =
        [(112, &[][..]), (462, &OVERLOADED[..]), (462, &[][..]), (450, &OVERLOADED[..1]), (2, &OVERLOADED[1..])];
    for (row, (code, labels)) in refusals.into_iter().take(by_length(2, 5)).enumerate() {
        let lease = seal.acquire(format!("held/{row}")).ttl(secs(600)).without_refresh().await.unwrap();
        subject.sent.take();
        let refused = refusal(code, labels);
        let commands = ["findAndModify", "update"];
        let point = subject.db.set.fail_command(&subject.app, &commands, refused.clone(), FOREVER).await;
        let acquired = seal.acquire(format!("free/{row}")).await;
        let (writes, reads) = (subject.sent.count("findAndModify"), subject.sent.count("find"));
        point.off().await;
        assert!(is_unavailable(&acquired), "{code} {labels:?}: {acquired:?}");
        println!("{code} {labels:?}: an acquire sent {writes} findAndModify and {reads} find");
        // And one of the take-back.
        assert!((2..=MOST + 1).contains(&writes) && reads == 0, "{code} {labels:?}: {writes} and {reads}");

        eventually(secs(30), "the take-back has ended", async || {
            tokio::time::sleep(millis(100)).await;
            !subject.sent.take_names().iter().any(|name| name == "findAndModify")
        })
        .await;
        let point = subject.db.set.fail_command(&subject.app, &commands, refused, FOREVER).await;
        let released = lease.release().await;
        let all = ["findAndModify", "update", "find"].map(|command| subject.sent.count(command));
        point.off().await;
        assert!(is_unavailable(&released), "{code} {labels:?}: {released:?}");
        println!("{code} {labels:?}: a release sent {all:?}");
        assert!(all.iter().sum::<usize>() <= MOST + 1, "{code} {labels:?}: {all:?}");
    }
}

/// The driver resends a command of an overloaded server by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_is_sent_after_its_call_has_ended_and_a_dropped_acquire_is_not_granted_after_its_take_back() {
    let db = TestDatabase::new("mongoseal_resent").await;
    let set = db.set;
    let builder = || Mongoseal::builder().database("mongoseal_resent").operation_timeout(secs(10));
    // A client that this library opens, whatever its connection string says, and one of the caller's that says so.
    let opened = builder().connect(set.uri_with("appName=resent&maxAdaptiveRetries=5")).await.unwrap();
    let options = ClientOptions::parse(set.uri_with("appName=resent&maxAdaptiveRetries=0")).await.unwrap();
    let client = Client::with_options(options).unwrap();
    let of_caller = Mongoseal::builder().on_shared_client(&client.database("mongoseal_resent")).unwrap();
    of_caller.prepare().await.unwrap();
    for (whose, seal) in [("opened", &opened), ("of the caller", &of_caller)] {
        let hasty = Mongoseal::builder().operation_timeout(millis(20)).sibling_of(seal).unwrap();
        eventually(secs(30), "the handle is prepared", async || hasty.prepare().await.is_ok()).await;
        for round in 0..by_length(1, 3) {
            let key = format!("{whose}/{round}");
            // The engine sends the read at 0 and 10 to 20 ms. The driver would send each three times within 0.6 s.
            let point = set.fail_command("resent", &["find"], refusal(462, &OVERLOADED), FOREVER).await;
            assert!(is_unavailable(&hasty.inspect(key.as_str()).await));
            tokio::time::sleep(millis(800)).await;
            let finds = point.off().await;
            assert!(finds <= 2, "{key}: {finds} reads");
            // The driver would send the acquire again while or after it is taken back.
            let point = set.fail_command("resent", &["findAndModify"], refusal(462, &OVERLOADED), 2).await;
            let acquiring = tokio::spawn(hasty.acquire(key.as_str()).into_future());
            tokio::time::sleep(millis(5)).await;
            acquiring.abort();
            let _dropped = acquiring.await;
            tokio::time::sleep(secs(1)).await;
            point.off().await;
            let record = seal.inspect(key.as_str()).await.unwrap();
            assert!(record.as_ref().is_none_or(|record| record.holders.is_empty()), "{key}: {record:?}");
        }
        hasty.shutdown().await;
    }
}
