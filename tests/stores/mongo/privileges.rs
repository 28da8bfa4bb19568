//! The documented roles suffice, and an error names each missing action.

use mongodb::{
    Client, Collection, Database,
    bson::{Document, doc},
};
use mongoseal::{
    BeginOutcome, Error, Fence, FencingToken, Lease, LeaseId, Metadata, Mongoseal, OnceOutcome, Sharing, Tick,
    TickLease,
};
use mongoseal_test_support::ReplicaSet;

use crate::{millis, secrets::Said, secs};

const PAGE: &str = include_str!("../../../docs/privileges.md");

/// The words of a text that are in backquotes, or in other marks.
fn marked(text: &'static str, mark: char) -> Vec<&'static str> {
    text.split(mark).skip(1).step_by(2).collect()
}

/// What one may do, by the table on the page: which actions that takes on the leases, and which on the fenced collection.
fn rows() -> Vec<(&'static str, [Vec<&'static str>; 2])> {
    let lines = PAGE.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| to |"));
    let mut rows = Vec::new();
    for line in lines {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let row = |what| (what, [marked(columns[2], '`'), marked(columns[3], '`')]);
        rows.extend(columns[1].split(", ").map(row));
    }
    rows
}

/// The lease of a tick that is not completed.
async fn begin(seal: &Mongoseal, key: &str) -> TickLease {
    match seal.once(key, Tick::number(1)).begin().await.unwrap() {
        BeginOutcome::Started(lease) => lease,
        BeginOutcome::Skipped(why) => panic!("{why}"),
    }
}

/// A user, and root beside.
struct LimitedUser {
    database: Database,
    root: Database,
    others: Mongoseal,
}

impl LimitedUser {
    async fn new(set: &ReplicaSet) -> Self {
        set.add_user("user", "pw", "app", vec![]).await;
        let database = Client::with_uri_str(set.uri_as("user", "pw", "app")).await.unwrap().database("app");
        let root = set.client().await.database("app");
        let others = Mongoseal::on_shared_client(&root);
        others.prepare().await.unwrap();
        Self { database, root, others }
    }

    /// From now on the user may do these on the leases, and these on the fenced collection.
    async fn grant(&self, [leases, orders]: [&[&str]; 2]) {
        let on = |collection: &str, actions: &[&str]| {
            doc! { "resource": { "db": "app", "collection": collection }, "actions": actions.to_vec() }
        };
        let both = [("mongoseal", leases), ("orders", orders)].into_iter();
        let privileges: Vec<_> = both.filter(|(_, some)| !some.is_empty()).map(|(to, some)| on(to, some)).collect();
        self.root.run_command(doc! { "updateRole": "user", "privileges": privileges }).await.unwrap();
    }

    async fn grant_all(&self) {
        let leases = ["find", "insert", "update", "changeStream", "createIndex", "listIndexes"];
        self.grant([&leases, &["find", "insert", "update", "remove"]]).await;
    }

    fn orders(&self) -> Collection<Document> {
        self.database.collection("orders")
    }

    /// Does it as the user, who is granted these actions only once all is ready. `None`, for a warning.
    async fn perform(&self, what: &str, key: &str, granted: [&[&str]; 2], said: &Said) -> Result<(), Error> {
        self.grant_all().await;
        self.root.collection::<Document>("orders").insert_one(doc! { "_id": key, "n": 0 }).await.unwrap();
        let seal = Mongoseal::builder().operation_timeout(secs(5)).on_shared_client(&self.database).unwrap();
        seal.prepare().await.unwrap();
        let ready = self.prepare(what, key, &seal).await;
        let begun = if what == "complete a tick" { Some(begin(&seal, key).await) } else { None };
        said.take();
        self.grant(granted).await;
        let done = tokio::time::timeout(secs(30), self.act(what, key, &seal, ready, begun)).await;
        let done = done.unwrap_or_else(|_| panic!("{key} with {granted:?} does not end: {}", said.take()));
        self.grant_all().await;
        seal.shutdown().await;
        done
    }

