//! The API for callers without async on a real replica set, in processes that end while they hold a lease.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{self, Command, Stdio},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use mongoseal::{
    Error, Fence,
    blocking::Mongoseal,
    mongodb::{
        Client,
        bson::{Document, doc},
    },
};

use crate::{database, millis, secs};

/// How the process ends that this program starts, and its replica set.
const ENDING: &str = "MONGOSEAL_TEST_ENDING";
const ENDING_URI: &str = "MONGOSEAL_TEST_ENDING_URI";

/// How long a process takes to end at most: less than anything takes that it could wait for.
const AT_ONCE: Duration = secs(60);
/// The time of an operation and of a wait in that process.
const LONG: Duration = secs(600);

pub(crate) fn a_process_ends_at_once_when_main_returns_or_panics_and_when_it_exits() {
    for (how, code) in [("returns", 0), ("static", 0), ("exits", 7), ("panics", 101)] {
        ends_at_once(how, code);
    }
}

pub(crate) fn a_process_that_shuts_its_handle_down_leaves_its_key_free() {
    let uri = ends_at_once("shuts down", 0);
    let seal = Mongoseal::connect(uri).unwrap();
    seal.acquire("k").run().unwrap().release().unwrap();
}

pub(crate) fn a_process_that_could_not_connect_ends_without_a_panic_of_the_driver() {
    ends_at_once("cannot connect", 0);
}

/// Ends runtimes with several threads, on which the connection string was refused, or the server did not answer in time.
fn cannot_connect(uri: &str) {
    for number in 0..60 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        let (uri, patience) = match number % 3 {
            0 => ("mongodb://127.0.0.1:1/?replicaSet=rs0".to_owned(), millis(60)),
            1 => (uri.replace("replicaSet=", "replicaSet=not-"), millis(60)),
            _ => (uri.to_owned(), millis(number / 3)),
        };
        let connecting = mongoseal::Mongoseal::builder().operation_timeout(patience).connect(uri);
        if let Ok(seal) = runtime.block_on(connecting) {
            runtime.block_on(seal.shutdown());
        }
    }
}

/// Starts a process that ends in this way, and checks that nothing delays it. Returns the address of the replica set.
fn ends_at_once(how: &str, code: i32) -> String {
    let uri = database(&format!("blocking_{}", how.replace(' ', "_"))).uri();
    let mut child = Command::new(env::current_exe().unwrap())
        .envs([(ENDING, how), (ENDING_URI, &uri)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ending = lines.next().map(Result::unwrap);
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() && began.elapsed() < AT_ONCE {
        thread::sleep(millis(1));
    }
    // If it has not ended, it is killed, and its code is none.
    drop(child.kill());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(ending.as_deref(), Some("it ends"), "{errors}");
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert_eq!(errors.matches("panicked at").count(), usize::from(how == "panics"), "{errors}");
    uri
}

/// Whether this process was started to end.
pub(crate) fn is_wanted() -> bool {
    env::var_os(ENDING).is_some()
}

/// Ends while it holds a lease, has a handle, follows a change stream, and waits for a key on another thread.
pub(crate) fn main() {
    static HANDLE: OnceLock<Mongoseal> = OnceLock::new();
    if env::var(ENDING).unwrap() == "cannot connect" {
        println!("it ends");
        return cannot_connect(&env::var(ENDING_URI).unwrap());
    }
    let seal = Mongoseal::builder().operation_timeout(LONG).connect(env::var(ENDING_URI).unwrap()).unwrap();
    let lease = seal.acquire("k").run().unwrap();
    let mut events = seal.watch("k").unwrap();
    events.next().unwrap().unwrap();
    let waiter = seal.clone();
    thread::spawn(move || waiter.acquire("k").wait(LONG).run());
    let began = Instant::now();
    while seal.inspect("k").unwrap().unwrap().queue.is_empty() {
        assert!(began.elapsed() < AT_ONCE, "it is queued");
    }
    println!("it ends");
    match env::var(ENDING).unwrap().as_str() {
        "returns" => {}
        "exits" => process::exit(7),
        "panics" => panic!("main panics"),
        "static" => drop(HANDLE.set(seal)),
        "shuts down" => seal.shutdown(),
        other => panic!("{other} is no ending"),
    }
    drop(lease);
}

pub(crate) fn a_fenced_write_takes_a_blocking_lease() {
    let uri = database("blocking_fence").uri();
    let seal = Mongoseal::connect(&uri).unwrap();
    // An asynchronous client lives on the threads of the handle.
    let write = |lease: Arc<mongoseal::blocking::Lease>| {
        let uri = uri.clone();
        seal.block_on(async move {
            let client = Client::with_uri_str(uri).await.unwrap();
            let orders = client.default_database().unwrap().collection::<Document>("orders");
            let write = doc! { "$inc": { "n": 1 } };
            orders.fenced(&*lease).update_one(doc! { "_id": 1 }, write).upsert(true).await
        })
    };
    let first = Arc::new(seal.acquire("orders/1").run().unwrap());
    write(Arc::clone(&first)).unwrap();
    seal.revoke("orders/1").run().unwrap();
    let second = Arc::new(seal.acquire("orders/1").run().unwrap());
    write(second).unwrap();
    assert_eq!(first.cancelled().map(drop).ok(), Some(()));
    assert!(matches!(write(first), Err(Error::Lost { .. } | Error::Fenced { .. })));
    seal.shutdown();
}
