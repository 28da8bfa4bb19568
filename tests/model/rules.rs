//! Each rule is needed: without it the model finds a violated promise.

use crate::{
    config::{Config, Rule},
    explore,
};

const TWICE: &str = "no token is issued twice";
const ORDER: &str = "tokens are in the order of grants";
const ACCEPTED: &str = "no older token is accepted after a newer";
const EXCLUSION: &str = "no two believe at once that do not share";
const OLDER: &str = "no holder reads an older value than one confirmed under a smaller token";
const TOUCHED: &str = "no request touches another's lease";

/// Three clients with a request each, and one of them with a release.
const FEW: Config = Config::PLAIN;
/// Two with a request each.
const TWO: Config = Config { asks: [1, 1, 0], sends: [1, 1, 0], ..FEW };

/// Without the rule one of these promises is broken, in a few steps; with it none is.
fn breaks(config: Config, rule: Rule, promises: &[&str]) {
    let found = explore(&format!("without {rule:?}"), config.without(rule));
    let broken = found.iter().find(|(name, _)| promises.contains(name));
    let Some((name, steps)) = broken else { panic!("without {rule:?} nothing breaks: {found:#?}") };
    let holds = config.holder.map(|who| format!(" after client {who} is granted the key")).unwrap_or_default();
    println!("without {rule:?} {name:?} breaks in {} steps{holds}: {}", steps.len(), steps.join(", "));
}

#[test]
fn an_idle_record_is_kept_for_the_longest_ttl() {
    let found = explore("with a retention below the ttl", Config { ttls: [1, 4, 1], ..TWO });
    let steps = found.get(ORDER).or(found.get(TWICE)).unwrap_or_else(|| panic!("nothing breaks: {found:#?}"));
    println!("with a retention below the ttl {ORDER:?} breaks in {} steps: {}", steps.len(), steps.join(", "));
}

#[test]
fn a_clock_does_not_jump_forward_by_more_than_the_retention_exceeds_the_ttl() {
    let jumpy = Config { jumps_to: &[-4, 0], jumps: 2, ttls: [2; 3], retention: 2, until: 5, ..TWO };
    let found = explore("with a jump above the retention", jumpy);
    let steps = found.get(ORDER).or(found.get(TWICE)).unwrap_or_else(|| panic!("nothing breaks: {found:#?}"));
    println!("with a jump above the retention tokens break in {} steps: {}", steps.len(), steps.join(", "));
}

#[test]
fn the_expiry_of_a_record_never_goes_back() {
    breaks(FEW, Rule::ExpiryNeverBack, &[ORDER, TWICE]);
}

#[test]
fn the_expiry_of_a_record_waits_for_the_hybrid_clock() {
    let jumpy = Config { jumps_to: &[-6, 0], jumps: 2, ticks: true, ttls: [2; 3], retention: 2, ..TWO };
    breaks(jumpy, Rule::HybridInExpiry, &[ORDER, TWICE]);
}

#[test]
fn a_late_reply_is_thrown_away() {
    breaks(TWO, Rule::LateReplies, &[ORDER, TWICE]);
}

#[test]
fn a_token_is_no_smaller_than_the_clock() {
    breaks(TWO, Rule::ClockInTokens, &[TWICE, ORDER]);
}

#[test]
fn a_token_is_larger_than_the_version() {
    breaks(Config { sends: [2, 1, 0], ..TWO }, Rule::VersionInTokens, &[TWICE, ORDER]);
}

#[test]
fn a_fence_is_crossed_where_tokens_repeat() {
    let fenced = Config { writes: true, ..TWO };
    breaks(fenced, Rule::ClockInTokens, &[ACCEPTED, TWICE, ORDER]);
}

#[test]
fn that_somebody_holds_is_told_by_a_write_only() {
    let deposed = Config { deposes: true, refreshes: 1, ttls: [2; 3], retention: 2, sends: [2, 1, 0], ..TWO };
    breaks(deposed, Rule::SuccessWrites, &[EXCLUSION]);
}

#[test]
fn a_claim_lasts_from_when_its_waiter_was_last_heard_of() {
    let waits = Config { waits: true, ttls: [2; 3], retention: 2, until: 2, ..FEW };
    breaks(waits, Rule::ClaimsFromLastAsk, &[EXCLUSION]);
}

