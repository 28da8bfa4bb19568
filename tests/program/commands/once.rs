//! `once`, and the limits of a hold.

use std::fs;

use futures_util::future::join_all;
use nix::sys::signal::Signal::SIGTERM;
use tokio::process::Command;

use crate::sandbox::{Ended, KEY, Sandbox, done, ended, id, signal};

/// `mongoseal once` of this script with these options.
fn command(sandbox: &Sandbox, options: &[&str], script: &str) -> Command {
    sandbox.mongoseal(&[&["once", KEY], options, &["--", "sh", "-c", script]].concat())
}

async fn once(sandbox: &Sandbox, options: &[&str], script: &str) -> Ended {
    done(command(sandbox, options, script)).await
}

/// The last completed tick of the key.
async fn last_done(sandbox: &Sandbox) -> Option<u64> {
    sandbox.seal.inspect(KEY).await.unwrap().and_then(|record| record.done).map(|done| done.tick)
}

/// How often the script has run that writes a line for that.
fn runs(sandbox: &Sandbox) -> usize {
    fs::read_to_string(sandbox.file("runs")).unwrap_or_default().lines().count()
}

const RUN: &str = r#"echo >>"$F/runs""#;

#[tokio::test]
async fn the_history_has_the_completed_runs_with_their_notes_and_the_ticks_that_no_run_completed() {
    let sandbox = Sandbox::new("once_history").await;
    sandbox.done(&["history", KEY]).await.fails(0, "No run of \"reports/nightly\" was completed.");
    let hourly = |time: &str, options: &[&str], script: &str| {
        let tick = format!("2026-11-05T{time}Z");
        done(command(&sandbox, &[&["--tick", &tick, "--period", "1h"], options].concat(), script))
    };
    hourly("02:00", &["--note", "312 rows"], "sleep 0.2").await.is_quiet(0);
    // This one is not completed.
    assert_eq!(hourly("03:00", &[], "exit 7").await.code, 7);
    assert_eq!(hourly("06:00", &["--complete-on-error"], "exit 7").await.code, 7);
    assert_eq!(hourly("07:00", &["--complete-on-error", "--note", "disk full"], "exit 7").await.code, 7);
    let table = sandbox.done(&["history", KEY]).await.stdout;
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let firsts: Vec<&[&str]> = rows.iter().map(|row| &row[..2]).collect();
    let [two, three, six, seven, eight] =
        ["02", "03", "06", "07", "08"].map(|hour| format!("2026-11-05T{hour}:00:00Z"));
    let expected: [[&str; 2]; 5] =
        [[&two, "ok"], [&three, "missed"], [&six, "failed"], [&seven, "failed"], [&eight, "missed"]];
    assert_eq!(firsts, expected, "{table}");
    assert!(rows[1].ends_with(&["3", "ticks", "-"]) && rows[2].contains(&"7"), "{table}");

    let history = &sandbox.done(&["history", KEY, "--json"]).await.json()[0];
    let runs = history["history"].as_array().unwrap();
    let notes: Vec<_> = runs.iter().filter_map(|run| run["note"].as_str()).collect();
    assert_eq!((&history["key"], notes), (&KEY.into(), vec!["312 rows", "status 7", "disk full"]));
    assert!(runs[0]["took_ms"].as_u64().unwrap() >= 200, "{history}");
    assert_eq!((&runs[1]["ticks"], &runs[1]["time"]), (&3.into(), &three.into()));
}

