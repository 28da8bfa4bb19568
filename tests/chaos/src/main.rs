//! The fault runner: worker processes use leases under faults, and a judge checks what they report.
//!
//! ```text
//! cargo run --release -p mongoseal-chaos -- --minutes 2 --seed 7
//! ```
//!
//! With `--redis`, the servers are a primary of Redis and two replicas.
//!
//! It starts three servers behind proxies, and several processes of this program as workers. It injects faults into
//! servers, network and workers, and judges what the workers report. `docs/internals/chaos.md` lists the invariants.

#![allow(clippy::disallowed_methods, reason = "a runner spawns as users do")]

mod clocks;
mod crew;
mod faults;
mod history;
mod judge;
mod options;
mod run;
mod sabotage;
mod servers;
mod verdict;
mod words;
mod worker;

use std::process::ExitCode;

use options::{Options, USAGE};
use worker::Spec;

fn main() -> ExitCode {
    if let Some(spec) = Spec::of_this_process() {
        worker::main(spec);
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(what) => {
            eprintln!("{what}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let events = if let Some(file) = &options.judge {
        history::load(file)
    } else {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.map(|runtime| runtime.block_on(run::run(&options)))
    };
    match events.and_then(|events| verdict::pass(&options, &events)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
