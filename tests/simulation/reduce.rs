//! Reduces a program to a shorter one that still breaks a rule.

use crate::{
    choices::Choice,
    program::{Program, Step},
    run::{Run, rule},
};

/// How many shorter programs are tried at most.
const TRIALS: usize = 600;

/// The shortest program that is found by leaving out one thing after another, as long as it still breaks the same rule.
pub(crate) fn reduce(run: Run, program: Program, broken: &str) -> Program {
    let (mut shortest, mut trials) = (program, 0);
    loop {
        let shorter = shorter(&shortest).into_iter().find(|candidate| {
            trials += 1;
            trials <= TRIALS && breaks(run, candidate, broken)
        });
        match shorter {
            Some(shorter) => shortest = shorter,
            None => return shortest,
        }
    }
}

/// Whether a program breaks the rule that was broken so.
pub(crate) fn breaks(run: Run, program: &Program, broken: &str) -> bool {
    run.run(program).is_err_and(|(_, other)| rule(&other) == rule(broken))
}

/// All programs with one thing less, those with the most less first.
fn shorter(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Program)| {
        let mut changed = program.clone();
        change(&mut changed);
        if changed != *program {
            all.push(changed);
        }
    };
    for track in 0..program.0.len() {
        with(&|program| drop(program.0.remove(track)));
    }
    for (track, of) in program.0.iter().enumerate() {
        for step in (0..of.steps.len()).filter(|_| of.steps.len() > 1) {
            with(&|program| drop(program.0[track].steps.remove(step)));
        }
    }
    for (track, of) in program.0.iter().enumerate() {
        for (at, step) in of.steps.iter().enumerate() {
            for choice in step.choices.named() {
                with(&|program| program.0[track].steps[at] = without(step, choice));
            }
            with(&|program| program.0[track].steps[at].pause = 0);
            with(&|program| program.0[track].steps[at].key = "one");
        }
        with(&|program| program.0[track].process = 1);
    }
    all
}

fn without(step: &Step, choice: Choice) -> Step {
    let named: Vec<_> = step.choices.named().filter(|other| *other != choice).collect();
    Step::of(step.pause, step.key, &named)
}
