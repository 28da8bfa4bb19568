//! Simulation: several processes on a store with faults, on paused time. What they do is a program, which is drawn by a seed
//! from a table of what a caller can do. What is always true judges it. All randomness comes from the seed.
//!
//! A program that breaks a rule is reduced to the shortest one that still breaks it, and printed as a test.
//! `MONGOSEAL_PROGRAMS=100000 cargo test --release -p mongoseal-tests --test simulation` runs so many for each test,
//! `MONGOSEAL_FIRST=5000` begins with that seed, and `MONGOSEAL_SEED=17` runs one.

#![allow(dead_code, reason = "on_servers.rs uses the rest of these files")]
#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]
#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a test that finds a time before its cause fails, and that is right"
)]

mod beliefs;
mod choices;
mod coverage;
mod found;
mod held;
mod link;
mod process;
mod program;
mod reduce;
mod route;
mod run;
mod server;
mod step;
mod table;
mod wire;
mod world;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use fastrand::Rng;
use mongoseal_test_support::{millis, secs};

use choices::Choice;
use link::Defect;
use program::Program;
use reduce::reduce;
use run::{Pairs, Place, Run, Weather, note_pairs, number, possible_pairs, rule};

/// How often each pair of choices is granted in a long run.
const OFTEN: u32 = 20;

/// Runs so many programs, and asserts that each of these was seen. If one breaks a rule, prints it, reduced, and fails.
fn run_programs(place: Place, weather: Weather, count: u64, expected: &[&str]) -> Pairs {
    let count = number("MONGOSEAL_PROGRAMS").unwrap_or(count);
    let (only, first) = (number("MONGOSEAL_SEED"), number("MONGOSEAL_FIRST").unwrap_or(0));
    let seeds: Vec<u64> = only.map_or_else(|| (first..first + count).collect(), |seed| vec![seed]);
    let began = std::time::Instant::now();
    let (next, pairs, sum) = (AtomicU64::new(0), Mutex::new(Pairs::new()), Mutex::new(BTreeMap::new()));
    let broken = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap()) {
                    let run = Run { seed: *seed, place, weather, defect: None };
                    let program = Program::draw(&mut Rng::with_seed(*seed));
                    match run.run(&program) {
                        Ok(report) => {
                            note_pairs(&mut pairs.lock().unwrap(), &report);
                            let mut sum = sum.lock().unwrap();
                            report.seen.into_iter().for_each(|(what, times)| *sum.entry(what).or_insert(0) += times);
                        }
                        Err((_, rule)) => {
                            broken.lock().unwrap().get_or_insert((run, program, rule));
                            next.store(u64::MAX / 2, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    if let Some((run, program, broken)) = broken.into_inner().unwrap() {
        fail(run, program, &broken);
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    #[expect(clippy::cast_precision_loss, reason = "a count of programs is small")]
    let rate = seeds.len() as f64 / minutes;
    let sum = sum.into_inner().unwrap();
    println!("{} programs on {place:?}, {weather:?}: {rate:.0} a minute; {sum:?}", seeds.len());
    for what in expected.iter().filter(|_| only.is_none()) {
        assert!(sum.contains_key(what), "never: {what}");
    }
    pairs.into_inner().unwrap()
}

/// Reduces a program and fails with a test that runs it.
fn fail(run: Run, program: Program, broken: &str) -> ! {
    let shortest = reduce(program, |shorter| run.run(shorter).is_err_and(|(_, other)| rule(&other) == rule(broken)));
    let (trace, broken) = run.run(&shortest).err().unwrap_or_default();
    let Run { seed, place, weather, .. } = run;
    panic!(
        "a program of seed {seed} on {place:?}, {weather:?}, breaks a rule. What happens in the shortest one:\n{}\n{broken}\n\n#[test]\nfn …() {{\n    replay({seed}, Place::{place:?}, Weather::{weather:?}, {shortest});\n}}",
        trace.join("\n")
    );
}

/// Runs a program that broke a rule.
fn replay(seed: u64, place: Place, weather: Weather, program: Program) {
    let run = Run { seed, place, weather, defect: None };
    if let Err((_, broken)) = run.run(&program) {
        fail(run, program, &broken);
    }
}

/// Prints the possible pairs that were granted seldom.
fn print_seldom(pairs: &Pairs) {
    let possible = possible_pairs(Place::Memory);
    let often = |pair: &(Choice, Choice)| pairs.get(pair).copied().unwrap_or_default() >= OFTEN;
    let seldom: Vec<_> = possible.iter().filter(|pair| !often(pair)).collect();
    println!(
        "{} of {} pairs of choices were granted {OFTEN} times or more. The others: {seldom:?}",
        possible.len() - seldom.len(),
        possible.len()
    );
}

#[test]
fn nothing_is_lost_and_nobody_waits_too_long_where_nothing_goes_wrong() {
    print_seldom(&run_programs(
        Place::Memory,
        Weather::Calm,
        200,
        &["a sharer is upgraded", "a tick is completed", "purged"],
    ));
}

#[test]
fn nothing_is_lost_and_nobody_waits_too_long_on_a_table_where_nothing_goes_wrong() {
    let expected = ["a batch has several keys", "a key expires by itself", "a swap has several callers"];
    run_programs(Place::Table, Weather::Calm, 60, &expected);
}

#[test]
fn a_constant_round_trip_below_two_fifths_of_the_ttl_costs_no_lease_and_puts_none_at_risk() {
    run_programs(Place::Memory, Weather::Far, 60, &[]);
}

#[test]
fn no_promise_is_broken_whatever_goes_wrong() {
    let expected = [
        "a collected record is made again",
        "a ghost arrives",
        "a reply is lost",
        "a request is done twice",
        "a request is late",
        "a request times out",
        "a sharer is upgraded",
        "a tick is completed",
        "a wake-up is lost",
        "a watch breaks off",
        "an acquire is dropped",
        "an old primary answers",
        "cut off",
        "died",
        "lost",
    ];
    run_programs(Place::Memory, Weather::Faulty, 300, &expected);
}

#[test]
fn no_promise_is_broken_on_a_table_that_can_only_compare_and_swap() {
    let expected = [
        "a batch has several keys",
        "a blank is written",
        "a call of the store is dropped",
        "a caller is dropped between load and swap",
        "a ghost load arrives",
        "a ghost swap arrives",
        "a ghost swap takes effect",
        "a key expires by itself",
        "a listener drops",
        "a load is late",
        "a message is late",
        "a message is lost",
        "a swap is late",
        "a swap has several callers",
        "a swap is overtaken",
        "an acquire is dropped",
        "an operator deletes a held key",
        "an operator deletes a record",
        "cut off",
        "died",
        "lost",
        "only its age refuses a swap",
        "purged",
        "the answer to a load is lost",
        "the answer to a swap is lost",
    ];
    run_programs(Place::Table, Weather::Faulty, 200, &expected);
}

#[test]
fn a_seed_is_the_same_each_time() {
    for seed in [1, 2, 3, 5, 8] {
        for place in [Place::Memory, Place::Table] {
            let run = Run { seed, place, weather: Weather::Faulty, defect: None };
            let program = Program::draw(&mut Rng::with_seed(seed));
            let trace = || run.run(&program).unwrap_or_else(|(_, broken)| panic!("{broken}")).trace;
            let (first, second) = (trace(), trace());
            let differs = first.iter().zip(&second).position(|(one, other)| one != other);
            assert_eq!(differs, None, "{run:?}: {:?}", differs.map(|at| (&first[at], &second[at])));
            assert_eq!(first.len(), second.len(), "{run:?}");
        }
    }
}

/// How many programs are run to notice a defect.
const UNTIL_NOTICED: u64 = 4_000;

/// The rule that the first of some programs breaks with this defect. `first` is the seed of the program that noticed it when
/// the test was last edited: an unoptimised build takes minutes for those before it.
fn broken_by(place: Place, weather: Weather, first: u64, defect: Defect) -> String {
    let broken = (first..first + UNTIL_NOTICED).find_map(|seed| {
        let run = Run { seed, place, weather, defect: Some(defect) };
        let (_, broken) = run.run(&Program::draw(&mut Rng::with_seed(seed))).err()?;
        println!("{defect:?} is noticed by the program of seed {seed}, where the test begins at {first}: {broken}");
        Some(rule(&broken).to_owned())
    });
    broken.expect("it is noticed")
}

#[test]
fn a_waiter_that_is_not_notified_of_a_minimum_hold_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, 1_063, Defect::UntoldHold), "liveness");
}

#[test]
fn a_maximum_hold_that_the_holder_does_not_know_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, 2, Defect::UnknownMaximum), "belief");
}

