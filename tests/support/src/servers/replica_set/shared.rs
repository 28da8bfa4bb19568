//! Sets that the tests of one process share.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, PoisonError},
};

use tokio::sync::OnceCell;

use super::ReplicaSet;

/// The set of `members` that all tests of this process share; the first to ask starts it.
///
/// For tests that leave it as it was: they use keys or collections of their own, and do it no harm.
///
/// With `MONGOSEAL_TEST_URI` set, it is the set found there, however many members that has. Then
/// only [`uri`](ReplicaSet::uri), [`client`](ReplicaSet::client), [`admin`](ReplicaSet::admin),
/// fail points, and what only reads are available; the methods that need control of the processes
/// panic.
pub async fn shared(members: usize) -> &'static ReplicaSet {
    static SETS: LazyLock<Mutex<HashMap<usize, &'static OnceCell<ReplicaSet>>>> = LazyLock::new(Mutex::default);

    let outside = std::env::var("MONGOSEAL_TEST_URI").ok();
    // An outside set is one and the same for every count.
    let count = if outside.is_some() { 0 } else { members };
    // Leaked once per count; a set ends with the process, not with a destructor.
    let cell: &'static OnceCell<ReplicaSet> = {
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.entry(count).or_insert_with(|| Box::leak(Box::default()))
    };
    cell.get_or_init(|| async {
        match outside {
            Some(uri) => ReplicaSet::at(uri),
            None => ReplicaSet::start(members).await,
        }
    })
    .await
}
