//! Model checking of the record's state machine and the rules of its clients: explores all interleavings of three
//! clients, the server, and the faults between them: stalls, lost and late replies, ghosts, a deposed primary, jumps of its
//! clock, the deletion of idle records. It also writes and reads values. A *ghost* is a request that nobody awaits any more.
//!
//! With all rules, no promise breaks: `safety.rs`. Without any one of them, one does: `rules.rs`.
//!
//! With [`Config::SCHEDULE`] it is about hold limits and the ticks of a schedule, with revocations, resets and failovers: no
//! tick is completed twice, no completed work runs again, no minimum hold is cut short, and no holder believes past its
//! maximum hold. A rule is taken out of the state machine in [`altered`], or out of the clients. The promises stay.

mod actions;
mod altered;
mod beliefs;
mod config;
mod misdeed;
mod outcomes;
mod promises;
mod records;
mod rules;
mod safety;
mod server;
mod state;

use std::sync::Mutex;

use config::Config;
use outcomes::{Breach, Rare, Reached};
use server::Server;
use stateright::{Checker, HasDiscoveries, Model};

/// No exploration knows more states than this, so that none takes more memory than a few gigabytes.
const MOST_STATES: usize = 30_000_000;

/// A broken promise, and the shortest sequence of actions that breaks it.
type Broken = Option<(Breach, Vec<String>)>;

/// Explores a configuration breadth first: to its end, or until a promise is broken.
fn explore(name: &str, config: Config) -> (Broken, Reached) {
    static SUM: Mutex<usize> = Mutex::new(0);
    let reached = Reached::default();
    let checker = Server::new(config, reached.clone()).checker().threads(2).target_state_count(MOST_STATES);
    let checker = checker.finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let sum = {
        let mut sum = SUM.lock().unwrap();
        *sum += checker.unique_state_count();
        *sum
    };
    println!(
        "{name}: {} states, {} transitions, up to {} steps; {sum} states in all",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
    );
    assert!(checker.state_count() < MOST_STATES, "{name}: there are more states than are explored");
    let broken = checker.discoveries().into_values().next().map(|path| {
        let breach = path.last_state().breach.unwrap_or(Breach::NeverGranted);
        (breach, path.into_actions().iter().map(|action| format!("{action:?}")).collect())
    });
    (broken, reached)
}

/// Explores a configuration, or where there is time another. No promise is broken, and each of these is reached.
fn holds(name: &str, config: Config, full: Config, expected: &[Rare]) {
    let is_full = std::env::var("MONGOSEAL_MODEL").is_ok_and(|how_much| how_much == "full");
    let (broken, reached) = explore(name, if is_full { full } else { config });
    assert!(broken.is_none(), "{name}: {broken:#?}");
    assert!(expected.iter().all(|rare| reached.has(*rare)), "{name}: only {reached:?}");
}

/// One of these promises is broken.
fn breaks(name: &str, config: Config, promises: &[Breach]) {
    let (broken, _) = explore(name, config);
    let Some((breach, steps)) = broken else { panic!("{name} nothing breaks") };
    println!("{name} {breach:?} in {} steps: {}", steps.len(), steps.join(", "));
    assert!(promises.contains(&breach), "{name} {breach:?} and none of {promises:?}");
}
