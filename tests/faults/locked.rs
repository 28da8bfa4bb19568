//! Records that a transaction of another program has locked cost no other lease, and no acquire of another key.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::{
    ClientSession, Database,
    bson::{Document, doc},
};
use mongoseal::{Lease, Mongoseal, store::MongoStore};
use mongoseal_test_support::{How, Peer, ReplicaSet, by_length, eventually};
use tokio::task::JoinSet;

use crate::{connect, millis, secs};

/// The longest time for a request of another key while records are locked.
const SOON: Duration = Duration::from_secs(1);

/// A transaction that has locked the records of these keys.
async fn lock(set: &ReplicaSet, database: &str, keys: Vec<String>) -> ClientSession {
    let client = set.client().await;
    let records = client.database(database).collection::<Document>("mongoseal");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let many = i32::try_from(keys.len()).unwrap();
    // A refresh that is under way conflicts with the transaction: it begins again.
    loop {
        let lock = records.update_many(doc! { "_id": { "$in": &keys } }, doc! { "$set": { "theirs": 1 } });
        match lock.session(&mut session).await {
            Ok(locked) => {
                assert_eq!(locked.modified_count, u64::try_from(many).unwrap());
                return session;
            }
            Err(_conflict) => {
                drop(session.abort_transaction().await);
                session.start_transaction().await.unwrap();
            }
        }
    }
}

/// This many leases, acquired concurrently, in the order of their keys.
pub(super) async fn acquire_all(seal: &Mongoseal, name: &str, many: usize, ttl: Duration) -> Vec<Lease> {
    let mut leases = Vec::new();
    for first in (0..many).step_by(50) {
        let mut asking = JoinSet::new();
        for number in first..many.min(first + 50) {
            asking.spawn(seal.acquire(format!("{name}/{number:05}")).ttl(ttl).into_future());
        }
        leases.extend(asking.join_all().await.into_iter().map(Result::unwrap));
    }
    leases.sort_by(|one, other| one.key().cmp(other.key()));
    leases
}

pub(super) fn lost(leases: &[Lease]) -> usize {
    leases.iter().filter(|lease| !lease.is_valid()).count()
}

/// Of a handle: what it held, how many of its other leases it lost, and its slowest request beside them.
type Toll = (String, usize, Duration);

/// Holds `many` leases of this ttl for a ttl and a third, while a transaction has locked the records of `locked` of them,
/// which are spread over all, and of one of a group. Acquires and releases sixty free keys and refreshes another group
/// meanwhile.
async fn hold(set: &ReplicaSet, many: usize, locked: usize, ttl: Duration) -> Toll {
    let case = format!("{locked} of {many} at {ttl:?}");
    let seal = connect(Mongoseal::builder(), set.uri()).await;
    let mut others = acquire_all(&seal, &case, many, ttl).await;
    let mut hindered = Vec::new();
    for number in (0..locked).rev() {
        hindered.push(others.remove((2 * number + 1) * many / (2 * locked)));
    }
    let grouped =
        async |name: &str| seal.acquire(format!("{case}/{name}")).group(format!("{case}/{name}")).ttl(ttl).await;
    let (free, locked) = (grouped("free").await.unwrap(), grouped("locked").await.unwrap());
    hindered.push(locked);
    let keys: Vec<_> = hindered.iter().map(|lease| lease.key().as_str().to_owned()).collect();
    let mut session = lock(set, "mongoseal", keys.clone()).await;
    let until = Instant::now() + ttl + ttl / 3;
    // Requests for the locked records are always under way. A refresh of a group has one of them.
    let mut asking = JoinSet::new();
    for key in keys.into_iter().rev().cycle().take(4) {
        let (seal, group) = (seal.clone(), format!("{case}/locked"));
        asking.spawn(async move {
            while Instant::now() < until {
                tokio::join!(seal.acquire(&key).into_future(), seal.refresh_group(&group, ttl)).0.ok();
            }
        });
    }
    // Sixty at once: a command for several keys would have a locked one among them.
    let acquires = |number: u32| {
        let (seal, key) = (seal.clone(), format!("{case}/free/{number}"));
        async move {
            let mut slowest = Duration::ZERO;
            while Instant::now() < until {
                let began = Instant::now();
                seal.acquire(&key).ttl(ttl).await.unwrap().release().await.unwrap();
                slowest = slowest.max(began.elapsed());
                tokio::time::sleep(secs(1)).await;
            }
            slowest
        }
    };
    let sixty: JoinSet<Duration> = (0..60).map(acquires).collect();
    let mut slowest = Duration::ZERO;
    while Instant::now() < until {
        let began = Instant::now();
        seal.refresh_group(format!("{case}/free"), ttl).await.unwrap();
        slowest = slowest.max(began.elapsed());
        tokio::time::sleep(millis(250)).await;
    }
    slowest = sixty.join_all().await.into_iter().fold(slowest, Duration::max);
    others.push(free);
    let lost = lost(&others);
    session.abort_transaction().await.unwrap();
    asking.join_all().await;
    println!("{case}: {lost} lost, the slowest request {slowest:?}");
    drop((others, hindered));
    seal.shutdown().await;
    (case, lost, slowest)
}

