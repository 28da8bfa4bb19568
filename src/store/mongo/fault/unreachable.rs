//! Why no server can be reached: what lies behind a server selection that came to no end.
//!
//! The driver has it in words only, in the midst of all that it knows of each server.

/// How many causes are told, and how much of each.
const MOST: usize = 3;
const LONGEST: usize = 200;

/// The cause of each server that could not be asked, for the end of half a sentence; nothing where none is
/// told. Neither addresses nor causes have anything of a login in them.
pub(super) fn causes(message: &str) -> String {
    let mut causes: Vec<String> = Vec::new();
    for server in message.split("{ Address: ").skip(1) {
        let address = server.split(',').next().unwrap_or_default();
        let Some((_, cause)) = server.split_once("Error: Kind: ") else { continue };
        let cause = cause.split(", labels: ").next().unwrap_or_default();
        let cause: String = cause.chars().take(LONGEST).collect();
        causes.push(format!("{address}: {cause}"));
    }
    let more = causes.len().saturating_sub(MOST);
    causes.truncate(MOST);
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
    fn each_server_s_cause_is_told_and_nothing_else() {
        let message = "Server selection timeout: No available servers. Topology: { Type: ReplicaSetNoPrimary, \
            Set Name: rs0, Servers: [ { Address: a:1, Type: Unknown, Error: Kind: I/O error: invalid peer \
            certificate: UnknownIssuer, labels: {\"x\"}, source: None, server response: None }, \
            { Address: b:2, Type: RSSecondary, Average RTT: 1ms, Replica Set Name: rs0 } ] }";
        assert_eq!(causes(message), " (a:1: I/O error: invalid peer certificate: UnknownIssuer)");
        assert_eq!(causes("Server selection timeout: None of the available servers suitable"), "");
        assert_eq!(causes(""), "");
        let many = "{ Address: a:1, Error: Kind: no, labels: {} }, ".repeat(9);
        assert_eq!(causes(&many), " (a:1: no; a:1: no; a:1: no; and 6 more)");
    }
}
