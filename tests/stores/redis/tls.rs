//! Servers that speak TLS only.

use std::process::{Command, ExitCode};

use mongoseal::Error;
use mongoseal_test_support::Redis;

use crate::{hasty, open};

/// The variable with the connection string of a client in a process of its own.
const CLIENT: &str = "MONGOSEAL_TEST_REDIS_CLIENT";

/// Holds a lease, if this process is a client of a test.
pub(crate) fn run_as_client() -> Option<ExitCode> {
    let uri = std::env::var(CLIENT).ok()?;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let held = runtime.block_on(async {
        let seal = mongoseal_redis::connect(uri).await?;
        let lease = seal.acquire("k").await?;
        lease.refresh().await?;
        lease.release().await
    });
    match held {
        Ok(_) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("{error:?}");
            Some(ExitCode::FAILURE)
        }
    }
}

fn uri(server: &Redis) -> String {
    format!("rediss://{}", server.address())
}

pub(crate) async fn a_lease_is_held_on_a_server_that_speaks_tls_only() {
    let server = Redis::start_tls().await;
    // The variable names the authorities that a process trusts, and this process cannot change its own.
    let mut client = Command::new(std::env::current_exe().unwrap());
    client.env(CLIENT, uri(&server)).env("SSL_CERT_FILE", server.directory().join("authority.pem"));
    let output = tokio::task::spawn_blocking(move || client.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) async fn a_certificate_of_an_unknown_authority_is_refused() {
    let server = Redis::start_tls().await;
    let error = open(hasty(), uri(&server)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("certificate"), "{error:?}");
}
