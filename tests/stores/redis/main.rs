//! The Redis store on real servers: the conformance suite, faults, and servers that it refuses.
//!
//! If Redis is not installed, the tests are reported as ignored, with the reason.

#![allow(clippy::disallowed_methods, reason = "a test measures time, and spawns as users do")]

mod backend;
mod clocks;
mod crowd;
mod faults;
mod leases;
#[path = "../vectors/notation.rs"]
mod notation;
mod permissions;
mod refused;
#[path = "../vectors/replay.rs"]
mod replay;
mod unable;
mod vectors;

use std::{process::ExitCode, sync::Arc, time::Duration};

use mongoseal::{Builder, Mongoseal, Result, store::Store};
use mongoseal_conformance::requirements_of;
use mongoseal_redis::{RedisBackend, RedisStore};
use mongoseal_test_support::{Redis, Turn, eventually, run_trials, secs, trial, trials};
use redis::{FromRedisValue, aio::MultiplexedConnection};
use tokio::sync::OnceCell;

/// How long the stores keep idle records.
const RETENTION: Duration = secs(3600);

/// The server of the tests that change nothing about a server.
async fn shared() -> &'static Redis {
    static SERVER: OnceCell<Redis> = OnceCell::const_new();
    SERVER.get_or_init(Redis::start).await
}

/// A prefix that no other test has.
fn prefix() -> String {
    format!("test-{:016x}", fastrand::u64(..))
}

/// A backend with this prefix on a server.
fn backend(server: &Redis, prefix: &str) -> RedisBackend {
    RedisBackend::new(server.url()).unwrap().with_collection(prefix).unwrap()
}

fn store(server: &Redis) -> Arc<dyn Store> {
    Arc::new(RedisStore::new(backend(server, &prefix()), RETENTION))
}

/// A builder whose calls end soon, and not before a busy machine has answered.
fn hasty() -> Builder {
    Mongoseal::builder().operation_timeout(secs(3))
}

/// Connects with the settings of a builder.
async fn open(builder: Builder, uri: impl AsRef<str>) -> Result<Mongoseal> {
    builder.connect_to(RedisBackend::new(uri)?).await
}

/// A server of which one replica must acknowledge each write.
fn replicated(uri: impl AsRef<str>) -> RedisBackend {
    RedisBackend::new(uri).unwrap().with_replicas(1)
}

/// A server, and a replica that follows it.
async fn with_replica() -> (Redis, Redis) {
    let primary = Redis::start().await;
    let replica = Redis::start_replica(&primary).await;
    follows(&primary).await;
    (primary, replica)
}

/// Waits until a replica follows this server.
async fn follows(primary: &Redis) {
    let follows = async || send::<u32>(primary, "WAIT 1 100").await == 1;
    eventually(secs(30), "the replica follows", follows).await;
}

/// Stops a replica, which receives nothing from then on. Its connection is closed, because the system keeps writes for it.
async fn cut_off(primary: &Redis, replica: &Redis) {
    replica.pause();
    assert_eq!(send::<u32>(primary, "CLIENT KILL TYPE replica").await, 1);
}

/// A connection of the test's own.
async fn client(server: &Redis) -> MultiplexedConnection {
    connect(server.url()).await
}

