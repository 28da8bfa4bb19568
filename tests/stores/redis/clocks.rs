//! Servers whose clocks step, and a failover to one whose clock is behind.

use std::{future::IntoFuture, time::Duration};

use mongoseal::{
    Error, Mongoseal,
    store::{Backend, Deadline, Swap},
};
use mongoseal_redis::RedisBackend;
use mongoseal_test_support::{Redis, eventually, secs};

use crate::{cut_off, follows, open, send};

const HOUR: Duration = secs(3600);

/// Two handles on a server, with a retention of an hour.
async fn two(server: &Redis) -> [Mongoseal; 2] {
    let connect = || open(Mongoseal::builder().retention(HOUR), server.url());
    [connect().await.unwrap(), connect().await.unwrap()]
}

/// The server's clock.
async fn now(server: &Redis) -> Duration {
    let (seconds, micros): (u64, u64) = send(server, "TIME").await;
    secs(seconds) + Duration::from_micros(micros)
}

/// How long the holder of the key has it, by the server's clock.
async fn held_for(seal: &Mongoseal, key: &str) -> Duration {
    match seal.acquire(key).await {
        Err(Error::Held { free_in, .. }) => free_in,
        other => panic!("{key}: {other:?}"),
    }
}

/// Grants the key and releases it. Gives the token.
async fn token(seal: &Mongoseal, key: &str) -> mongoseal::FencingToken {
    let lease = seal.acquire(key).await.unwrap();
    let token = lease.token();
    lease.release().await.unwrap();
    token
}

pub(crate) async fn a_step_forward_ends_a_lease_earlier_by_the_step_and_tokens_grow() {
    let server = Redis::start_with_own_clock(&[]).await;
    let [first, second] = two(&server).await;
    let lease = first.acquire("k").ttl(secs(600)).without_refresh().await.unwrap();
    server.set_clock("+500");
    let left = held_for(&second, "k").await;
    assert!(left > secs(50) && left <= secs(101), "{left:?}");
    server.set_clock("+700");
    let next = second.acquire("k").await.unwrap();
    assert!(lease.is_valid(), "two holders believe");
    assert!(next.token() > lease.token(), "a fence refuses the first");
    assert!(matches!(lease.refresh().await, Err(Error::Lost { .. })));
}

pub(crate) async fn a_step_back_ends_a_lease_later_by_the_step_and_grants_no_key_early() {
    let server = Redis::start_with_own_clock(&[]).await;
    let [first, second] = two(&server).await;
    let lease = first.acquire("k").ttl(secs(600)).without_refresh().await.unwrap();
    server.set_clock("-2h");
    let left = held_for(&second, "k").await;
    assert!(left > 2 * HOUR + secs(550) && left <= 2 * HOUR + secs(601), "{left:?}");
    lease.refresh().await.unwrap();
    assert!(held_for(&second, "k").await > 2 * HOUR + secs(500), "a refresh does not end it earlier");
    // Time passes until the lease ends by the clock before the step.
    for shift in ["-1h", "-10", "+500"] {
        server.set_clock(shift);
        held_for(&second, "k").await;
    }
    server.set_clock("+700");
    assert!(second.acquire("k").await.unwrap().token() > lease.token());
}

pub(crate) async fn waiters_are_served_and_tokens_grow_over_steps_in_both_directions() {
    let server = Redis::start_with_own_clock(&[]).await;
    let [first, second] = two(&server).await;
    let mut last = token(&first, "k").await;
    for shift in ["-1h", "-40h", "+0", "-2h", "-1h", "+10"] {
        let lease = first.acquire("k").wait(secs(30)).await.unwrap();
        // A step forward expires its place. It is queued again by its next request, after a third of its ttl at most.
        let waiting = tokio::spawn(second.acquire("k").ttl(secs(9)).wait(secs(30)).into_future());
        let waits = async || !first.inspect("k").await.unwrap().unwrap().queue.is_empty();
        eventually(secs(10), "it waits", waits).await;
        server.set_clock(shift);
        let token = lease.token();
        assert!(token > last, "at {shift}");
        lease.release().await.unwrap();
        let granted = waiting.await.unwrap().unwrap();
        assert!(granted.token() > token, "at {shift}");
        last = granted.token();
        granted.release().await.unwrap();
    }
}

