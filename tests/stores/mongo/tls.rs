//! Servers that require TLS and a login: with the right certificate and password everything works; without one of them
//! the error names the cause.

use std::time::Instant;

use mongodb::bson::doc;
use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::{ReplicaSet, by_length, is_long};
use tokio::task::JoinSet;

use crate::{
    secrets::{Said, Secrets, all_of},
    secs,
};

const PASSWORD: &str = "hunter2-s3cret";

/// A set that speaks TLS only, with a certificate for its address that is good for so many seconds.
async fn start(lasts: u64) -> ReplicaSet {
    let set = ReplicaSet::builder().members(1).auth().tls(&["127.0.0.1"], secs(lasts)).start().await;
    let actions = vec![doc! {
        "resource": { "db": "app", "collection": "mongoseal" },
        "actions": ["find", "insert", "update", "changeStream", "createIndex"],
    }];
    set.add_user("user", PASSWORD, "app", actions).await;
    set
}

fn uri(set: &ReplicaSet) -> String {
    set.uri_as("user", PASSWORD, "app")
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_or_a_login_is_said_without_secrets() {
    let (said, _guard) = Said::listen();
    let began = Instant::now();
    // At night, the certificate of one of them expires meanwhile; a server does not start with one that has.
    let (good, expired) = tokio::join!(start(24 * 3600), start(by_length(24 * 3600, 15)));
    // With the right ones, everything works.
    let seal = Mongoseal::builder().database("app").connect(uri(&good)).await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    lease.refresh().await.unwrap();
    lease.release().await.unwrap();

    let secrets = Secrets { password: PASSWORD, ids: Vec::new() };
    let without = |uri: String, option: &str| {
        let (address, options) = uri.split_once('?').unwrap();
        let kept: Vec<_> = options.split('&').filter(|other| !other.starts_with(option)).collect();
        format!("{address}?{}", kept.join("&"))
    };
    let good_uri = uri(&good);
    let other_authority = format!("tlsCAFile={}", expired.authority().display());
    let cases = [
        ("of an unknown authority", without(good_uri.clone(), "tlsCAFile") + "&" + &other_authority, "UnknownIssuer"),
        ("of an authority of the web", without(good_uri.clone(), "tlsCAFile"), "UnknownIssuer"),
        ("of another host", good_uri.replace("127.0.0.1", "localhost"), "not valid for name"),
        ("no TLS", without(good_uri.clone(), "tls"), "I/O error"),
        ("a wrong password", good_uri.replace(PASSWORD, &format!("{PASSWORD}!")), "user, password and authSource"),
        ("no login", good_uri.replace(&format!("user:{PASSWORD}@"), ""), "user, password and authSource"),
        ("expired", uri(&expired), "xpired"),
    ];
    let mut asking = JoinSet::new();
    for (what, uri, cause) in cases.into_iter().filter(|(what, ..)| is_long() || *what != "expired") {
        asking.spawn(async move {
            if what == "expired" {
                tokio::time::sleep(secs(17).saturating_sub(began.elapsed())).await;
            }
            // A server answers a login in any time. What cannot be reached is given up.
            let within = secs(if cause.contains("password") { 60 } else { 6 });
            // A handle that connects, and one on a client of the caller's.
            let connected = Mongoseal::builder().database("app").operation_timeout(within).connect(&uri).await;
            let mut options = mongodb::options::ClientOptions::parse(&uri).await.unwrap();
            options.server_selection_timeout = Some(within / 2);
            let client = mongodb::Client::with_options(options).unwrap();
            let on = Mongoseal::builder().operation_timeout(within).on_shared_client(&client.database("app")).unwrap();
            let asked = on.acquire("k").await;
            (what, cause, [connected.unwrap_err(), asked.unwrap_err()])
        });
    }
    let mut errors = Vec::new();
    for (what, cause, found) in asking.join_all().await {
        for error in found {
            println!("{what}: {error}");
            assert!(error.to_string().contains(cause), "{what}: {error:?}");
            let passes = matches!(error, Error::Unavailable { .. });
            assert_eq!(passes, !cause.contains("password"), "{what}: {error:?}");
            assert_eq!(error.code() == Some(18), what == "a wrong password", "{what}: {error:?}");
            errors.push(error);
        }
    }
    let said = said.take();
    for error in &errors {
        secrets.are_not_in(&all_of(error), &format!("the error {error}"));
    }
    secrets.are_not_in(&said, "the log");
}
