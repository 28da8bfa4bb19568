//! Where the connection string comes from, and what happens if it leads nowhere.

use std::fs;

use mongoseal_test_support::{Redis, secs};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{Console, Ended, PASSWORD, done, ended, mongoseal, send, shared};

/// Checks that a server was read.
fn has_listed(ls: &Ended) {
    assert_eq!((ls.code, ls.stderr.as_str()), (Some(0), "No leases.\n"));
}

pub(crate) async fn the_variable_of_both_products_precedes_that_of_mongodb() {
    let (uri, elsewhere) = (shared().await.url(), "mongodb://127.0.0.1:9/?replicaSet=none");
    let listed = async |both: &str, of_mongodb: &str, arguments: &[&str]| {
        let mut ls = mongoseal(&["ls", "--collection", "nothing", "--timeout", "1s"]);
        ls.args(arguments).env("MONGOSEAL_URI", both).env("MONGODB_URI", of_mongodb);
        done(ls).await
    };
    has_listed(&listed(&uri, elsewhere, &[]).await);
    has_listed(&listed("", &uri, &[]).await);
    has_listed(&listed(elsewhere, elsewhere, &["--uri", &uri]).await);
    assert_eq!(listed(elsewhere, &uri, &[]).await.code, Some(123));
}

pub(crate) async fn a_password_among_the_arguments_is_in_no_process_list() {
    let server = Redis::start().await;
    let password = format!("{PASSWORD}-{}", std::process::id());
    // Not among the arguments of the server.
    let () = send(&server, &format!("CONFIG SET requirepass {password}")).await;
    let uri = format!("redis://:{password}@{}", server.address());
    let console = Console::on(uri.clone()).await;
    for options in [vec!["--uri".to_owned(), uri.clone()], vec![format!("--uri={uri}")]] {
        let mut run = mongoseal(&["run", "k", "--collection", &console.prefix]);
        run.args(options).args(["--", "sh", "-c", "env; sleep 100"]);
        let running = run.spawn().unwrap();
        console.has("k", 1, 0).await;
        let list = fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
        for arguments in list.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " ")) {
            assert!(!arguments.contains(&password), "{arguments}");
        }
        console.seal.revoke("k").by("test").reason("the end").await.unwrap();
        // It checks the output, which has the environment of the command.
        let ended = ended(running).await;
        assert!(ended.code == Some(122) && ended.stdout.contains("MONGOSEAL_TOKEN="), "{}", ended.stderr);
    }
}

pub(crate) async fn a_wrong_password_is_refused_and_never_shown() {
    let server = Redis::start_with(&[("requirepass", "right")]).await;
    for (login, part) in [
        (format!(":{PASSWORD}@"), "credentials"),
        (format!("eve:{PASSWORD}@"), "credentials"),
        (String::new(), "login"),
    ] {
        let uri = format!("redis://{login}{}", server.address());
        for arguments in [&["ls"][..], &["run", "k", "--", "true"], &["watch"], &["conform"]] {
            let mut command = mongoseal(arguments);
            command.env("MONGOSEAL_URI", &uri);
            done(command).await.says(125, part);
        }
    }
    for bad in [format!("redis://:{PASSWORD}@host:port"), format!("redis://h/{PASSWORD}")] {
        let mut command = mongoseal(&["ls"]);
        command.env("MONGOSEAL_URI", bad);
        assert_eq!(done(command).await.code, Some(125));
    }
}

pub(crate) async fn a_server_that_does_not_answer_is_named_after_a_second() {
    let server = Redis::start().await;
    server.pause();
    let mut ls = mongoseal(&["ls"]).env("MONGOSEAL_URI", server.url()).spawn().unwrap();
    let mut lines = BufReader::new(ls.stderr.take().unwrap()).lines();
    let line = tokio::time::timeout(secs(60), lines.next_line()).await.expect("it comes").unwrap().unwrap();
    let cause = format!("{} accepts connections", server.address());
    assert_eq!(line, format!("mongoseal: Redis has not answered for 1 s: {cause}; waiting up to 10 s (--timeout)"));
    server.resume();
}

pub(crate) async fn a_server_that_is_not_there_has_status_123() {
    for arguments in [&["ls"][..], &["run", "k", "--", "true"], &["watch"], &["conform"], &["purge"]] {
        let mut command = mongoseal(arguments);
        command.args(["--timeout", "2s"]).env("MONGOSEAL_URI", format!("redis://:{PASSWORD}@127.0.0.1:9"));
        // An option after the command belongs to the command.
        if arguments.contains(&"--") {
            command = mongoseal(&["--timeout", "2s", "run", "k", "--", "true"]);
            command.env("MONGOSEAL_URI", format!("redis://:{PASSWORD}@127.0.0.1:9"));
        }
        done(command).await.says(123, "no Redis server listens at the address");
    }
}

pub(crate) async fn replicas_must_acknowledge_if_the_option_is_given() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let run = ["--redis-replicas", "1", "--timeout", "1s", "run", "k", "--no-wait", "--", "true"];
    console.run(&run).await.says(123, "and must be 1: check the replicas");
    let _replica = Redis::start_replica(&server).await;
    let acknowledged = async || console.run(&run).await.code == Some(0);
    mongoseal_test_support::eventually(secs(30), "the replica acknowledges", acknowledged).await;
}

pub(crate) async fn a_server_that_speaks_tls_only_is_used_and_examined() {
    let server = Redis::start_tls().await;
    let authority = server.directory().join("authority.pem");
    for arguments in [&["run", "k", "--", "true"][..], &["ls", "--json"], &["doctor"]] {
        let mut command = mongoseal(arguments);
        command.env("MONGOSEAL_URI", format!("rediss://{}", server.address())).env("SSL_CERT_FILE", &authority);
        done(command).await.printed();
    }
    // The certificate of an unknown authority.
    let mut command = mongoseal(&["ls"]);
    command.env("MONGOSEAL_URI", format!("rediss://{}", server.address())).env_remove("SSL_CERT_FILE");
    done(command).await.says(125, "the TLS handshake with the Redis server failed");
}