    /// What has to be there before.
    async fn prepare(&self, what: &str, key: &str, seal: &Mongoseal) -> Option<Lease> {
        if what == "release" {
            // Without a revocation, the fast path releases the key, and it needs no `find`.
            self.others.acquire(key).await.unwrap().orphan();
            self.others.revoke(key).await.unwrap();
        }
        match what {
            "refresh"
            | "update metadata"
            | "release"
            | "transfer"
            | "downgrade"
            | "refresh a group"
            | "release a group"
            | "revoke"
            | "verify"
            | "transaction"
            | "put a value"
            | "release with a value"
            | "read the value" => Some(seal.acquire(key).group(key).await.unwrap()),
            "upgrade" => Some(seal.acquire(key).shared().await.unwrap()),
            "wait" | "campaign" | "resume" => Some(self.others.acquire(key).await.unwrap()),
            "purge" => {
                self.others.acquire(key).ttl(millis(500)).without_refresh().await.unwrap().orphan();
                tokio::time::sleep(millis(600)).await;
                None
            }
            "reset a schedule" => {
                begin(&self.others, key).await.complete().await.unwrap();
                None
            }
            "make the index" => {
                self.root.collection::<Document>("mongoseal").drop_indexes().await.unwrap();
                None
            }
            _ => None,
        }
    }

    async fn act(
        &self,
        what: &str,
        key: &str,
        seal: &Mongoseal,
        ready: Option<Lease>,
        begun: Option<TickLease>,
    ) -> Result<(), Error> {
        let lease = || ready.as_ref().expect("it is held");
        let token = FencingToken::new(7).unwrap();
        let fenced = self.orders().fenced(token);
        let (there, away) = (doc! { "_id": key }, doc! { "_id": "nowhere" });
        let set = doc! { "$set": { "n": 1 } };
        let freed = async |lease: Option<Lease>| {
            tokio::time::sleep(millis(200)).await;
            lease.expect("it is held").release().await.unwrap();
        };
        match what {
            "acquire" => drop(seal.acquire(key).await?.release().await?),
            "acquire shared" => drop((seal.acquire(key).shared().await?, seal.acquire(key).shared().await?)),
            "acquire several" => drop(seal.acquire_all([key, "one more"]).await?.release().await?),
            "hold without expiry" => drop(seal.acquire(key).without_expiry().await?.release().await?),
            "run once" => {
                let ran = seal.once(key, Tick::number(1)).run(async |_| -> Result<(), Error> { Ok(()) }).await?;
                assert_eq!(ran, OnceOutcome::Ran(()));
            }
            "complete a tick" => begun.expect("it is begun").complete().await?,
            "reset a schedule" => drop(seal.rewind_tick(key, 0).await?),
            "raise" => drop(seal.raise_token_floor(key, token).await?),
            "refresh" => lease().refresh().await?,
            "resume" => seal.resume(key, lease().id(), lease().token()).await?.orphan(),
            "update metadata" => lease().update_metadata(Metadata::default()).await?,
            "release" => drop(ready.expect("it is held").release().await?),
            "transfer" => drop(ready.expect("it is held").transfer(LeaseId::random()).await?),
            "downgrade" => lease().downgrade(Sharing::UpTo(2)).await?,
            "upgrade" => drop(lease().upgrade().await?),
            "put a value" | "release with a value" | "read the value" => {
                act_on_value(what, ready.expect("it is held")).await?;
            }
            "refresh a group" => assert_eq!(seal.refresh_group(key, secs(60)).await?.refreshed.len(), 1),
            "release a group" => assert_eq!(seal.release_group(key).await?.len(), 1),
            "revoke" => assert_eq!(seal.revoke(key).await?.len(), 1),
            "wait" => drop(tokio::join!(freed(ready), seal.acquire(key).wait(secs(20)).into_future()).1?),
            "campaign" => drop(tokio::join!(freed(ready), seal.campaign(key).wait(secs(20)).into_future()).1?),
            "watch" => {
                let mut events = seal.watch(key).await?;
                let granted = self.others.acquire(key).await.unwrap();
                assert_eq!(events.next().await.expect("it goes on")?.into_event().unwrap().token, granted.token());
            }
            "observe" => {
                let mut leaders = seal.observe(key).await?;
                let elected = self.others.campaign(key).await.unwrap();
                while leaders.next().await.expect("it goes on")?.is_none_or(|seen| seen.token != elected.token()) {}
            }
            "verify" => {
                let lease = ready.expect("it is held");
                lease.verify().await?;
                // Its release needs more.
                lease.orphan();
            }
            "inspect" => drop(seal.inspect(key).await?),
            "list" => drop(seal.leases().await?.next().await.transpose()?),
            "read the leader" => drop(seal.leader(key).await?),
            "read the time" => drop(seal.now().await?),
            "purge" => drop(seal.purge().await?),
            "make the index" => Mongoseal::on_shared_client(&self.database).prepare().await?,
            "fenced update" => {
                assert_eq!(fenced.update_one(there, set.clone()).await?.matched_count, 1);
                assert_eq!(fenced.update_one(away, set).await?.matched_count, 0);
            }
            "fenced replacement" => {
                assert_eq!(fenced.replace_one(there, doc! {}).await?.matched_count, 1);
                assert_eq!(fenced.replace_one(away, doc! {}).await?.matched_count, 0);
            }
            "fenced upsert" => {
                fenced.update_one(doc! { "_id": format!("new {key}") }, set.clone()).upsert(true).await?;
                let newer = self.orders().fenced(FencingToken::new(9).unwrap());
                newer.update_one(there.clone(), set.clone()).upsert(true).await?;
                let barred = fenced.update_one(there, set).upsert(true).await;
                return if matches!(barred, Err(Error::Fenced { .. })) { Ok(()) } else { barred.map(drop) };
            }
            "fenced insert" => {
                fenced.insert_one(doc! { "_id": format!("new {key}") }).await?;
                let again = fenced.insert_one(there).await;
                let error = again.expect_err("it is there");
                return if error.to_string().contains("refused the write") { Ok(()) } else { Err(error) };
            }
            "fenced delete" => {
                assert_eq!(fenced.delete_one(away).await?.deleted_count, 0);
                assert_eq!(fenced.delete_one(there).await?.deleted_count, 1);
            }
            "transaction" => {
                let orders = self.orders();
                lease()
                    .transaction(async |session| -> Result<(), Error> {
                        orders.update_one(doc! { "_id": key }, doc! { "$inc": { "n": 1 } }).session(session).await?;
                        Ok(())
                    })
                    .await?;
            }
            other => panic!("docs/privileges.md names {other}, which nobody does here"),
        }
        Ok(())
    }
}

