//! The part of HTTP/1.1 that one small request and its response need. A real service uses a framework.

use std::io;

use mongoseal::FencingToken;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// The path of a request or the status of an answer, with the token and the body.
pub(crate) type Message = (String, Option<FencingToken>, String);

/// Sends a request or an answer.
pub(crate) async fn send(
    stream: &mut TcpStream,
    start: &str,
    token: Option<FencingToken>,
    body: &str,
) -> io::Result<()> {
    let token = token.map_or_else(String::new, |token| format!("Fencing-Token: {}\r\n", token.sortable()));
    let length = body.len();
    let head = format!("{start}\r\n{token}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await
}

/// Reads a request or an answer, of 64 KB at most.
pub(crate) async fn receive(stream: &mut TcpStream) -> io::Result<Message> {
    let (mut stream, mut head) = (BufReader::new(stream.take(1 << 16)), String::new());
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await? > 0 {}
    let headers = || head.lines().filter_map(|line| line.split_once(':'));
    let header = |wanted: &str| headers().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|it| it.1.trim());
    let length = header("Content-Length").map_or(Ok(0), str::parse::<u16>).map_err(io::Error::other)?;
    let mut body = vec![0; length.into()];
    stream.read_exact(&mut body).await?;
    let token = header("Fencing-Token").and_then(|token| token.parse().ok());
    let body = String::from_utf8(body).map_err(io::Error::other)?;
    Ok((head.split(' ').nth(1).unwrap_or_default().into(), token, body))
}
