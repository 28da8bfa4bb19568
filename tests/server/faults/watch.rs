//! A watch continues when the primary changes.

use mongoseal::{EventKind, Mongoseal};
use mongoseal_test_support::ReplicaSet;
use tokio::time::timeout;

use crate::{connect, secs, turn};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_grant_is_left_out_over_step_down_and_kill_of_the_primary() {
    let _turn = turn().await;
    let set = ReplicaSet::start(3).await;
    let builder = || Mongoseal::builder().operation_timeout(secs(20));
    let (watching, working) = (connect(builder(), set.uri()).await, connect(builder(), set.uri()).await);
    let mut stream = watching.watch("k").await.unwrap();
    // Read as they come: a watch keeps 4,096 changes that are not read yet, and a fast machine makes more.
    let (told, mut events) = tokio::sync::mpsc::unbounded_channel();
    let reader = tokio::spawn(async move {
        while let Some(event) = stream.next().await
            && told.send(event).is_ok()
        {}
    });
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let worker = tokio::spawn({
        let mut end = end;
        async move {
            let mut tokens = Vec::new();
            // Until told, and then one that comes after all.
            loop {
                let last = end.try_recv().is_ok();
                let lease = working.acquire("k").ttl(secs(60)).wait(secs(60)).await.unwrap();
                tokens.push(lease.token());
                lease.release().await.unwrap();
                if last {
                    return tokens;
                }
            }
        }
    });
    tokio::time::sleep(secs(1)).await;
    set.step_down().await;
    set.settled().await;
    tokio::time::sleep(secs(1)).await;
    let killed = set.primary().await;
    set.kill(killed).await;
    tokio::time::sleep(secs(8)).await;
    set.restart(killed).await;
    set.settled().await;
    ended.send(()).unwrap();
    let granted = worker.await.unwrap();
    println!("{} grants", granted.len());
    assert!(granted.len() > 20, "{}", granted.len());
    let mut told = Vec::new();
    while told.last() != granted.last() {
        let event = timeout(secs(30), events.recv()).await.expect("it is told").expect("it goes on").unwrap();
        match event.kind {
            EventKind::Granted { .. } => told.push(event.token),
            // An acquire whose answer was lost is asked for again: it has its token already.
            EventKind::Released => assert_eq!(Some(&event.token), told.last()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, granted);
    watching.shutdown().await;
    reader.abort();
}
