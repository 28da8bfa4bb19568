//! Whether a client can reach the primary.
//!
//! A client with `directConnection=true` sends each command to one server, and never follows the primary. A client that
//! follows the set sends commands to the server that it takes for the primary. If that server has stepped down, the
//! client finds the next primary by itself.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use mongodb::{
    ServerType,
    bson::{Document, doc},
    options::{SelectionCriteria, ServerAddress},
};

use super::super::{context::MongoContext, error};
use crate::types::{
    error::{Error, Result},
    lock::lock,
};

/// Refuses a direct connection to a member that is not the primary, if the member knows another one that is. While the
/// set has no primary, the member may become it.
pub(super) async fn check(store: &MongoContext, hello: &Document) -> Result<()> {
    if hello.get_bool("isWritablePrimary").unwrap_or(true) {
        return Ok(());
    }
    let known = list_servers(store).await?;
    // A client that follows the set, and knows by now that this server is not the primary, sends this to another one.
    let again = store.command(doc! { "hello": 1 }, "hello").await?;
    Err(unwritable(&again, &known))
}

/// The data-bearing servers that the client knows, and the types that it takes them for.
async fn list_servers(store: &MongoContext) -> Result<HashMap<ServerAddress, ServerType>> {
    let known = Arc::<Mutex<HashMap<ServerAddress, ServerType>>>::default();
    let note = Arc::clone(&known);
    // The driver offers each server that it could select, but only when it selects a server, so a command must be sent.
    let any = SelectionCriteria::Predicate(Arc::new(move |server| {
        lock(&note).insert(server.address().clone(), server.server_type());
        true
    }));
    let answered = store.database.run_command(doc! { "hello": 1 }).selection_criteria(any).await;
    answered.map_err(|error| store.translate(error, "hello"))?;
    Ok(std::mem::take(&mut lock(&known)))
}

/// The error for a server that takes no writes, for a client that knows these servers.
fn unwritable(hello: &Document, known: &HashMap<ServerAddress, ServerType>) -> Error {
    let word = |field| hello.get_str(field).unwrap_or("?");
    let (set, me) = (word("setName"), word("me"));
    let Ok(primary) = hello.get_str("primary") else {
        return Error::unavailable(format!(
            "the MongoDB replica set {set} has no primary: retry, and check that a majority of its members is up"
        ));
    };
    // A member that is about to take writes names itself as the primary, maybe not by the name that the client uses.
    let is_passing = primary == me || hello.get_bool("isWritablePrimary").unwrap_or(false);
    let is_followed = known.len() != 1
        || known.values().any(|taken_for| *taken_for == ServerType::RsPrimary)
        || ServerAddress::parse(primary).is_ok_and(|primary| known.contains_key(&primary));
    if is_passing || is_followed {
        return error::not_primary();
    }
    Error::invalid(format!(
        "the connection goes to one member of the MongoDB replica set {set}, {me}, which is not the primary: leave out directConnection and write replicaSet={set}, or connect to the primary, {primary}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(hosts: &[&str]) -> HashMap<ServerAddress, ServerType> {
        hosts.iter().map(|host| (ServerAddress::parse(host).unwrap(), ServerType::RsSecondary)).collect()
    }

    #[test]
    fn only_a_client_that_never_follows_the_primary_is_refused() {
        let secondary = doc! { "setName": "rs0", "isWritablePrimary": false, "me": "b:1", "primary": "a:1" };
        let refused = unwritable(&secondary, &known(&["b:1"]));
        assert!(
            matches!(refused, Error::Invalid { .. }) && refused.to_string().contains("replicaSet=rs0"),
            "{refused}"
        );
        // By another name of the member, from the connection string.
        assert!(matches!(unwritable(&secondary, &known(&["127.0.0.1:1"])), Error::Invalid { .. }));
        // A primary that has just stepped down, and a client that follows the set.
        assert!(matches!(unwritable(&secondary, &known(&["a:1", "b:1"])), Error::Unavailable { .. }));
        // A member that is about to take writes.
        let draining = doc! { "setName": "rs0", "isWritablePrimary": false, "me": "a:1", "primary": "a:1" };
        assert!(matches!(unwritable(&draining, &known(&["a:1"])), Error::Unavailable { .. }));
        assert!(matches!(unwritable(&draining, &known(&["127.0.0.1:1"])), Error::Unavailable { .. }));
        // A member that has stepped down, which the client does not know yet.
        let stale = HashMap::from([(ServerAddress::parse("b:1").unwrap(), ServerType::RsPrimary)]);
        assert!(matches!(unwritable(&secondary, &stale), Error::Unavailable { .. }));
        // The client has found the primary meanwhile.
        let found = doc! { "setName": "rs0", "isWritablePrimary": true, "me": "a:1", "primary": "a:1" };
        assert!(matches!(unwritable(&found, &known(&["b:1"])), Error::Unavailable { .. }));
        // An election.
        let between = doc! { "setName": "rs0", "isWritablePrimary": false, "me": "b:1" };
        let passing = unwritable(&between, &known(&["b:1"]));
        assert!(
            matches!(passing, Error::Unavailable { .. }) && passing.to_string().contains("no primary"),
            "{passing}"
        );
    }
}
