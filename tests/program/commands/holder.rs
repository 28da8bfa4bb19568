//! `hold`: a program in any language reads its events and writes it requests.

use std::{
    io::{Read, Write},
    process::Stdio,
    time::Duration,
};

use mongoseal::Clock;
use mongoseal_test_support::ReplicaSet;
use nix::sys::signal::Signal::{SIGINT, SIGTERM};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
    time::timeout,
};

use crate::{
    millis,
    sandbox::{Ended, KEY, Sandbox, TTL, done, ended, id, signal},
    secs,
};

/// `mongoseal hold` with pipes.
struct Hold {
    child: Child,
    requests: Option<ChildStdin>,
    events: Lines<BufReader<ChildStdout>>,
}

impl Hold {
    fn start(sandbox: &Sandbox, options: &[&str]) -> Self {
        let mut command = sandbox.mongoseal(&["hold", KEY, "--json"]);
        if !options.iter().any(|option| option.starts_with("--ttl")) {
            command.arg(format!("--ttl={}ms", TTL.as_millis()));
        }
        let mut child = command.args(options).stdin(Stdio::piped()).spawn().unwrap();
        let events = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { requests: child.stdin.take(), events, child }
    }

    /// One that has been granted the key, and its token.
    async fn granted(sandbox: &Sandbox, options: &[&str]) -> (Self, u64) {
        let mut hold = Self::start(sandbox, options);
        let event = hold.next("granted").await;
        let token = event["token"].as_u64().unwrap();
        (hold, token)
    }

