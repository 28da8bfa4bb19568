//! The conformance suite of [`mongoseal`], for authors of a [`Store`]: one test for each thing that a store must do.
//!
//! Run each of the [`requirements`] on your store, as a test with the requirement's name. A requirement that is not kept panics with a
//! sentence about what was expected.
//!
//! ```
//! use std::sync::Arc;
//! use mongoseal::store::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! for requirement in mongoseal_conformance::requirements() {
//!     println!("{}", requirement.name());
//!     requirement.check(Arc::new(MemoryStore::default())).await;
//! }
//! # }
//! ```
//!
//! Each requirement uses random keys of its own, so stores can be shared with other users. Records are left behind. A requirement
//! takes a second or two, because leases have to expire.
//!
//! Mechanism: after each request, the suite reads the record. The record and the answer must be those of the state machine,
//! [`mongoseal::record::apply`], at the time of the answer. So most requirements are a list of requests.

mod batch;
mod completions;
mod fixture;
mod following;
mod holds;
mod leases;
mod lists;
mod machine;
mod values;
mod waiting;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use fixture::Fixture;

use mongoseal::store::{BoxFuture, Capabilities, Store};

/// One thing that a store must do.
#[derive(Clone, Copy)]
pub struct Requirement {
    name: &'static str,
    /// How many times longer its times are than on a fast store.
    patience: u32,
    run: fn(Fixture) -> BoxFuture<()>,
    /// Whether a store that can do this must keep the requirement.
    applies: fn(&Capabilities) -> bool,
}

impl Requirement {
    /// The sentence that the requirement proves, in words joined by `_`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether a store with these capabilities must keep the requirement.
    #[must_use]
    pub fn applies_to(&self, capabilities: &Capabilities) -> bool {
        (self.applies)(capabilities)
    }

    /// The same requirement with times that are longer by this factor: for a store, or a machine, that is slow.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use mongoseal::store::MemoryStore;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let requirement = &mongoseal_conformance::requirements()[0];
    /// requirement.with_patience(4).check(Arc::new(MemoryStore::default())).await;
    /// # }
    /// ```
    #[must_use]
    pub fn with_patience(self, patience: u32) -> Self {
        Self { patience: patience.max(1), ..self }
    }

    /// Checks a store. Needs a tokio runtime with time.
    ///
    /// # Panics
    ///
    /// If the store does otherwise.
    pub async fn check(&self, store: Arc<dyn Store>) {
        self.check_noting_time(store, Arc::default()).await;
    }

    /// Checks a store as [`check`](Self::check) does, and sets `is_timed` once the requirement has a ttl or a hold that a slow
    /// store could exceed. A failure before that has another cause than slowness.
    ///
    /// # Panics
    ///
    /// If the store does otherwise.
    pub async fn check_noting_time(&self, store: Arc<dyn Store>, is_timed: Arc<AtomicBool>) {
        (self.run)(Fixture::on(store, self.patience, is_timed)).await;
    }
}

impl fmt::Debug for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Lists functions as requirements. Each requirement has the name of its function. `if` names the capability that it is about.
macro_rules! requirement_list {
    ($($of:ident::$name:ident $(if $capability:ident)?),* $(,)?) => {
        &[$(Requirement {
            name: stringify!($name),
            patience: 1,
            run: |fixture| Box::pin($of::$name(fixture)),
            applies: |_capabilities| true $(&& _capabilities.$capability)?,
        }),*]
    };
}

/// The requirements that this store must keep, and those about capabilities that it does not declare.
#[must_use]
pub fn requirements_of(store: &dyn Store) -> (Vec<&'static Requirement>, Vec<&'static Requirement>) {
    let capabilities = store.capabilities();
    requirements().iter().partition(|requirement| requirement.applies_to(&capabilities))
}

