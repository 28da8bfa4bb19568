//! What every store must do, clause by clause: for authors of a [`Store`].
//!
//! Run each of the [`clauses`] on a store of your own in a test, and give the test the clause's name:
//! it fails with a sentence that says what was expected.
//!
//! ```
//! use std::sync::Arc;
//! use mongoseal::{conformance, store::MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! for clause in conformance::clauses() {
//!     println!("{}", clause.name());
//!     clause.check(Arc::new(MemoryStore::default())).await;
//! }
//! # }
//! ```
//!
//! Clauses use keys of their own, random ones, so that they can share a store with others; they leave
//! records behind. Each takes a second or two, because leases have to expire.
#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used, reason = "a clause fails by panicking")]

mod bench;
mod following;
mod joint;
mod leases;
mod lists;
mod machine;
mod waiting;

use std::{fmt, sync::Arc};

use bench::Bench;

use crate::store::{BoxFuture, Store};

/// One thing that a store must do.
#[derive(Clone, Copy)]
pub struct Clause {
    name: &'static str,
    run: fn(Bench) -> BoxFuture<()>,
}

impl Clause {
    /// The sentence that it proves, in words joined by `_`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Puts a store to the test. Needs a tokio runtime with time.
    ///
    /// # Panics
    ///
    /// Where the store does otherwise.
    pub async fn check(&self, store: Arc<dyn Store>) {
        (self.run)(Bench::on(store)).await;
    }
}

impl fmt::Debug for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Lists functions as clauses, by their names.
macro_rules! list {
    ($($of:ident::$name:ident),* $(,)?) => {
        &[$(Clause { name: stringify!($name), run: |bench| Box::pin($of::$name(bench)) }),*]
    };
}

/// All clauses.
#[must_use]
pub fn clauses() -> &'static [Clause] {
    list![
        leases::a_free_key_is_granted_and_read_at_once,
        leases::a_held_key_is_refused_and_its_record_stays_as_it_is,
        leases::the_same_request_again_keeps_its_token,
        leases::tokens_grow_over_release_and_expiry,
        leases::a_lease_ends_at_its_ttl_and_not_before,
        leases::a_refresh_pushes_the_end_out_and_never_creates,
        leases::grace_keeps_the_key_after_the_ttl_and_a_release_ends_it,
        leases::a_release_ends_its_own_lease_and_no_other,
        leases::of_many_who_ask_at_once_one_is_granted_the_key,
        leases::sharers_are_as_many_as_all_of_them_allow,
        leases::a_revocation_ends_the_leases_it_means_and_is_remembered,
        leases::a_transfer_changes_the_holder_and_the_token_once,
        leases::a_downgrade_lets_sharers_in_and_keeps_lease_token_and_expiry,
        leases::a_raise_lifts_the_version_and_ends_no_lease,
        leases::texts_of_callers_come_back_as_they_are,
        leases::clocks_move_on_and_never_back,
        leases::the_time_of_the_store_is_that_of_its_writes,
        waiting::waiters_are_granted_the_key_in_the_order_they_came,
        waiting::a_waiter_that_is_not_heard_of_falls_out,
        waiting::a_full_queue_takes_nobody,
        waiting::a_handle_is_told_what_it_is_handed_and_robbed_of,
        joint::a_joint_release_gives_back_what_it_names_and_hands_it_over,
        joint::a_joint_release_of_a_key_is_of_all_that_are_named_or_of_none,
        joint::a_joint_revocation_is_remembered_with_its_tokens,
        joint::a_joint_refresh_keeps_all_that_it_names_or_none,
        joint::what_is_kept_is_kept_though_another_key_is_not,
        lists::a_list_is_what_was_asked_for_in_the_order_of_tokens,
        lists::a_prune_removes_what_is_over_and_nothing_else,
        lists::a_record_is_not_deleted_before_its_retention,
        following::a_record_that_is_there_is_told_first,
        following::what_each_change_makes_of_a_record_is_told_in_order,
        following::who_follows_no_more_is_told_no_more,
        machine::random_requests_come_to_what_the_machine_says,
    ]
}
