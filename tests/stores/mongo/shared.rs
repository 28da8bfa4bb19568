//! Shared leases on a real server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use mongoseal::{Error, Lease};

use crate::{TestDatabase, busy_turn, by_length, millis, secs};

/// A resource that fails when more use it at once than may: any number of readers, or a writer.
#[derive(Default)]
struct LimitedResource {
    /// How many read; minus one while somebody writes.
    users: AtomicI64,
    most: AtomicI64,
    uses: AtomicUsize,
}

impl LimitedResource {
    async fn read(&self, most: i64) {
        let others = self.users.fetch_add(1, Ordering::SeqCst);
        assert!((0..most).contains(&others), "a reader beside {others}");
        self.most.fetch_max(others + 1, Ordering::SeqCst);
        self.work().await;
        self.users.fetch_sub(1, Ordering::SeqCst);
    }

    async fn write(&self) {
        assert_eq!(self.users.swap(-1, Ordering::SeqCst), 0, "a writer beside others");
        self.work().await;
        assert_eq!(self.users.swap(0, Ordering::SeqCst), -1, "somebody came while a writer was there");
    }

    async fn work(&self) {
        self.uses.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..8))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_forty_racers_for_three_places_no_more_than_three_hold_at_once() {
    let db = TestDatabase::new("mongoseal_places").await;
    let resource = Arc::new(LimitedResource::default());
    let racers: Vec<_> = (0..40)
        .map(|_| {
            let (seal, resource) = (db.seal(), Arc::clone(&resource));
            tokio::spawn(async move {
                let mut tokens = Vec::new();
                // On a busy machine it takes longer until three are there at once.
                while tokens.len() < 3 || resource.most.load(Ordering::SeqCst) < 3 {
                    match seal.acquire("k").shared_up_to(3).await {
                        Ok(lease) => {
                            tokens.push(lease.token());
                            resource.read(3).await;
                            lease.release().await.unwrap();
                        }
                        Err(Error::Held { .. }) => tokio::time::sleep(millis(fastrand::u64(1..20))).await,
                        Err(error) => panic!("{error}"),
                    }
                }
                tokens
            })
        })
        .collect();
    let mut tokens = Vec::new();
    for racer in racers {
        tokens.extend(racer.await.unwrap());
    }
    let all = tokens.len();
    tokens.sort();
    tokens.dedup();
    assert!(tokens.len() == all && all >= 120, "each has a token of its own: {} of {all}", tokens.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_mixed_never_overlap_and_all_get_on() {
    let _turn = busy_turn().await;
    let db = TestDatabase::new("mongoseal_mixed").await;
    let resource = Arc::new(LimitedResource::default());
    let (began, enough) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    // All go on until each got on.
    let goes_on = move |enough: &AtomicUsize| {
        began.elapsed() < by_length(secs(2), secs(8))
            || (enough.load(Ordering::Relaxed) < 16 && began.elapsed() < secs(30))
    };
    let mut handles = Vec::new();
    for _ in 0..4 {
        let builder = mongoseal::Mongoseal::builder().database("mongoseal_mixed");
        handles.push(builder.connect(db.set.uri()).await.unwrap());
    }
    let tasks: Vec<_> = (0..16)
        .map(|number: usize| {
            let (seal, resource) = (handles[number % 4].clone(), Arc::clone(&resource));
            let enough = Arc::clone(&enough);
            tokio::spawn(async move {
                let (mut read, mut wrote, mut got_on) = (0, 0, false);
                let mut last = None;
                while goes_on(&enough) {
                    let asked = seal.acquire("k").wait(secs(60));
                    let writes = fastrand::u8(0..4) == 0;
                    let lease: Lease = if writes { asked.await } else { asked.shared().await }.unwrap();
                    assert!(last < Some(lease.token()), "tokens grow");
                    last = Some(lease.token());
                    if writes {
                        resource.write().await;
                        wrote += 1;
                    } else {
                        resource.read(16).await;
                        read += 1;
                    }
                    lease.release().await.unwrap();
                    if !got_on && read > 10 && wrote > 3 {
                        got_on = true;
                        enough.fetch_add(1, Ordering::Relaxed);
                    }
                }
                (read, wrote)
            })
        })
        .collect();
    for task in tasks {
        let (read, wrote) = task.await.unwrap();
        assert!(read > 10 && wrote > 3, "one read {read} times and wrote {wrote} times in {:?}", began.elapsed());
    }
    println!("{} uses, {} readers at once", resource.uses.load(Ordering::SeqCst), resource.most.load(Ordering::SeqCst));
    assert!(resource.most.load(Ordering::SeqCst) > 1, "readers were there together");
    for seal in handles {
        seal.shutdown().await;
    }
}

#[tokio::test]
async fn a_lease_without_expiry_is_kept_by_the_server_and_released() {
    let db = TestDatabase::new("mongoseal_endless").await;
    let seal = db.seal();
    let lease = seal.acquire("k").without_expiry().await.unwrap();
    match db.seal().acquire("k").await.unwrap_err() {
        Error::Held { remaining, .. } => assert_eq!(remaining, Duration::MAX),
        error => panic!("{error}"),
    }
    lease.refresh().await.unwrap();
    lease.verify().await.unwrap();
    let token = lease.token();
    lease.release().await.unwrap();
    assert!(seal.acquire("k").await.unwrap().token() > token);
}
