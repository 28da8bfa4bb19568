//! A `main` for tests that are known only at run time, such as the requirements of a suite. It has the common options and
//! the output of Rust's own test harness, and needs no other crate.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

/// A test by its name. It fails by panicking.
pub struct Test {
    name: String,
    run: Box<dyn Fn() + Send + Sync>,
}

impl Test {
    /// A test of this name.
    pub fn new(name: impl Into<String>, run: impl Fn() + Send + Sync + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    fn passes(&self) -> bool {
        let passed = catch_unwind(AssertUnwindSafe(|| (self.run)())).is_ok();
        println!("test {} ... {}", self.name, if passed { "ok" } else { "FAILED" });
        passed
    }
}

/// Runs the tests whose names contain one of the arguments, or all, as many at a time as `RUST_TEST_THREADS` says, or
/// else as there are processors.
///
/// `--exact` wants the whole name, `--skip NAME` leaves out, `--test-threads N` says how many at a time, and `--list`
/// prints the names. Other options are those of the compiler's harness about output, and change nothing here.
pub fn main(tests: &[Test]) -> ExitCode {
    let (mut wanted, mut skipped, mut options) = (Vec::new(), Vec::new(), Vec::new());
    let threads = env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    let mut threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let mut arguments = env::args().skip(1).flat_map(|argument| match argument.split_once('=') {
        Some((option, value)) if option.starts_with("--") => vec![option.to_owned(), value.to_owned()],
        _ => vec![argument],
    });
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("the option has a value");
        match argument.as_str() {
            "--test-threads" => threads = value().parse().expect("it is a number"),
            "--skip" => skipped.push(value()),
            "--color" | "--format" | "-Z" => drop(value()),
            option if option.starts_with('-') => options.push(argument),
            _ => wanted.push(argument),
        }
    }
    let is_set = |option: &str| options.iter().any(|set| set == option);
    let is_wanted = |test: &&Test| {
        let fits = |word: &String| if is_set("--exact") { test.name == *word } else { test.name.contains(word) };
        (wanted.is_empty() || wanted.iter().any(fits)) && !skipped.iter().any(fits)
    };
    let chosen: Vec<_> = tests.iter().filter(is_wanted).collect();
    if is_set("--list") {
        for test in &chosen {
            println!("{}: test", test.name);
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let began = Instant::now();
    let (next, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(test) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    passed.fetch_add(test.passes().into(), Ordering::Relaxed);
                }
            });
        }
    });
    let (passed, filtered_out) = (passed.into_inner(), tests.len() - chosen.len());
    let failed = chosen.len() - passed;
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered_out} filtered out; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        began.elapsed().as_secs_f64(),
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
