//! Runs the console examples of the pages about the program again and compares the outputs. Numbers, times and column
//! widths may differ, since they change from run to run.
//!
//! `MONGOSEAL_UPDATE=1 cargo test -p mongoseal-cli --test output transcripts` writes the outputs into the pages.

use std::{env, fs, path::Path, time::Duration};

use mongodb::bson::doc;
use mongoseal::FencingToken;

use crate::{
    Sandbox,
    ended::{shape, without_notes},
    secs,
};

/// The pages, in the order in which their examples run. One page goes on with the leases of the page before.
const PAGES: [&str; 6] = ["cli", "shell", "operating", "doctor", "audit", "runbook"];

const BEGIN: &str = "```console\n";
const END: &str = "```";

/// A command, which may go over several lines, and what it says.
struct Step {
    command: String,
    said: String,
}

/// The steps of a block.
fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.into(), said: String::new() }),
            (None, Some(step)) if step.said.is_empty() && step.command.ends_with('\\') => {
                step.command = format!("{}\n{line}", step.command);
            }
            (None, Some(step)) => step.said = format!("{}{line}\n", step.said),
            (None, None) => panic!("a block begins with a command, not with {line}"),
        }
    }
    steps
}

/// The largest token that `fences` prints.
fn largest_token(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("Largest token  ")?.split(' ').next())
}

#[tokio::test]
async fn the_transcripts_in_the_documents_are_what_the_program_says() {
    let sandbox = Sandbox::new("transcripts").await;
    // As the document says at its beginning.
    let (alice, bob) = (sandbox.seal_of("alice@web-1"), sandbox.seal_of("bob@web-2"));
    let nightly = alice.acquire("reports/nightly").ttl(secs(600)).metadata("build", "1.4.2").await.unwrap();
    let waiting = tokio::spawn(bob.acquire("reports/nightly").ttl(secs(600)).wait(secs(120)).into_future());
    sandbox.queued_on("reports/nightly", 1).await;
    let gpus = [
        alice.acquire("gpu").shared_up_to(2).ttl(secs(600)).await.unwrap(),
        bob.acquire("gpu").shared_up_to(2).ttl(secs(600)).await.unwrap(),
    ];
    bob.acquire("reports/weekly").ttl(secs(1)).without_refresh().await.unwrap().orphan();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let two_hours_ahead = FencingToken::at_clock(nightly.token().clock_seconds() + 7_200, 0);
    let order = doc! { "_id": 4711, "fence": two_hours_ahead };
    sandbox.database.collection("orders").insert_one(order).await.unwrap();

    for page in PAGES {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/{page}.md"));
        let text = fs::read_to_string(&document).unwrap();
        let (mut parts, mut count) = (text.split(BEGIN), 0);
        let mut anew = parts.next().unwrap().to_owned();
        // Those of the page and of this run.
        let mut largest: Option<(String, String)> = None;
        for part in parts {
            let (block, rest) = part.split_once(END).unwrap();
            anew += BEGIN;
            for Step { mut command, said } in steps(block) {
                if let Some((old, new)) = &largest {
                    command = command.replace(old, new);
                }
                let now = sandbox.shell(&format!("exec 2>&1; {command}")).await.stdout;
                let shapes = [shape(&now), shape(&without_notes(&now))];
                assert!(writes() || shapes.contains(&shape(&said)), "$ {command}\n{now}");
                anew.extend(["$ ", &command, "\n", &now]);
                count += 1;
                let of_both = largest_token(&said).zip(largest_token(&now));
                largest = of_both.map(|(old, new)| (old.to_owned(), new.to_owned())).or(largest);
            }
            anew = anew + END + rest;
        }
        assert!(count > 0, "{page}: {count}");
        if writes() {
            fs::write(document, anew).unwrap();
        }
    }
    nightly.cancelled().await;
    drop((waiting, gpus));
}

/// Whether the transcripts are to be written anew: `MONGOSEAL_UPDATE=1 cargo test -p mongoseal-cli --test output transcripts`.
fn writes() -> bool {
    env::var_os("MONGOSEAL_UPDATE").is_some()
}
