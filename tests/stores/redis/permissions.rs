//! What a user of Redis must be allowed.

use std::future::IntoFuture;

use mongoseal::Error;
use mongoseal_test_support::{Redis, eventually, secs};

use crate::{count, hasty, open, replicated, send};

/// The page of the guide.
const PAGE: &str = include_str!("../../../docs/redis.md");

/// The rules of the user in the page.
fn documented() -> &'static str {
    let rules = PAGE.lines().find_map(|line| line.strip_prefix("ACL SETUSER mongoseal on >PASSWORD "));
    rules.expect("the page has the rules")
}

pub(crate) async fn a_user_needs_no_more_than_the_documented_permissions() {
    let server = Redis::start().await;
    let () = send(&server, &format!("ACL SETUSER mongoseal on >hunter2 {}", documented())).await;
    let uri = format!("redis://mongoseal:hunter2@{}", server.address());
    let seal = mongoseal_redis::connect(&uri).await.unwrap();
    let other = mongoseal_redis::connect(&uri).await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    let waiting = tokio::spawn(other.acquire("k").wait(secs(30)).into_future());
    assert_eq!(count(&seal).await, 1);
    lease.refresh().await.unwrap();
    lease.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    seal.purge().await.unwrap();
    // On a busy machine, the server may not answer in time for another reason.
    eventually(secs(60), "the missing replica is named", async || {
        let acquired = async { hasty().connect_to(replicated(&uri)).await?.acquire("k").await };
        acquired.await.is_err_and(|error| error.to_string().contains("replicas"))
    })
    .await;
    // The driver's name, and the time of flushes: the library does without them.
    let refused: Vec<redis::Value> = send(&server, "ACL LOG").await;
    for entry in refused.iter().map(|entry| format!("{entry:?}")) {
        assert!(["client|setinfo", "config|get"].iter().any(|command| entry.contains(command)), "{entry}");
    }
}

pub(crate) async fn a_missing_permission_is_named_as_such() {
    let server = Redis::start().await;
    for (part, refuses) in [("+evalsha", true), ("+publish", false), ("&mongoseal:*", false), ("+info", true)] {
        assert!(documented().contains(part), "{part}");
        let () = send(&server, "ACL DELUSER mongoseal").await;
        let rules = documented().split_whitespace().filter(|rule| *rule != part).collect::<Vec<_>>().join(" ");
        let () = send(&server, &format!("ACL SETUSER mongoseal on >hunter2 {rules}")).await;
        let acquired = async {
            let seal = open(hasty(), format!("redis://mongoseal:hunter2@{}", server.address())).await?;
            let lease = seal.acquire("k").await?;
            let waiting = tokio::spawn(seal.acquire("k").wait(secs(30)).into_future());
            lease.release().await?;
            waiting.await.unwrap()?.release().await
        };
        match acquired.await {
            Err(Error::Invalid { message, .. }) if refuses => assert!(message.contains("permission"), "{message}"),
            Ok(_) if !refuses => {}
            other => panic!("without {part}: {other:?}"),
        }
    }
}
