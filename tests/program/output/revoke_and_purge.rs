//! `revoke` and `purge`.

use std::{process::Stdio, time::Duration};

use mongoseal::{Lease, LeaseState, LossCause, Mongoseal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Ended, Sandbox, bash, done, secs};

#[tokio::test]
async fn revoke_asks_on_a_terminal_only_and_elsewhere_wants_to_be_told() {
    let sandbox = Sandbox::new("revoke").await;
    let seal = sandbox.seal_of("alice");
    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    sandbox.done(&["revoke", "k", "--reason", "stuck"]).await.says(125, "--yes");
    lease.verify().await.unwrap();

    let printed = sandbox.done(&["revoke", "k", "--reason", "stuck", "--by", "olga", "--yes"]).await.printed();
    let expected = format!("revoked \"k\" from alice, with token {}\n\"k\" has no holder now\n", lease.token());
    assert_eq!(printed, expected);
    assert_eq!(revoked(&lease).await, ("olga".to_owned(), "stuck".to_owned()));
    sandbox.done(&["revoke", "k", "--reason", "stuck", "--yes"]).await.says(1, "\"k\" has no holder");

    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    let said = sandbox.done(&["revoke", "k", "--reason", "again", "--yes", "--json"]).await.json();
    assert_eq!(said, [serde_json::json!({ "key": "k", "owner": "alice", "token": lease.token().get() })]);
    let (by, _) = revoked(&lease).await;
    assert!(by.contains('@'), "user and host: {by}");
    assert_eq!(sandbox.done(&["revoke", "k", "--yes"]).await.code, 125, "a reason is wanted");
    for (empty, options) in
        [("'--reason <TEXT>'", &["--reason", ""][..]), ("'--by <NAME>'", &["--reason", "r", "--by", ""])]
    {
        let said = sandbox.done(&[&["revoke", "k", "--yes"], options].concat()).await;
        said.fails(125, &format!("a value is required for {empty}"));
    }
}

/// Who revoked a lease, and why.
async fn revoked(lease: &Lease) -> (String, String) {
    let state = lease.cancelled().await;
    let LeaseState::Lost { cause: LossCause::Revoked { by, reason } } = state else { panic!("revoked: {state:?}") };
    (by.as_str().to_owned(), reason.as_str().to_owned())
}

