//! `hold`: `protocol/pipe.md` is the contract, and `protocol/pipe.json` has the lines.

use std::{
    io::{Read, Write},
    time::Instant,
};

use mongodb::bson::doc;
use mongoseal::store::Clock;
use mongoseal_test_support::{How, Peer, ReplicaSet, shared};
use nix::sys::signal::Signal::{SIGCONT, SIGSTOP, SIGTERM};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, time::timeout};

use crate::{
    by_length, eventually, millis,
    sandbox::{Ended, KEY, Running, Sandbox, done, ended, mongoseal},
    secs,
};

/// `mongoseal hold`. Events that no test has asked for yet wait here.
struct Pipe {
    running: Running,
    early: Vec<Value>,
}

impl Pipe {
    async fn start(sandbox: &Sandbox) -> Self {
        Self::start_at(sandbox, sandbox.uri()).await
    }

    async fn start_at(sandbox: &Sandbox, uri: &str) -> Self {
        let now = || u64::try_from(Clock::Boot.now().since_origin().as_millis()).unwrap();
        let began = now();
        let mut running = Running::start(sandbox.mongoseal(&["hold"]).env("MONGODB_URI", uri));
        let ready = running.next("ready").await;
        assert_eq!(ready["protocol"], 1, "{ready}");
        // The clock is one that another process can read, and the time is after the start and before `ready`.
        let started = ready["started_ms"].as_u64().unwrap();
        assert!((began..=now() + 1).contains(&started), "{began} {started} {}", now());
        Self { running, early: Vec::new() }
    }

    async fn send(&mut self, request: &Value) {
        self.running.write(&format!("{request}\n")).await;
    }

    /// The first event for which this holds. The others stay.
    async fn find(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.early.iter().position(&is_it) {
            return self.early.remove(at);
        }
        // Other events may go on without end.
        let end = Instant::now() + secs(60);
        loop {
            let event = self.running.next_event().await.unwrap_or_else(|| panic!("{what} before the end"));
            if is_it(&event) {
                return event;
            }
            self.early.push(event);
            assert!(Instant::now() < end, "{what} within a minute: {:?}", self.early);
        }
    }

    /// The answer to the request with this id, which is not an event of a lease.
    async fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        self.find(&format!("the answer to {id}"), |event| event["id"] == id).await
    }

    /// Sends a request, and returns its answer.
    async fn ask(&mut self, request: Value) -> Value {
        self.send(&request).await;
        self.answer(request["id"].clone()).await
    }

    /// The answer to a request, which has this name.
    async fn expect(&mut self, name: &str, request: Value) -> Value {
        let answer = self.ask(request).await;
        assert_eq!(answer["event"], name, "{answer}");
        answer
    }

    /// Sends a request that is refused with this code.
    async fn refused(&mut self, code: &str, request: Value) {
        let answer = self.ask(request).await;
        assert_eq!((&answer["event"], &answer["code"]), (&json!("error"), &json!(code)), "{answer}");
    }

    /// The event of this name about this lease.
    async fn of(&mut self, lease: impl Into<Value>, name: &str) -> Value {
        let lease = lease.into();
        let is_it = |event: &Value| event["event"] == name && event["lease"] == lease && event.get("id").is_none();
        self.find(&format!("{name} of {lease}"), is_it).await
    }

    /// The end after the end of the input.
    async fn close(mut self) -> Ended {
        drop(self.running.input.take());
        while self.running.next_event().await.is_some() {}
        self.running.end().await
    }
}

fn acquire(id: impl Into<Value>, key: &str, ttl_ms: u64) -> Value {
    json!({ "id": id.into(), "do": "acquire", "key": key, "ttl_ms": ttl_ms })
}

