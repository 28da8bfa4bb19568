//! Programs that once broke a rule. The generator found and reduced them.

use crate::{
    Place, Weather,
    choices::Choice::*,
    program::{Program, Step, Track},
    replay,
};

#[test]
fn an_error_names_only_options_that_the_caller_used() {
    let steps = vec![Step::of(0, "one", &[NeverExpires, AtMost4s])];
    replay(2, Place::Memory, Weather::Calm, Program(vec![Track { process: 1, steps }]));
}

#[test]
fn a_sharer_is_granted_when_the_exclusive_waiter_before_it_gives_up() {
    let program = Program(vec![
        Track { process: 1, steps: vec![Step::of(2_007, "one", &[WaitsLong])] },
        Track { process: 3, steps: vec![Step::of(0, "one", &[Shared, Leaks])] },
        Track {
            process: 2,
            steps: vec![
                Step::of(0, "one", &[Shared, Extends, HoldsLong]),
                Step::of(0, "one", &[Shared, WaitsLong, Ttl6s]),
            ],
        },
    ]);
    replay(6, Place::Memory, Weather::Calm, program);
}

#[test]
fn a_waiter_learns_that_it_is_the_first_when_the_one_before_it_gives_up() {
    let program = Program(vec![
        Track { process: 1, steps: vec![Step::of(0, "two", &[RefreshedByHand, HoldsLong, Leaks])] },
        Track { process: 1, steps: vec![Step::of(2_000, "two", &[WaitsBriefly])] },
        Track { process: 1, steps: vec![Step::of(2_900, "two", &[WaitsLong])] },
    ]);
    for place in [Place::Memory, Place::Table] {
        replay(200, place, Weather::Calm, program.clone());
    }
}

/// While the call waits for the other keys, its caller cannot report progress.
#[test]
fn a_set_does_not_stall_before_its_last_key_is_granted() {
    let program = Program(vec![
        Track { process: 1, steps: vec![Step::of(500, "one", &[AcquiresTwo, WaitsLong, Progresses])] },
        Track { process: 1, steps: vec![Step::of(0, "two", &[HoldsLong])] },
    ]);
    replay(1_741, Place::Memory, Weather::Calm, program);
}

/// The call must not take the release by the shutdown for its own.
#[test]
fn a_completion_after_a_shutdown_is_no_success_unless_the_tick_is_completed() {
    let program = Program(vec![
        Track { process: 1, steps: vec![Step::of(0, "one", &[RunsATick, HoldsLong])] },
        Track { process: 1, steps: vec![Step::of(2_804, "two", &[ShutsDown])] },
        Track { process: 1, steps: vec![Step::of(1_253, "one", &[WaitsLong]), Step::of(0, "one", &[RunsATick])] },
    ]);
    for seed in 2_200..2_300 {
        replay(seed, Place::Memory, Weather::Calm, program.clone());
    }
}

/// The lease id is in use until the orphaned lease has ended here.
#[test]
fn a_process_resumes_what_it_has_just_orphaned() {
    let steps = vec![Step::of(0, "one", &[Orphans]), Step::of(0, "one", &[Resumes])];
    for seed in 0..20 {
        replay(seed, Place::Memory, Weather::Calm, Program(vec![Track { process: 1, steps: steps.clone() }]));
    }
}

/// After the maximum hold, the store keeps the key for the grace. It is not the ttl that is over.
#[test]
fn a_lease_whose_maximum_hold_is_over_is_lost_to_a_resume() {
    let steps = vec![Step::of(0, "two", &[LongGrace, AtMost4s, Orphans]), Step::of(4_000, "one", &[Resumes])];
    for place in [Place::Memory, Place::Table] {
        replay(1, place, Weather::Calm, Program(vec![Track { process: 1, steps: steps.clone() }]));
    }
}
