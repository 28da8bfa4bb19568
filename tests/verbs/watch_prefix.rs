//! Watching what happens to all keys with a prefix.

use mongoseal::{FencingToken, inspect::EventStream};
use tokio::time::Instant;

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
    watch::{missed, next, nothing, watch},
};

/// The key, the first word and the token of the next event.
async fn told(events: &mut EventStream) -> (String, String, FencingToken) {
    let event = next(events).await;
    let word = format!("{:?}", event.kind).split(' ').next().unwrap_or_default().to_lowercase();
    (event.key.as_str().to_owned(), word, event.token)
}

fn is(key: &str, word: &str, token: FencingToken) -> (String, String, FencingToken) {
    (key.to_owned(), word.to_owned(), token)
}

/// A store that streams changes, and one that does not.
fn stores() -> [Faulty; 2] {
    let stores = [Faulty::new(), Faulty::new()];
    stores[1].script(|call| matches!(call, Call::Follow).then_some(Fault::Refuse));
    stores
}

#[tokio::test(start_paused = true)]
async fn it_begins_with_the_holders_of_all_keys_and_goes_on_with_what_happens_to_each() {
    for store in stores() {
        let seal = store.seal();
        // In another order than that of the keys, and more than a channel has room for.
        let mut held = Vec::new();
        for number in (0..200).rev() {
            held.push(seal.acquire(format!("reports/{number:03}")).ttl(secs(3600)).await.unwrap());
        }
        let _other = seal.acquire("other").await.unwrap();
        let mut some = seal.watch_prefix("reports/").await.unwrap();
        for lease in &held {
            assert_eq!(told(&mut some).await, is(lease.key().as_str(), "holds", lease.token()));
        }
        let mut all = seal.watch_prefix("").await.unwrap();
        for _ in 0..201 {
            assert_eq!(told(&mut all).await.1, "holds");
        }
        let new = seal.acquire("reports/new").ttl(secs(3600)).await.unwrap();
        seal.revoke("reports/000").by("olga").reason("stuck").await.unwrap();
        for events in [&mut some, &mut all] {
            // A poll may read both together.
            let mut both = [told(events).await, told(events).await];
            both.sort();
            let revoked = is("reports/000", "revoked", held.last().unwrap().token());
            assert_eq!(both, [revoked, is("reports/new", "granted", new.token())]);
        }
        nothing(&mut some, 60).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_expiry_is_told_when_it_comes_and_once() {
    for (store, is_prefix) in stores().into_iter().zip([true, false]).chain(stores().into_iter().zip([false, true])) {
        let seal = store.seal();
        let mut events = watch(&seal, is_prefix).await.unwrap();
        let acquire = || seal.acquire("k").shared();
        let leases = [
            acquire().ttl(secs(20)).without_refresh().await.unwrap(),
            acquire().ttl(secs(10)).without_refresh().await.unwrap(),
            acquire().ttl(secs(10)).await.unwrap(),
            acquire().without_expiry().await.unwrap(),
        ];
        let began = Instant::now();
        for lease in &leases {
            assert_eq!(told(&mut events).await, is("k", "granted", lease.token()));
        }
        for (lease, after) in [(&leases[1], secs(10)), (&leases[0], secs(20))] {
            assert_eq!(told(&mut events).await, is("k", "expired", lease.token()));
            let took = began.elapsed();
            assert!(took >= after + GRACE && took < after + GRACE + millis(50), "{took:?}");
        }
        nothing(&mut events, 100).await;
        // They are still in the record, and dropped from there by the next grant.
        let again = acquire().await.unwrap();
        assert_eq!(told(&mut events).await, is("k", "granted", again.token()));
        nothing(&mut events, 3_600).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_expiry_is_told_before_what_happened_to_another_key_after_it() {
    let (store, seal) = Faulty::open();
    let mut events = seal.watch_prefix("").await.unwrap();
    let dead = seal.acquire("dead").ttl(secs(10)).without_refresh().await.unwrap();
    assert_eq!(told(&mut events).await, is("dead", "granted", dead.token()));
    store.script(|call| matches!(call, Call::Read).then_some(Fault::DelayReply(secs(1))));
    tokio::time::sleep(secs(10) + GRACE + millis(500)).await;
    let other = seal.acquire("other").await.unwrap();
    assert_eq!(told(&mut events).await, is("dead", "expired", dead.token()));
    assert_eq!(told(&mut events).await, is("other", "granted", other.token()));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_interrupted_tells_what_has_changed_meanwhile() {
    let store = Faulty::new();
    store.follow_by(|call| match call {
        1 => Some(Fault::Delay(secs(5))),
        2..7 => Some(Fault::Fail),
        _ => None,
    });
    let seal = store.seal();
    let mut leases = Vec::new();
    for key in ["deleted", "expired", "kept", "released", "revoked"] {
        let ttl = if key == "expired" { millis(5_100) } else { secs(600) };
        leases.push(seal.acquire(key).ttl(ttl).grace(millis(0)).without_refresh().await.unwrap());
    }
    let tokens: Vec<FencingToken> = leases.iter().map(mongoseal::Lease::token).collect();
    let mut events = seal.watch_prefix("").await.unwrap();
    for _ in 0..5 {
        assert_eq!(told(&mut events).await.1, "holds");
    }
    tokio::time::sleep(millis(5_050)).await;
    store.records.remove(leases[0].key());
    leases.remove(3).release().await.unwrap();
    seal.revoke("revoked").by("olga").reason("stuck").await.unwrap();
    let new = seal.acquire("new").await.unwrap();
    missed(&mut events).await;
    let expected = [
        is("deleted", "removed", tokens[0]),
        is("expired", "expired", tokens[1]),
        is("new", "granted", new.token()),
        is("released", "released", tokens[3]),
        is("revoked", "revoked", tokens[4]),
    ];
    let mut heard = Vec::new();
    for _ in &expected {
        heard.push(told(&mut events).await);
    }
    heard.sort();
    assert_eq!(heard, expected);
    nothing(&mut events, 100).await;
}