#[tokio::test]
async fn each_line_has_the_answer_of_the_vectors() {
    let sandbox = Sandbox::new("pipe_lines").await;
    let vectors: Value = serde_json::from_str(include_str!("../../../protocol/pipe.json")).unwrap();
    let mut pipe = Pipe::start(&sandbox).await;
    let lines = vectors["requests"].as_array().unwrap();
    assert!(lines.len() >= 40, "{} lines", lines.len());
    for case in lines {
        let line = match case["bytes"].as_u64() {
            Some(bytes) => "x".repeat(usize::try_from(bytes).unwrap()),
            None => case["line"].as_str().unwrap().to_owned(),
        };
        pipe.running.write(&format!("{line}\n")).await;
        let sent = serde_json::from_str::<Value>(&line).unwrap_or_default();
        let answer = pipe.find(&case["name"].to_string(), |event| event.get("id").is_some()).await;
        assert_eq!(answer.get("code").unwrap_or(&Value::Null), &case["code"], "{case}: {answer}");
        // A line that is no JSON can have an id all the same.
        let id = case.get("id").or_else(|| sent.get("id").filter(|id| id.is_u64() || id.is_string()));
        let is_id = |id: &Value| {
            id.as_u64().is_none_or(|id| id < 1 << 53) && id.as_str().is_none_or(|id| (1..=64).contains(&id.len()))
        };
        assert_eq!(&answer["id"], id.filter(|id| is_id(id)).unwrap_or(&Value::Null), "{case}: {answer}");
    }
    pipe.close().await.is_quiet(0);
    sandbox.free(&["pipe/1", "pipe/3", "pipe/4"]).await;
}

#[tokio::test]
async fn a_request_that_ends_a_lease_is_carried_out_behind_as_many_as_are_refused() {
    let sandbox = Sandbox::new("pipe_busy").await;
    let mut pipe = Pipe::start(&sandbox).await;
    pipe.expect("granted", acquire(1, "k", 60_000)).await;
    let puts = (2..202).map(|id| json!({"id":id,"do":"put_value","lease":1,"value":id}).to_string());
    let release = json!({"id":202,"do":"release","lease":1}).to_string();
    pipe.running.write(&(puts.chain([release]).collect::<Vec<_>>().join("\n") + "\n")).await;
    let mut refused = 0;
    loop {
        let answer = pipe.find("an answer", |event| event.get("id").is_some()).await;
        if answer["id"] == 202 {
            assert_eq!(answer["event"], "released", "{answer}");
            break;
        }
        match answer["code"].as_str() {
            Some("busy") => refused += 1,
            _ => assert_eq!(answer["event"], "value_put", "{answer}"),
        }
    }
    assert!(refused > 0, "no request was refused");
    pipe.close().await.is_quiet(0);
}

#[tokio::test]
async fn a_place_in_the_queue_is_that_of_the_lease_it_names() {
    let sandbox = Sandbox::new("pipe_places").await;
    let holder = sandbox.seal.acquire("k").ttl(secs(60)).await.unwrap();
    let mut pipe = Pipe::start(&sandbox).await;
    // The tick is read before its acquire is sent, so the second request is the first in the queue.
    let once = json!({"id":"tick","do":"once","key":"k","tick":1});
    pipe.running.write(&format!("{once}\n{}\n", acquire("lease", "k", 30_000))).await;
    let place = async |pipe: &mut Pipe, lease: &str| pipe.of(lease, "waiting").await["position"].as_u64();
    let (tick, lease) = (place(&mut pipe, "tick").await, place(&mut pipe, "lease").await);
    let (first, second) = if tick < lease { ("tick", "lease") } else { ("lease", "tick") };
    assert_eq!((tick.min(lease), tick.max(lease)), (Some(1), Some(2)));
    holder.release().await.unwrap();
    assert_eq!(pipe.answer(first).await["event"], "granted");
    pipe.expect("released", json!({"id":1,"do":"release","lease":first})).await;
    assert_eq!(pipe.answer(second).await["event"], "granted");
    pipe.close().await.is_quiet(0);
}

#[tokio::test]
async fn requests_before_the_end_of_the_input_are_carried_out_in_their_order() {
    let sandbox = Sandbox::new("pipe_last_requests").await;
    let mut pipe = Pipe::start(&sandbox).await;
    pipe.expect("granted", acquire(1, "k", 60_000)).await;
    let put = json!({"id":2,"do":"put_value","lease":1,"value":7});
    pipe.running.write(&format!("{put}\n{}\n", json!({"id":3,"do":"release","lease":1}))).await;
    drop(pipe.running.input.take());
    assert_eq!(pipe.answer(2).await["event"], "value_put");
    let released = pipe.answer(3).await;
    assert_eq!((&released["event"], &released["confirmed"]), (&json!("released"), &json!(true)));
    pipe.close().await.is_quiet(0);
}

