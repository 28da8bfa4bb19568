//! A requirement fails on a store that breaks its sentence.

use std::{sync::Arc, time::Duration};

use mongoseal::{
    FencingToken, Key, Result,
    record::{BatchRequest, Filter, KeyFilter, LeaseRefs, Outcome, Position, Request, StoreTime},
    store::{
        Applied, BoxFuture, Clock, Deadline, FollowedState, HandleId, HybridTime, MemoryStore, Notification, Page,
        Snapshot, Store,
    },
};
use mongoseal_conformance::requirements;
use tokio::{
    sync::mpsc::{Sender, UnboundedSender},
    task::JoinSet,
};

/// What a store does wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It applies another request.
    Request(fn(&mut Request)),
    /// It returns another answer.
    Answer(fn(&mut Applied)),
    /// It reads another record.
    Read(fn(&mut Snapshot)),
    /// It applies a batch request to each lease alone.
    SplitBatch,
    /// It applies another batch request.
    Batch(fn(&mut BatchRequest)),
    /// It takes so long for each request.
    Slow(Duration),
}

/// A store in memory with a fault.
#[derive(Clone, Debug)]
struct Broken {
    store: Arc<MemoryStore>,
    fault: Fault,
}

impl Store for Broken {
    fn apply(&self, key: &Key, mut request: Request, deadline: Deadline) -> BoxFuture<Result<Applied>> {
        let fault = self.fault;
        if let Fault::Request(alter) = fault {
            alter(&mut request);
        }
        let (store, key) = (self.store.clone(), key.clone());
        Box::pin(async move {
            if let Fault::Slow(delay) = fault {
                tokio::time::sleep(delay).await;
            }
            let applied = store.apply(&key, request, deadline);
            let mut applied = applied.await?;
            if let Fault::Answer(alter) = fault {
                alter(&mut applied);
            }
            Ok(applied)
        })
    }

    fn apply_batch(&self, leases: &LeaseRefs, batch: &BatchRequest, deadline: Deadline) -> BoxFuture<Result<bool>> {
        let (store, leases, mut batch) = (self.store.clone(), leases.clone(), batch.clone());
        match self.fault {
            Fault::SplitBatch => Box::pin(async move {
                let mut done = true;
                for (key, tokens) in leases {
                    for token in tokens {
                        done &= store.apply_batch(&vec![(key.clone(), vec![token])], &batch, deadline).await?;
                    }
                }
                Ok(done)
            }),
            Fault::Batch(alter) => {
                alter(&mut batch);
                store.apply_batch(&leases, &batch, deadline)
            }
            _ => store.apply_batch(&leases, &batch, deadline),
        }
    }

    fn read(&self, key: &Key, deadline: Deadline) -> BoxFuture<Result<Option<Snapshot>>> {
        let (read, fault) = (self.store.read(key, deadline), self.fault);
        Box::pin(async move {
            let mut snapshot = read.await?;
            if let (Fault::Read(alter), Some(snapshot)) = (fault, &mut snapshot) {
                alter(snapshot);
            }
            Ok(snapshot)
        })
    }

    fn prepare(&self, deadline: Deadline) -> BoxFuture<Result<()>> {
        self.store.prepare(deadline)
    }

    fn now(&self, deadline: Deadline) -> BoxFuture<Result<StoreTime>> {
        self.store.now(deadline)
    }

    fn list(&self, filter: &Filter, after: Option<Position>, size: u32, deadline: Deadline) -> BoxFuture<Result<Page>> {
        self.store.list(filter, after, size, deadline)
    }

    fn notifications(
        &self,
        handle: HandleId,
        since: HybridTime,
        to: UnboundedSender<Notification>,
    ) -> BoxFuture<Result<()>> {
        self.store.notifications(handle, since, to)
    }

    fn follow(&self, filter: &KeyFilter, known: Vec<Key>, states: Sender<FollowedState>) -> BoxFuture<Result<()>> {
        self.store.follow(filter, known, states)
    }

    fn close(&self, deadline: Deadline) -> BoxFuture<()> {
        self.store.close(deadline)
    }

    fn clock(&self) -> Clock {
        self.store.clock()
    }

    fn retention(&self) -> Duration {
        self.store.retention()
    }
}

