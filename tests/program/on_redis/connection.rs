//! Where the connection string comes from, and what happens if it leads nowhere.

use mongoseal_test_support::{Redis, eventually, secs};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{Console, PASSWORD, doctor::doctor, done, mongoseal, run, shared};

pub(crate) async fn the_variable_of_both_products_precedes_that_of_mongodb() {
    let (uri, elsewhere) = (shared().await.url(), "mongodb://127.0.0.1:9/?replicaSet=none");
    let listed = async |both: &str, of_mongodb: &str, arguments: &[&str]| {
        let mut ls = mongoseal(&["ls", "--collection", "nothing", "--timeout", "1s"]);
        ls.args(arguments).env("MONGOSEAL_URI", both).env("MONGODB_URI", of_mongodb);
        done(ls).await
    };
    listed(&uri, elsewhere, &[]).await.fails(0, "No leases.");
    listed("", &uri, &[]).await.fails(0, "No leases.");
    listed(elsewhere, elsewhere, &["--uri", &uri]).await.fails(0, "No leases.");
    assert_eq!(listed(elsewhere, &uri, &[]).await.code, 123);
}

pub(crate) async fn a_server_that_is_not_there_and_a_wrong_password_are_one_sentence_and_one_failed_check() {
    let server = Redis::start_with(&[("requirepass", "right")]).await;
    for (uri, code, part, found) in [
        (format!("redis://:{PASSWORD}@{}", server.address()), 125, "credentials", "credentials"),
        (format!("redis://eve:{PASSWORD}@{}", server.address()), 125, "credentials", "credentials"),
        (server.url(), 125, "login", "requires a login"),
        (
            format!("redis://:{PASSWORD}@127.0.0.1:9"),
            123,
            "no Redis server listens at the address",
            "no Redis server listens",
        ),
        (format!("redis://:{PASSWORD}@host:port"), 125, "", "cannot be used"),
        (format!("redis://h/{PASSWORD}"), 125, "", "cannot be used"),
    ] {
        // Of a server that answers, the machine may be busy.
        let timeout = ["--timeout", if code == 123 { "2s" } else { "30s" }];
        for arguments in [&["ls"][..], &["run", "k", "--", "true"], &["watch"], &["purge"]] {
            run(&uri, &[&timeout, arguments].concat()).await.says(code, part);
        }
        let checked = doctor(&uri, &timeout).await;
        checked.is_quiet(1);
        checked.check("reachable", "fail", found);
        assert_eq!(checked.json().len(), 1, "{}", checked.stdout);
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

pub(crate) async fn replicas_must_acknowledge_if_the_option_is_given() {
    let server = Redis::start().await;
    let console = Console::on(server.url()).await;
    let run = ["--redis-replicas", "1", "--timeout", "3s", "run", "k", "--no-wait", "--", "true"];
    // On a busy machine, the server may not answer in time for another reason.
    let is_named = async || console.run(&run).await.stderr.contains("and must be 1: check the replicas");
    eventually(secs(60), "the missing replica is named", is_named).await;
    let _replica = Redis::start_replica(&server).await;
    let acknowledged = async || console.run(&run).await.code == 0;
    eventually(secs(30), "the replica acknowledges", acknowledged).await;
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
