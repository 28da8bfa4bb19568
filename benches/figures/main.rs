//! The benchmark: what mongoseal costs. Each figure is measured beside its floor, which is the least that the driver
//! needs for the same work, in the same rounds.
//!
//! ```text
//! cargo bench -p mongoseal-tests --bench figures                          # all cases, five rounds
//! cargo bench -p mongoseal-tests --bench figures -- --quick               # under a minute
//! cargo bench -p mongoseal-tests --bench figures -- hand-over idle        # cases whose name contains one of these
//! cargo bench -p mongoseal-tests --bench figures -- hold                  # 100,000 leases, ten minutes
//! cargo bench -p mongoseal-tests --bench figures -- recovery              # how long a fault of one member lasts; 20 minutes
//! cargo bench -p mongoseal-tests --bench figures -- recovery-pause --parameter NAME=VALUE    # with a parameter of the servers
//! cargo bench -p mongoseal-tests --bench figures -- --json figures.jsonl  # one object a line, too
//! cargo bench -p mongoseal-tests --bench figures -- --disk DIR            # the members' files below DIR, not in memory
//! cargo bench -p mongoseal-tests --bench figures -- --plots docs/plots    # how cost grows, and nothing else
//! ```
//!
//! It starts a replica set of three members, or uses the set at `MONGOSEAL_TEST_URI`. That set must be idle otherwise,
//! because the commands are counted on its primary. The processor time of its members is not known.
//!
//! The members keep their files in memory (`/dev/shm`). With `--disk DIR`, each has a new folder below DIR, which vanishes
//! at the end. Then each confirmed write waits for the disk, those of the floor, too.
//!
//! A second table has the processor time of the primary and of all members, for each command of a case and of its floor.
//! It includes what the members do besides meanwhile, such as the reads of change streams.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time, and spawns as users do")]

mod connect;
mod cpu;
mod fence;
mod figures;
mod growth;
mod hand_over;
mod hold;
mod idle;
mod many;
mod measured_set;
mod observed;
mod queue;
mod recovery;
mod single;

use std::{
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use figures::Figures;
use measured_set::MeasuredSet;

/// What the command line asks for.
#[derive(Default)]
struct Wanted {
    quick: bool,
    json: Option<String>,
    plots: Option<PathBuf>,
    names: Vec<String>,
    /// The folder below which the members keep their files.
    disk: Option<PathBuf>,
    /// Of the servers that are hurt.
    parameters: Vec<(String, String)>,
}

impl Wanted {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut wanted = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Cargo says so to every benchmark.
                "--bench" => {}
                "--quick" => wanted.quick = true,
                "--json" => wanted.json = Some(arguments.next().ok_or("--json needs the name of a file")?),
                "--plots" => wanted.plots = Some(arguments.next().ok_or("--plots needs the name of a folder")?.into()),
                "--disk" => wanted.disk = Some(disk(arguments.next())?),
                "--parameter" => {
                    let pair = arguments.next().and_then(|pair| {
                        let (name, value) = pair.split_once('=')?;
                        Some((name.to_owned(), value.to_owned()))
                    });
                    wanted.parameters.push(pair.ok_or("--parameter needs NAME=VALUE")?);
                }
                option if option.starts_with('-') => {
                    return Err(format!(
                        "{option} is not an option: there are --quick, --json FILE, --plots FOLDER, --disk DIR, --parameter NAME=VALUE and names of cases"
                    ));
                }
                name => wanted.names.push(name.into()),
            }
        }
        Ok(wanted)
    }

    fn has(&self, case: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| case.contains(name.as_str()))
    }

    /// Whether the case is asked for. Says so, because the figures come when all cases have ended.
    fn begins(&self, case: &str) -> bool {
        let has = self.has(case);
        if has {
            eprintln!("measures {case}");
        }
        has
    }
}