#[tokio::test]
async fn done_superseded_and_busy_are_statuses_of_their_own_that_options_replace() {
    let sandbox = Sandbox::new("once_statuses").await;
    // Of two that run a tick at the same time, one runs the command.
    let mut both = join_all([(); 2].map(|()| once(&sandbox, &["--tick", "7"], RUN))).await;
    both.sort_by_key(|ended| ended.code);
    both[0].is_quiet(0);
    both[1].says(120, "is already done, by ");
    once(&sandbox, &["--tick", "6"], RUN).await.says(119, "tick 6 of \"reports/nightly\" is superseded: tick 7");
    for tick in ["6", "7"] {
        once(&sandbox, &["--tick", tick, "--done-status", "0"], RUN).await.says(0, &format!("tick {tick} of"));
    }
    let lease = sandbox.hold().await;
    let busy = format!("tick 8 of \"{KEY}\" is not run, because {:?} keeps the key", lease.owner());
    once(&sandbox, &["--tick", "8", "-n"], RUN).await.says(121, &busy);
    once(&sandbox, &["--tick", "8", "-w", "200ms", "-E", "9"], RUN).await.says(9, &busy);
    once(&sandbox, &["--tick", "7"], RUN).await.says(120, "is already done");
    lease.release().await.unwrap();
    assert_eq!(runs(&sandbox), 1);
}

