//! The example `job_worker`, run by processes that are killed and stopped.

use std::time::{Duration, Instant};

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use nix::sys::signal::Signal;

use crate::{Process, TestDatabase, built};

const JOBS: i32 = 60;
const STEPS: i32 = 20;
/// Longer than the ttl of the example.
const STOPPED: Duration = Duration::from_millis(2_200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: its faults come by chance, and it takes many seconds"]
async fn jobs_are_finished_once_although_a_worker_is_killed_or_stopped_every_second() {
    let db = TestDatabase::new("examples_jobs").await;
    let uri = db.uri();
    let jobs: Collection<Document> = db.database.collection("jobs");
    let new = (1..=JOBS).map(|id| doc! { "_id": id, "steps": STEPS, "done": 0, "log": [] });
    jobs.insert_many(new).await.unwrap();
    let (example, mut started) = (built("job_worker"), 0);
    let mut worker = || {
        started += 1;
        Process::start(&example, &[&format!("worker-{started}")], &uri, &[])
    };
    let mut workers: Vec<Process> = (0..3).map(|_| worker()).collect();
    let mut stopped: Vec<(Process, Instant)> = Vec::new();
    let (mut kills, mut stops) = (0, 0);
    let began = Instant::now();
    let open = doc! { "done": { "$lt": STEPS } };
    while jobs.count_documents(open.clone()).await.unwrap() > 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "they come to an end");
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The one that has been there for the longest, so that each is hit.
        let victim = workers.remove(0);
        if (kills + stops) % 2 == 0 {
            victim.signal(Signal::SIGKILL);
            kills += 1;
        } else {
            victim.signal(Signal::SIGSTOP);
            stopped.push((victim, Instant::now()));
            stops += 1;
        }
        workers.push(worker());
        for (back, _) in stopped.extract_if(.., |(_, since)| since.elapsed() > STOPPED) {
            back.signal(Signal::SIGCONT);
            workers.insert(0, back);
        }
    }
    // Who still sleeps wakes up, and tries to go on with a job that others have finished.
    for (back, _) in &stopped {
        back.signal(Signal::SIGCONT);
    }
    for mut process in workers.into_iter().chain(stopped.into_iter().map(|(process, _)| process)) {
        let ended = tokio::time::timeout(Duration::from_secs(30), process.child.wait()).await;
        let ended = ended.unwrap_or_else(|_| panic!("{} ends", process.name)).unwrap();
        assert!(ended.success(), "{}: {ended}", process.name);
    }

    let (mut finished, mut resumed) = (0, 0);
    let mut all = jobs.find(doc! {}).await.unwrap();
    while all.advance().await.unwrap() {
        let job = all.deserialize_current().unwrap();
        let log: Vec<&Document> =
            job.get_array("log").unwrap().iter().map(|entry| entry.as_document().unwrap()).collect();
        let made: Vec<i32> = log.iter().map(|entry| entry.get_i32("step").unwrap()).collect();
        assert_eq!(made, (0..STEPS).collect::<Vec<_>>(), "each step once and in order: {job}");
        let mut tokens: Vec<i64> = log.iter().map(|entry| entry.get_i64("token").unwrap()).collect();
        assert!(tokens.is_sorted(), "no earlier owner wrote after a later: {job}");
        tokens.dedup();
        finished += 1;
        resumed += i32::from(tokens.len() > 1);
    }
    println!(
        "{finished} jobs of {STEPS} steps in {:?}, {resumed} of them resumed by another worker; {kills} killed, {stops} stopped",
        began.elapsed()
    );
    assert_eq!(finished, JOBS);
    assert!(resumed > 0 && kills > 0 && stops > 0, "it came to what this is about");
}
