//! Each verb of the library against each ambiguous result that a server or the network can produce. A push runs some of
//! the results, and judges no times.

mod cell;
mod way;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use cell::{Cell, Ready, VERBS, Verb, operation};
use mongoseal::Mongoseal;
use mongoseal_test_support::{ReplicaSet, by_length};
use tokio::task::JoinSet;
use way::Way;

use crate::{connect, secs};

/// One ambiguous result, met by all verbs.
#[derive(Clone)]
struct Job {
    way: Way,
    /// Whether it goes on for longer than anybody asks again, or passes.
    lasts: bool,
    retry_writes: bool,
}

/// How many cells have come to their end.
type Seen = Arc<AtomicUsize>;

/// A set, and those on it to whom nothing happens.
struct MatrixSet {
    set: Arc<ReplicaSet>,
    other: Mongoseal,
    again: Mongoseal,
}

impl MatrixSet {
    async fn new(members: usize) -> Self {
        let set = ReplicaSet::builder().members(members).proxied().start().await;
        let handle = |name| connect(Mongoseal::builder().operation_timeout(secs(20)), set.uri_with(name));
        let (other, again) = (handle("appName=other").await, handle("appName=again").await);
        Self { set: Arc::new(set), other, again }
    }

    /// Puts all verbs through one ambiguous result. What is to be seen of it later is left to `later`.
    async fn run(&self, job: &Job, number: usize, seen: &Seen, later: &mut JoinSet<()>) -> Mongoseal {
        let app = format!("one-{number}");
        let builder = Mongoseal::builder().operation_timeout(operation()).owner("one");
        let options = format!("appName={app}&retryWrites={}", job.retry_writes);
        let began = Instant::now();
        // On a busy machine the operation timeout may be too short for that.
        let one = loop {
            match builder.clone().connect(self.set.uri_with(&options)).await {
                Ok(one) => break one,
                Err(error) => assert!(began.elapsed() < secs(60), "{error}"),
            }
        };
        let cells: Vec<Cell> = VERBS
            .into_iter()
            .map(|verb| {
                Cell::new(verb, format!("{} {verb:?} {app}", job.way.name), &self.set, [&one, &self.other, &self.again])
            })
            .collect();
        // What passes is met by one after the other, what lasts by all at once.
        let at_once = if job.lasts { cells.len() } else { 1 };
        let mut cells = VecDeque::from(cells);
        while !cells.is_empty() {
            let batch: Vec<Cell> = cells.drain(..at_once).collect();
            let ready = all(batch.into_iter().map(Cell::prepare)).await;
            let armed = job.way.arm(&self.set, &app, job.lasts).await;
            let acted = all(ready.into_iter().map(Ready::act)).await;
            let hits = armed.off(&self.set).await;
            for acted in acted {
                let outcome = match hits {
                    // One that keeps its place may have asked just before.
                    Some(0) if acted.verb() == Verb::HandOver => "not met".into(),
                    Some(0) => panic!("{}: {:?} did not meet it", job.way.name, acted.verb()),
                    _ => acted.outcome(job.way.is_slow(), job.lasts),
                };
                let Job { way, lasts, retry_writes } = job;
                println!("{}, lasts: {lasts}, retryWrites={retry_writes}, {:?}: {outcome}", way.name, acted.verb());
                seen.fetch_add(1, Ordering::Relaxed);
                let settling = acted.settle(job.way.late());
                // What the next fault would meet, too, has to be waited for.
                if !job.lasts || job.way.is_of_all() { settling.await } else { drop(later.spawn(settling)) }
            }
        }
        one
    }
}

/// Awaits all of them at once, in order.
async fn all<T: Send + 'static>(futures: impl Iterator<Item = impl Future<Output = T> + Send + 'static>) -> Vec<T> {
    let tasks: Vec<_> = futures.map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

fn jobs(ways: Vec<Way>) -> VecDeque<Job> {
    let modes =
        by_length(vec![(true, true), (false, false)], vec![(true, true), (true, false), (false, true), (false, false)]);
    let job = |way: Way, (lasts, retry_writes)| Job { way, lasts, retry_writes };
    let of = |way: Way| modes.iter().map(move |mode| job(way.clone(), *mode));
    ways.into_iter().flat_map(of).collect()
}

/// Works off the jobs on a set of so many members.
async fn work(members: usize, jobs: Arc<Mutex<VecDeque<Job>>>, seen: Seen) {
    let matrix = MatrixSet::new(members).await;
    let mut later = JoinSet::new();
    let (mut number, mut ones) = (0, Vec::new());
    loop {
        let Some(job) = jobs.lock().unwrap().pop_front() else { break };
        number += 1;
        ones.push(matrix.run(&job, number, &seen, &mut later).await);
    }
    while let Some(done) = later.join_next().await {
        done.unwrap();
    }
    for one in ones {
        one.shutdown().await;
    }
    matrix.other.shutdown().await;
    matrix.again.shutdown().await;
}

pub(super) async fn whatever_becomes_of_a_reply_each_verb_ends_in_time_with_one_token_or_says_that_it_is_not_known() {
    let began = Instant::now();
    let seen = Seen::default();
    let one = Arc::new(Mutex::new(jobs(way::of_one_client())));
    let three = Arc::new(Mutex::new(jobs(way::of_a_majority())));
    let cells = [&one, &three].map(|jobs| jobs.lock().unwrap().iter().len() * VERBS.len());
    // Several servers, because each has one fail point for commands.
    let mut workers = JoinSet::new();
    for (members, jobs) in [(3, &three)].into_iter().chain(vec![(1, &one); by_length(3, 7)]) {
        workers.spawn(work(members, Arc::clone(jobs), Arc::clone(&seen)));
    }
    let mut failed = None;
    while let Some(done) = workers.join_next().await {
        failed = failed.or(done.err());
    }
    let seen = seen.load(Ordering::Relaxed);
    println!("{seen} cells in {:?}", began.elapsed());
    if let Some(panic) = failed {
        std::panic::resume_unwind(panic.into_panic());
    }
    assert_eq!(seen, cells.iter().sum::<usize>(), "each cell was met");
}
