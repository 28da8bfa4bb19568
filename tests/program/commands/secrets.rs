//! The password in a connection string stays out of process lists, environments and messages.

use std::fs;

use mongodb::bson::doc;
use mongoseal_test_support::ReplicaSet;
use nix::sys::signal::Signal::SIGTERM;

use crate::{
    ended::PASSWORD,
    eventually,
    sandbox::{children, done, ended, id, mongoseal, signal},
    secs,
};

#[tokio::test]
async fn a_password_among_the_arguments_is_not_in_any_process_list_and_not_given_to_the_command() {
    let set = ReplicaSet::builder().auth().start().await;
    let actions = ["find", "insert", "update", "changeStream", "createIndex", "listIndexes", "createCollection"];
    let resource = doc! { "db": "app", "collection": "mongoseal" };
    let granted = vec![doc! { "resource": resource, "actions": actions.to_vec() }];
    set.add_user("user", PASSWORD, "app", granted).await;
    let uri = set.uri_as("user", PASSWORD, "app");
    for options in [vec!["--uri".to_owned(), uri.clone()], vec![format!("--uri={uri}")]] {
        let mut command = mongoseal(&["run", "k", "--db", "app"]);
        command.args(options).args(["--", "sh", "-c", "env; exec sleep 100"]).env("MONGODB_URI", "mongodb://mine");
        let run = command.spawn().unwrap();
        let supervisor = id(&run);
        eventually(secs(30), "the command runs", async || {
            children(supervisor).first().is_some_and(|guard| {
                let command = children(*guard);
                command.first().is_some_and(|command| arguments(*command).starts_with("sleep"))
            })
        })
        .await;
        let guard = children(supervisor)[0];
        for process in [supervisor, guard, children(guard)[0]] {
            assert!(!arguments(process).contains(PASSWORD), "{}", arguments(process));
        }
        for process in [guard, children(guard)[0]] {
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
            assert!(!String::from_utf8_lossy(&environment).contains(PASSWORD));
        }
        assert!(arguments(supervisor).contains("run"), "{}", arguments(supervisor));
        signal(supervisor, SIGTERM);
        // It checks that the environment of the command has no password.
        let run = ended(run).await;
        run.is_quiet(143);
        assert!(run.stdout.contains("\nMONGODB_URI=mongodb://mine\n"), "{}", run.stdout);
    }
    let wrong = done(mongoseal(&["leader", "k", "--uri", &uri.replace(PASSWORD, "wr0ng-pass")])).await;
    wrong.says(125, "MongoDB refused the credentials");
    assert!(!wrong.stderr.contains("wr0ng-pass"));
}

fn arguments(process: nix::unistd::Pid) -> String {
    let arguments = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).replace('\0', " ")
}
