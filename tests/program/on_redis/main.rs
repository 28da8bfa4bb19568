//! The program on real Redis servers.
//!
//! If Redis is not installed, the tests are reported as ignored, with the reason.

#![allow(clippy::disallowed_methods, reason = "a test measures time, and spawns as users do")]

mod commands;
mod connection;
mod deep;
mod doctor;
#[path = "../ended.rs"]
#[allow(dead_code, reason = "each program of tests uses a part")]
mod ended;
mod files;
mod refused;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use mongoseal::Mongoseal;
use mongoseal_redis::RedisBackend;
use mongoseal_test_support::{Redis, Turn, eventually, run_trials, secs, trials};
use tokio::process::Command;

use ended::{Ended, PASSWORD, Running, done, ended, mongoseal};

/// The server of the tests that change nothing about a server.
async fn shared() -> &'static Redis {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    static STARTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _starting = STARTING.lock().await;
    if SERVER.get().is_none() {
        let server = Redis::start().await;
        SERVER.set(server).unwrap_or_else(|_| unreachable!("one test starts it"));
    }
    SERVER.get().expect("it is started")
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

/// The program with a prefix and a folder of a test's own on a server.
struct Console {
    uri: String,
    prefix: String,
    folder: PathBuf,
    seal: Mongoseal,
}

impl Console {
    async fn new() -> Self {
        Self::on(shared().await.url()).await
    }

    async fn on(uri: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("cli-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-{prefix}"));
        std::fs::create_dir_all(&folder).unwrap();
        let builder = Mongoseal::builder().owner("test").collection(&prefix);
        let seal = builder.connect_to(RedisBackend::new(&uri).unwrap()).await.unwrap();
        Self { uri, prefix, folder, seal }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut program = mongoseal(arguments);
        program.env("MONGOSEAL_URI", &self.uri).env("MONGOSEAL_COLLECTION", &self.prefix);
        program.current_dir(&self.folder);
        program
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        done(self.command(arguments)).await
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::start(&mut self.command(arguments))
    }

    /// Waits until the key has so many holders and waiters.
    async fn has(&self, key: &str, holders: usize, waiters: usize) {
        let has = async || {
            let record = self.seal.inspect(key).await.unwrap();
            let live = |record: mongoseal::inspect::Inspection| {
                (record.holders.iter().filter(|holder| !holder.is_expired()).count(), record.queue.len())
            };
            record.map_or((0, 0), live) == (holders, waiters)
        };
        eventually(secs(60), &format!("{key} has {holders} holders and {waiters} waiters"), has).await;
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn main() -> ExitCode {
    let mut tests = trials![Turn::Waiting, Redis::missing =>
        commands::run_holds_the_key_while_its_command_runs,
        commands::a_revocation_ends_the_command,
        commands::a_server_that_goes_away_ends_the_command,
        commands::acquire_leaves_a_lease_that_refresh_and_release_find,
        commands::hold_prints_its_events_and_refuses_to_verify,
        commands::commands_that_look_and_intervene_run_as_on_mongodb,
        commands::a_watch_reports_what_it_may_miss_and_each_event,
        connection::the_variable_of_both_products_precedes_that_of_mongodb,
        connection::a_wrong_password_is_refused_and_never_shown,
        connection::a_server_that_does_not_answer_is_named_after_a_second,
        connection::a_server_that_is_not_there_has_status_123,
        connection::replicas_must_acknowledge_if_the_option_is_given,
        connection::a_server_that_speaks_tls_only_is_used_and_examined,
        refused::what_redis_cannot_do_is_refused_before_anything_is_sent,
        refused::an_option_of_the_other_product_is_refused,
        refused::tls_to_a_port_without_tls_is_named_as_a_cause,
        refused::a_server_that_would_break_a_promise_is_refused_and_fails_its_check,
        files::a_lease_file_is_refused_with_another_product_database_or_prefix,
        doctor::a_server_with_all_settings_passes_each_check,
        doctor::the_page_has_a_row_for_each_check,
        doctor::replicas_are_counted,
        doctor::the_documented_permissions_are_enough,
        doctor::each_missing_permission_is_named,
        doctor::a_server_that_is_not_there_and_a_wrong_password_are_one_failed_check,
        doctor::keys_that_are_no_records_are_named,
        deep::a_prefix_with_keys_is_refused,
        deep::a_user_that_may_not_use_the_scratch_keys_is_refused_before_the_first_requirement,
        deep::the_keys_are_deleted_after_a_signal,
    ];
    // Requirements have times that a busy machine misses.
    tests.extend(trials![Turn::Night, Redis::missing =>
        deep::the_declared_requirements_hold_and_their_keys_are_deleted,
    ]);
    run_trials(tests)
}
