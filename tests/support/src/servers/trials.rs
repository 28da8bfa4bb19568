//! A `main` for tests that run side by side on one machine, or need a server that may be missing.
//!
//! All tests of a program begin at once, and wait for their [`Turn`]. So tests that mostly wait do so side by side.

use std::{
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    time::Duration,
};

use libtest_mimic::{Arguments, Completion, Trial};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::runtime::runtime;

/// The longest time of a test.
const LONGEST: Duration = Duration::from_secs(1_200);

/// How much of the machine there is.
const WHOLE: u32 = 10;

/// What a test needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It mostly waits. Ten run at once.
    Waiting,
    /// It keeps the machine busy. One that mostly waits runs beside it.
    Busy,
    /// It judges seconds, or takes many. It runs alone, and is ignored unless `--ignored` or `--include-ignored` asks for it, as
    /// `.ci/night` does.
    Night,
}

impl Turn {
    fn share(self) -> u32 {
        match self {
            Self::Waiting => 1,
            Self::Busy => WHOLE - 1,
            Self::Night => WHOLE,
        }
    }
}

/// Waits for a share of the machine. Dropping it gives it back.
fn take(turn: Turn) -> SemaphorePermit<'static> {
    static MACHINE: Semaphore = Semaphore::const_new(WHOLE as usize);
    runtime().block_on(MACHINE.acquire_many(turn.share())).expect("the machine is not closed")
}

/// A test on a runtime of its own. It is ignored if something is missing, with the reason.
pub fn trial<F: Future<Output = ()>>(
    name: impl Into<String>,
    turn: Turn,
    missing: fn() -> Option<String>,
    run: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    let test = Trial::ignorable_test(name, move || {
        if let Some(reason) = missing() {
            return Ok(Completion::ignored_with(reason));
        }
        let _share = take(turn);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let test = || runtime.block_on(async { tokio::time::timeout(LONGEST, run()).await });
        let ended = panic::catch_unwind(AssertUnwindSafe(test));
        // A drop would wait for work that blocks.
        runtime.shutdown_timeout(Duration::from_millis(100));
        let in_time = ended.unwrap_or_else(|panicked| panic::resume_unwind(panicked));
        in_time.expect("a test ends in twenty minutes");
        Ok(Completion::Completed)
    });
    test.with_ignored_flag(turn == Turn::Night)
}

/// A test that is no future.
pub fn plain_trial(name: &str, turn: Turn, run: fn()) -> Trial {
    let test = Trial::test(name, move || {
        let _share = take(turn);
        run();
        Ok(())
    });
    test.with_ignored_flag(turn == Turn::Night)
}

/// Tests by their paths: `trials![Turn::Waiting => file::test, …]`, `trials![Turn::Waiting, Redis::missing => …]`, or, of
/// functions that are not asynchronous, `trials![Turn::Waiting, fn => …]`.
#[macro_export]
macro_rules! trials {
    ($turn:expr, fn => $($file:ident :: $test:ident,)*) => {
        vec![$($crate::plain_trial(concat!(stringify!($file), "::", stringify!($test)), $turn, $file::$test)),*]
    };
    ($turn:expr, $missing:expr => $($file:ident :: $test:ident,)*) => {
        vec![$($crate::trial(concat!(stringify!($file), "::", stringify!($test)), $turn, $missing, $file::$test)),*]
    };
    ($turn:expr => $($tests:tt)*) => { $crate::trials![$turn, || None => $($tests)*] };
}

/// Runs the tests that the arguments of the program name, or all.
pub fn run_trials(tests: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(tests.len());
    libtest_mimic::run(&arguments, tests).exit_code()
}
