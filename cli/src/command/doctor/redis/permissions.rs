//! Checks of the user's permissions. Each command is sent in a form that changes no lease, because most users may not read
//! their own permissions.

use super::{super::privileges::Task, Finding};
use crate::command::{
    finding::Verdict,
    redis::{Answer, Lack, Refusal, Server},
};

/// A command: what an operator grants, and how it is attempted. `%` stands for the prefix and a colon.
struct Command {
    grant: &'static str,
    words: &'static [&'static str],
}

const fn command(grant: &'static str, words: &'static [&'static str]) -> Command {
    Command { grant, words }
}

/// No key has the name `%`, and no script has the hash.
const TASKS: [Task<Command>; 4] = [
    Task {
        check: "may hold",
        does: "acquire, refresh, release, revoke",
        needs: &[
            command("+info", &["INFO", "server"]),
            command("+time", &["TIME"]),
            command("+get", &["GET", "%"]),
            command("+set", &["SET", "%", "", "XX"]),
            command("+del", &["DEL", "%"]),
            command("+evalsha", &["EVALSHA", "0000000000000000000000000000000000000000", "1", "%"]),
            command("+script|load", &["SCRIPT", "LOAD", "return 0"]),
            command("+multi", &["MULTI"]),
            command("+exec", &["EXEC"]),
        ],
        without: Verdict::Fail,
        otherwise: "no lease can be held",
    },
    Task {
        check: "may wait",
        does: "send and receive messages",
        needs: &[
            command("+publish", &["PUBLISH", "%doctor", ""]),
            command("+subscribe", &["SUBSCRIBE", "%doctor"]),
            command("+ping", &["PING"]),
        ],
        without: Verdict::Warn,
        otherwise: "waiters poll, and holders notice a revocation at their next refresh",
    },
    Task {
        check: "may look",
        does: "list, watch prefixes, purge",
        needs: &[command("+scan", &["SCAN", "0", "MATCH", "%", "COUNT", "1"]), command("+mget", &["MGET", "%"])],
        without: Verdict::Warn,
        otherwise: "`mongoseal ls`, `mongoseal purge` and watches of a prefix fail",
    },
    Task {
        check: "may replicate",
        does: "wait for replicas",
        needs: &[command("+wait", &["WAIT", "0", "1"])],
        without: Verdict::Fail,
        otherwise: "no lease can be held with --redis-replicas",
    },
];

pub(super) async fn of_the_user(server: &Server, replicas: u32) -> Vec<Finding> {
    let user =
        server.user().unwrap_or_else(|| "no login, so each client has the permissions of the user \"default\"".into());
    let mut findings = vec![Finding::pass("user", user)];
    // A connection of its own: without `exec` it stays in a transaction.
    let server = match server.reopen().await {
        Ok(server) => server,
        Err(refusal) => {
            findings.push(Finding::warn("may hold", format!("cannot attempt the commands ({refusal})"), "retry"));
            return findings;
        }
    };
    for task in TASKS.iter().filter(|task| replicas > 0 || task.check != "may replicate") {
        findings.push(judge(&server, task).await);
    }
    findings
}

async fn judge(server: &Server, task: &Task<Command>) -> Finding {
    let mut missing: Vec<String> = Vec::new();
    for command in task.needs {
        let grant = match attempt(server, command).await {
            Ok(()) => continue,
            Err(Refusal::Denied(Lack::Command)) => command.grant.to_owned(),
            Err(Refusal::Denied(Lack::Keys)) => format!("~{}", server.name("*")),
            Err(Refusal::Denied(Lack::Channels)) => format!("&{}", server.name("*")),
            Err(refusal) => {
                return Finding::warn(task.check, format!("cannot attempt {} ({refusal})", command.grant), "retry");
            }
        };
        if !missing.contains(&grant) {
            missing.push(grant);
        }
    }
    let needed: Vec<&str> = task.needs.iter().map(|command| command.grant).collect();
    let missing = missing.join(" ");
    let user = server.user().unwrap_or_else(|| "default".into());
    task.judged(&needed.join(" "), &missing, || format!("grant it with ACL SETUSER {user} {missing}"))
}

async fn attempt(server: &Server, command: &Command) -> Answer<()> {
    let named = |word: &&str| match word.strip_prefix('%') {
        Some(rest) => server.name(rest),
        None => (*word).to_owned(),
    };
    let words: Vec<String> = command.words.iter().map(named).collect();
    match words.as_slice() {
        [name, channel] if name == "SUBSCRIBE" => server.attempt_subscription(channel).await,
        words => server.attempt(words).await,
    }
}
