//! Fences a service over HTTP: requests carry the token in a header, and the service keeps the largest.
//!
//!     cargo run -p mongoseal-tests --example fence_http
//!
//! The service compares and writes under one lock, so that writes happen in the order in which they are admitted. An
//! older token gets 412 with the newer token; a missing token gets 428 (RFC 6585). An equal token passes, so a PUT can
//! be sent twice.
//!
//! Limits: the largest token must live as long as the data that it protects. So save both in one step, where all
//! instances of the service read them (`fence_postgres`); here both are in memory. A token does not authenticate the
//! caller.
#![allow(clippy::disallowed_methods, reason = "a connection ends with its client, the service with the process")]

#[path = "fence_http/wire.rs"]
mod wire;

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use mongoseal::{FencingToken, Mongoseal};
use tokio::net::{TcpListener, TcpStream};

/// By path, what was written and the token that wrote it.
pub(crate) type Reports = Mutex<HashMap<String, (String, FencingToken)>>;

/// The status, and the largest token that was seen.
pub(crate) type Verdict = (u16, Option<FencingToken>);

fn put(reports: &Reports, path: String, body: String, token: Option<FencingToken>) -> Verdict {
    let mut reports = reports.lock().unwrap();
    match (reports.get(&path), token) {
        (_, None) => return (428, None),
        (Some((_, newer)), Some(token)) if *newer > token => return (412, Some(*newer)),
        (_, Some(token)) => reports.insert(path, (body, token)),
    };
    (200, token)
}

pub(crate) async fn serve(listener: TcpListener, reports: Arc<Reports>) -> io::Result<()> {
    loop {
        let ((mut stream, _), reports) = (listener.accept().await?, reports.clone());
        tokio::spawn(async move {
            let (path, token, body) = wire::receive(&mut stream).await?;
            let (status, largest) = put(&reports, path, body, token);
            wire::send(&mut stream, &format!("HTTP/1.1 {status} "), largest, "").await
        });
    }
}

/// What a client is told.
pub(crate) async fn write(service: SocketAddr, body: &str, token: Option<FencingToken>) -> io::Result<Verdict> {
    let mut stream = TcpStream::connect(service).await?;
    wire::send(&mut stream, &format!("PUT /nightly HTTP/1.1\r\nHost: {service}"), token, body).await?;
    let (status, largest, _) = wire::receive(&mut stream).await?;
    Ok((status.parse().map_err(io::Error::other)?, largest))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (listener, reports) = (TcpListener::bind("127.0.0.1:0").await?, Arc::<Reports>::default());
    let service = listener.local_addr()?;
    tokio::spawn(serve(listener, reports.clone()));
    let seal = Mongoseal::in_memory();

    let first = seal.acquire("reports/nightly").await?;
    let older = first.token();
    assert_eq!(write(service, "draft", Some(older)).await?, (200, Some(older)), "nobody wrote it before");
    // Or loses it, and does not notice.
    first.release().await?;

    let second = seal.acquire("reports/nightly").await?;
    let newer = second.token();
    assert_eq!(write(service, "final", Some(newer)).await?, (200, Some(newer)), "a newer token writes");
    assert_eq!(write(service, "final, again", Some(newer)).await?, (200, Some(newer)), "an equal one, too");

    assert_eq!(write(service, "late", Some(older)).await?, (412, Some(newer)), "the older one is refused");
    assert_eq!(write(service, "bare", None).await?, (428, None), "and so is none");
    assert_eq!(reports.lock().unwrap()["/nightly"], ("final, again".into(), newer));
    println!("the service refused token {older}: {newer} has written");
    seal.shutdown().await;
    Ok(())
}
