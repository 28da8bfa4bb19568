//! Model checking of the record's state machine and the rules of its clients: explores all interleavings of three
//! clients, the server, and the faults between them.
//!
//! [`schedules`] is a second model: of hold limits and of the ticks of a schedule.

mod actions;
mod answers;
mod client;
mod config;
mod misdeed;
mod rules;
mod safety;
mod schedules;
mod server;
mod state;

use std::{collections::BTreeMap, fmt::Debug, hash::Hash, sync::Mutex};

use config::Config;
use server::Server;
use state::Breach;
use stateright::{Checker, HasDiscoveries, Model};

/// No exploration knows more states than this, so that none takes more memory than a few gigabytes.
const MOST_STATES: usize = 30_000_000;

/// Explores a configuration to its end, breadth first, and gives what was found of each property, as the
/// shortest sequence of actions.
fn explore(name: &str, config: Config) -> BTreeMap<&'static str, Vec<String>> {
    explore_model(name, &Server::new(config), |state| state.breach.map(Breach::promise))
}

/// Explores a model to its end. `broken` gives the promise that a state breaks: the model has one property for all
/// promises.
fn explore_model<M>(
    name: &str,
    model: &M,
    broken: fn(&M::State) -> Option<&'static str>,
) -> BTreeMap<&'static str, Vec<String>>
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>,
    M: Clone + Send + Sync + 'static,
{
    static SUM: Mutex<usize> = Mutex::new(0);
    // Ends with the first promise that is broken; reaching a state is none.
    let promises = model.properties().into_iter();
    let promises = promises.filter(|promise| promise.expectation != stateright::Expectation::Sometimes);
    let checker = model
        .clone()
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
        let breach = broken(path.last_state()).filter(|_| name == Breach::NONE);
        let steps = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
        (breach.unwrap_or(name), steps)
    });
    found.collect()
}