/// Cargo runs a benchmark in the folder of its package. Names of folders count from here.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder that `--disk` names.
fn disk(name: Option<String>) -> Result<PathBuf, String> {
    let name = name.ok_or("--disk needs the name of a folder")?;
    if env::var_os("MONGOSEAL_TEST_URI").is_some() {
        return Err("--disk is for servers that the benchmark starts, and MONGOSEAL_TEST_URI names a running set: \
                    unset the variable, or leave out --disk"
            .into());
    }
    let folder = repository().join(name);
    fs::canonicalize(&folder)
        .ok()
        .filter(|folder| folder.is_dir())
        .ok_or_else(|| format!("--disk: {} is not a folder: create it, or name another one", folder.display()))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    // In a task, as servers ask: whoever waits outside of the runtime's threads is woken by the system each time.
    tokio::spawn(run()).await.expect("no case panics")
}

async fn run() -> ExitCode {
    let wanted = match Wanted::parse(env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let disk = wanted.disk.as_deref();
    let measured = MeasuredSet::start(if wanted.quick { 2 } else { 5 }, disk).await;
    if let Some(folder) = wanted.plots {
        growth::plot(&measured, &repository().join(folder), wanted.quick).await;
        return ExitCode::SUCCESS;
    }
    let mut all = Vec::new();
    // First, while this process has given nothing back that could be used again.
    if wanted.begins("memory-per-lease") {
        all.push(many::memory(&measured, wanted.quick).await);
    }
    if wanted.begins("acquire-release") {
        all.push(single::acquire_release(&measured).await);
    }
    if wanted.begins("refused") {
        all.push(single::refused(&measured).await);
    }
    if wanted.begins("refused-first") {
        all.push(single::refused_first(&measured).await);
    }
    for (case, handles) in [("throughput-64", 8), ("throughput-64-together", 1)] {
        if wanted.begins(case) {
            all.push(single::throughput(&measured, case, handles, wanted.quick).await);
        }
    }
    if wanted.begins("hand-over-from-return") || wanted.begins("hand-over-from-call") {
        all.extend(
            hand_over::measure(&measured, wanted.quick).await.into_iter().filter(|figures| wanted.has(figures.case)),
        );
    }
    if wanted.begins("hand-over-first") {
        all.push(hand_over::first(&measured, wanted.quick).await);
    }
    if wanted.begins("idle-waiters") {
        all.push(idle::measure(&measured, wanted.quick).await);
    }
    if wanted.begins("refresh-10000") {
        all.push(many::refresh(&measured, wanted.quick).await);
    }
    if wanted.begins("connect") {
        all.push(connect::measure(&measured).await);
    }
    if wanted.begins("queue-1000") {
        all.push(queue::measure(&measured, wanted.quick).await);
    }
    if wanted.begins("observed") || wanted.begins("observed-in-memory") {
        all.extend(
            observed::measure(&measured, wanted.quick).await.into_iter().filter(|figures| wanted.has(figures.case)),
        );
    }
    if wanted.begins("fenced-update") {
        all.push(fence::update(&measured).await);
    }
    if wanted.begins("fenced-transaction") {
        all.push(fence::transaction(&measured).await);
    }
    // These take minutes, and the second hurts its set, so only where they are asked for.
    if !wanted.names.is_empty() {
        if wanted.begins("hold-100000") {
            all.push(hold::measure(&measured, wanted.quick).await);
        }
        let faults = recovery::faults(|case| wanted.has(case));
        all.extend(recovery::measure(measured.rounds, &wanted.parameters, disk, faults).await);
    }
    if all.is_empty() {
        eprintln!("no case has such a name");
        return ExitCode::from(2);
    }
    Figures::print(&all);
    if let Some(name) = wanted.json {
        let mut file = File::create(&name).expect("the file for JSON can be created");
        for figures in &all {
            writeln!(file, "{}", figures.json()).expect("the file for JSON can be written");
        }
    }
    ExitCode::SUCCESS
}