#[tokio::test]
async fn leases_values_ticks_and_leaderships_are_held_at_once() {
    let sandbox = Sandbox::new("pipe_verbs").await;
    let mut pipe = Pipe::start(&sandbox).await;
    let granted = pipe.expect("granted", json!({"id":1,"do":"acquire","key":"a","metadata":{"host":"web-1"}})).await;
    let holder = &sandbox.seal.inspect("a").await.unwrap().unwrap().holders[0];
    assert_eq!(granted["token"], holder.token.get());
    assert_eq!(holder.metadata.get("host"), Some("web-1"));
    pipe.expect("verified", json!({"id":2,"do":"verify","lease":1})).await;
    let refreshed = pipe.expect("refreshed", json!({"id":3,"do":"refresh","lease":1,"ttl_ms":60_000})).await;
    assert!(refreshed["deadline_ms"].as_u64() > granted["deadline_ms"].as_u64().map(|at| at + 20_000), "{refreshed}");
    let content = json!({"page":7,"of":[null,"ä",9_007_199_254_740_991_u64,0.5]});
    pipe.expect("value_put", json!({"id":4,"do":"put_value","lease":1,"value":content})).await;
    let value = pipe.expect("value", json!({"id":5,"do":"value","lease":1})).await;
    assert_eq!((&value["value"]["content"], &value["value"]["token"]), (&content, &granted["token"]));
    pipe.refused("invalid", json!({"id":6,"do":"complete","lease":1})).await;
    pipe.refused("invalid", json!({"id":6,"do":"resign","lease":1})).await;
    pipe.refused("invalid", json!({"id":6,"do":"proclaim","lease":1,"value":"x"})).await;
    pipe.expect("released", json!({"id":7,"do":"release","lease":1,"value":null})).await;
    pipe.refused("unknown_lease", json!({"id":8,"do":"verify","lease":1})).await;

    pipe.expect("granted", json!({"id":10,"do":"once","key":"t","tick":5})).await;
    pipe.expect("completed", json!({"id":11,"do":"complete","lease":10,"note":"fine"})).await;
    let runs = sandbox.seal.runs("t").await.unwrap();
    assert_eq!((runs[0].tick, runs[0].note.as_str()), (5, "fine"));
    let done = pipe.expect("done", json!({"id":12,"do":"once","key":"t","tick":5})).await;
    assert_eq!((&done["outcome"], &done["tick"]), (&json!("already_done"), &json!(5)));
    let done = pipe.expect("done", json!({"id":13,"do":"once","key":"t","tick":4})).await;
    assert_eq!((&done["outcome"], &done["tick"]), (&json!("superseded"), &json!(5)));
    let hourly = pipe.expect("granted", json!({"id":14,"do":"once","key":"h","every_ms":3_600_000})).await;
    assert_eq!(hourly["tick"].as_u64().unwrap() % 3_600_000, 0);
    pipe.expect("released", json!({"id":15,"do":"release","lease":14})).await;

    pipe.expect("observing", json!({"id":20,"do":"observe","name":"boss"})).await;
    let leader = |event: &Value| event["event"] == "leader";
    assert_eq!(pipe.find("no leader", leader).await["leader"], Value::Null);
    let elected = pipe.expect("granted", json!({"id":21,"do":"campaign","name":"boss","value":"a:1"})).await;
    let shown = pipe.find("the leader", leader).await;
    assert_eq!((&shown["leader"]["value"], &shown["leader"]["token"]), (&json!("a:1"), &elected["token"]));
    pipe.expect("proclaimed", json!({"id":22,"do":"proclaim","lease":21,"value":"a:2"})).await;
    assert_eq!(pipe.find("the new value", leader).await["leader"]["value"], "a:2");
    pipe.expect("released", json!({"id":23,"do":"resign","lease":21})).await;
    assert_eq!(pipe.find("no leader", leader).await["leader"], Value::Null);
    pipe.expect("unobserved", json!({"id":24,"do":"unobserve","observation":20})).await;
    pipe.refused("unknown_lease", json!({"id":25,"do":"unobserve","observation":20})).await;
    pipe.early.retain(|event| event["event"] != "held");
    assert_eq!(pipe.early, [] as [Value; 0], "each request has one answer");
    pipe.close().await.is_quiet(0);
}

