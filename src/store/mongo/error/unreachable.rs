//! The cause of a server selection that timed out.
//!
//! Mechanism: the driver gives the cause as text only, within its description of each server.

use super::super::product;
use crate::types::error::Error;

/// Translates a failed server selection. A server with a wire version that does not fit stays so; a server that cannot
/// be reached may come back.
pub(super) fn translate(message: &str) -> Error {
    if message.starts_with("Server at ") && message.contains(" wire version ") {
        let address = message.split(' ').nth(2).unwrap_or_default();
        return match product::find_by_address(address) {
            Some(name) => product::refuse(name),
            None => Error::invalid(
                "the MongoDB server and the driver in this program have no wire version in common: upgrade the server to MongoDB 6.0 or later, or this program if it is older than the server",
            ),
        };
    }
    misnamed(message).unwrap_or_else(|| Error::unavailable(no_primary(message)))
}

/// Says why no primary was selected. Without the error of a server, nothing is misconfigured as far as the driver knows: the
/// servers or this process are slow.
fn no_primary(message: &str) -> String {
    let is_any = |kind: &str| message.contains(&format!("Type: {kind},"));
    let causes = causes(message);
    if !causes.is_empty() {
        return format!(
            "no primary of the MongoDB replica set can be reached{causes}: check addresses, TLS options and the set's state"
        );
    }
    if ["RsSecondary", "RsArbiter", "RsOther"].into_iter().any(is_any) {
        return "the MongoDB replica set has no primary at the moment: check the set's state, and retry".into();
    }
    if is_any("RsGhost") {
        return "the MongoDB server answers, and belongs to no replica set yet: run rs.initiate() (one member is enough), or wait until it has joined its set, and retry".into();
    }
    "no server of the MongoDB replica set has answered in time: check the network, and whether too many calls or programs run at once, and retry".into()
}

/// The error for a set name in a connection string that no server of it has.
fn misnamed(message: &str) -> Option<Error> {
    // A direct connection keeps its server, with this error.
    if let Some((_, names)) = message.split_once("Connection string replicaSet name \"") {
        let (wanted, rest) = names.split_once("\" does not match actual name ")?;
        let Some(actual) = rest.strip_prefix('"') else {
            // The server may be starting, or its set is not initiated yet.
            return Some(Error::unavailable(format!(
                "the MongoDB connection string says replicaSet={wanted}, but the server belongs to no replica set: start it with --replSet, run rs.initiate() (one member is enough), and retry"
            )));
        };
        let actual = actual.split('"').next()?;
        return Some(Error::invalid(format!(
            "the MongoDB connection string says replicaSet={wanted}, but the replica set is called {actual}: write replicaSet={actual}"
        )));
    }
    // Other connections drop servers that answered and are not in the set, and never take them back.
    let (_, topology) = message.split_once("Topology: { Type: ReplicaSetNoPrimary, Set Name: ")?;
    if topology.contains("Servers: [") {
        return None;
    }
    let wanted = topology.split([',', '}']).next()?.trim_end();
    Some(Error::invalid(format!(
        "no server of the MongoDB connection string belongs to the replica set {wanted:?}: leave its option replicaSet out, or run `mongoseal doctor`, which prints the name of the set"
    )))
}

/// How many causes an error names, and how many characters of each.
const MAX_CAUSES: usize = 3;
const MAX_CAUSE_LENGTH: usize = 200;

