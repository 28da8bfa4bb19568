//! What a handle promises on every store, each written once. [`bodies!`] lists them for the targets that run them.

pub(crate) mod elections;
pub(crate) mod ended_by_others;
pub(crate) mod first_free;
pub(crate) mod given_away;
pub(crate) mod holding;
pub(crate) mod sharing;
pub(crate) mod turns;
pub(crate) mod watching;

/// Gives all bodies, by their files, to a macro.
macro_rules! bodies {
    ($run:ident) => {
        $run! {
            elections: [
                a_follower_sees_the_value_of_a_leader_of_another_process_and_leads_after_it,
                a_leadership_that_ends_by_a_step_down_or_by_bad_health_goes_to_the_other_process_and_comes_back,
                a_key_that_is_shared_or_only_kept_has_no_leader,
                of_many_runners_of_a_tick_one_runs_it_and_the_rest_find_it_completed,
            ],
            ended_by_others: [
                a_holder_learns_of_its_revocation_and_who_waits_is_next,
                a_resumed_lease_hears_of_its_revocation,
                a_revocation_of_one_token_ends_its_lease_and_no_other_sharer,
                a_revocation_with_a_bound_leaves_later_leases_and_the_record_keeps_the_last_eight,
                a_group_is_refreshed_and_released_by_another_process_and_its_holders_and_waiters_are_told,
                a_purge_never_touches_a_live_lease,
            ],
            first_free: [
                the_keys_are_tried_in_their_order_and_the_first_free_one_is_granted,
                who_waits_for_several_keys_is_queued_for_each_and_leaves_the_others_at_the_grant,
            ],
            given_away: [
                a_lease_is_given_to_another_process_with_a_larger_token_and_nobody_comes_between,
                a_lease_goes_on_in_another_process_as_it_was,
            ],
            holding: [
                a_key_that_looks_like_an_operator_is_a_key_like_any_other,
                a_dropped_lease_is_released_and_so_is_one_whose_acquire_was_dropped,
                a_lease_whose_record_was_removed_is_lost_with_its_next_refresh_and_never_created_again,
                a_refresh_and_a_verify_by_hand_find_a_removal_or_a_takeover_and_say_to_whom,
                a_refreshed_lease_outlasts_its_ttl_and_that_of_a_dead_process_is_granted_again,
                a_lease_without_expiry_lasts_until_it_is_released,
                a_shutdown_releases_the_leases_of_its_handle_and_of_no_other,
            ],
            sharing: [
                a_downgrade_lets_waiting_sharers_in_up_to_its_limit,
                a_sharer_that_is_alone_becomes_exclusive_with_a_larger_token,
                of_a_crowd_that_shares_a_free_key_each_is_granted_it_with_a_token_of_its_own,
            ],
            turns: [
                waiters_of_many_handles_are_served_in_the_order_they_came,
                a_wait_that_ends_and_one_that_is_dropped_leave_the_queue,
                of_a_crowd_as_many_wait_as_there_is_room_for_and_the_others_are_told,
                sets_of_the_same_keys_never_block_each_other_for_ever,
            ],
            watching: [
                a_watch_reports_each_way_in_which_a_lease_ends,
                a_watch_of_a_prefix_reports_each_of_its_keys_and_no_other,
                a_watch_goes_on_beside_values_and_does_not_carry_them,
            ],
        }
    };
}
pub(crate) use bodies;