pub(crate) async fn a_swap_is_refused_if_the_clock_has_stepped_since_its_load() {
    let server = Redis::start_with_own_clock(&[]).await;
    let backend = RedisBackend::new(server.url()).unwrap();
    let deadline = || Deadline::after(backend.clock(), secs(10));
    for (shift, is_done) in [("+11", false), ("-1", false), ("-3600", false), ("+5", true)] {
        server.set_clock("+0");
        let key = format!("k{shift}").parse().unwrap();
        let loaded = backend.load(&key, deadline()).await.unwrap();
        server.set_clock(shift);
        let (bytes, max_age, keep_for) = (b"swapped".to_vec(), secs(10), HOUR);
        let swap = Swap { key, loaded: None, bytes, now: loaded.now, max_age, keep_for, publish: Vec::new() };
        assert_eq!(backend.swap(swap, deadline()).await.unwrap(), is_done, "at {shift}");
    }
}

/// The limit that the page of the guide names: the retention is an hour.
pub(crate) async fn a_token_regresses_only_if_a_record_expires_on_a_clock_that_then_steps_back_to_before_its_grant() {
    let server = Redis::start_with_own_clock(&[]).await;
    let [seal, _] = two(&server).await;
    // The record, the step during which it is there or expires, and the step back at which it is granted again.
    for (key, ahead, back, is_kept, grows) in [
        ("kept", "+0", "-40h", true, true),
        ("kept ahead", "+30m", "-40h", true, true),
        ("expired", "+2h", "+0", false, true),
        ("expired and ahead", "+2h", "+1h", false, true),
        ("expired and behind", "+2h", "-1h", false, false),
    ] {
        server.set_clock("+0");
        let before = token(&seal, key).await;
        server.set_clock(ahead);
        assert_eq!(seal.inspect(key).await.unwrap().is_some(), is_kept, "{key}");
        server.set_clock(back);
        let after = token(&seal, key).await;
        assert_eq!(after > before, grows, "{key}: {after} after {before}");
    }
}

/// The limit that the page of the guide names.
pub(crate) async fn a_token_regresses_in_a_failover_only_if_its_record_is_lost_and_the_next_clock_is_behind_its_grant()
{
    let primary = Redis::start().await;
    let replica = Redis::start_with_own_clock(&[("replicaof", &primary.address().replace(':', " "))]).await;
    follows(&primary).await;
    let [seal, _] = two(&primary).await;
    let kept = token(&seal, "kept").await;
    let record = async |server| send::<Vec<u8>>(server, "GET mongoseal:kept").await;
    let has_it = async || record(&replica).await == record(&primary).await;
    eventually(secs(30), "the replica has the record", has_it).await;
    cut_off(&primary, &replica).await;
    let (lost, lost_too) = (token(&seal, "lost").await, token(&seal, "lost too").await);
    let granted_at = now(&primary).await;
    primary.kill();
    replica.resume();
    let () = send(&replica, "REPLICAOF NO ONE").await;

    let [seal, _] = two(&replica).await;
    replica.set_clock("-1");
    assert!(token(&seal, "kept").await > kept, "its record was not lost");
    // The clock is behind by less than the time between the grants.
    let is_later = async || now(&replica).await > granted_at;
    eventually(secs(10), "the time between the grants passes", is_later).await;
    assert!(token(&seal, "lost").await > lost);
    // By more.
    replica.set_clock("-1h");
    assert!(token(&seal, "lost too").await < lost_too, "a fence does not refuse the first");
    assert!(token(&seal, "kept").await > kept);
    assert!(token(&seal, "lost").await > lost, "its record is there again");
}
