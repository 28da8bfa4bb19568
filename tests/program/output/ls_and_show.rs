//! `ls` and `show`.

use std::time::Instant;

use mongodb::bson::doc;
use mongoseal::Lease;
use mongoseal_test_support::millis;

use crate::{Ended, Sandbox, secs};

fn rows(said: &Ended) -> Vec<Vec<&str>> {
    said.is_quiet(0);
    said.stdout.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect()
}

fn keys(said: &Ended) -> Vec<String> {
    said.json().iter().map(|lease| lease["key"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn ls_and_show_say_who_holds_what_since_when_for_how_long_and_who_waits() {
    let sandbox = Sandbox::new("looks").await;
    let (alice, bob) = (sandbox.seal_of("alice"), sandbox.seal_of("bob"));
    let nightly = alice.acquire("reports/nightly").ttl(secs(595)).metadata("build", "1.4").await.unwrap();
    let waiting = bob.acquire("reports/nightly").ttl(secs(600)).wait(secs(60)).into_future();
    let waiting = tokio::spawn(waiting);
    sandbox.queued_on("reports/nightly", 1).await;
    let first = alice.acquire("gpu").shared_up_to(2).group("night").ttl(secs(60)).await.unwrap();
    let second = bob.acquire("gpu").shared().ttl(secs(600)).await.unwrap();
    let forever = bob.acquire("forever").without_expiry().await.unwrap();

    let said = sandbox.done(&["ls"]).await;
    let (table, token) = (rows(&said), nightly.token().to_string());
    assert_eq!((table.len(), &table[4][..3]), (5, &["reports/nightly", "alice", &token][..]), "{}", said.stdout);
    assert!(table[4][4].starts_with("9 m "), "{}", said.stdout);
    assert_eq!((table[2][7], table[3][5], table[1][4]), ("night", "shared", "unlimited"));

    let listed = sandbox.done(&["ls", "--json"]).await.json();
    assert_eq!((listed[3]["token"].as_u64(), listed[3]["waiting"].as_u64()), (Some(nightly.token().get()), Some(1)));
    assert_eq!(listed[3]["metadata"]["build"], "1.4");
    assert!(listed[3]["free_in_ms"].as_u64().unwrap() > 500_000 && listed[3]["held_ms"].is_u64());
    assert!(listed[0]["free_in_ms"].is_null() && !listed[3]["shared"].as_bool().unwrap());
    assert_eq!((&listed[1]["limit"], &listed[2]["limit"]), (&serde_json::json!(2), &serde_json::Value::Null));

    for (filter, wanted) in [
        (vec!["rep"], vec!["reports/nightly"]),
        (vec!["--owner", "bob"], vec!["forever", "gpu"]),
        (vec!["--group", "night"], vec!["gpu"]),
        (vec!["--shared"], vec!["gpu", "gpu"]),
        (vec!["--exclusive"], vec!["forever", "reports/nightly"]),
        (vec!["--expiring", "90s"], vec!["gpu"]),
        (vec!["--older", "1h"], vec![]),
        (vec!["--older", "1ms", "f"], vec!["forever"]),
    ] {
        let arguments: Vec<&str> = ["ls", "--json"].into_iter().chain(filter).collect();
        assert_eq!(keys(&sandbox.done(&arguments).await), wanted, "{arguments:?}");
    }

    assert!(sandbox.done(&["show", "reports/nightly"]).await.printed().contains(&token));
    let shown = sandbox.done(&["show", "reports/nightly", "--json"]).await.json();
    assert_eq!((&shown[0]["holders"][0]["owner"], &shown[0]["queue"][0]["owner"]), (&"alice".into(), &"bob".into()));
    assert_eq!(shown[0]["queue"][0]["position"], 1, "as in the table");

    nightly.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    for lease in [first, second, forever] {
        lease.release().await.unwrap();
    }
    assert!(sandbox.done(&["show", "reports/nightly"]).await.printed().contains("No holders."));
    for (arguments, answer) in [(&["ls"][..], "No leases.\n"), (&["ls", "--owner", "alice"], "No matching leases.\n")] {
        let nothing = sandbox.done(arguments).await;
        assert_eq!((nothing.code, nothing.stdout.as_str(), nothing.stderr.as_str()), (0, "", answer));
    }
}

#[tokio::test]
async fn ls_sorts_by_a_column_and_leases_with_equal_cells_stay_in_the_order_of_keys() {
    let sandbox = Sandbox::new("ls_sorted").await;
    let (alice, bob) = (sandbox.seal_of("alice"), sandbox.seal_of("bob"));
    let mut leases = vec![
        alice.acquire("b").ttl(secs(600)).await.unwrap(),
        bob.acquire("c").without_expiry().await.unwrap(),
        alice.acquire("a").ttl(secs(60)).await.unwrap(),
    ];
    let waiting = tokio::spawn(bob.acquire("a").ttl(secs(60)).wait(secs(60)).into_future());
    sandbox.queued_on("a", 1).await;
    for (options, expected) in [
        (vec![], ["a", "b", "c"]),
        (vec!["--sort-by", "token"], ["b", "c", "a"]),
        (vec!["--reverse"], ["c", "b", "a"]),
        (vec!["--sort-by", "key"], ["a", "b", "c"]),
        (vec!["--sort-by", "key", "-r"], ["c", "b", "a"]),
        (vec!["--sort-by", "owner"], ["a", "b", "c"]),
        (vec!["--sort-by", "owner", "--reverse"], ["c", "a", "b"]),
        (vec!["--sort-by", "held"], ["a", "c", "b"]),
        (vec!["--sort-by", "free-in"], ["a", "b", "c"]),
        (vec!["--sort-by", "waiters"], ["b", "c", "a"]),
    ] {
        assert_eq!(keys(&sandbox.done(&[&["ls", "-o", "json"][..], &options].concat()).await), expected, "{options:?}");
        let said = sandbox.done(&[&["ls"][..], &options].concat()).await;
        let first: Vec<&str> = rows(&said).iter().skip(1).map(|row| row[0]).collect();
        assert_eq!(first, expected, "{options:?}");
    }
    // The columns are named.
    sandbox.done(&["ls", "--sort-by", "colour"]).await.fails(125, "free-in");
    sandbox.done(&["ls", "-o", "wide", "--json"]).await.fails(125, "cannot be used with");
    let nothing = sandbox.done(&["ls", "--sort-by", "key", "none/"]).await;
    assert_eq!((nothing.code, nothing.stdout.as_str()), (0, ""), "{}", nothing.stderr);
    waiting.abort();
    leases.clear();
}

#[tokio::test]
async fn a_wide_list_also_has_the_times_of_grant_refresh_and_expiry_and_the_metadata() {
    let sandbox = Sandbox::new("ls_wide").await;
    let alice = sandbox.seal_of("alice");
    let build = alice.acquire("build").ttl(secs(600)).metadata("commit", "1a2b").await.unwrap();
    let forever = alice.acquire("forever").without_expiry().await.unwrap();
    alice.acquire("over").ttl(millis(500)).without_refresh().await.unwrap().orphan();
    tokio::time::sleep(millis(600)).await;
    let said = sandbox.done(&["ls", "-o", "wide", "--expired"]).await;
    let table = rows(&said);
    assert_eq!(table[0][8..], ["LAST SEEN", "SINCE", "EXPIRES", "METADATA"]);
    let listed = &sandbox.done(&["ls", "--json", "build"]).await.json()[0];
    assert_eq!(table[1][9], listed["since"].as_str().unwrap());
    assert!(table[1][8].ends_with(" ago") && table[1][11] == "commit=1a2b", "{}", said.stdout);
    // Until the lease expires, ten minutes and the grace after the grant.
    assert!(table[1][10] > table[1][9] && table[1][10].ends_with('Z'), "{}", said.stdout);
    assert_eq!((table[2][10], table[3][10]), ("never", "expired"), "{}", said.stdout);
    drop((build, forever));
}

/// Records that one holder holds, each a copy of the first, with tokens that grow.
async fn held_records(sandbox: &Sandbox, count: i64) {
    let lease = sandbox.seal_of("alice").acquire("held/00000").ttl(secs(3600)).await.unwrap();
    let records = sandbox.records();
    let held = records.find_one(doc! { "_id": "held/00000" }).await.unwrap().expect("the key has a record");
    lease.orphan();
    let copy = |number: i64| {
        let mut copy = held.clone();
        let version = held.get_i64("version").unwrap() + number;
        copy.insert("_id", format!("held/{number:05}"));
        copy.insert("version", version);
        copy.get_array_mut("holders").unwrap()[0].as_document_mut().unwrap().insert("version", version);
        copy
    };
    records.insert_many((1..count).map(copy).collect::<Vec<_>>()).await.unwrap();
}

#[tokio::test]
#[ignore = "night: judges seconds"]
async fn ls_lists_ten_thousand_leases_as_they_come_and_doctor_checks_each() {
    let sandbox = Sandbox::new("ls_many").await;
    held_records(&sandbox, 10_000).await;
    let (began, mut ls) = (Instant::now(), sandbox.start(&["ls"]));
    let mut first = None;
    let mut count = 0;
    while let Some(line) = ls.next_line().await {
        first.get_or_insert_with(|| began.elapsed());
        assert!(count == 0 || line.starts_with(&format!("held/{:05}  alice  ", count - 1)), "{count}: {line}");
        count += 1;
    }
    let (first, all) = (first.unwrap(), began.elapsed());
    println!("ls of 10,000 leases took {all:?}, and {first:?} to the first");
    assert_eq!(count, 10_001);
    assert!(first < all / 2, "the first page must not wait for the last: {first:?} of {all:?}");
    // Measured in 0.2 and 1 second; the bounds are for a busy machine. Pages that each read all keys take 3 to 6 s.
    assert!(all < secs(10), "{all:?}");

    // The last in the order of ids, beside the record of the doctor's own.
    sandbox.records().insert_one(doc! { "_id": "z/theirs", "some": "thing" }).await.unwrap();
    let words = sandbox.done(&["doctor", "--json"]).await.found("records");
    assert!(words.starts_with("1 of 10002 documents cannot be read") && words.contains("z/theirs"), "{words}");
}

#[tokio::test]
async fn a_key_without_a_record_is_no_success_and_a_bad_one_names_what_is_wrong() {
    let sandbox = Sandbox::new("absent").await;
    let absent = "\"never/asked-for\" has no record";
    sandbox.done(&["show", "never/asked-for"]).await.says(1, absent);
    sandbox.done(&["show", ""]).await.fails(125, "must not be empty");
    sandbox.records().insert_one(doc! { "_id": "foreign", "somebody": "else" }).await.unwrap();
    sandbox.done(&["show", "foreign"]).await.fails(125, "is not a lease record");
    assert_eq!(sandbox.done(&["show"]).await.code, 125);
}

#[tokio::test]
async fn what_others_wrote_cannot_act_on_a_terminal() {
    let sandbox = Sandbox::new("nasty").await;
    let nasty = "a\u{1b}[2J\u{1b}]0;title\u{7}\n\r\u{9b}31m\u{202e}gnp\u{200b}";
    // A key and a group have no control characters.
    let name = "a[2J\u{202e}gnp\u{200b}";
    let seal = sandbox.seal_of(nasty);
    let noted = seal.once(name, mongoseal::Tick::number(1)).begin().await.unwrap();
    let mongoseal::BeginOutcome::Started(noted) = noted else { panic!("the key is free: {noted:?}") };
    noted.note(nasty);
    noted.complete().await.unwrap();
    let lease = seal.acquire(name).group(name).metadata("note", nasty).ttl(secs(600)).await.unwrap();
    let acts = |character: char| {
        (character.is_control() && character != '\n') || ('\u{200b}'..='\u{202e}').contains(&character)
    };
    for arguments in [
        vec!["ls"],
        vec!["ls", "--json"],
        vec!["show", name],
        vec!["show", name, "--json"],
        vec!["show", "nothing\u{1b}[2J"],
        vec!["history", name],
        vec!["history", name, "--json"],
        vec!["history", "nothing\u{1b}[2J"],
        vec!["revoke", name, "--reason", nasty, "--by", nasty, "--yes"],
        vec!["show", name],
        vec!["show", name, "--json"],
    ] {
        let said = sandbox.done(&arguments).await;
        let printed = said.stdout.clone() + &said.stderr;
        assert!(!printed.contains(acts) && printed.contains("[2J"), "{arguments:?}: {printed:?}");
        if arguments.contains(&"--json") {
            assert_eq!(said.json()[0]["key"], name);
        }
    }
    lease.cancelled().await;
}

#[tokio::test]
async fn nothing_is_cut_in_a_pipe_and_one_that_is_closed_early_is_no_failure_but_a_full_device_is() {
    let sandbox = Sandbox::new("pipes").await;
    let seal = sandbox.seal_of(&"o".repeat(300));
    let long = format!("{}/end", "k".repeat(300));
    let keys: Vec<String> = (0..150).map(|number| format!("many/{number}")).chain([long.clone()]).collect();
    let set = seal.acquire_all(keys.iter().map(String::as_str)).ttl(secs(600)).await.unwrap();
    let said = sandbox.done(&["ls"]).await;
    assert_eq!(said.stdout.lines().count(), 152);
    assert!(said.stdout.contains(&long) && said.stdout.contains(&"o".repeat(300)) && !said.stdout.contains('…'));
    for words in [
        "mongoseal ls | head -1",
        "mongoseal ls --json | head -1",
        "mongoseal show many/1 | head -1",
        "mongoseal watch | head -1",
        "mongoseal watch many/1 --json | head -1",
        "mongoseal man | head -1",
        "mongoseal completions bash | head -1",
        "mongoseal doctor | head -1",
    ] {
        let said = sandbox.shell(words).await;
        assert_eq!((said.code, said.stderr.as_str(), said.stdout.lines().count()), (0, "", 1), "{words}");
    }
    sandbox.shell("mongoseal watch >/dev/full").await.fails(125, "No space left on device");
    set.release().await.unwrap();
}

/// Leases with keys and owners as the program makes them.
async fn leases(sandbox: &Sandbox) -> Vec<Lease> {
    let owners = ["web-1/24517/0f3a9c11", "batch-7/9921/77e0b2d4/nightly"];
    let mut leases = Vec::new();
    for (key, owner) in [("billing/invoices/2026-11", owners[0]), ("reports/daily", owners[1])] {
        leases.push(sandbox.seal_of(owner).acquire(key).ttl(secs(600)).await.unwrap());
    }
    let limited = sandbox.seal_of(owners[0]).acquire("reports/nightly").ttl(secs(600));
    leases.push(limited.metadata("build", "1.4.2").min_hold(secs(1200)).max_hold(secs(10_800)).await.unwrap());
    leases
}

/// What the program shows, without colours. No line is wider than the terminal. On a busy machine it notes on standard error
/// that the server is slow.
async fn shown(sandbox: &Sandbox, columns: u16, words: &str) -> String {
    let (seen, status) =
        sandbox.on_a_terminal_of(columns, &format!("NO_COLOR=1 mongoseal {words} 2>/dev/null"), "").await;
    assert_eq!(status, 0, "{seen}");
    assert!(seen.lines().all(|line| line.chars().count() <= columns.into()), "{columns}: {words}\n{seen}");
    seen
}

#[tokio::test]
async fn ls_and_show_fit_into_each_terminal_and_cut_neither_keys_nor_words() {
    let sandbox = Sandbox::new("widths").await;
    let leases = leases(&sandbox).await;
    let reason = "stuck since Monday, its host does not answer, and the engineer on call has restarted it twice";
    let seal = sandbox.seal_of("olga");
    let gone = seal.acquire("gone").ttl(secs(600)).await.unwrap();
    seal.revoke("gone").by("olga@ops-1").reason(reason).await.unwrap();
    gone.cancelled().await;
    for columns in [40, 80, 160] {
        let seen = shown(&sandbox, columns, "ls").await;
        for lease in &leases {
            assert!(seen.contains(lease.key().as_str()) && seen.contains(&lease.token().to_string()), "{seen}");
        }
        // All have the mode in common. At 40 columns each lease is a block of lines.
        assert_eq!((seen.contains("MODE"), seen.matches("TOKEN").count()), (false, if columns == 40 { 3 } else { 1 }));

        let seen = shown(&sandbox, columns, "show reports/nightly").await;
        let words = seen.split_whitespace().collect::<Vec<_>>().join(" ");
        let limits = format!("token {}: minimum 20 m, ends in 19 m ", leases[2].token());
        assert!(words.contains(&limits) && words.contains("; maximum 3 h, ends in "), "{seen}");
        assert!(words.contains(leases[2].owner().as_str()) && words.contains("build=1.4.2"), "{seen}");

        let seen = shown(&sandbox, columns, "show gone").await;
        for word in reason.split(' ').chain(["olga@ops-1"]) {
            assert!(seen.contains(word), "{columns}: {word} is whole in\n{seen}");
        }
    }
}