#[tokio::test]
async fn a_wait_has_a_place_and_an_end_and_each_loss_has_its_cause() {
    let sandbox = Sandbox::new("pipe_losses").await;
    let lease = sandbox.seal.acquire("k").ttl(secs(60)).await.unwrap();
    let mut pipe = Pipe::start(&sandbox).await;
    pipe.refused("held", json!({"id":1,"do":"acquire","key":"k","wait_ms":0})).await;
    for wait in ["first", "second"] {
        pipe.send(&acquire(wait, "k", 30_000)).await;
    }
    assert_eq!(pipe.of("first", "waiting").await["position"], 1);
    assert_eq!(pipe.of("second", "waiting").await["position"], 2);
    pipe.refused("not_granted", json!({"id":2,"do":"verify","lease":"second"})).await;
    let ended = pipe.expect("released", json!({"id":3,"do":"release","lease":"first"})).await;
    assert_eq!(ended["confirmed"], false);
    assert_eq!(pipe.answer("first").await["code"], "cancelled");
    lease.release().await.unwrap();
    assert_eq!(pipe.answer("second").await["event"], "granted");

    sandbox.seal.revoke("k").reason("a test").by("a test").await.unwrap();
    let lost = pipe.of("second", "lost").await;
    assert_eq!(lost["cause"], "revoked");
    assert!(lost["message"].as_str().unwrap().contains("a test"), "{lost}");
    pipe.refused("unknown_lease", json!({"id":4,"do":"release","lease":"second"})).await;

    pipe.expect("granted", json!({"id":5,"do":"acquire","key":"m","max_hold_ms":500})).await;
    pipe.expect("granted", json!({"id":6,"do":"acquire","key":"s","stalled_after_ms":600})).await;
    assert_eq!(pipe.of(5, "lost").await["cause"], "held_too_long");
    pipe.expect("granted", json!({"id":7,"do":"acquire","key":"p","stalled_after_ms":600_000})).await;
    pipe.expect("progressed", json!({"id":8,"do":"progress","lease":7})).await;
    assert_eq!(pipe.of(6, "lost").await["cause"], "stalled");
    pipe.close().await.is_quiet(0);
}

/// Each refresh moves the deadline, which is all that a client may believe in.
#[tokio::test]
async fn a_program_that_is_stopped_says_afterwards_what_was_lost() {
    let sandbox = Sandbox::new("pipe_stopped").await;
    let mut pipe = Pipe::start(&sandbox).await;
    let granted = pipe.expect("granted", acquire(1, "k", 3_000)).await;
    let held = pipe.of(1, "held").await;
    assert!(held["deadline_ms"].as_u64() > granted["deadline_ms"].as_u64(), "{held}");
    pipe.running.signal(SIGSTOP);
    let deadline = millis(held["deadline_ms"].as_u64().unwrap());
    let left = deadline.saturating_sub(Clock::Boot.now().since_origin());
    assert!(left <= secs(3), "{left:?}");
    tokio::time::sleep(left + millis(400)).await;
    let next = sandbox.seal.acquire("k").wait(secs(20)).await.unwrap();
    pipe.running.signal(SIGCONT);
    assert_eq!(pipe.of(1, "lost").await["cause"], "expired");
    next.release().await.unwrap();
    pipe.close().await.is_quiet(0);
}

#[tokio::test]
async fn all_leases_are_released_when_the_input_ends_and_when_a_signal_comes() {
    let sandbox = Sandbox::new("pipe_ends").await;
    let count = by_length(40, 200);
    for by_signal in [false, true] {
        let mut pipe = Pipe::start(&sandbox).await;
        for number in 0..count {
            pipe.send(&acquire(number, &format!("k/{number}"), 60_000)).await;
        }
        for number in 0..count {
            assert_eq!(pipe.answer(number).await["event"], "granted");
        }
        if by_signal {
            pipe.running.signal(SIGTERM);
            for number in 0..count {
                assert_eq!(pipe.of(number, "lost").await["cause"], "shut_down");
            }
            assert_eq!(pipe.running.end().await.code, 143);
        } else {
            pipe.close().await.is_quiet(0);
        }
        assert_eq!(sandbox.seal.leases().await.unwrap().collect().await.unwrap(), []);
    }
}