    async fn send(&mut self, line: &str) {
        self.requests.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// The next event, or `None` at the end of the output.
    async fn event(&mut self) -> Option<Value> {
        let line = timeout(secs(60), self.events.next_line()).await.expect("an event in time").unwrap();
        line.map(|line| serde_json::from_str(&line).expect("it is JSON"))
    }

    /// The next event, which has this name.
    async fn next(&mut self, name: &str) -> Value {
        let event = self.event().await.unwrap_or_else(|| panic!("{name} before the end"));
        assert_eq!(event["event"], name, "{event}");
        event
    }

    /// The end, after which there is no event.
    async fn end(mut self) -> Ended {
        assert_eq!(self.event().await, None);
        drop(self.requests.take());
        ended(self.child).await
    }
}

#[tokio::test]
async fn requests_are_answered_in_order_with_their_ids_and_a_release_ends_it() {
    let sandbox = Sandbox::new("hold_requests").await;
    let mut hold = Hold::start(&sandbox, &["--owner", "reporter"]);
    let granted = hold.next("granted").await;
    let holder = &sandbox.seal.inspect(KEY).await.unwrap().unwrap().holders[0];
    assert_eq!(granted["token"], holder.token.get());
    assert_eq!((&granted["key"], &granted["owner"]), (&json!(KEY), &json!("reporter")));
    assert!(granted.as_object().unwrap().keys().all(|name| !name.contains("id")), "no secret is in it: {granted}");
    let is_ahead = |event: &Value| {
        let (now, deadline) =
            (Clock::Boot.now().since_origin(), Duration::from_millis(event["deadline_ms"].as_u64().unwrap()));
        let remaining = Duration::from_millis(event["remaining_ms"].as_u64().unwrap());
        assert!(deadline > now && deadline <= now + TTL && remaining <= TTL, "{event}");
    };
    is_ahead(&granted);
    for request in [
        r#"{"id":1,"do":"verify"}"#,
        r#"{"id":"two","do":"refresh"}"#,
        r#"{"id":3,"do":"dance"}"#,
        "nonsense",
        r#"{"do":"verify"}"#,
        r#"{"id":{"n":6},"do":"release"}"#,
    ] {
        hold.send(request).await;
    }
    let verified = hold.next("verified").await;
    assert_eq!(verified["id"], 1);
    is_ahead(&verified);
    assert_eq!(hold.next("refreshed").await["id"], "two");
    let error = hold.next("error").await;
    assert_eq!((&error["id"], &error["code"]), (&json!(3), &json!("malformed")));
    let error = hold.next("error").await;
    assert_eq!(error.get("id"), Some(&Value::Null), "{error}");
    assert_eq!(hold.next("verified").await["id"], Value::Null);
    assert_eq!(hold.next("released").await, json!({ "event": "released", "id": { "n": 6 }, "confirmed": true }));
    hold.end().await.is_quiet(0);
    sandbox.is_free().await;
}

#[tokio::test]
async fn a_waiter_says_its_position_and_its_wait_can_be_ended() {
    let sandbox = Sandbox::new("hold_waits").await;
    let lease = sandbox.hold().await;
    let mut first = Hold::start(&sandbox, &[]);
    assert_eq!(first.next("waiting").await["position"], 1);
    let mut second = Hold::start(&sandbox, &[]);
    assert_eq!(second.next("waiting").await["position"], 2);

    first.send(r#"{"id":1,"do":"verify"}"#).await;
    let error = first.next("error").await;
    assert_eq!((&error["id"], &error["code"]), (&json!(1), &json!("not_held")));
    first.send(r#"{"id":2,"do":"release"}"#).await;
    assert_eq!(first.next("released").await["id"], 2);
    first.end().await.is_quiet(0);
    sandbox.queued(1).await;
    assert_eq!(second.next("waiting").await["position"], 1);

    signal(id(&second.child), SIGTERM);
    second.next("released").await;
    second.end().await.is_quiet(143);
    sandbox.queued(0).await;

    let mut third = Hold::start(&sandbox, &[]);
    third.next("waiting").await;
    lease.release().await.unwrap();
    third.next("granted").await;
    drop(third.requests.take());
    third.next("released").await;
    third.end().await.is_quiet(0);
}

#[tokio::test]
async fn a_held_key_is_an_error_and_a_status() {
    let sandbox = Sandbox::new("hold_held").await;
    let lease = sandbox.hold().await;
    for wait in ["--no-wait", "--wait=100ms"] {
        let mut hold = Hold::start(&sandbox, &[wait]);
        let mut error = hold.event().await.unwrap();
        // A wait that takes longer is said.
        if error["event"] == "waiting" {
            error = hold.next("error").await;
        }
        assert_eq!(error["event"], "error");
        assert_eq!((error.get("id"), &error["code"]), (None, &json!("held")));
        hold.end().await.says(121, &format!("{KEY:?} is held by"));
    }
    lease.release().await.unwrap();
    let mut shared =
        [Hold::granted(&sandbox, &["--shared=2"]).await.0, Hold::granted(&sandbox, &["--shared=2"]).await.0];
    for hold in &mut shared {
        hold.send(r#"{"do":"release"}"#).await;
        hold.next("released").await;
    }
}

#[tokio::test]
async fn the_end_of_the_input_ends_it_at_once_and_no_stdin_ignores_that() {
    let sandbox = Sandbox::new("hold_null").await;
    // As under cron and systemd. The input ends before the key is granted.
    let lease = sandbox.hold().await;
    let run = done(sandbox.mongoseal(&["hold", KEY, "--json"])).await;
    assert_eq!(run.code, Some(0));
    assert!(run.stderr.contains("pass --no-stdin"), "{}", run.stderr);
    assert!(!run.stdout.contains("granted") && run.stdout.contains("released"), "{}", run.stdout);
    sandbox.queued(0).await;
    lease.release().await.unwrap();

    for sent in [SIGINT, SIGTERM] {
        let (mut hold, _) = Hold::granted(&sandbox, &["--no-stdin"]).await;
        drop(hold.requests.take());
        sandbox.is_refreshed().await;
        signal(id(&hold.child), sent);
        hold.next("released").await;
        hold.end().await.is_quiet(0);
        sandbox.is_free().await;
    }
}

#[tokio::test]
async fn a_closed_output_releases_the_lease() {
    let sandbox = Sandbox::new("hold_closed").await;
    let (Hold { child, requests, events }, _) = Hold::granted(&sandbox, &[]).await;
    drop(events);
    let output = timeout(secs(60), child.wait_with_output()).await.expect("it ends").unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    drop(requests);
    sandbox.is_free().await;
    // Also while it waits.
    let lease = sandbox.hold().await;
    let mut waiter = Hold::start(&sandbox, &[]);
    waiter.next("waiting").await;
    let Hold { child, requests, events } = waiter;
    drop(events);
    assert_eq!(timeout(secs(60), child.wait_with_output()).await.expect("it ends").unwrap().status.code(), Some(0));
    drop(requests);
    sandbox.queued(0).await;
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_neither_refreshes_nor_signals_nor_a_loss() {
    let sandbox = Sandbox::new("hold_unread").await;
    for sent in [true, false] {
        let (mut hold, _) = Hold::granted(&sandbox, &[]).await;
        let mut requests = hold.requests.take().unwrap();
        let request = format!("{{\"do\":\"{}\"}}\n", "x".repeat(3_000));
        // As many as it takes: no answer is read, so that at last no request is.
        while let Ok(written) = timeout(secs(1), requests.write_all(request.as_bytes())).await {
            written.unwrap();
        }
        sandbox.is_refreshed().await;
        if sent {
            signal(id(&hold.child), SIGTERM);
        } else {
            sandbox.seal.revoke(KEY).by("ops").reason("stuck").await.unwrap();
        }
        let status = timeout(secs(60), hold.child.wait()).await.expect("it ends").unwrap();
        assert_eq!(status.code(), Some(if sent { 0 } else { 122 }));
        sandbox.is_free().await;
    }
}

#[tokio::test]
async fn a_revoked_lease_is_lost_with_the_cause() {
    let sandbox = Sandbox::new("hold_revoked").await;
    let (mut hold, token) = Hold::granted(&sandbox, &[]).await;
    sandbox.seal.revoke(KEY).by("ops").reason("stuck").await.unwrap();
    let lost = hold.next("lost").await;
    assert_eq!((&lost["cause"], &lost["token"]), (&json!("revoked"), &json!(token)));
    hold.end().await.says(122, "was lost: it was revoked by \"ops\" (reason: \"stuck\")");
}

#[tokio::test]
#[ignore = "night: an outage must end within a ttl"]
async fn a_lease_at_risk_is_held_again_or_lost() {
    let set = ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "hold_risk").await;
    let (mut hold, _) = Hold::granted(&sandbox, &["--ttl=9s", "--timeout=2s"]).await;
    set.pause(0).await;
    hold.next("at_risk").await;
    set.resume(0).await;
    let recovered = hold.next("held").await;
    assert!(recovered["remaining_ms"].as_u64() > Some(4_000), "{recovered}");
    set.pause(0).await;
    hold.send(r#"{"id":1,"do":"verify"}"#).await;
    let (mut answered, mut at_risk) = (false, false);
    let lost = loop {
        let event = hold.event().await.unwrap();
        match event["event"].as_str().unwrap() {
            "error" => answered = event["id"] == 1 && event["code"] == "unavailable",
            "at_risk" => at_risk = true,
            _ => break event,
        }
    };
    assert!(answered && at_risk, "{lost}");
    assert_eq!((&lost["event"], &lost["cause"]), (&json!("lost"), &json!("expired")));
    hold.end().await.says(122, "was lost");
}

#[tokio::test]
async fn an_output_without_space_is_an_error_that_names_it_and_the_key_is_released() {
    let sandbox = Sandbox::new("hold_full").await;
    let full = done(sandbox.shell(&format!("exec mongoseal hold {KEY} --no-stdin >/dev/full"))).await;
    full.says(125, "cannot write the standard output: No space left on device");
    sandbox.is_free().await;
    let lease = sandbox.hold().await;
    let waiting = done(sandbox.shell(&format!("exec mongoseal hold {KEY} --no-stdin --json >/dev/full"))).await;
    waiting.says(125, "cannot write the standard output: No space left on device");
    lease.release().await.unwrap();
}

#[tokio::test]
async fn an_output_that_does_not_block_and_is_full_keeps_the_lease_and_gets_each_event() {
    let sandbox = Sandbox::new("hold_nonblocking").await;
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let mut filled = 0;
    while let Ok(count) = writer.write(&[b'x'; 4096]) {
        filled += count;
    }
    // The command is dropped at once, because it has the pipe, too.
    let mut hold = {
        let mut command = sandbox.mongoseal(&["hold", KEY, "--json"]);
        command.stdin(Stdio::piped()).stdout(writer).spawn().unwrap()
    };
    sandbox.held().await;
    for _ in 0..10 {
        tokio::time::sleep(millis(100)).await;
        assert!(sandbox.seal.acquire(KEY).await.is_err(), "the lease is given up, because the output is full");
    }
    let output = tokio::task::spawn_blocking(move || {
        let mut output = Vec::new();
        reader.read_to_end(&mut output).unwrap();
        output.split_off(filled)
    });
    drop(hold.stdin.take());
    ended(hold).await.is_quiet(0);
    let events = String::from_utf8(output.await.unwrap()).unwrap();
    let [granted, released] = events.lines().collect::<Vec<_>>()[..] else { panic!("{events}") };
    assert!(
        granted.starts_with("{\"event\":\"granted\"") && released.starts_with("{\"event\":\"released\""),
        "{events}"
    );
}

#[tokio::test]
async fn without_json_the_same_events_are_lines_for_people() {
    let sandbox = Sandbox::new("hold_plain").await;
    let mut run = sandbox.mongoseal(&["hold", KEY]).stdin(Stdio::piped()).spawn().unwrap();
    let mut requests = run.stdin.take().unwrap();
    requests.write_all(b"{\"id\":1,\"do\":\"verify\"}\n{\"do\":\"release\"}\n").await.unwrap();
    // Requests before the grant are refused, and a release ends the wait.
    let early = ended(run).await;
    assert_eq!(early.code, Some(0), "{}", early.stderr);
    assert!(early.stdout.ends_with("released\n"), "{}", early.stdout);
    let mut run = sandbox.mongoseal(&["hold", KEY]).stdin(Stdio::piped()).spawn().unwrap();
    let mut events = BufReader::new(run.stdout.take().unwrap()).lines();
    let granted = timeout(secs(60), events.next_line()).await.expect("it is granted in time").unwrap().unwrap();
    assert!(granted.starts_with(&format!("granted    {KEY} with token ")), "{granted}");
    drop(run.stdin.take());
    let mut last = granted;
    while let Some(line) = events.next_line().await.unwrap() {
        last = line;
    }
    assert_eq!(last, "released");
    ended(run).await.is_quiet(0);
}

#[tokio::test]
async fn a_loss_is_printed_once_and_without_json_as_the_last_line_of_the_output() {
    let sandbox = Sandbox::new("hold_loss_once").await;
    for command in ["hold", "run", "elect"] {
        let mut command = match command {
            "hold" => sandbox.mongoseal(&["hold", KEY, "--no-stdin"]),
            "run" => sandbox.mongoseal(&["run", KEY, "--", "sleep", "100"]),
            _ => sandbox.mongoseal(&["elect", KEY, "value"]),
        };
        let child = command.spawn().unwrap();
        sandbox.held().await;
        sandbox.seal.revoke(KEY).by("ops").reason("stuck").await.unwrap();
        let ended = ended(child).await;
        let printed = format!("{}{}", ended.stdout, ended.stderr);
        assert_eq!((ended.code, printed.matches("it was revoked by \"ops\"").count()), (Some(122), 1), "{printed}");
        assert!(printed.lines().last().unwrap().contains("it was revoked"), "{printed}");
    }
}
