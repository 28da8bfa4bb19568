//! Fences values in Redis: a script compares the token and writes, and no other command runs in between.
//!
//!     cargo run -p mongoseal-tests --example fence_redis        # on REDIS_URL, or redis://127.0.0.1
//!
//! A token is below 2^53, so Lua's numbers, which are doubles, compare it exactly. The script stores the token as the
//! text that it received, because Lua prints a number with 14 digits. Fence and value are fields of one key: they are
//! in one slot of a cluster, and never one without the other.
//!
//! Limits:
//! - The fence is as durable as Redis. Replication is asynchronous, so a failover can lose acknowledged writes together
//!   with their fence. Then the older token can write again, until the newer holder writes. `WAIT` makes that rarer,
//!   not impossible (<https://redis.io/docs/latest/commands/wait/>).
//! - A crash loses what was not on disk: minutes with snapshots alone, a second with `appendfsync everysec`.
//! - A key that expires, is evicted or is deleted has no fence.
//! - Data that must never be overwritten by an older holder belongs in a storage with durable commits.

use mongoseal::{FencingToken, Mongoseal};
use redis::{AsyncCommands, RedisResult, Script, aio::MultiplexedConnection as Connection};

/// Gives the larger token that refuses, or nothing where it wrote. Without a body it claims: it leaves the token alone.
const WRITE: &str = "
    local fence = redis.call('HGET', KEYS[1], 'fence')
    if fence and tonumber(fence) > tonumber(ARGV[1]) then return fence end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1])
    if ARGV[2] then redis.call('HSET', KEYS[1], 'body', ARGV[2]) end
    return false";

/// Claims the report, unless a larger token has: gives that token. What is read after that, no earlier holder changes.
pub(crate) async fn claim(redis: &mut Connection, name: &str, token: FencingToken) -> RedisResult<Option<u64>> {
    Script::new(WRITE).key(name).arg(token.get()).invoke_async(redis).await
}

/// Writes the report, unless a larger token has written it: gives that token.
pub(crate) async fn write(
    redis: &mut Connection,
    name: &str,
    body: &str,
    token: FencingToken,
) -> RedisResult<Option<u64>> {
    // Sends its hash, and itself where the server does not know it yet.
    Script::new(WRITE).key(name).arg(token.get()).arg(body).invoke_async(redis).await
}

/// The report and the token that wrote it.
pub(crate) async fn read(redis: &mut Connection, name: &str) -> RedisResult<(Option<String>, Option<u64>)> {
    redis.hmget(name, &["body", "fence"]).await
}

pub(crate) async fn connect(url: &str) -> RedisResult<Connection> {
    redis::Client::open(url)?.get_multiplexed_async_connection().await
}

const NAME: &str = "mongoseal:example:nightly";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1".into());
    let mut redis = connect(&url).await?;
    // Tokens of leases in memory begin anew with every run, so what they fence has to.
    let _: () = redis.del(NAME).await?;
    let seal = Mongoseal::in_memory();

    let first = seal.acquire("reports/nightly").await?;
    let older = first.token();
    assert_eq!(write(&mut redis, NAME, "draft", older).await?, None, "nobody wrote it before");
    // Or loses it, and does not notice.
    first.release().await?;

    let second = seal.acquire("reports/nightly").await?;
    let newer = second.token();
    assert_eq!(claim(&mut redis, NAME, newer).await?, None);
    let refused = write(&mut redis, NAME, "late", older).await?;
    assert_eq!(refused, Some(newer.get()), "the older token is refused before the newer one writes");
    assert_eq!(write(&mut redis, NAME, "final", newer).await?, None, "a newer token writes");
    assert_eq!(write(&mut redis, NAME, "final, again", newer).await?, None, "an equal one, too");

    assert_eq!(claim(&mut redis, NAME, older).await?, Some(newer.get()), "the older one claims nothing");
    assert_eq!(read(&mut redis, NAME).await?, (Some("final, again".into()), Some(newer.get())));
    println!("Redis refused token {older}: {newer} has written");
    let _: () = redis.del(NAME).await?;
    seal.shutdown().await;
    Ok(())
}
