//! Many that want one key.

use std::{fs, sync::Arc, time::Instant};

use tokio::{sync::Semaphore, task::JoinSet};

use crate::bench::{Bench, done};

const RUNS: usize = 200;
const AT_ONCE: usize = 16;

#[tokio::test]
async fn two_hundred_runs_on_one_key_never_overlap_and_their_tokens_grow() {
    let bench = Bench::new("order").await;
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut runs = JoinSet::new();
    let began = Instant::now();
    for _ in 0..RUNS {
        // As a test's ttl would lapse in a crowd on a busy machine, the usual one.
        let script = r#"echo "$MONGOSEAL_TOKEN begins" >>"$F/log"; echo "$MONGOSEAL_TOKEN ends" >>"$F/log""#;
        let mut command = bench.mongoseal(&["run", "crowded", "--", "sh", "-c", script]);
        command.env("F", bench.file(""));
        let places = Arc::clone(&places);
        runs.spawn(async move {
            let _place = places.acquire_owned().await.unwrap();
            let ended = done(command).await;
            assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{}", ended.stderr);
            // On a busy machine an answer may be so late that it is asked for again, and that is said.
            print!("{}", ended.stderr);
        });
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
    println!("{RUNS} runs in {:?}", began.elapsed());
    let log = fs::read_to_string(bench.file("log")).unwrap();
    let lines: Vec<_> = log.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(lines.len(), 2 * RUNS);
    let mut last = 0;
    for pair in lines.chunks(2) {
        let [(token, "begins"), (same, "ends")] = pair else { panic!("one began before another ended: {pair:?}") };
        assert_eq!(token, same);
        let token: u64 = token.parse().unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}
