//! The example `fence_http`.

use std::{net::SocketAddr, sync::Arc};

use mongoseal::FencingToken;
use tokio::net::TcpListener;

use crate::{
    example,
    fence_http::{Reports, serve, write},
    race::{Storage, race},
};

pub(crate) async fn the_example_runs() {
    example("fence_http", None, "the service refused token").await;
}

#[derive(Clone)]
struct Service {
    address: SocketAddr,
    reports: Arc<Reports>,
}

impl Storage for Service {
    async fn write(&mut self, token: FencingToken) -> bool {
        let (status, largest) = write(self.address, &token.to_string(), Some(token)).await.unwrap();
        assert_eq!(largest > Some(token), status == 412, "a refusal names who is newer");
        status == 200
    }

    async fn read(&mut self) -> Option<(String, u64)> {
        self.reports.lock().unwrap().get("/nightly").map(|(body, token)| (body.clone(), token.get()))
    }
}

pub(crate) async fn the_largest_of_racing_tokens_stays() {
    let (listener, reports) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::<Reports>::default());
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, reports.clone()));
    race((0..17).map(|_| Service { address, reports: reports.clone() })).await;
}