fn tokens(said: &Ended) -> Vec<u64> {
    assert_eq!(said.code, 0, "{}", said.stderr);
    said.json().iter().map(|revoked| revoked["token"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn revoke_of_a_token_or_of_an_owner_leaves_the_other_sharers() {
    let sandbox = Sandbox::new("revoke_some").await;
    let (alice, bob) = (sandbox.seal_of("alice"), sandbox.seal_of("bob"));
    let shared = async |seal: &Mongoseal| seal.acquire("gpu").shared().ttl(secs(600)).await.unwrap();
    let (first, second, third, last) =
        (shared(&alice).await, shared(&bob).await, shared(&bob).await, shared(&bob).await);
    let revoke = async |options: &[&str]| {
        let fixed = ["revoke", "gpu", "--reason", "stuck", "--yes", "--json"];
        sandbox.done(&[&fixed, options].concat()).await
    };
    let token = third.token().to_string();
    assert_eq!(tokens(&revoke(&["--token", &token]).await), [third.token().get()]);
    assert_eq!(revoked(&third).await.1, "stuck");
    let again = revoke(&["--token", &token]).await;
    again.says(1, &format!("\"gpu\" has no lease with token {token}"));
    assert_eq!(tokens(&revoke(&["--owner", "bob"]).await), [second.token().get(), last.token().get()]);
    revoke(&["--owner", "bob"]).await.says(1, "\"gpu\" has no lease of \"bob\"");
    first.verify().await.unwrap();
    assert_eq!(revoke(&["--owner", "alice", "--token", "7"]).await.code, 125, "one of them is enough");
    assert_eq!(tokens(&revoke(&[]).await), [first.token().get()], "without both, all");
}

#[tokio::test]
async fn a_revoker_whom_no_variable_names_has_the_name_or_the_number_that_the_system_knows() {
    let sandbox = Sandbox::new("revoker").await;
    let revoker = async |before: &str| {
        let lease = sandbox.seal_of("alice").acquire("k").await.unwrap();
        let said = sandbox.shell(&format!("unset LOGNAME; {before} mongoseal revoke k --reason r --yes")).await;
        assert_eq!(said.code, 0, "{}", said.stderr);
        revoked(&lease).await.0.split_once('@').unwrap().0.to_owned()
    };
    assert_eq!(revoker("USER=olga").await, "olga");
    assert_eq!(revoker("USER=root SUDO_USER=olga").await, "olga", "under sudo, its caller");
    let known = done(bash("id --user --name")).await.stdout;
    assert_eq!(revoker("USER=").await, known.trim());
    assert_eq!(revoker("USER= unshare --user --map-user=48151").await, "uid 48151");
}

#[tokio::test]
async fn purge_says_what_went_and_leaves_what_lives() {
    let sandbox = Sandbox::new("purge").await;
    let seal = sandbox.seal_of("alice");
    let lives = seal.acquire("lives").ttl(secs(600)).await.unwrap();
    assert_eq!(sandbox.done(&["purge"]).await.stdout, "Nothing to delete.\n");
    let spoil = async || {
        let lapsed = seal.acquire("lapsed").ttl(Duration::from_millis(500)).without_refresh().await.unwrap();
        let token = lapsed.token();
        lapsed.orphan();
        tokio::time::sleep(Duration::from_millis(600)).await;
        token
    };
    let token = spoil().await;
    assert!(sandbox.done(&["ls", "--expired", "lap"]).await.printed().contains("expired"));
    let printed = sandbox.done(&["purge"]).await.printed();
    let deleted = format!("deleted the lease on \"lapsed\" of alice with token {token}");
    assert!(printed.starts_with(&deleted) && printed.lines().count() == 1, "{printed}");

    let token = spoil().await;
    let gone = sandbox.done(&["purge", "--json"]).await.json();
    assert!(gone.iter().any(|gone| gone["purged"] == "lease" && gone["token"] == token.get()), "{gone:?}");
    lives.verify().await.unwrap();
}

#[tokio::test]
async fn on_a_terminal_revoke_shows_who_holds_and_only_a_yes_takes_it_away() {
    let sandbox = Sandbox::new("revoke_asks").await;
    let lease = sandbox.seal_of("alice").acquire("k").ttl(secs(600)).await.unwrap();
    let words = "mongoseal revoke k --reason stuck";
    for typed in ["n\\n", "\\n", "nyes\\n"] {
        let (seen, status) = sandbox.on_a_terminal_of(80, words, typed).await;
        assert!(seen.contains(&format!("\"k\" is held by alice with token {}", lease.token())), "{seen}");
        assert!(seen.contains("[y/N]") && seen.contains("nothing was revoked"), "{seen}");
        assert_eq!(status, 1);
        lease.verify().await.unwrap();
    }
    let (seen, status) = sandbox.on_a_terminal_of(80, words, "y\\n").await;
    assert!(status == 0 && seen.contains("revoked \"k\" from alice"), "{seen}");
    lease.cancelled().await;
}

/// Runs `revoke k` on a terminal, and answers its question with yes after `meanwhile`.
async fn confirmed_after(sandbox: &Sandbox, meanwhile: impl AsyncFnOnce()) -> (String, i32) {
    let arguments = ["--quiet", "--return", "--command", "$M revoke k --reason stuck", "/dev/null"];
    let mut script = sandbox.command("script", &arguments);
    script.stdin(Stdio::piped());
    let mut script = script.spawn().unwrap();
    let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("[y/N]") {
        assert!(screen.read_buf(&mut seen).await.unwrap() > 0, "{}", String::from_utf8_lossy(&seen));
    }
    meanwhile().await;
    keys.write_all(b"y\n").await.unwrap();
    screen.read_to_end(&mut seen).await.unwrap();
    (String::from_utf8_lossy(&seen).into_owned(), script.wait().await.unwrap().code().unwrap())
}

#[tokio::test]
async fn a_lease_that_was_granted_after_the_question_is_left() {
    let sandbox = Sandbox::new("revoke_successor").await;
    let (alice, bob) = (sandbox.seal_of("alice"), sandbox.seal_of("bob"));
    let shared = async |seal: &Mongoseal| seal.acquire("k").shared().ttl(secs(600)).await.unwrap();
    let (first, mut second) = (shared(&alice).await, None);
    let (seen, status) = confirmed_after(&sandbox, async || second = Some(shared(&bob).await)).await;
    let second = second.unwrap();
    assert!(status == 0 && seen.contains(&format!("revoked \"k\" from alice, with token {}", first.token())), "{seen}");
    second.verify().await.unwrap();

    let mut third = None;
    let (seen, status) = confirmed_after(&sandbox, async || {
        second.release().await.unwrap();
        third = Some(shared(&alice).await);
    })
    .await;
    assert!(status == 1 && seen.contains("ended before the revocation"), "{seen}");
    third.unwrap().verify().await.unwrap();
}

#[tokio::test]
async fn a_terminal_gets_colours_unless_it_wants_none() {
    let sandbox = Sandbox::new("colours").await;
    let _lease = sandbox.seal_of("alice").acquire("k").ttl(secs(600)).await.unwrap();
    for (words, status, coloured, plain) in [
        ("mongoseal ls", 0, "\u{1b}[1mKEY", "KEY"),
        (
            "mongoseal run k --ttl 0 -- true",
            125,
            "mongoseal: \u{1b}[1m\u{1b}[31merror:\u{1b}[0m --ttl 0s leaves",
            "mongoseal: error: --ttl 0s leaves",
        ),
    ] {
        let (seen, code) = sandbox.on_a_terminal_of(80, words, "").await;
        assert!(code == status && seen.contains(coloured), "{seen:?}");
        let (seen, _) = sandbox.on_a_terminal_of(80, &format!("NO_COLOR=1 {words}"), "").await;
        let piped = sandbox.shell(words).await;
        for seen in [seen, piped.stdout + &piped.stderr] {
            assert!(seen.contains(plain) && !seen.contains('\u{1b}'), "{seen:?}");
        }
    }
}

/// What a textfile collector reads: each name once, and of each key one sample.
#[tokio::test]
async fn leases_and_checks_are_printed_for_prometheus() {
    let sandbox = Sandbox::new("prometheus").await;
    let seal = sandbox.seal_of("alice");
    let _held = seal.acquire("a\"b").ttl(secs(600)).await.unwrap();
    let _kept = seal.acquire("kept").without_expiry().await.unwrap();
    let shared = [1, 2].map(|_| seal.acquire("pool").shared_up_to(2).ttl(secs(600)).into_future());
    let _shared = futures_util::future::join_all(shared).await;
    let said = sandbox.done(&["ls", "-o", "prometheus"]).await;
    said.is_quiet(0);
    let samples: Vec<_> = said.stdout.lines().filter(|line| !line.starts_with('#')).collect();
    for sample in [
        r#"mongoseal_leases{key="a\"b"} 1"#,
        r#"mongoseal_leases{key="pool"} 2"#,
        r#"mongoseal_waiters{key="kept"} 0"#,
        r#"mongoseal_lease_free_in_seconds{key="kept"} +Inf"#,
    ] {
        assert!(samples.contains(&sample), "{sample}: {}", said.stdout);
    }
    assert_eq!(samples.len(), 4 * 3, "{}", said.stdout);
    for name in ["mongoseal_leases", "mongoseal_waiters", "mongoseal_lease_held_seconds"] {
        assert_eq!(said.stdout.lines().filter(|line| *line == format!("# TYPE {name} gauge")).count(), 1);
    }
    let free_in = samples.iter().find_map(|line| line.strip_prefix(r#"mongoseal_lease_free_in_seconds{key="pool"} "#));
    let free_in: f64 = free_in.unwrap().parse().unwrap();
    assert!((500.0..=600.5).contains(&free_in), "{free_in}");

    let said = sandbox.done(&["doctor", "-o", "prometheus"]).await;
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stdout.lines().any(|line| line == r#"mongoseal_doctor_check{check="reachable",verdict="pass"} 1"#));
    let verdicts = |value: &str| said.stdout.lines().filter(|line| line.ends_with(&format!("}} {value}"))).count();
    assert_eq!(verdicts("0"), 3 * verdicts("1"), "each check has one verdict of four: {}", said.stdout);
}

#[tokio::test]
async fn quiet_suppresses_notes_and_answers_and_no_error_or_warning() {
    let sandbox = Sandbox::new("quiet").await;
    let _lease = sandbox.seal_of("alice").acquire("k").ttl(secs(600)).await.unwrap();
    for (arguments, status) in [
        (&["ls", "nothing/"][..], 0),
        (&["show", "nothing"], 1),
        (&["leader", "nothing"], 1),
        (&["verify", "k", "7"], 1),
        (&["history", "nothing"], 0),
        (&["run", "k", "--no-wait", "--", "true"], 121),
        (&["run", "k", "--no-wait", "--held-status", "3", "--", "true"], 3),
        (&["run", "other", "--verbose", "--", "true"], 0),
    ] {
        let loud = sandbox.done(arguments).await;
        assert!(loud.code == status && !loud.stderr.is_empty(), "{arguments:?}: {}", loud.stderr);
        let quiet = sandbox.done(&[&["--quiet"], arguments].concat()).await;
        assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (status, "", ""), "{arguments:?}");
    }
    let unreachable = ["ls", "-q", "--timeout", "1500ms", "--uri", "mongodb://127.0.0.1:9/?replicaSet=none"];
    sandbox.done(&unreachable).await.says(123, "error: no primary");
}