#[tokio::test]
async fn an_output_that_is_not_read_stops_neither_refreshes_nor_releases() {
    let sandbox = Sandbox::new("pipe_unread").await;
    let mut pipe = Pipe::start(&sandbox).await;
    for (number, key) in [(1, "kept"), (2, "released")] {
        pipe.expect("granted", acquire(number, key, 9_000)).await;
    }
    // More than the pipe holds.
    for number in 0..3_000 {
        pipe.send(&json!({"id":number + 10,"do":"progress","lease":1})).await;
    }
    pipe.send(&json!({"id":3,"do":"release","lease":2})).await;
    let free = async || sandbox.seal.acquire("released").await.is_ok();
    eventually(secs(60), "the key is released", free).await;
    let seen = async || sandbox.seal.inspect("kept").await.unwrap().unwrap().holders[0].last_seen;
    let before = seen().await;
    eventually(secs(60), "the other lease is refreshed", async || seen().await > before).await;
    assert_eq!(pipe.answer(3).await["event"], "released");
    pipe.expect("verified", json!({"id":4,"do":"verify","lease":1})).await;
    pipe.close().await.is_quiet(0);
}

#[tokio::test]
async fn a_backlog_of_eight_mebibytes_ends_the_program_with_everything_released() {
    let sandbox = Sandbox::new("pipe_backlog").await;
    let mut pipe = Pipe::start(&sandbox).await;
    pipe.expect("granted", acquire(1, "k", 60_000)).await;
    let mut requests = pipe.running.input.take().unwrap();
    // Each line is answered by more than 100 bytes.
    let lines = "nonsense\n".repeat(1_000);
    let writing = async {
        for _ in 0..200 {
            if requests.write_all(lines.as_bytes()).await.is_err() {
                break;
            }
        }
    };
    timeout(secs(60), writing).await.expect("the program reads or ends");
    // Its output is not read before it has ended.
    let status = timeout(secs(60), pipe.running.child.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(125));
    let mut said = String::new();
    let stderr = pipe.running.child.stderr.take().unwrap().into_owned_fd().unwrap();
    std::fs::File::from(stderr).read_to_string(&mut said).unwrap();
    assert!(said.contains("8 MiB of the output were not read"), "{said}");
    sandbox.free(&["k"]).await;
}

/// A request that cannot be carried out leaves its lease held. One that the server refuses has ended it, and its code is
/// none after which a client goes on.
#[tokio::test]
async fn a_client_learns_whether_a_refused_end_has_ended_its_lease() {
    let sandbox = Sandbox::new("pipe_refused_ends").await;
    let mut pipe = Pipe::start_at(&sandbox, &shared(1).await.uri_with("appName=pipe_refused")).await;
    pipe.expect("granted", acquire(1, "a", 600_000)).await;
    pipe.expect("granted", json!({ "id": 2, "do": "acquire", "key": "b", "ttl_ms": 600_000, "shared": 2 })).await;
    for (id, release) in [
        (10, json!({ "id": 10, "do": "release", "lease": 1, "value": 1, "keep_for_ms": 3_153_600_000_001_u64 })),
        (11, json!({ "id": 11, "do": "release", "lease": 1, "value": "x".repeat(70_000) })),
        (12, json!({ "id": 12, "do": "release", "lease": 2, "value": 1 })),
        (13, json!({ "id": 13, "do": "complete", "lease": 1 })),
        (14, json!({ "id": 14, "do": "resign", "lease": 1 })),
    ] {
        pipe.refused("invalid", release.clone()).await;
        pipe.expect("verified", json!({ "id": 100 + id, "do": "verify", "lease": release["lease"] })).await;
    }
    pipe.expect("granted", json!({ "id": 3, "do": "once", "key": "c", "tick": 1, "ttl_ms": 600_000 })).await;
    let commands = ["findAndModify", "update", "bulkWrite"];
    let refuses = doc! { "errorCode": 13 };
    let point = shared(1).await.fail_command("pipe_refused", &commands, refuses, 1_000_000).await;
    for (lease, end) in [
        (1, json!({ "id": 20, "do": "release", "lease": 1, "value": 1 })),
        (3, json!({ "id": 21, "do": "complete", "lease": 3 })),
    ] {
        pipe.refused("failed", end).await;
        pipe.refused("unknown_lease", json!({ "id": 30 + lease, "do": "release", "lease": lease })).await;
    }
    // A release that is not confirmed says so.
    let released = pipe.expect("released", json!({ "id": 22, "do": "release", "lease": 2 })).await;
    assert_eq!(released["confirmed"], false);
    point.off().await;
    assert_eq!(pipe.close().await.code, 0);
}

