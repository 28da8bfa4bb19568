//! `hold`: a program in any language reads its events and writes it requests.

use std::{
    io::{Read, Write},
    process::Stdio,
};

use mongoseal::store::Clock;
use mongoseal_test_support::ReplicaSet;
use nix::sys::signal::Signal::{SIGINT, SIGTERM};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, time::timeout};

use crate::{
    millis,
    sandbox::{KEY, Running, Sandbox, TTL, ended},
    secs,
};

/// `mongoseal hold` with these options.
fn start(sandbox: &Sandbox, options: &[&str]) -> Running {
    let ttl = format!("--ttl={}ms", TTL.as_millis());
    let ttl = if options.iter().any(|option| option.starts_with("--ttl")) { &[][..] } else { &[ttl.as_str()] };
    Running::start(&mut sandbox.mongoseal(&[&["hold", KEY, "--json"], ttl, options].concat()))
}

/// One that has been granted the key.
async fn granted(sandbox: &Sandbox, options: &[&str]) -> Running {
    let mut hold = start(sandbox, options);
    hold.next("granted").await;
    hold
}

#[tokio::test]
async fn requests_are_answered_in_order_with_their_ids_and_a_release_ends_it() {
    let sandbox = Sandbox::new("hold_requests").await;
    let mut hold = start(&sandbox, &["--owner", "reporter"]);
    let granted = hold.next("granted").await;
    assert_eq!(granted["token"], sandbox.holder().await.unwrap().token.get());
    assert_eq!((&granted["key"], &granted["owner"]), (&json!(KEY), &json!("reporter")));
    assert!(granted.as_object().unwrap().keys().all(|name| !name.contains("id")), "no secret is in it: {granted}");
    let is_ahead = |event: &Value| {
        let (now, deadline) = (Clock::Boot.now().since_origin(), millis(event["deadline_ms"].as_u64().unwrap()));
        let remaining = millis(event["remaining_ms"].as_u64().unwrap());
        assert!(deadline > now && deadline <= now + TTL && remaining <= TTL, "{event}");
    };
    is_ahead(&granted);
    let requests = r#"{"id":1,"do":"verify"}
{"id":"two","do":"refresh"}
{"id":3,"do":"dance"}
nonsense
{"do":"verify"}
{"id":{"n":6},"do":"release"}
"#;
    hold.write(requests).await;
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
    let mut first = start(&sandbox, &[]);
    assert_eq!(first.next("waiting").await["position"], 1);
    let mut second = start(&sandbox, &[]);
    assert_eq!(second.next("waiting").await["position"], 2);

    first.write("{\"id\":1,\"do\":\"verify\"}\n{\"id\":2,\"do\":\"release\"}\n").await;
    let error = first.next("error").await;
    assert_eq!((&error["id"], &error["code"]), (&json!(1), &json!("not_held")));
    assert_eq!(first.next("released").await["id"], 2);
    first.end().await.is_quiet(0);
    sandbox.queued(1).await;
    assert_eq!(second.next("waiting").await["position"], 1);

    second.signal(SIGTERM);
    second.next("released").await;
    second.end().await.is_quiet(143);
    sandbox.queued(0).await;

    let mut third = start(&sandbox, &[]);
    third.next("waiting").await;
    lease.release().await.unwrap();
    third.next("granted").await;
    drop(third.input.take());
    third.next("released").await;
    third.end().await.is_quiet(0);
}

#[tokio::test]
async fn a_held_key_is_an_error_and_a_status() {
    let sandbox = Sandbox::new("hold_held").await;
    let lease = sandbox.hold().await;
    for wait in ["--no-wait", "--wait=100ms"] {
        let mut hold = start(&sandbox, &[wait]);
        let mut error = hold.next_event().await.unwrap();
        // A wait that takes longer is said.
        if error["event"] == "waiting" {
            error = hold.next_event().await.unwrap();
        }
        assert_eq!((&error["event"], error.get("id"), &error["code"]), (&json!("error"), None, &json!("held")));
        hold.end().await.says(121, &format!("{KEY:?} is held by"));
    }
    lease.release().await.unwrap();
    let _sharers = [granted(&sandbox, &["--shared=2"]).await, granted(&sandbox, &["--shared=2"]).await];
}

#[tokio::test]
async fn the_end_of_the_input_ends_it_at_once_and_no_stdin_ignores_that() {
    let sandbox = Sandbox::new("hold_null").await;
    // As under cron and systemd. The input ends before the key is granted.
    let lease = sandbox.hold().await;
    let run = sandbox.done(&["hold", KEY, "--json"]).await;
    run.fails(0, "pass --no-stdin");
    assert!(!run.stdout.contains("granted") && run.stdout.contains("released"), "{}", run.stdout);
    sandbox.queued(0).await;
    lease.release().await.unwrap();

    for sent in [SIGINT, SIGTERM] {
        let mut hold = granted(&sandbox, &["--no-stdin"]).await;
        drop(hold.input.take());
        sandbox.is_refreshed().await;
        hold.signal(sent);
        hold.next("released").await;
        hold.end().await.is_quiet(0);
        sandbox.is_free().await;
    }
}

