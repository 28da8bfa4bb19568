//! An acquire is one command whose reply is its own write, and requests of different keys do not affect each other.

use std::time::{Duration, Instant};

use mongoseal::{
    Error, Key, LeaseId, Metadata, Mongoseal, Sharing,
    record::{Acquire, HoldLimits, LeaseSpec, Outcome, Request},
    store::{AcquireId, Deadline, HandleId, MongoStore, Snapshot, Store},
};
use mongoseal_test_support::{ReplicaSet, by_length};
use tokio::task::JoinSet;

use crate::{connect, locked::lock, millis, secs};

fn acquire(lease: LeaseId, ttl: Duration) -> Request {
    let terms = LeaseSpec {
        lease,
        acquire_id: AcquireId { handle: HandleId::random(), number: 1 },
        owner: "me".parse().unwrap(),
        sharing: Sharing::Exclusive,
        ttl: u64::try_from(ttl.as_millis()).unwrap(),
        grace: 0,
        group: None,
        metadata: Metadata::default(),
        hold: HoldLimits::default(),
    };
    Request::Acquire(Acquire { terms, wait: None })
}

/// If a `find` read the result of the write, it could see the earlier attempt of the same lease, whose deadline is
/// earlier.
pub(super) async fn an_acquire_is_granted_by_its_own_write_and_not_by_an_earlier_attempt_that_executes_meanwhile() {
    let set = ReplicaSet::builder().proxied().start().await;
    let store = async |name: &str| {
        let client = mongodb::Client::with_uri_str(set.uri_with(&format!("appName={name}"))).await.unwrap();
        let store = MongoStore::new(&client.database("app"), "mongoseal", secs(24 * 3600));
        store.prepare(Deadline::after(store.clock(), secs(60))).await.unwrap();
        store
    };
    let (store, other) = (store("one").await, store("two").await);
    let key = |number: usize| format!("key/{number}").parse::<Key>().unwrap();

    // Another holder has the key when the attempt executes, for less than the attempt's `find` is late.
    other
        .apply(&key(0), acquire(LeaseId::random(), millis(1_800)), Deadline::after(other.clock(), secs(60)))
        .await
        .unwrap();
    // The replies of many requests are late, so that those behind them meet in the handle.
    set.proxy().delay("one", "findAndModify", millis(500));
    set.proxy().delay("one", "find", secs(2));
    let (lease, long) = (LeaseId::random(), secs(60));
    let mut asked = JoinSet::new();
    let began = Instant::now();
    for number in 1..=24 {
        let mine =
            store.apply(&key(100 + number), acquire(LeaseId::random(), long), Deadline::after(store.clock(), secs(60)));
        asked.spawn(async move { (number, mine.await) });
    }
    let attempt = store.apply(&key(0), acquire(lease, long), Deadline::after(store.clock(), secs(60)));
    asked.spawn(async move { (0, attempt.await) });

    // An earlier attempt of the same lease, of a shorter ttl so that it can be told apart, executes when the holder is gone.
    tokio::time::sleep(millis(2_000).saturating_sub(began.elapsed())).await;
    let earlier =
        other.apply(&key(0), acquire(lease, secs(20)), Deadline::after(other.clock(), secs(60))).await.unwrap();
    assert!(matches!(earlier.outcome, Outcome::Granted { .. }), "{earlier:?}");

    let answers = asked.join_all().await;
    let (_, answer) = answers.into_iter().find(|(number, _)| *number == 0).unwrap();
    let Ok(Some(Snapshot { record, at })) = store.read(&key(0), Deadline::after(store.clock(), secs(60))).await else {
        panic!("it is held")
    };
    let left = record.live_holder(lease, at.now).unwrap().free_in(at.now);
    if let Ok(applied) = answer
        && matches!(applied.outcome, Outcome::Granted { .. })
    {
        let believed = long.saturating_sub(began.elapsed());
        assert!(left >= believed, "the attempt believes for {believed:?}, and the store keeps the key for {left:?}");
    }
}

type Counted = (u32, Duration, Vec<Error>);