#[test]
fn a_shared_grant_of_an_exclusive_acquire_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, 2, Defect::UnknownSharing), "exclusion");
}

#[test]
fn a_tick_that_is_forgotten_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, 4_876, Defect::ForgottenTick), "tick");
}

#[test]
fn a_resumed_lease_that_is_not_notified_of_its_revocation_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, 2_667, Defect::UntoldRevocation), "revocation");
}

#[test]
fn a_release_by_a_shutdown_under_work_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, 1_000, Defect::UntoldWork), "exclusion");
}

#[test]
fn a_place_in_the_queue_that_nobody_has_any_more_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Faulty, 10, Defect::EndlessPlace), "rest");
}

#[test]
fn a_call_that_takes_longer_than_it_may_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, 4, Defect::LateAnswers), "time");
}

#[test]
fn an_attempt_that_is_given_up_after_a_sixth_of_the_ttl_is_noticed() {
    // A lease is lost, or at risk before that.
    let broken = broken_by(Place::Memory, Weather::Far, 101, Defect::ShortAttempts);
    assert!(["lost", "risk", "error"].contains(&&*broken), "{broken}");
}

#[test]
fn a_store_that_sends_abandoned_requests_is_noticed() {
    // An abandoned acquire is granted the key (I11), or an abandoned release ends a lease (I9).
    let broken = broken_by(Place::Table, Weather::Faulty, 3, Defect::SendsAbandoned);
    assert!(["I9", "I11"].contains(&&*broken), "{broken}");
}

#[test]
fn a_store_that_answers_a_request_with_the_outcome_of_another_is_noticed() {
    assert_eq!(broken_by(Place::Table, Weather::Faulty, 6, Defect::SwapsAnswers), "I12");
}

#[test]
fn requests_for_a_key_that_overtake_each_other_are_noticed() {
    assert_eq!(broken_by(Place::Table, Weather::Calm, 2, Defect::Apart), "own");
}

#[test]
fn a_listener_that_stays_closed_is_noticed() {
    // A waiter does not learn that it is granted the key, or a holder that its lease was revoked.
    let broken = broken_by(Place::Memory, Weather::Calm, 2, Defect::Unheard);
    assert!(["liveness", "revocation"].contains(&&*broken), "{broken}");
}

#[test]
fn a_request_that_may_take_longer_than_what_is_left_of_its_call_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Faulty, 0, Defect::RenewedDeadlines), "time");
}
