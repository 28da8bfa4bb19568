//! The example `leader` as three processes, which are killed, stopped, or made to resign.

use std::time::{Duration, Instant};

use mongodb::{
    Database,
    bson::{Document, doc},
};
use mongoseal::{FencingToken, Mongoseal, election::LeaderStream};
use mongoseal_test_support::{eventually, secs};
use nix::sys::signal::Signal;
use tokio::{io::AsyncWriteExt, time::timeout};

use crate::{Process, TestDatabase, built};

const TTL: Duration = Duration::from_millis(1_500);
const PATIENCE: Duration = secs(60);

impl Process {
    async fn resign(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"resign\n").await.unwrap();
    }
}

/// The candidates' database, and what an observer of them sees.
struct Election {
    uri: String,
    database: Database,
    seal: Mongoseal,
    leaders: LeaderStream,
}

impl Election {
    async fn new(name: &str) -> Self {
        let db = TestDatabase::new(name).await;
        let seal = db.seal();
        let leaders = seal.observe("scheduler").await.unwrap();
        Self { uri: db.uri(), database: db.database, seal, leaders }
    }

    /// Waits until somebody of this name holds or waits.
    async fn until_it_stands(&self, name: &str) {
        let stands = async || {
            let record = self.seal.inspect("scheduler").await.unwrap();
            record.is_some_and(|record| {
                let mut owners = record.holders.iter().map(|holder| &holder.owner);
                owners.any(|owner| owner.as_str() == name)
                    || record.queue.iter().any(|waiter| waiter.owner.as_str() == name)
            })
        };
        eventually(PATIENCE, &format!("{name} stands"), stands).await;
    }

    /// Three candidates, in line.
    async fn three(&self, ttl: Duration) -> Vec<Process> {
        let example = tokio::task::spawn_blocking(|| built("leader")).await.unwrap();
        let mut standing = vec![];
        for name in ["one", "two", "three"] {
            standing.push(Process::start(&example, &[name], &self.uri, &[("TTL_MS", ttl.as_millis().to_string())]));
            self.until_it_stands(name).await;
        }
        standing
    }

    /// The next who leads: its name, its token, and when that was seen.
    async fn next(&mut self) -> (String, FencingToken, Instant) {
        let next = async {
            loop {
                if let Some(incumbent) = self.leaders.next().await.expect("it goes on").unwrap() {
                    return (incumbent.value, incumbent.token, Instant::now());
                }
            }
        };
        timeout(PATIENCE, next).await.expect("somebody leads")
    }

    /// Waits until this token has written a good deal.
    async fn until_it_writes(&self, token: FencingToken) {
        let board = self.database.collection::<Document>("board");
        let own = doc! { "$filter": { "input": "$log.token", "cond": { "$eq": ["$$this", token] } } };
        let many = doc! { "log": { "$type": "array" }, "$expr": { "$gte": [{ "$size": own }, 20] } };
        let has_written = async || board.find_one(many.clone()).await.unwrap().is_some();
        eventually(PATIENCE, &format!("{token} writes"), has_written).await;
    }

    /// That no write of an earlier leader came after one of a later.
    async fn no_two_interleaved(&self, leaders: usize) {
        let board = self.database.collection::<Document>("board").find_one(doc! {}).await.unwrap().unwrap();
        let entry = |entry: &mongodb::bson::Bson| entry.as_document().unwrap().get_i64("token").unwrap();
        let tokens: Vec<i64> = board.get_array("log").unwrap().iter().map(entry).collect();
        assert!(tokens.is_sorted(), "{tokens:?}");
        let mut distinct = tokens.clone();
        distinct.dedup();
        println!("{} fenced writes of {} leaders, in the order of their tokens", tokens.len(), distinct.len());
        assert!(distinct.len() >= leaders, "{distinct:?}");
    }
}

#[tokio::test]
#[ignore = "night: it judges seconds"]
async fn a_killed_leader_is_followed_within_its_ttl_and_a_second() {
    let mut election = Election::new("examples_leader_killed").await;
    let mut standing = election.three(TTL).await;
    let (mut name, mut token, _) = election.next().await;
    for expected in ["one", "two"] {
        assert_eq!(name, expected, "in the order they came");
        election.until_it_writes(token).await;
        standing.remove(0).signal(Signal::SIGKILL);
        let killed = Instant::now();
        let next = election.next().await;
        println!("{name} was killed, and {} led {:?} later, with a ttl of {TTL:?}", next.0, next.2 - killed);
        assert!(next.2 - killed < TTL + TTL / 6 + Duration::from_secs(1) && next.1 > token);
        (name, token, _) = next;
    }
    assert_eq!(name, "three");
    election.until_it_writes(token).await;
    election.no_two_interleaved(3).await;
}

#[tokio::test]
#[ignore = "night: it judges seconds"]
async fn a_leader_that_resigns_is_followed_at_once_and_stands_behind_the_others() {
    let mut election = Election::new("examples_leader_resigns").await;
    let mut standing = election.three(TTL).await;
    let (mut name, mut token, _) = election.next().await;
    let mut gaps = Vec::new();
    for round in 0..12 {
        assert_eq!(name, ["one", "two", "three"][round % 3], "in turn");
        election.until_it_writes(token).await;
        let asked = Instant::now();
        standing[round % 3].resign().await;
        let next = election.next().await;
        gaps.push(next.2 - asked);
        assert!(next.1 > token);
        (name, token, _) = next;
        election.until_it_stands(["one", "two", "three"][round % 3]).await;
    }
    gaps.sort();
    println!(
        "from the word to resign to the sight of the next leader: median {:?}, all {gaps:?}",
        gaps[gaps.len() / 2]
    );
    assert!(gaps[gaps.len() / 2] < Duration::from_millis(500), "{gaps:?}");
    election.no_two_interleaved(12).await;
}

#[tokio::test]
async fn a_leader_that_was_stopped_past_its_ttl_writes_no_more_and_stands_again() {
    let mut election = Election::new("examples_leader_stopped").await;
    let standing = election.three(Duration::from_secs(6)).await;
    let (_, first, _) = election.next().await;
    election.until_it_writes(first).await;
    standing[0].signal(Signal::SIGSTOP);
    let (name, second, _) = election.next().await;
    assert_eq!(name, "two");
    election.until_it_writes(second).await;
    standing[0].signal(Signal::SIGCONT);
    election.until_it_stands("one").await;
    drop(standing);
    election.no_two_interleaved(2).await;
}