#[test]
fn a_release_names_a_lease_and_not_only_the_key() {
    breaks(Config { loses: [true; 3], asks: [1, 1, 0], ..FEW }, Rule::ReleaseNamesToken, &[TOUCHED]);
}

#[test]
fn a_release_names_the_token_and_not_only_the_lease_id() {
    let repeated = Config { loses: [true; 3], asks: [1, 0, 0], sends: [4, 0, 0], ..FEW };
    breaks(repeated, Rule::ReleaseNamesGrant, &[TOUCHED]);
}

#[test]
fn a_confirmed_refresh_counts_its_deadline_from_its_own_send() {
    let refreshes = Config { holder: Some(0), refreshes: 2, ttls: [2; 3], retention: 2, sends: [3, 1, 0], ..TWO };
    breaks(Config { until: 2, ..refreshes }, Rule::OwnSend, &[EXCLUSION]);
}

/// The second client holds the key, may release it, and asks anew. The first asks, and asks again.
const RETRIES: Config =
    Config { holder: Some(1), loses: [true, false, false], asks: [1, 2, 0], sends: [2, 3, 0], ..TWO };

#[test]
fn the_answer_to_an_acquire_is_its_own_write() {
    breaks(Config { ttls: [2; 3], retention: 2, until: 2, ..RETRIES }, Rule::AnswerIsOwnWrite, &[EXCLUSION]);
}

#[test]
fn if_the_write_of_an_acquire_fails_no_read_answers() {
    let fails = Config { holder: None, asks: [1, 1, 0], sends: [2, 1, 0], ttls: [2; 3], retention: 2, ..RETRIES };
    breaks(Config { until: 2, ..fails }, Rule::FailureIsNoAnswer, &[EXCLUSION]);
}

#[test]
fn the_grace_covers_the_offset_between_the_clocks_of_members() {
    let members = Config { members: &[0, 1], failovers: 1, grace: 1, retention: 2, ..TWO };
    breaks(members, Rule::GraceCoversOffset, &[EXCLUSION]);
}

#[test]
fn a_joint_refresh_names_tokens_and_not_only_keys() {
    let jointly = Config { holder: Some(0), refreshes: 1, jointly: true, sends: [2, 1, 0], ..TWO };
    breaks(Config { ttls: [2, 1, 1], retention: 2, ..jointly }, Rule::JointNamesToken, &[TOUCHED]);
}

#[test]
fn a_joint_refresh_succeeds_only_if_it_changed_all_that_it_names() {
    let deposed = Config { holder: Some(1), deposes: true, refreshes: 1, jointly: true, sends: [2, 1, 1], ..FEW };
    breaks(Config { ttls: [2, 1, 1], retention: 2, ..deposed }, Rule::JointCounts, &[EXCLUSION]);
}

#[test]
fn each_of_two_acquires_in_one_command_has_an_answer_of_its_own() {
    breaks(Config { waits: true, together: true, ..TWO }, Rule::EachItsAnswer, &[EXCLUSION]);
}

/// The first client downgrades its lease. Its acquires may be late, so its lease id can be granted again.
const DOWNGRADES: Config = Config { downgrades: true, ..FEW };

#[test]
fn a_downgrade_names_the_token_and_not_only_the_lease_id() {
    let repeated = Config { loses: [true; 3], asks: [1, 0, 0], sends: [4, 0, 0], ..DOWNGRADES };
    breaks(repeated, Rule::DowngradeNamesToken, &[TOUCHED]);
}

#[test]
fn a_holder_shares_the_key_from_the_send_of_its_downgrade_on() {
    let shared =
        Config { holder: Some(0), shares: [false, true, true], sends: [2, 1, 0], asks: [1, 1, 0], ..DOWNGRADES };
    breaks(Config { ttls: [2; 3], retention: 2, ..shared }, Rule::SharesFromSend, &[EXCLUSION]);
}

/// Two holders write a value each, one after the other; the first may write another.
const VALUES: Config = Config { holder: Some(0), values: 2, ttls: [2; 3], retention: 2, sends: [3, 1, 0], ..TWO };

#[test]
fn a_write_of_a_value_names_the_lease_under_which_it_is_made() {
    breaks(Config { sends: [2, 2, 0], values: 1, ..VALUES }, Rule::PutNamesLease, &[OLDER]);
}

#[test]
fn a_write_of_a_value_names_the_write_that_it_follows() {
    breaks(VALUES, Rule::PutFollows, &[OLDER]);
}