/// Sixty tasks that acquire and release a key each.
fn others(seal: &Mongoseal, until: Instant) -> JoinSet<Counted> {
    let acquires_and_releases = |number: u32| {
        let (seal, key) = (seal.clone(), format!("other/{number}"));
        async move {
            let (mut times, mut slowest, mut errors) = (0, Duration::ZERO, Vec::new());
            while Instant::now() < until {
                let began = Instant::now();
                match seal.acquire(&key).await {
                    Ok(lease) => errors.extend(lease.release().await.err()),
                    Err(error) => errors.push(error),
                }
                slowest = slowest.max(began.elapsed());
                times += 1;
            }
            (times, slowest, errors)
        }
    };
    (0..60).map(acquires_and_releases).collect()
}

/// How often they did, how long it took at most, and what went wrong.
async fn collect(asking: JoinSet<Counted>) -> Counted {
    asking.join_all().await.into_iter().fold((0, Duration::ZERO, Vec::new()), |all, (times, slowest, errors)| {
        (all.0 + times, all.1.max(slowest), all.2.into_iter().chain(errors).collect())
    })
}

/// One command for several keys would wait for each locked record among them. So would a refresh of a group and the
/// requests of its handle, if they waited for each other.
pub(super) async fn locked_records_and_refreshes_of_their_group_cost_requests_of_other_keys_nothing() {
    let set = ReplicaSet::builder().start().await;
    let seal = connect(Mongoseal::builder(), set.uri()).await;
    seal.acquire("wanted").await.unwrap().release().await.unwrap();
    let mut leases = Vec::new();
    for (key, group) in [("locked", "hindered"), ("beside", "hindered"), ("apart/1", "free"), ("apart/2", "free")] {
        leases.push(seal.acquire(key).group(group).ttl(secs(60)).without_refresh().await.unwrap());
    }
    let mut session = lock(&set, "mongoseal", vec!["wanted".to_owned(), "locked".to_owned()]).await;
    // The floor: the slowest cycle on this machine before any request for a locked record.
    let (_, floor, errors) = collect(others(&seal, Instant::now() + by_length(secs(2), secs(4)))).await;
    assert!(errors.is_empty(), "{errors:?}");
    let until = Instant::now() + by_length(secs(5), secs(10));
    let asking = others(&seal, until);
    // When the others keep the handle busy.
    tokio::time::sleep(millis(200)).await;
    // Requests for the locked records are always under way.
    let mut hindered = JoinSet::new();
    for _ in 0..4 {
        let seal = seal.clone();
        hindered.spawn(async move {
            while Instant::now() < until {
                drop(seal.acquire("wanted").await);
            }
        });
    }
    let locked = leases.swap_remove(0);
    hindered.spawn(async move {
        while Instant::now() < until {
            drop(locked.verify().await);
            drop(locked.refresh().await);
        }
    });
    let refreshes = |group: &'static str| {
        let seal = seal.clone();
        async move {
            let (mut times, mut slowest, mut errors) = (0, Duration::ZERO, Vec::new());
            while Instant::now() < until {
                let began = Instant::now();
                errors.extend(seal.refresh_group(group, secs(60)).await.err());
                slowest = slowest.max(began.elapsed());
                times += 1;
                tokio::time::sleep(millis(100)).await;
            }
            (times, slowest, errors)
        }
    };
    let (hindered_group, free_group) = (tokio::spawn(refreshes("hindered")), tokio::spawn(refreshes("free")));
    let (times, slowest, errors) = collect(asking).await;
    session.abort_transaction().await.unwrap();
    hindered.join_all().await;
    drop(hindered_group.await.unwrap());
    let (_, beside, failed): Counted = free_group.await.unwrap();
    println!("{times} acquires and releases of other keys, the slowest {slowest:?}, before that {floor:?}; {beside:?}");
    assert!(errors.is_empty(), "{} errors, as {:?}", errors.len(), errors.first());
    assert!(failed.is_empty(), "{} errors beside, as {:?}", failed.len(), failed.first());
    assert!(slowest.max(beside) <= secs(1).max(2 * floor), "{slowest:?}, {beside:?}");
}