/// Each part of a hundred has one, so no part is answered. One command with all leases of them would wait, too. And attempts for
/// locked leases are bounded in all, and not only for each lease: of three hundred, 120 are locked.
pub(super) async fn locked_records_of_hundreds_of_leases_cost_no_other_lease_and_delay_no_request_of_another_key() {
    let set = ReplicaSet::builder().start().await;
    for ttl in by_length(vec![secs(6)], vec![secs(6), secs(12), secs(30)]) {
        let (two, ten, fifty) =
            tokio::join!(hold(&set, 100, 2, ttl), hold(&set, 100, 10, ttl), hold(&set, 100, 50, ttl));
        let tolls = [two, ten, fifty, hold(&set, 300, 120, ttl).await];
        assert!(tolls.iter().all(|(_case, lost, slowest)| *lost == 0 && *slowest < SOON), "{tolls:#?}");
    }
}

/// Acquires that wait for their answer, those of a handle on a store of the caller, and acquires that are given up.
pub(super) async fn acquires_of_locked_keys_through_a_pool_of_ten_cost_the_handle_none_of_its_leases() {
    let set = ReplicaSet::builder().start().await;
    let on_store = |database: &Database| {
        let store = MongoStore::new(database, "mongoseal", secs(60));
        Mongoseal::builder().on_store(Arc::new(store)).unwrap()
    };
    let (own, of_the_caller, abandoned) = tokio::join!(
        acquire_locked_keys(&set, "own", secs(60), Mongoseal::on_shared_client),
        acquire_locked_keys(&set, "of_the_caller", secs(60), on_store),
        acquire_locked_keys(&set, "abandoned", millis(300), Mongoseal::on_shared_client),
    );
    let lost = [own, of_the_caller, abandoned].map(|(lost, _)| lost);
    assert_eq!(lost, [0, 0, 0], "lost, of 40 each");
    let slowest = [own, of_the_caller, abandoned].map(|(_, slowest)| slowest);
    println!("the slowest verify took {slowest:?}");
    assert!(slowest.into_iter().all(|slowest| slowest < SOON), "{slowest:?}");
}

/// Acquires 30 locked keys again and again, and gives up each acquire after this time, while the handle holds 12 leases of
/// locked keys and 40 of other keys, and verifies these 40. Returns how many of the 40 it lost, and how long a verify took at
/// most.
async fn acquire_locked_keys(
    set: &ReplicaSet,
    database: &str,
    patience: Duration,
    open: impl FnOnce(&Database) -> Mongoseal,
) -> (usize, Duration) {
    let client = mongodb::Client::with_uri_str(set.uri_with("maxPoolSize=10")).await.unwrap();
    let seal = open(&client.database(database));
    let key_of = |lease: &Lease| lease.key().as_str().to_owned();
    let mut keys = Vec::new();
    for lease in acquire_all(&seal, "locked", 30, secs(6)).await {
        keys.push(key_of(&lease));
        lease.release().await.unwrap();
    }
    let hindered = acquire_all(&seal, "hindered", 12, secs(6)).await;
    let leases = acquire_all(&seal, "other", 40, secs(6)).await;
    let locked = keys.iter().cloned().chain(hindered.iter().map(key_of)).collect();
    let mut session = lock(set, database, locked).await;
    let until = Instant::now() + secs(9);
    let mut asking = JoinSet::new();
    for key in keys {
        let seal = seal.clone();
        asking.spawn(async move {
            while Instant::now() < until {
                drop(tokio::time::timeout(patience, seal.acquire(&key)).await);
            }
        });
    }
    let mut slowest = Duration::ZERO;
    for lease in leases.iter().cycle().take_while(|_| Instant::now() < until) {
        let began = Instant::now();
        lease.verify().await.unwrap();
        slowest = slowest.max(began.elapsed());
        tokio::time::sleep(millis(20)).await;
    }
    let lost = lost(&leases);
    session.abort_transaction().await.unwrap();
    asking.join_all().await;
    drop((hindered, leases));
    seal.shutdown().await;
    (lost, slowest)
}

/// Holds thousands of leases while `hurt` injects its fault. An outage lasts as long as its argument says.
async fn thousands_outlast(set: &ReplicaSet, hurt: impl AsyncFnOnce(Duration)) {
    let seal = connect(Mongoseal::builder(), set.uri_with("appName=holder")).await;
    let (many, ttl, outage) = by_length((3_000, secs(12), secs(5)), (10_000, secs(30), secs(12)));
    let leases = acquire_all(&seal, "key", many, ttl).await;
    // Until refreshes are under way.
    tokio::time::sleep(ttl / 6).await;
    hurt(outage).await;
    // Each is refreshed after now, and none is lost before.
    let began = Instant::now();
    let is_refreshed = |lease: &Lease| lease.remaining() + began.elapsed() > ttl;
    eventually(secs(40), "each lease is refreshed or lost", async || {
        leases.iter().all(|lease| !lease.is_valid() || is_refreshed(lease))
    })
    .await;
    println!("each was refreshed after {:?}", began.elapsed());
    assert_eq!(lost(&leases), 0, "of {many}");
    drop(leases);
    seal.shutdown().await;
}

pub(super) async fn thousands_of_leases_outlast_an_outage_of_two_fifths_of_their_ttl() {
    let set = ReplicaSet::builder().proxied().start().await;
    thousands_outlast(&set, async |outage| {
        set.proxy().cut_both(&Peer::client("holder"), &Peer::Anyone, How::Blackhole);
        tokio::time::sleep(outage).await;
        set.proxy().heal();
    })
    .await;
}

pub(super) async fn thousands_of_leases_outlast_a_failover() {
    let set = ReplicaSet::builder().members(3).election_timeout(secs(2)).start().await;
    thousands_outlast(&set, async |_| set.kill(set.primary().await).await).await;
}