#[tokio::test]
async fn a_closed_output_ends_it_while_it_holds_and_while_it_waits() {
    let sandbox = Sandbox::new("hold_closed").await;
    let Running { child, input, lines } = granted(&sandbox, &[]).await;
    drop(lines);
    ended(child).await.is_quiet(0);
    drop(input);
    let lease = sandbox.seal.acquire(KEY).ttl(secs(60)).await.unwrap();
    let mut waiter = start(&sandbox, &[]);
    waiter.next("waiting").await;
    let Running { child, input, lines } = waiter;
    drop(lines);
    ended(child).await.is_quiet(0);
    drop(input);
    sandbox.queued(0).await;
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_neither_refreshes_nor_signals_nor_a_loss() {
    let sandbox = Sandbox::new("hold_unread").await;
    for sent in [true, false] {
        let mut hold = granted(&sandbox, &[]).await;
        let mut requests = hold.input.take().unwrap();
        let request = format!("{{\"do\":\"{}\"}}\n", "x".repeat(3_000));
        // As many as it takes: no answer is read, so that at last no request is.
        while let Ok(written) = timeout(secs(1), requests.write_all(request.as_bytes())).await {
            written.unwrap();
        }
        sandbox.is_refreshed().await;
        if sent {
            hold.signal(SIGTERM);
        } else {
            sandbox.seal.revoke(KEY).by("ops").reason("stuck").await.unwrap();
        }
        let status = timeout(secs(60), hold.child.wait()).await.expect("it ends").unwrap();
        assert_eq!(status.code(), Some(if sent { 0 } else { 122 }));
        sandbox.is_free().await;
    }
}

#[tokio::test]
async fn a_lost_lease_is_told_with_the_cause() {
    let sandbox = Sandbox::new("hold_revoked").await;
    let mut hold = start(&sandbox, &[]);
    let token = hold.next("granted").await["token"].take();
    sandbox.seal.revoke(KEY).by("ops").reason("stuck").await.unwrap();
    let lost = hold.next("lost").await;
    assert_eq!((&lost["cause"], &lost["token"]), (&json!("revoked"), &token));
    hold.end().await.says(122, "was lost: it was revoked by \"ops\" (reason: \"stuck\")");

    let mut hold = granted(&sandbox, &["--ttl=4s", "--max-hold=1s"]).await;
    assert_eq!(hold.next("lost").await["cause"], "held_too_long");
    assert_eq!(hold.end().await.code, 122);
}

#[tokio::test]
#[ignore = "night: an outage must end within a ttl"]
async fn a_lease_at_risk_is_held_again_or_lost() {
    let set = ReplicaSet::start(1).await;
    let sandbox = Sandbox::on(&set, "hold_risk").await;
    let mut hold = granted(&sandbox, &["--ttl=9s", "--timeout=2s"]).await;
    set.pause(0).await;
    hold.next("at_risk").await;
    set.resume(0).await;
    let recovered = hold.next("held").await;
    assert!(recovered["remaining_ms"].as_u64() > Some(4_000), "{recovered}");
    set.pause(0).await;
    hold.write("{\"id\":1,\"do\":\"verify\"}\n").await;
    let (mut answered, mut at_risk) = (false, false);
    let lost = loop {
        let event = hold.next_event().await.unwrap();
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
    let full = format!("exec mongoseal hold {KEY} --no-stdin >/dev/full");
    sandbox.shell(&full).await.says(125, "cannot write the standard output: No space left on device");
    let lease = sandbox.seal.acquire(KEY).ttl(secs(60)).await.unwrap();
    sandbox.shell(&format!("{full} --json")).await.says(125, "cannot write the standard output: No space left");
    lease.release().await.unwrap();
}

/// A full disk, and a full pipe that does not block, are no reader that has left.
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
        String::from_utf8(output.split_off(filled)).unwrap()
    });
    drop(hold.stdin.take());
    ended(hold).await.is_quiet(0);
    let events = output.await.unwrap();
    let [granted, released] = events.lines().collect::<Vec<_>>()[..] else { panic!("{events}") };
    assert!(granted.contains("\"event\":\"granted\"") && released.contains("\"event\":\"released\""), "{events}");
}

#[tokio::test]
async fn without_json_the_same_events_are_lines_for_people() {
    let sandbox = Sandbox::new("hold_plain").await;
    let mut early = Running::start(&mut sandbox.mongoseal(&["hold", KEY]));
    early.write("{\"id\":1,\"do\":\"verify\"}\n{\"do\":\"release\"}\n").await;
    // Requests before the grant are refused, and a release ends the wait.
    let mut last = String::new();
    while let Some(line) = early.next_line().await {
        last = line;
    }
    assert_eq!((last.as_str(), early.end().await.code), ("released", 0));
    let mut hold = Running::start(&mut sandbox.mongoseal(&["hold", KEY]));
    let granted = hold.line().await;
    assert!(granted.starts_with(&format!("granted    {KEY} with token ")), "{granted}");
    drop(hold.input.take());
    assert_eq!(hold.line().await, "released");
    hold.end().await.is_quiet(0);
}

#[tokio::test]
async fn a_revocation_ends_each_command_at_once_and_is_printed_once_as_the_last_line() {
    let sandbox = Sandbox::new("hold_loss_once").await;
    // No refresh is due in the time of the test.
    for arguments in [
        &["hold", KEY, "--no-stdin", "--ttl=30m"][..],
        &["run", KEY, "--ttl=30m", "--", "sleep", "100"],
        &["elect", KEY, "value", "--ttl=30m"],
    ] {
        let child = sandbox.mongoseal(arguments).spawn().unwrap();
        sandbox.held().await;
        sandbox.seal.revoke(KEY).by("ops").reason("the host is going away").await.unwrap();
        let ended = ended(child).await;
        let printed = format!("{}{}", ended.stdout, ended.stderr);
        let told = "was revoked by \"ops\" (reason: \"the host is going away\")";
        assert_eq!((ended.code, printed.matches(told).count()), (122, 1), "{printed}");
        assert!(printed.lines().last().unwrap().contains(told), "{printed}");
        if arguments[0] == "run" {
            ended.says(122, "was lost, so the command was ended: it was revoked by");
        }
    }
}
