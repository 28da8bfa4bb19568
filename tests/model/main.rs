//! Model checking of the record's state machine and the rules of its clients: explores all interleavings of three
//! clients, the server, and the faults between them: stalls, lost and late replies, ghosts, a deposed primary, jumps of its
//! clock, the deletion of idle records. It also writes and reads values. A *ghost* is a request that nobody awaits any more.
//!
//! With all rules, no promise breaks: `safety.rs`. Without any one of them, one does: `rules.rs`.
//!
//! [`schedules`] is a second model: of hold limits and of the ticks of a schedule, with revocations, resets and failovers.

mod actions;
mod answers;
mod client;
mod config;
mod misdeed;
mod outcomes;
mod records;
mod rules;
mod safety;
mod schedules;
mod server;
mod state;

use std::{fmt::Debug, hash::Hash, sync::Mutex};

use outcomes::{Breach, Rare, Reached};
use stateright::{Checker, HasDiscoveries, Model};

/// No exploration knows more states than this, so that none takes more memory than a few gigabytes.
const MOST_STATES: usize = 30_000_000;

/// The configuration of an exploration of one of the two models.
trait Exploration {
    type Server: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>
        + Send
        + Sync
        + 'static;

    fn server(self, reached: Reached) -> Self::Server;

    /// The promise that a state breaks.
    fn breach(state: &<Self::Server as Model>::State) -> Option<Breach>;
}

/// A broken promise, and the shortest sequence of actions that breaks it.
type Broken = Option<(Breach, Vec<String>)>;

/// Explores a configuration breadth first: to its end, or until a promise is broken.
fn explore<E: Exploration>(name: &str, exploration: E) -> (Broken, Reached) {
    static SUM: Mutex<usize> = Mutex::new(0);
    let reached = Reached::default();
    let checker = exploration.server(reached.clone()).checker().threads(2).target_state_count(MOST_STATES);
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
        let breach = E::breach(path.last_state()).unwrap_or(Breach::NeverGranted);
        (breach, path.into_actions().iter().map(|action| format!("{action:?}")).collect())
    });
    (broken, reached)
}

/// Explores a configuration, or where there is time another. No promise is broken, and each of these is reached.
fn holds<E: Exploration>(name: &str, exploration: E, full: E, expected: &[Rare]) {
    let is_full = std::env::var("MONGOSEAL_MODEL").is_ok_and(|how_much| how_much == "full");
    let (broken, reached) = explore(name, if is_full { full } else { exploration });
    assert!(broken.is_none(), "{name}: {broken:#?}");
    assert!(expected.iter().all(|rare| reached.has(*rare)), "{name}: only {reached:?}");
}

/// One of these promises is broken.
fn breaks(name: &str, exploration: impl Exploration, promises: &[Breach]) {
    let (broken, _) = explore(name, exploration);
    let Some((breach, steps)) = broken else { panic!("{name} nothing breaks") };
    println!("{name} {breach:?} in {} steps: {}", steps.len(), steps.join(", "));
    assert!(promises.contains(&breach), "{name} {breach:?} and none of {promises:?}");
}