/// A fault, and the requirements that it breaks.
const FAULTS: &[(Fault, &[&str])] = &[
    (
        Fault::Request(|request| {
            if let Request::Release(release) = request {
                *request = Request::Refresh(mongoseal::record::Refresh {
                    lease: release.lease,
                    ttl: 60_000,
                    grace: 0,
                    metadata: None,
                    acquire_id: None,
                });
            }
        }),
        &["tokens_grow_over_release_and_expiry", "a_release_ends_its_own_lease_and_no_other"],
    ),
    (
        Fault::Request(|request| {
            if let Request::Acquire(acquire) = request {
                acquire.terms.grace = 0;
                acquire.terms.metadata = mongoseal::Metadata::default();
            }
        }),
        &["grace_keeps_the_key_after_the_ttl_and_a_release_ends_it", "texts_of_callers_are_returned_unchanged"],
    ),
    (
        Fault::Request(|request| {
            if let Request::Acquire(acquire) = request {
                acquire.terms.hold.min = None;
                if let Some(wait) = &mut acquire.wait {
                    wait.queue_limit = 100;
                }
            }
        }),
        &[
            "a_full_queue_takes_no_waiter",
            "a_release_keeps_the_key_unavailable_until_the_minimum_hold_ends",
            "a_waiter_is_granted_the_key_when_the_minimum_hold_has_ended",
        ],
    ),
    (
        Fault::Request(|request| {
            if let Request::Acquire(acquire) = request {
                acquire.terms.hold.max = None;
                acquire.terms.sharing = mongoseal::Sharing::UpTo(9);
            }
        }),
        &[
            "no_request_extends_a_lease_past_its_maximum_hold",
            "sharers_are_as_many_as_each_of_them_allows",
            "a_held_key_is_refused_and_its_record_stays_as_it_is",
        ],
    ),
    (
        Fault::Request(|request| match request {
            Request::Revoke(revoke) => (revoke.by, revoke.upto) = ("'$ops'".into(), FencingToken::MAX),
            Request::Complete(complete) => (complete.keep, complete.tick) = (0, complete.tick + 1),
            Request::Raise(_) => *request = Request::Prune,
            Request::PutValue(put) => (put.after, put.keep) = (0, 0),
            _ => {}
        }),
        &[
            "a_revocation_ends_the_leases_up_to_its_token_and_is_recorded",
            "a_completed_tick_is_kept_beyond_the_retention_for_as_long_as_its_completion_says",
            "a_completion_never_lowers_the_last_completed_tick",
            "a_raise_lifts_the_version_and_ends_no_lease",
            "a_delayed_or_repeated_write_changes_no_value",
            "a_release_with_a_value_is_one_write_and_the_value_is_kept_beyond_the_retention",
        ],
    ),
    (
        Fault::Answer(|applied| applied.changed = true),
        &[
            "a_held_key_is_refused_and_its_record_stays_as_it_is",
            "a_second_completion_is_answered_as_the_first_and_changes_nothing",
        ],
    ),
    (
        Fault::Answer(|applied| {
            if matches!(applied.outcome, Outcome::Transferred { .. } | Outcome::Downgraded | Outcome::Queued { .. }) {
                applied.outcome = Outcome::Absent;
            }
        }),
        &[
            "a_transfer_changes_the_holder_and_the_token_once",
            "an_upgrade_makes_a_sharer_that_is_alone_exclude_others",
            "a_downgrade_lets_sharers_in_and_keeps_lease_token_and_expiry",
            "waiters_are_granted_the_key_in_their_order",
        ],
    ),
    // As if a repeated acquire and a repeated refresh were answered without a write.
    (
        Fault::Read(|snapshot| snapshot.record.holders.iter_mut().for_each(|holder| holder.refreshes = 0)),
        &["the_same_request_again_keeps_its_token", "a_refresh_extends_a_lease_and_never_creates_one"],
    ),
    (Fault::Read(|snapshot| snapshot.record.queue.reverse()), &["waiters_are_granted_the_key_in_their_order"]),
    (
        Fault::SplitBatch,
        &[
            "a_batch_release_of_a_key_is_of_all_named_leases_or_of_none",
            "a_key_is_kept_though_another_key_of_its_batch_is_not",
        ],
    ),
    (
        Fault::Batch(|batch| match batch {
            BatchRequest::Revoke { .. } => *batch = BatchRequest::Release,
            BatchRequest::Keep { ttl } => *ttl *= 2,
            BatchRequest::Release => *batch = BatchRequest::Revoke { by: "ops".into(), reason: "drill".into() },
        }),
        &[
            "a_batch_revocation_is_recorded_with_its_tokens",
            "a_batch_release_releases_what_it_names_and_hands_the_keys_over",
            "a_key_is_kept_though_another_key_of_its_batch_is_not",
            "a_batch_finds_no_released_lease_and_a_revocation_ends_its_minimum_hold",
        ],
    ),
];

fn check(name: &str, fault: Fault) -> impl Future<Output = ()> + Send + 'static {
    let requirement = requirements().iter().find(|requirement| requirement.name() == name);
    let requirement = requirement.unwrap_or_else(|| panic!("there is no requirement {name}"));
    requirement.check(Arc::new(Broken { store: Arc::default(), fault }))
}

#[tokio::test]
async fn a_requirement_fails_on_a_store_that_breaks_its_sentence() {
    let mut without_fault = JoinSet::new();
    for (fault, broken) in FAULTS {
        for name in *broken {
            without_fault.spawn(check(name, Fault::Answer(|_| {})));
            let checked = JoinSet::from_iter([check(name, *fault)]).join_next().await;
            assert!(
                checked.is_some_and(|checked| checked.is_err()),
                "{name} must fail on a store with the fault {fault:?}"
            );
        }
    }
    without_fault.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn with_patience_a_requirement_holds_on_a_store_that_is_only_slow_and_fails_on_one_that_is_wrong() {
    let run = async |name: &str, fault: Fault, patience: u32| {
        let requirement = requirements().iter().find(|requirement| requirement.name() == name).unwrap();
        let (requirement, store) =
            (requirement.with_patience(patience), Arc::new(Broken { store: Arc::default(), fault }));
        let checked = JoinSet::from_iter([async move { requirement.check(store).await }]).join_next().await;
        checked.unwrap().is_ok()
    };
    // Slower than the times of the requirement: its ttl, or its hold.
    for (name, delay) in [
        ("a_refresh_extends_a_lease_and_never_creates_one", 2_500),
        ("a_release_keeps_the_key_unavailable_until_the_minimum_hold_ends", 3_000),
        ("no_request_extends_a_lease_past_its_maximum_hold", 4_500),
    ] {
        let slow = Fault::Slow(Duration::from_millis(delay));
        assert!(!run(name, slow, 1).await, "{name} on a slow store");
        assert!(run(name, slow, 4).await, "{name} on a slow store with patience");
    }
    for (fault, broken) in FAULTS {
        for name in *broken {
            assert!(!run(name, *fault, 4).await, "{name} must fail with patience on a store with the fault {fault:?}");
        }
    }
}
