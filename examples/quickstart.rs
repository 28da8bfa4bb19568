//! A quickstart: acquire a key, be refused, work, release it, and acquire it again with a larger token.
//!
//!     cargo run --no-default-features --example quickstart             # in memory, without the driver
//!     MONGODB_URI='mongodb://db0,db1,db2/app?replicaSet=rs0' cargo run --example quickstart

use std::{sync::Arc, time::Duration};

use mongoseal::{Error, Mongoseal, ReleaseOutcome, store::MemoryStore};

#[tokio::main]
async fn main() -> mongoseal::Result<()> {
    let (alice, bob) = open().await?;
    // Shuts both handles down, also if the work fails.
    alice.scope(async |alice| bob.scope(async |bob| work(alice, bob).await).await).await
}

async fn work(alice: &Mongoseal, bob: &Mongoseal) -> mongoseal::Result<()> {
    let lease = alice.acquire("reports/nightly").ttl(Duration::from_secs(30)).await?;
    println!("{} acquired {:?} with token {}", lease.owner(), lease.key(), lease.token());

    match bob.acquire("reports/nightly").await {
        Err(Error::Held { owner, token, free_in, .. }) => {
            println!("bob is refused: {owner:?} holds it with token {token} and it is free in {free_in:.0?}");
            assert_eq!((&owner, token), (lease.owner(), lease.token()));
        }
        other => panic!("a held key must be refused: {other:?}"),
    }

    // The lease refreshes itself. If it is lost, the work is stopped.
    let pages = lease
        .run(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            42
        })
        .await?;
    println!("alice wrote {pages} pages, passing token {} to the storage", lease.token());

    let first = lease.token();
    assert_eq!(lease.release().await?, ReleaseOutcome::Released);
    println!("alice released it");

    let lease = bob.acquire("reports/nightly").await?;
    println!("bob acquired it with token {}", lease.token());
    assert!(lease.token() > first, "tokens only grow");
    println!("the storage now refuses token {first}: it is smaller");
    Ok(())
}

/// Opens two handles, as of two processes: on MongoDB if `MONGODB_URI` is set, otherwise in memory.
async fn open() -> mongoseal::Result<(Mongoseal, Mongoseal)> {
    let named = |name| Mongoseal::builder().owner(name);
    #[cfg(feature = "mongodb")]
    if let Ok(uri) = std::env::var("MONGODB_URI") {
        println!("on the replica set of MONGODB_URI");
        return Ok((named("alice").connect(&uri).await?, named("bob").connect(&uri).await?));
    }
    println!("in memory; with the default features, MONGODB_URI names a replica set to run on");
    let store = Arc::new(MemoryStore::default());
    Ok((named("alice").on_store(store.clone())?, named("bob").on_store(store)?))
}