#[tokio::test]
async fn a_command_that_fails_leaves_its_tick_unless_it_is_completed_whatever_its_status() {
    let sandbox = Sandbox::new("once_failed").await;
    let script = format!("{RUN}; exit 7");
    for runs_before in 0..2 {
        assert_eq!(runs(&sandbox), runs_before);
        once(&sandbox, &["--tick", "1"], &script).await.is_quiet(7);
        assert_eq!(last_done(&sandbox).await, None);
    }
    once(&sandbox, &["--tick", "1", "--complete-on-error"], &script).await.is_quiet(7);
    assert_eq!(last_done(&sandbox).await, Some(1));
    once(&sandbox, &["--tick", "1"], &script).await.says(120, "is already done");
    // A command that a signal ends has failed.
    let run = command(&sandbox, &["--tick", "2"], r#"touch "$F/began"; exec sleep 100"#).spawn().unwrap();
    sandbox.exists("began").await;
    signal(id(&run), SIGTERM);
    ended(run).await.is_quiet(143);
    assert_eq!(last_done(&sandbox).await, Some(1));
    sandbox.is_free().await;
}

/// A day in UTC is not such a tick: in March two nights at 01:30 in Berlin fall into one day in UTC.
#[tokio::test]
async fn a_date_is_a_tick_that_runs_once() {
    let sandbox = Sandbox::new("once_date").await;
    once(&sandbox, &["--tick", "2026-11-05"], RUN).await.is_quiet(0);
    once(&sandbox, &["--tick", "2026-11-05"], RUN).await.says(120, "tick 2026-11-05T00:00:00Z");
    // A day of `--every` has the same number as the date of that day in UTC.
    once(&sandbox, &["--tick", "2026-11-05T00:00Z"], RUN).await.says(120, "already done");
    once(&sandbox, &["--tick", "2026-11-06"], RUN).await.is_quiet(0);
    assert_eq!(runs(&sandbox), 2);
}

#[tokio::test]
async fn the_tick_of_a_clock_that_is_ahead_is_refused() {
    let sandbox = Sandbox::new("once_ahead").await;
    for (tick, part) in [
        (&["2199-01-01T00:00Z"][..], "ahead of the store's time, and a tick may be one period of 1 m ahead: check"),
        (&["2199-01-01T00:00Z", "--period", "1d"], "a tick may be one period of 1 d ahead"),
        (&["2199-01-01"], "a tick may be one period of 1 d ahead"),
    ] {
        once(&sandbox, &[&["--tick"], tick].concat(), RUN).await.says(125, part);
    }
    assert_eq!((last_done(&sandbox).await, runs(&sandbox)), (None, 0));
}

#[tokio::test]
async fn a_tick_of_a_period_is_the_time_of_the_server_and_the_command_finds_it_in_its_environment() {
    let sandbox = Sandbox::new("once_every").await;
    let script = r#"echo "$MONGOSEAL_TICK $MONGOSEAL_KEY $MONGOSEAL_TOKEN""#;
    let ran = once(&sandbox, &["--every", "365d", "-v"], script).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let words: Vec<&str> = ran.stdout.split_whitespace().collect();
    let tick: u64 = words[0].parse().unwrap();
    let now = u64::try_from(sandbox.seal.now().await.unwrap().millis()).unwrap();
    let period = 365 * 24 * 3_600_000;
    assert!(tick.is_multiple_of(period) && tick <= now && now - tick < period, "{tick} at {now}");
    assert_eq!(words[1], KEY);
    assert_eq!(last_done(&sandbox).await, Some(tick));
    assert!(ran.stderr.contains("running tick 20") && ran.stderr.contains("T00:00:00Z of"), "{}", ran.stderr);
    // A command that is run under another lease has no tick.
    let inner = "$M run other -- sh -c 'echo tick=$MONGOSEAL_TICK'";
    let nested = once(&sandbox, &["--tick", "2060-01-01T00:00Z", "--period", "18250d"], inner).await;
    assert_eq!(nested.printed(), "tick=\n");
}

#[tokio::test]
async fn a_reset_lowers_the_last_completed_tick_so_that_a_tick_runs_again() {
    let sandbox = Sandbox::new("once_reset").await;
    let reset = async |options: &[&str]| sandbox.done(&[&["once", KEY, "--reset"], options].concat()).await;
    let is = |before: u64, now: u64| format!("the last completed tick of \"{KEY}\" was {before}, and is {now}\n");
    reset(&[]).await.says(1, "no tick of \"reports/nightly\" is completed");
    once(&sandbox, &["--tick", "7"], RUN).await.is_quiet(0);
    assert_eq!(reset(&["--by", "olga"]).await.printed(), is(7, 6));
    once(&sandbox, &["--tick", "6"], RUN).await.says(120, "is already done, by \"olga\"");
    once(&sandbox, &["--tick", "7"], RUN).await.is_quiet(0);
    assert_eq!(reset(&["--tick", "3"]).await.printed(), is(7, 2));
    // A reset never raises it.
    assert_eq!(reset(&["--tick", "9"]).await.printed(), is(2, 2));
    assert_eq!(runs(&sandbox), 2);
    assert_eq!(reset(&["--", "true"]).await.code, 125);
}

#[tokio::test]
async fn a_command_is_ended_before_its_maximum_hold_ends_although_its_lease_is_refreshed() {
    let sandbox = Sandbox::new("maximum_hold").await;
    let ends = [&["run", "a"][..], &["once", KEY, "--tick", "1"], &["run", "b", "c"]].map(async |program| {
        // The first refresh is due after 3 s.
        let limits = ["--ttl", "9s", "--max-hold", "5s", "--", "sleep", "100"];
        sandbox.done(&[program, &limits].concat()).await.says(122, "the maximum hold of the lease on \"");
    });
    join_all(ends).await;
    sandbox.free(&["a", KEY, "b", "c"]).await;
    assert_eq!(last_done(&sandbox).await, None);
}

#[tokio::test]
async fn a_key_that_is_released_before_its_minimum_hold_is_over_stays_unavailable_and_is_shown_as_released() {
    let sandbox = Sandbox::new("minimum_hold").await;
    sandbox.done(&["run", KEY, "-n", "--min-hold", "10m", "--", "true"]).await.is_quiet(0);
    sandbox.done(&["run", KEY, "-n", "--", "true"]).await.says(121, &format!("\"{KEY}\" is kept by"));
    once(&sandbox, &["--tick", "1", "-n"], RUN).await.says(121, "keeps the key");
    let listed = sandbox.done(&["ls"]).await.printed();
    assert!(listed.contains("9 m") && listed.contains("(released)"), "{listed}");
    let shown = sandbox.done(&["show", KEY]).await.printed();
    assert!(shown.contains("ago; minimum 10 m, ends in 9 m"), "{shown}");
    let json = sandbox.done(&["ls", "--json"]).await.printed();
    assert!(json.contains("\"released_at\":\"20") && json.contains("\"held_until\":\"20"), "{json}");
    // Of several keys, none is kept if another is not granted.
    sandbox.done(&["run", "a", KEY, "-n", "--min-hold", "10m", "--", "true"]).await.says(121, "is kept by");
    sandbox.free(&["a"]).await;
}