/// All requirements of the suite.
#[must_use]
pub fn requirements() -> &'static [Requirement] {
    requirement_list![
        leases::a_free_key_is_granted_and_read_at_once,
        leases::a_held_key_is_refused_and_its_record_stays_as_it_is,
        leases::the_same_request_again_keeps_its_token,
        leases::an_acquire_whose_lease_id_is_in_the_record_under_another_acquire_id_changes_nothing,
        leases::tokens_grow_over_release_and_expiry,
        leases::a_lease_ends_at_its_ttl_and_not_before,
        leases::a_refresh_extends_a_lease_and_never_creates_one,
        leases::grace_keeps_the_key_after_the_ttl_and_a_release_ends_it,
        leases::a_release_ends_its_own_lease_and_no_other,
        leases::one_of_many_concurrent_acquires_is_granted_the_key,
        leases::sharers_are_as_many_as_each_of_them_allows,
        leases::a_revocation_ends_the_leases_up_to_its_token_and_is_recorded,
        leases::a_transfer_changes_the_holder_and_the_token_once,
        leases::an_upgrade_makes_a_sharer_that_is_alone_exclude_others,
        leases::a_downgrade_lets_sharers_in_and_keeps_lease_token_and_expiry,
        leases::a_raise_lifts_the_version_and_ends_no_lease,
        leases::texts_of_callers_are_returned_unchanged,
        leases::clocks_never_go_back,
        leases::the_time_of_the_store_is_that_of_its_writes,
        waiting::waiters_are_granted_the_key_in_their_order,
        waiting::a_waiter_that_does_not_repeat_its_acquire_leaves_the_queue,
        waiting::a_waiter_whose_wait_ends_lets_in_those_that_it_kept_out,
        waiting::a_full_queue_takes_no_waiter,
        waiting::a_handle_is_notified_of_its_grants_and_revocations if notifications,
        waiting::the_waiter_that_becomes_the_first_is_notified if notifications,
        holds::a_release_keeps_the_key_unavailable_until_the_minimum_hold_ends,
        holds::a_waiter_is_granted_the_key_when_the_minimum_hold_has_ended,
        holds::the_first_waiter_learns_when_a_minimum_hold_ends_whoever_that_is if notifications,
        holds::a_batch_finds_no_released_lease_and_a_revocation_ends_its_minimum_hold,
        holds::no_request_extends_a_lease_past_its_maximum_hold,
        completions::a_completion_records_the_tick_and_hands_the_key_over_in_one_write,
        completions::a_completed_tick_is_kept_beyond_the_retention_for_as_long_as_its_completion_says,
        completions::a_second_completion_is_answered_as_the_first_and_changes_nothing,
        completions::an_expired_lease_completes_its_tick_until_the_key_is_granted_again,
        completions::a_revoked_lease_completes_nothing,
        completions::a_completion_never_lowers_the_last_completed_tick,
        completions::the_history_of_a_schedule_has_its_last_32_completed_runs,
        completions::a_reset_lowers_the_last_completed_tick_and_never_raises_it,
        values::a_value_outlives_its_lease_and_the_next_grant_has_it,
        values::a_value_is_returned_unchanged,
        values::a_delayed_or_repeated_write_changes_no_value,
        values::only_the_lease_that_excludes_all_others_writes_the_value,
        values::a_release_with_a_value_is_one_write_and_the_value_is_kept_beyond_the_retention,
        batch::a_batch_release_releases_what_it_names_and_hands_the_keys_over,
        batch::a_batch_release_of_a_key_is_of_all_named_leases_or_of_none,
        batch::a_batch_revocation_is_recorded_with_its_tokens,
        batch::a_key_is_kept_though_another_key_of_its_batch_is_not,
        lists::a_list_has_the_wanted_leases_in_the_order_of_keys_and_then_of_tokens,
        lists::a_listed_lease_has_the_number_of_live_waiters,
        lists::a_prune_removes_what_has_expired_and_nothing_else,
        following::an_existing_record_is_sent_first,
        following::each_state_of_a_record_is_sent_in_order,
        following::following_ends_with_its_receiver,
        following::the_records_of_a_prefix_are_sent_first_and_then_each_change_in_order,
        machine::random_requests_do_what_the_state_machine_does,
    ]
}
