//! Acknowledged grants survive a crash, because they are journaled.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mongoseal::Mongoseal;
use mongoseal_test_support::{ReplicaSet, by_length};

use crate::{connect, secs};

/// How often the server writes its journal where nothing asks it to: the longest interval that it takes.
const JOURNAL_INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn a_grant_is_there_after_its_only_member_was_killed_right_after_it_was_acknowledged() {
    let set = ReplicaSet::builder().journal_interval(JOURNAL_INTERVAL).start().await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(120)), set.uri()).await;
    // From now on a majority means memory, so that what is in the journal is there because the write asked for it.
    let config = set.admin(0, doc! { "replSetGetConfig": 1 }).await.unwrap();
    let mut config = config.get_document("config").unwrap().clone();
    config.insert("version", config.get_i32("version").unwrap() + 1);
    config.insert("writeConcernMajorityJournalDefault", false);
    set.admin(0, doc! { "replSetReconfig": config }).await.unwrap();

    // One kill loses an unjournaled write nearly always. A kill that comes later than the interval shows nothing.
    let (mut prompt, enough) = (0, by_length(3, 12));
    for round in 0.. {
        assert!(round < 100, "only {prompt} of {round} kills came before the journal is written anyway");
        let key = format!("k/{round}");
        let lease = seal.acquire(key.as_str()).ttl(secs(3_600)).without_refresh().await.unwrap();
        let granted = Instant::now();
        set.kill(0).await;
        prompt += usize::from(granted.elapsed() < JOURNAL_INTERVAL);
        set.restart(0).await;
        let found = seal.inspect(key.as_str()).await.unwrap();
        let holders = found.map(|found| found.holders).unwrap_or_default();
        assert_eq!(holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [lease.token()], "round {round}");
        lease.orphan();
        if prompt == enough {
            break;
        }
    }
}
