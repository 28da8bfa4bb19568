//! The example `leader` as three processes, which are killed, stopped, or made to resign.

use std::time::Duration;

use mongodb::{
    Database,
    bson::{Document, doc},
};
use mongoseal::{FencingToken, Mongoseal, election::LeaderStream};
use mongoseal_test_support::{eventually, secs};
use nix::sys::signal::Signal;
use tokio::{io::AsyncWriteExt, time::timeout};

use crate::{Process, TestDatabase, built};

const TTL: Duration = secs(6);
const PATIENCE: Duration = secs(60);

/// The candidates' database, and what an observer of them sees.
struct Election {
    uri: String,
    database: Database,
    seal: Mongoseal,
    leaders: LeaderStream,
}

impl Election {
    async fn new() -> Self {
        let db = TestDatabase::new("examples_leader").await;
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
    async fn three(&self) -> Vec<Process> {
        let example = tokio::task::spawn_blocking(|| built("leader")).await.unwrap();
        let mut standing = vec![];
        for name in ["one", "two", "three"] {
            standing.push(Process::start(&example, &[name], &self.uri, &[("TTL_MS", TTL.as_millis().to_string())]));
            self.until_it_stands(name).await;
        }
        standing
    }

    /// Waits until this one leads next, and has written a good deal. Returns its token.
    async fn next(&mut self, name: &str) -> FencingToken {
        let next = async {
            loop {
                if let Some(incumbent) = self.leaders.next().await.expect("it goes on").unwrap() {
                    return incumbent;
                }
            }
        };
        let incumbent = timeout(PATIENCE, next).await.expect("somebody leads");
        assert_eq!(incumbent.value, name, "in the order they came");
        let board = self.database.collection::<Document>("board");
        let own = doc! { "$filter": { "input": "$log.token", "cond": { "$eq": ["$$this", incumbent.token] } } };
        let many = doc! { "log": { "$type": "array" }, "$expr": { "$gte": [{ "$size": own }, 20] } };
        let has_written = async || board.find_one(many.clone()).await.unwrap().is_some();
        eventually(PATIENCE, &format!("{name} writes"), has_written).await;
        incumbent.token
    }
}

#[tokio::test]
async fn one_that_resigns_is_killed_or_is_stopped_is_followed_in_turn_and_no_earlier_leader_writes_again() {
    let mut election = Election::new().await;
    let mut standing = election.three().await;
    let first = election.next("one").await;
    standing[0].child.stdin.as_mut().unwrap().write_all(b"resign\n").await.unwrap();
    let second = election.next("two").await;
    // Behind the others.
    election.until_it_stands("one").await;
    standing[1].signal(Signal::SIGKILL);
    let third = election.next("three").await;
    standing[2].signal(Signal::SIGSTOP);
    let fourth = election.next("one").await;
    standing[2].signal(Signal::SIGCONT);
    election.until_it_stands("three").await;
    drop(standing);

    let board = election.database.collection::<Document>("board").find_one(doc! {}).await.unwrap().unwrap();
    let entry = |entry: &mongodb::bson::Bson| entry.as_document().unwrap().get_i64("token").unwrap();
    let mut tokens: Vec<i64> = board.get_array("log").unwrap().iter().map(entry).collect();
    assert!(tokens.is_sorted(), "a write of an earlier leader came after one of a later: {tokens:?}");
    tokens.dedup();
    assert!(tokens.starts_with(&[first, second, third, fourth].map(i64::from)), "{tokens:?}");
}