/// Connects as an operator who waits for a server on a busy machine. By default the crate waits half a second for an answer.
async fn connect(uri: String) -> MultiplexedConnection {
    let patience = Some(secs(60));
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    redis::Client::open(uri).unwrap().get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// Sends a command as an operator does.
async fn send<T: FromRedisValue>(server: &Redis, command: &str) -> T {
    let mut words = command.split(' ');
    let mut request = redis::cmd(words.next().unwrap());
    request.arg(words.collect::<Vec<_>>());
    request.query_async(&mut client(server).await).await.unwrap()
}

/// How many leases a handle lists.
async fn count(seal: &Mongoseal) -> usize {
    seal.leases().await.unwrap().collect().await.unwrap().len()
}

fn main() -> ExitCode {
    let mut tests = trials![Turn::Waiting, Redis::missing =>
        backend::a_swap_is_refused_if_the_key_was_deleted_and_made_again_since_the_load,
        backend::a_value_of_no_bytes_and_no_value_differ,
        backend::a_swap_works_after_the_server_has_forgotten_the_scripts,
        backend::a_list_has_the_keys_of_its_prefix_and_no_other,
        backend::a_dropped_request_leaves_the_connection_in_order,
        leases::a_value_of_another_type_is_corrupt_and_left_as_it_is,
        leases::a_waiter_polls_after_its_connection_for_messages_was_killed,
        leases::a_key_is_kept_for_its_expiry_and_the_retention,
        leases::siblings_with_prefixes_of_their_own_share_no_record,
        leases::a_lease_is_kept_while_the_runtime_of_its_holder_is_blocked,
        leases::a_handle_outlives_the_runtime_that_opened_its_connection,
        clocks::a_step_forward_ends_a_lease_earlier_by_the_step_and_tokens_grow,
        clocks::a_step_back_ends_a_lease_later_by_the_step_and_grants_no_key_early,
        clocks::waiters_are_served_and_tokens_grow_over_steps_in_both_directions,
        clocks::a_swap_is_refused_if_the_clock_has_stepped_since_its_load,
        clocks::a_token_regresses_only_if_a_record_expires_on_a_clock_that_then_steps_back_to_before_its_grant,
        clocks::a_token_regresses_in_a_failover_only_if_its_record_is_lost_and_the_next_clock_is_behind_its_grant,
        faults::a_lease_outlives_a_killed_server_with_an_append_only_file,
        faults::a_server_without_an_append_only_file_forgets_leases_and_their_tokens_still_grow,
        faults::a_call_to_a_stopped_server_ends_before_its_deadline_and_the_next_one_succeeds,
        faults::a_primary_that_becomes_a_replica_is_unavailable_and_no_lease_is_reported_lost_at_once,
        faults::a_write_that_too_few_replicas_acknowledge_is_not_confirmed,
        faults::no_verb_is_confirmed_before_enough_replicas_have_acknowledged_it,
        faults::a_waiter_is_granted_the_key_only_after_the_replicas_acknowledged_it,
        faults::a_write_that_a_replica_acknowledged_survives_the_loss_of_the_primary,
        faults::a_server_with_too_many_clients_is_unavailable_to_a_handle_that_has_a_password,
        faults::a_failover_to_a_replica_without_the_last_writes_loses_the_lease,
        refused::a_wrong_password_is_refused_and_never_shown,
        refused::a_server_that_is_not_there_is_unavailable,
        refused::a_server_that_would_break_a_promise_is_refused,
        refused::a_peer_that_is_not_redis_is_refused,
        refused::options_of_the_other_store_are_refused,
        permissions::a_user_needs_no_more_than_the_documented_permissions,
        permissions::a_missing_permission_is_named_as_such,
        unable::a_server_that_an_operator_keeps_from_writes_is_unavailable,
        unable::a_server_that_runs_the_script_of_another_program_is_unavailable,
        unable::a_server_that_cannot_save_is_unavailable,
        unable::a_server_that_loads_its_append_only_file_is_unavailable,
        vectors::the_store_does_what_the_vectors_say,
    ];
    tests.extend(trials![Turn::Busy, Redis::missing => crowd::a_crowd_is_queued_leaves_when_it_is_dropped_and_is_served_in_its_turn,]);
    // These judge seconds.
    tests.extend(trials![Turn::Night, Redis::missing =>
        crowd::three_hundred_waits_of_a_handle_end_held_and_in_time,
        crowd::a_thousand_waits_of_three_handles_end_held_and_in_time,
    ]);
    let probe = RedisStore::new(RedisBackend::new("redis://nowhere").expect("it is a URI"), RETENTION);
    let (declared, left_out) = requirements_of(&probe);
    for requirement in left_out {
        println!("the Redis store does not declare {}", requirement.name());
    }
    tests.extend(declared.into_iter().map(|requirement| {
        let name = format!("conformance::{}", requirement.name());
        trial(&name, Turn::Waiting, Redis::missing, move || async move {
            requirement.check(store(shared().await)).await;
        })
    }));
    run_trials(tests)
}
