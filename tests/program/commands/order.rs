//! Many runs that contend for one key.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    by_length,
    sandbox::{Sandbox, done},
};

const AT_ONCE: usize = 16;

#[tokio::test]
async fn many_runs_on_one_key_never_overlap_and_their_tokens_grow() {
    let count = by_length(40, 200);
    let sandbox = Sandbox::new("order").await;
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut runs = JoinSet::new();
    for _ in 0..count {
        // As a test's ttl would lapse in a crowd on a busy machine, the usual one.
        let script = r#"echo "$MONGOSEAL_TOKEN begins" >>"$F/log"; echo "$MONGOSEAL_TOKEN ends" >>"$F/log""#;
        let command = sandbox.mongoseal(&["run", "crowded", "--", "sh", "-c", script]);
        let places = Arc::clone(&places);
        runs.spawn(async move {
            let _place = places.acquire_owned().await.unwrap();
            let ended = done(command).await;
            assert_eq!((ended.code, ended.stdout.as_str()), (0, ""), "{}", ended.stderr);
            // On a busy machine a reply can be so late that the request is retried, which prints a message.
            print!("{}", ended.stderr);
        });
    }
    runs.join_all().await;
    let log = fs::read_to_string(sandbox.file("log")).unwrap();
    let lines: Vec<_> = log.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(lines.len(), 2 * count);
    let mut last = 0;
    for pair in lines.chunks(2) {
        let [(token, "begins"), (same, "ends")] = pair else { panic!("one began before another ended: {pair:?}") };
        assert_eq!(token, same);
        let token: u64 = token.parse().unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

/// Runs `script`, which runs something five times, twice side by side. Gives how long both took.
async fn two_loops(sandbox: &Sandbox, script: &str) -> Duration {
    let script = format!("for i in 1 2 3 4 5; do {script}; done");
    let began = Instant::now();
    let run = || done(sandbox.command("sh", &["-c", &script]));
    let (one, other) = tokio::join!(run(), run());
    assert_eq!((one.code, other.code), (0, 0), "{}{}", one.stderr, other.stderr);
    began.elapsed()
}

#[tokio::test]
#[ignore = "night: compares times"]
async fn two_loops_that_contend_for_a_key_take_about_as_long_as_with_flock() {
    let sandbox = Sandbox::new("loops").await;
    let [mut best, mut apart, mut flock] = [Duration::MAX; 3];
    for _ in 0..3 {
        flock = flock.min(two_loops(&sandbox, "flock $F/lock sleep 0.1").await);
        apart = apart.min(two_loops(&sandbox, "$M run \"loop $$\" -- sleep 0.1").await);
        best = best.min(two_loops(&sandbox, "$M run loops -- sleep 0.1").await);
    }
    println!("two loops of five times 0.1 s took {best:?}, with flock {flock:?}, with a key for each loop {apart:?}");
    // Beside other tests the starts of ten programs take long, also without contention.
    assert!(best < flock * 2 + apart, "{best:?}, with flock {flock:?}, with a key for each loop {apart:?}");
}