async fn act_on_value(what: &str, lease: Lease) -> Result<(), Error> {
    match what {
        "put a value" => lease.put_value(&7).await?,
        "release with a value" => return lease.release_with_value(&7).await,
        // The first value is that of the grant, without a request.
        _ => {
            for _ in 0..2 {
                assert!(lease.value::<u64>().await?.is_none());
            }
        }
    }
    // Its release needs more.
    lease.orphan();
    Ok(())
}

#[tokio::test]
#[ignore = "night: two hundred roles on a set of its own"]
async fn the_role_of_each_row_suffices_and_without_any_of_its_actions_that_one_is_named() {
    let (said, _guard) = Said::listen();
    let set = ReplicaSet::builder()
        .parameter("ttlMonitorEnabled", "false")
        .auth()
        .tls(&["127.0.0.1"], secs(24 * 3600))
        .start()
        .await;
    let user = LimitedUser::new(&set).await;
    let (mut done, mut refused, mut warned) = (0, 0, 0);
    for (what, actions) in rows() {
        let mut granted = actions.clone();
        if what == "transaction" {
            granted[1] = vec!["update"];
        }
        let both = [granted[0].as_slice(), granted[1].as_slice()];
        let full = user.perform(what, what, both, &said).await;
        assert!(full.is_ok(), "{what} with {both:?}: {full:?}");
        let heard = said.take();
        assert!(!heard.contains("grant it"), "{what} with {both:?}: {heard}");
        done += 1;
        for (at, missing) in (0..2).flat_map(|at| actions[at].iter().map(move |action| (at, *action))) {
            let mut less = granted.clone();
            less[at].retain(|action| *action != missing);
            let key = format!("{what} without {missing}");
            let result = user.perform(what, &key, [&less[0], &less[1]], &said).await;
            let heard = said.take();
            let named = match &result {
                Err(error @ Error::Invalid { .. }) => {
                    refused += 1;
                    error.to_string()
                }
                Ok(()) if ["changeStream", "createIndex"].contains(&missing) => {
                    warned += 1;
                    heard
                }
                other => panic!("{key}: {other:?}"),
            };
            assert!(named.contains(missing), "{key}: {named}");
        }
    }
    println!("{done} things done, {refused} refused, {warned} with a warning");
    assert!(done > 25 && refused > 50 && warned >= 5);
}

#[test]
fn the_role_of_most_programs_is_that_of_one_who_acquires_waits_and_releases() {
    let role = PAGE.split("actions: [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let wait = rows().into_iter().find(|(what, _)| *what == "wait").unwrap();
    assert_eq!(wait.1[0], marked(role, '"'));
}