/// A silent server: `at_risk`, and `held` after it. A lease on which nothing is confirmed until its deadline is lost.
#[tokio::test]
async fn an_outage_is_reported_for_each_lease() {
    let set = ReplicaSet::builder().members(1).proxied().start().await;
    let sandbox = Sandbox::on(&set, "pipe_outage").await;
    let mut pipe = Pipe::start(&sandbox).await;
    pipe.expect("granted", acquire("short", "short", 2_000)).await;
    pipe.expect("granted", acquire("long", "long", 30_000)).await;
    set.proxy().cut_both(&Peer::Member(0), &Peer::Anyone, How::Blackhole);
    pipe.of("short", "at_risk").await;
    // The server does not answer it before the deadline, nor in the 10 s of a request.
    pipe.send(&json!({"id":"asked","do":"verify","lease":"short"})).await;
    assert_eq!(pipe.of("short", "lost").await["cause"], "expired");
    assert!(pipe.early.iter().all(|event| event["id"] != "asked"), "the loss does not wait for the answer");
    pipe.of("long", "at_risk").await;
    // It is over when the request that was sent before the loss is answered.
    let late = pipe.ask(json!({"id":1,"do":"release","lease":"short"})).await;
    assert!(["lost", "unknown_lease"].contains(&late["code"].as_str().unwrap()), "{late}");
    set.proxy().heal();
    pipe.of("long", "held").await;
    pipe.expect("verified", json!({"id":2,"do":"verify","lease":"long"})).await;
    assert_eq!(pipe.answer("asked").await["event"], "error");
    pipe.close().await.is_quiet(0);
}

/// One server is unreachable: the program says so in an event, too, and its status is that of any command.
#[tokio::test]
async fn a_program_that_cannot_connect_says_why() {
    let mut command = mongoseal(&["hold", "--timeout", "1s"]);
    command.env("MONGODB_URI", "mongodb://127.0.0.1:1/?replicaSet=rs0").stdin(std::process::Stdio::piped());
    let ended = done(command).await;
    assert_eq!(ended.code, 123, "{}", ended.stderr);
    let event: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    assert_eq!((&event["event"], &event["code"], event.get("id")), (&json!("error"), &json!("unavailable"), None));
}

#[tokio::test]
async fn an_output_without_space_is_an_error_that_names_it_and_the_key_is_released() {
    let sandbox = Sandbox::new("pipe_full").await;
    let full = r#"echo '{"id":1,"do":"acquire","key":"k"}' | exec mongoseal hold >/dev/full"#;
    sandbox.shell(full).await.says(125, "cannot write the standard output: No space left on device");
    sandbox.free(&["k"]).await;
}

/// A full pipe that does not block is no reader that has left.
#[tokio::test]
async fn an_output_that_does_not_block_and_is_full_keeps_the_lease_and_gets_each_event() {
    let sandbox = Sandbox::new("pipe_nonblocking").await;
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let mut filled = 0;
    while let Ok(count) = writer.write(&[b'x'; 4096]) {
        filled += count;
    }
    // The command is dropped at once, because it has the pipe, too.
    let mut hold = {
        let mut command = sandbox.mongoseal(&["hold"]);
        command.stdin(std::process::Stdio::piped()).stdout(writer).spawn().unwrap()
    };
    let mut requests = hold.stdin.take().unwrap();
    requests.write_all(format!("{}\n", acquire(1, KEY, 60_000)).as_bytes()).await.unwrap();
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
    drop(requests);
    ended(hold).await.is_quiet(0);
    let events = output.await.unwrap();
    assert!(events.contains("\"event\":\"ready\"") && events.contains("\"event\":\"granted\""), "{events}");
}
