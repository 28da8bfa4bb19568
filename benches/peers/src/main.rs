//! What other locks cost beside mongoseal: the same cases, on the same servers, in the same run.
//!
//! ```text
//! cargo run --release --manifest-path benches/peers/Cargo.toml                    # about four minutes
//! cargo run --release --manifest-path benches/peers/Cargo.toml -- --quick         # under one
//! cargo run --release --manifest-path benches/peers/Cargo.toml -- --json FILE     # one object a line, too
//! cargo run --release --manifest-path benches/peers/Cargo.toml -- mongoseal poll  # peers so named
//! cargo run --release --manifest-path benches/peers/Cargo.toml --features etcd    # etcd too; needs protoc
//! ```
//!
//! Starts a replica set of three members, or takes the one that `MONGOSEAL_TEST_URI` names, which
//! should have nothing else to do: commands are counted by its primary. etcd and Redis are measured
//! where their servers are installed; `ETCD` and `REDIS_SERVER` name them where they are not on `PATH`.
//!
//! No part of what `.ci/run` runs: it would build every peer, and an HTTP/2 stack for one of them, for
//! figures that nothing there looks at.

mod cases;
mod peer;
mod peers;
mod safety;
mod samples;
mod set;
mod table;

use std::{
    fs::File,
    io::Write,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{peer::Peer, set::Set, table::Table};

/// Past it something hangs, and what there is has been printed.
const LIMIT: Duration = Duration::from_secs(300);

/// What the command line asks for.
#[derive(Default)]
struct Wanted {
    quick: bool,
    json: Option<String>,
    names: Vec<String>,
}

impl Wanted {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut wanted = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => wanted.quick = true,
                "--json" => wanted.json = Some(arguments.next().ok_or("--json needs the name of a file")?),
                option if option.starts_with('-') => {
                    return Err(format!(
                        "{option} is not an option: there are --quick, --json FILE and names of peers"
                    ));
                }
                name => wanted.names.push(name.into()),
            }
        }
        Ok(wanted)
    }

    fn has(&self, peer: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| peer.contains(name.as_str()))
    }
}

/// What is measured, and how much of it.
struct Bench {
    set: Set,
    peers: Vec<Arc<dyn Peer>>,
    quick: bool,
}

impl Bench {
    /// How many rounds every case runs, in each of which every peer has its turn.
    fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let wanted = match Wanted::parse(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let mut json = match wanted.json.as_deref().map(File::create).transpose() {
        Ok(file) => file,
        Err(error) => {
            eprintln!("the file for JSON cannot be written: {error}");
            return ExitCode::from(2);
        }
    };
    let mut report = |table: &Table| {
        table.print();
        if let Some(file) = &mut json {
            for line in table.json() {
                writeln!(file, "{line}").expect("the file for JSON can be written");
            }
        }
    };
    match tokio::time::timeout(LIMIT, measure(&wanted, &mut report)).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("no peer has such a name, or it is missing");
            ExitCode::from(2)
        }
        Err(_) => {
            eprintln!("not done after {} s: what is not above was not measured", LIMIT.as_secs());
            ExitCode::FAILURE
        }
    }
}

/// Measures the peers that are wanted and there, and says whether there were any.
async fn measure(wanted: &Wanted, report: &mut impl FnMut(&Table)) -> bool {
    let began = Instant::now();
    let set = Set::start().await;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, peer) in peers::all(&set, |name| wanted.has(name)).await {
        match peer {
            Ok(peer) => found.push(peer),
            Err(reason) => missing.push((name, reason)),
        }
    }
    report(&peers::table(&found, &missing));
    if found.is_empty() {
        return false;
    }
    let bench = Bench { set, peers: found, quick: wanted.quick };
    report(&safety::measure(&bench).await);
    report(&cases::free::measure(&bench).await);
    report(&cases::refused::measure(&bench).await);
    report(&cases::hand_over::measure(&bench).await);
    report(&cases::idle::measure(&bench).await);
    report(&cases::many::measure(&bench, "many-keys", 8).await);
    report(&cases::many::measure(&bench, "many-keys-together", 1).await);
    println!("{:.0} s in all", began.elapsed().as_secs_f64());
    true
}
