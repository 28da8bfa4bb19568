//! Model checking of the record's state machine and the rules of its clients: explores all interleavings of three
//! clients, the server, and the faults between them.

mod actions;
mod answers;
mod client;
mod config;
mod misdeed;
mod rules;
mod safety;
mod server;
mod state;

use std::{collections::BTreeMap, sync::Mutex};

use config::Config;
use server::Server;
use state::Breach;
use stateright::{Checker, HasDiscoveries, Model};

/// No exploration knows more states than this, so that none takes more memory than a few gigabytes.
const MOST_STATES: usize = 30_000_000;

/// Explores a configuration to its end, breadth first, and gives what was found of each property, as the
/// shortest sequence of actions.
fn explore(name: &str, config: Config) -> BTreeMap<&'static str, Vec<String>> {
    static SUM: Mutex<usize> = Mutex::new(0);
    // Ends with the first promise that is broken; reaching a state is none.
    let promises = Server::new(config).properties().into_iter();
    let promises = promises.filter(|promise| promise.expectation != stateright::Expectation::Sometimes);
    let checker = Server::new(config)
        .checker()
        .threads(2)
        .target_state_count(MOST_STATES)
        .finish_when(HasDiscoveries::AnyOf(promises.map(|promise| promise.name).collect()))
        .spawn_bfs()
        .join();
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
    let found = checker.discoveries().into_iter().map(|(name, path)| {
        let breach = path.last_state().breach.filter(|_| name == Breach::NONE);
        let steps = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
        (breach.map_or(name, Breach::promise), steps)
    });
    found.collect()
}
