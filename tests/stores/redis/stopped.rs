//! A client in a process of its own that is stopped, by SIGSTOP, between a load and its swap.

use std::process::{ExitCode, Stdio};

use mongoseal::{Error, FencingToken, Mongoseal};
use mongoseal_redis::RedisBackend;
use mongoseal_test_support::{Redis, eventually, secs};
use nix::{
    sys::signal::{Signal, kill, raise},
    unistd::Pid,
};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::{after_load::AfterLoad, send};

/// The variable with the connection string of the client that stops.
const CLIENT: &str = "MONGOSEAL_TEST_REDIS_STOPPED_CLIENT";

/// The variable with the number of loads after which it stops.
const LOADS: &str = "MONGOSEAL_TEST_REDIS_LOADS";

/// Acquires a key and stops after so many loads, if this process is that client. Prints the answer of the swap
/// after that, how the acquire ended, and the holder's token.
pub(crate) fn run_as_client() -> Option<ExitCode> {
    let uri = std::env::var(CLIENT).ok()?;
    tokio::runtime::Runtime::new().expect("a runtime starts").block_on(async {
        let stop = || raise(Signal::SIGSTOP).unwrap();
        let loads = std::env::var(LOADS).unwrap().parse().unwrap();
        let (seal, swaps) = AfterLoad::seal(RedisBackend::new(uri).unwrap(), loads, stop);
        let (ended, token) = match seal.acquire("k").await {
            Ok(lease) => {
                let token = lease.token();
                lease.orphan();
                ("granted", token)
            }
            Err(Error::Held { token, .. }) => ("held", token),
            Err(error) => panic!("{error:?}"),
        };
        println!("{} {ended} {token}", swaps.lock().unwrap()[loads - 1]);
    });
    Some(ExitCode::SUCCESS)
}

/// The client, which has loaded the key and is stopped.
struct Stopped(Child);

impl Stopped {
    async fn after_its_load(server: &Redis) -> Self {
        Self::after_loads(server, 1).await
    }

    async fn after_loads(server: &Redis, loads: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(CLIENT, server.url()).env(LOADS, loads.to_string());
        let child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id().unwrap());
        let is_stopped = async || std::fs::read_to_string(&stat).unwrap().contains(") T ");
        eventually(secs(30), "the client has loaded the key and is stopped", is_stopped).await;
        Self(child)
    }

    /// Lets it go on. Gives the answer of its swap, how its acquire ended, and the holder's token.
    async fn goes_on(self) -> (bool, String, FencingToken) {
        kill(Pid::from_raw(self.0.id().unwrap().try_into().unwrap()), Signal::SIGCONT).unwrap();
        let output = self.0.wait_with_output().await.unwrap();
        assert!(output.status.success());
        let words = String::from_utf8(output.stdout).unwrap();
        let [swapped, ended, token] = words.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{words}") };
        (swapped.parse().unwrap(), ended.to_owned(), FencingToken::new(token.parse().unwrap()).unwrap())
    }
}

/// Grants the key to another client, which releases it.
async fn token(seal: &Mongoseal) -> FencingToken {
    let lease = seal.acquire("k").await.unwrap();
    let token = lease.token();
    lease.release().await.unwrap();
    token
}

async fn delete(server: &Redis) {
    assert_eq!(send::<u32>(server, "DEL mongoseal:k").await, 1);
}

pub(crate) async fn a_swap_of_a_stopped_client_is_refused_if_the_key_was_made_again() {
    let server = Redis::start().await;
    let seal = mongoseal_redis::connect(server.url()).await.unwrap();
    // With other tokens.
    token(&seal).await;
    let stopped = Stopped::after_its_load(&server).await;
    delete(&server).await;
    let last = token(&seal).await;
    let (is_swapped, ended, granted) = stopped.goes_on().await;
    assert!(!is_swapped && ended == "granted" && granted > last, "{is_swapped} {ended} {granted} after {last}");

    // By a holder, where there was no record.
    delete(&server).await;
    let stopped = Stopped::after_its_load(&server).await;
    let lease = seal.acquire("k").await.unwrap();
    assert_eq!(stopped.goes_on().await, (false, "held".into(), lease.token()));
    lease.refresh().await.unwrap();
    lease.release().await.unwrap();
}

pub(crate) async fn a_swap_of_a_stopped_client_is_refused_if_the_key_was_made_again_with_an_equal_record() {
    let server = Redis::start().await;
    let seal = mongoseal_redis::connect(server.url()).await.unwrap();
    let last = token(&seal).await;
    let stopped = Stopped::after_its_load(&server).await;
    let bytes: Vec<u8> = send(&server, "GET mongoseal:k").await;
    delete(&server).await;
    // What a swap has written that came to the same tokens, times and holders.
    let mut value: Value = serde_json::from_slice(&bytes).unwrap();
    value["nonce"] = "0000000000000000".into();
    let () = send(&server, &format!("SET mongoseal:k {value}")).await;
    let (is_swapped, ended, granted) = stopped.goes_on().await;
    assert!(!is_swapped && ended == "granted" && granted > last, "{is_swapped} {ended} {granted} after {last}");
}

/// The record has not changed since, so the comparison accepts it. The server's clock is stepped, so that the test does not
/// take the time.
pub(crate) async fn a_swap_of_a_client_that_was_stopped_for_longer_than_ten_seconds_is_refused() {
    let server = Redis::start_with_own_clock(&[]).await;
    let seal = mongoseal_redis::connect(server.url()).await.unwrap();
    let last = token(&seal).await;
    let stopped = Stopped::after_its_load(&server).await;
    server.set_clock("+11");
    let (is_swapped, ended, granted) = stopped.goes_on().await;
    assert!(!is_swapped && ended == "granted" && granted > last, "{is_swapped} {ended} {granted} after {last}");
}

pub(crate) async fn a_stopped_client_writes_no_token_of_before_a_deletion() {
    let server = Redis::start().await;
    let seal = mongoseal_redis::connect(server.url()).await.unwrap();
    // It has loaded nothing, and then its own blank.
    for loads in [1, 2] {
        let stopped = Stopped::after_loads(&server, loads).await;
        let last = token(&seal).await;
        delete(&server).await;
        let (is_swapped, ended, granted) = stopped.goes_on().await;
        assert_eq!((is_swapped, ended.as_str()), (loads == 1, "granted"), "the blank, and not a record, is swapped in");
        assert!(granted > last, "{granted} after {last}");
        delete(&server).await;
    }
}