/// The cause of each server that could not be reached, in parentheses. Empty if the driver names none. Neither
/// addresses nor causes have credentials in them.
pub(super) fn causes(message: &str) -> String {
    let mut causes: Vec<String> = Vec::new();
    for server in message.split("{ Address: ").skip(1) {
        let address = server.split(',').next().unwrap_or_default();
        let Some((_, cause)) = server.split_once("Error: Kind: ") else { continue };
        let cause = cause.split(", labels: ").next().unwrap_or_default();
        let cause: String = cause.chars().take(MAX_CAUSE_LENGTH).collect();
        causes.push(format!("{address}: {cause}"));
    }
    let more = causes.len().saturating_sub(MAX_CAUSES);
    causes.truncate(MAX_CAUSES);
    match (causes.is_empty(), more) {
        (true, _) => String::new(),
        (_, 0) => format!(" ({})", causes.join("; ")),
        _ => format!(" ({}; and {more} more)", causes.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_name_to_which_no_server_answers_is_invalid_and_a_set_that_cannot_be_reached_is_not() {
        let invalid = |message: &str, says: &str| {
            let error = translate(message);
            assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(says), "{error:?}");
        };
        let dropped =
            "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, Set Name: other }";
        invalid(dropped, "the replica set \"other\"");
        let direct = |actual: &str| {
            format!(
                "Server selection timeout: No available servers. Topology: {{ Type: Single, Set Name: other, Servers: [ \
                 {{ Address: a:1, Type: Unknown, Error: Kind: An invalid argument was provided: Connection string \
                 replicaSet name \"other\" does not match actual name {actual}, labels: {{}} }} ] }}"
            )
        };
        invalid(&direct("\"rs0\""), "write replicaSet=rs0");
        let starting = translate(&direct("<none>"));
        assert!(matches!(starting, Error::Unavailable { .. }) && starting.to_string().contains("run rs.initiate()"));
        let away = "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, Set Name: rs0, \
            Servers: [ { Address: a:1, Type: Unknown, Error: Kind: I/O error: refused, labels: {} } ] }";
        assert!(matches!(translate(away), Error::Unavailable { .. }));
    }

    #[test]
    fn a_server_whose_wire_version_the_driver_refuses_is_invalid_and_the_product_is_named_if_its_host_tells_it() {
        let message = |host: &str| {
            format!(
                "Server at {host} reports wire version 6, but this version of the MongoDB Rust driver requires at least 9 (MongoDB 4.4)."
            )
        };
        let said = |host: &str| {
            let error = translate(&message(host));
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
            error.to_string()
        };
        assert!(said("db0:27017").contains("upgrade the server to MongoDB 6.0"));
        assert!(said("a.mongo.cosmos.azure.com:10255").contains("Azure Cosmos DB"));
        // Another server may become the primary.
        let one_of_several =
            format!("Server selection timeout: Servers: [ {{ Error: Kind: {} }} ]", message("db0:27017"));
        assert!(matches!(translate(&one_of_several), Error::Unavailable { .. }));
    }

    /// Each server selection that times out has that text, also if no server has an error.
    #[test]
    fn addresses_and_tls_are_blamed_only_if_a_server_has_an_error() {
        let said = |servers: &str| {
            let error = translate(&format!(
                "Server selection timeout: None of the available servers suitable for criteria ReadPreference(Primary). \
                 Topology: {{ Type: ReplicaSetWithPrimary, Set Name: rs0, Servers: [ {servers} ] }}"
            ));
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            error.to_string()
        };
        let refused = "{ Address: a:1, Type: Unknown, Error: Kind: I/O error: refused, labels: {} }";
        assert!(said(refused).contains("check addresses, TLS options"));
        for (servers, says) in [
            ("{ Address: a:1, Type: RsGhost, Average RTT: 1ms }", "rs.initiate()"),
            ("{ Address: a:1, Type: RsSecondary, Average RTT: 1ms }", "has no primary at the moment"),
            ("{ Address: a:1, Type: Unknown }", "has answered in time"),
        ] {
            let said = said(servers);
            assert!(said.contains(says) && !said.contains("TLS") && !said.contains("address"), "{said}");
        }
    }

    #[test]
    fn each_server_s_cause_is_named_and_nothing_else() {
        let message = "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, \
            Set Name: rs0, Servers: [ { Address: a:1, Type: Unknown, Error: Kind: I/O error: invalid peer \
            certificate: UnknownIssuer, labels: {\"x\"}, source: None, server response: None }, \
            { Address: b:2, Type: RsSecondary, Average RTT: 1ms, Replica Set Name: rs0 } ] }";
        assert_eq!(causes(message), " (a:1: I/O error: invalid peer certificate: UnknownIssuer)");
        assert_eq!(causes("Server selection timeout: None of the available servers suitable"), "");
        assert_eq!(causes(""), "");
        let many = "{ Address: a:1, Error: Kind: no, labels: {} }, ".repeat(9);
        assert_eq!(causes(&many), " (a:1: no; a:1: no; a:1: no; and 6 more)");
    }
}
