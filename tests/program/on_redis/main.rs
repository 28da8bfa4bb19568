//! The program on real Redis servers.
//!
//! If Redis is not installed, the tests are reported as ignored, with the reason.

#![allow(clippy::disallowed_methods, reason = "a test measures time, and spawns as users do")]

mod commands;
mod connection;
mod doctor;
#[path = "../ended.rs"]
#[allow(dead_code, reason = "each program of tests uses a part")]
mod ended;
mod refused;

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering},
};

use mongoseal::Mongoseal;
use mongoseal_redis::RedisBackend;
use mongoseal_test_support::{Redis, Turn, run_trials, secs, trials};
use tokio::{process::Command, sync::OnceCell};

use ended::{Ended, PASSWORD, Running, done, ended, mongoseal};

/// The server of the tests that change nothing about a server.
async fn shared() -> &'static Redis {
    static SERVER: OnceCell<Redis> = OnceCell::const_new();
    SERVER.get_or_init(Redis::start).await
}

/// Runs the program on this server.
async fn run(uri: &str, arguments: &[&str]) -> Ended {
    let mut program = mongoseal(arguments);
    program.env("MONGOSEAL_URI", uri);
    done(program).await
}

/// Sends a command as an operator does.
async fn send<T: redis::FromRedisValue>(server: &Redis, command: &str) -> T {
    let mut words = command.split(' ');
    let mut request = redis::cmd(words.next().unwrap());
    request.arg(words.collect::<Vec<_>>());
    let client = redis::Client::open(server.url()).unwrap();
    // By default the crate waits half a second for an answer, and a busy machine takes longer.
    let patience = Some(secs(60));
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    request.query_async(&mut connection).await.unwrap()
}

/// The program with a prefix of a test's own on a server.
struct Console {
    uri: String,
    prefix: String,
    seal: Mongoseal,
}

impl Console {
    async fn new() -> Self {
        Self::on(shared().await.url()).await
    }

    async fn on(uri: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("cli-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let builder = Mongoseal::builder().owner("test").collection(&prefix);
        let seal = builder.connect_to(RedisBackend::new(&uri).unwrap()).await.unwrap();
        Self { uri, prefix, seal }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut program = mongoseal(arguments);
        program.env("MONGOSEAL_URI", &self.uri).env("MONGOSEAL_COLLECTION", &self.prefix);
        program
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        done(self.command(arguments)).await
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::start(&mut self.command(arguments))
    }
}

fn main() -> ExitCode {
    let mut tests = trials![Turn::Waiting, Redis::missing =>
        commands::run_holds_the_key_until_its_command_or_its_lease_ends,
        commands::hold_refuses_to_verify_and_releases,
        commands::commands_that_look_and_intervene_run_as_on_mongodb,
        commands::a_watch_reports_what_it_may_miss_and_each_event,
        connection::the_variable_of_both_products_precedes_that_of_mongodb,
        connection::a_server_that_is_not_there_and_a_wrong_password_are_one_sentence_and_one_failed_check,
        connection::a_server_that_does_not_answer_is_named_after_a_second,
        connection::replicas_must_acknowledge_if_the_option_is_given,
        connection::a_server_that_speaks_tls_only_is_used_and_examined,
        refused::what_redis_cannot_do_is_refused_before_anything_is_sent,
        refused::an_option_of_the_other_product_is_refused,
        refused::tls_to_a_port_without_tls_is_named_as_a_cause,
        refused::a_server_that_would_break_a_promise_is_refused_and_fails_its_check,
        commands::a_lease_file_is_refused_with_another_product_database_or_prefix,
        doctor::a_server_with_all_settings_passes_each_check,
        doctor::replicas_are_counted_and_the_page_has_a_row_for_each_check,
        doctor::the_documented_permissions_are_enough,
        doctor::each_missing_permission_is_named,
        doctor::keys_that_are_no_records_are_named,
        doctor::a_prefix_with_keys_is_refused,
        doctor::a_user_that_may_not_use_the_scratch_keys_is_refused_before_the_first_requirement,
        doctor::the_keys_are_deleted_after_a_signal,
    ];
    // Requirements have times that a busy machine misses.
    tests.extend(trials![Turn::Night, Redis::missing =>
        doctor::the_declared_requirements_hold_and_their_keys_are_deleted,
    ]);
    run_trials(tests)
}
