//! Prints the result of a run.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    history,
    judge::{BY_TIME, Case},
    options::Options,
    tally::tally,
    words::{Event, Micros, Run},
};

/// The most violations of one invariant that the verdict prints.
const TOLD: usize = 10;
/// From how long a run on it must have seen all that it is about. A shorter one may miss the rarest of them.
const CONCLUSIVE: Micros = 180_000_000;

/// Prints it, keeps a history that fails, and says whether it passes.
pub(crate) fn pass(options: &Options, events: &[Event]) -> std::io::Result<bool> {
    let case = Case::of(events);
    let (told, unseen) = tally(events, &case);
    let mut violations = case.judge();
    if options.without_times {
        violations.retain(|violation| !BY_TIME.contains(&violation.of));
    }
    println!("{told}");
    if case.is_untimed || case.on_redis {
        println!("{}", case.figures());
    }
    println!("violations   {}", violations.len());
    let mut told: BTreeMap<&str, usize> = BTreeMap::new();
    for violation in &violations {
        let told = told.entry(violation.of).or_default();
        *told += 1;
        if *told <= TOLD {
            println!("  {} {}", violation.of, violation.what);
        }
    }
    for (of, count) in told.into_iter().filter(|(_, count)| *count > TOLD) {
        println!("  and {} more of {of}", count - TOLD);
    }
    let unseen = if !options.without_times && is_whole(events) { unseen } else { Vec::new() };
    for what in &unseen {
        println!("never seen   {what}");
    }
    let passes = violations.is_empty() && unseen.is_empty();
    let keep = if passes { options.json.clone() } else { Some(kept(options)) };
    if let Some(file) = keep.filter(|_| options.judge.is_none()) {
        history::save(events, &file)?;
        println!("history      {}", file.display());
    }
    Ok(passes)
}

fn kept(options: &Options) -> PathBuf {
    let name = || format!("chaos-{}-{}.jsonl", options.seed, std::process::id());
    options.json.clone().unwrap_or_else(|| std::env::temp_dir().join(name()))
}

/// Whether it is the history of a run of three minutes or more, on all faults and a whole library.
fn is_whole(events: &[Event]) -> bool {
    let mut begin = None;
    for event in events {
        match event {
            Event::Run(Run { begin: at, only, sabotage: None, .. }) if only.is_empty() => begin = Some(*at),
            Event::Healed { at, .. } => return begin.is_some_and(|begin| at.saturating_sub(begin) >= CONCLUSIVE),
            _ => {}
        }
    }
    false
}
