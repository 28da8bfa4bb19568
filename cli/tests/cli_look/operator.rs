//! `revoke` and `purge`.

use std::time::Duration;

use mongodb::bson::{DateTime, doc};
use mongoseal::LossCause;

use crate::{Console, secs, shell};

#[tokio::test]
async fn revoke_asks_on_a_terminal_only_and_elsewhere_wants_to_be_told() {
    let console = Console::new("revoke").await;
    let seal = console.seal("alice");
    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    let said = console.run(&["revoke", "k", "--reason", "stuck"]).await;
    assert_eq!((said.status, said.out.as_str()), (125, ""));
    assert!(said.err.contains("--yes") && said.err.lines().count() == 1, "{}", said.err);
    assert!(lease.is_valid());
    lease.verify().await.unwrap();

    let said = console.run(&["revoke", "k", "--reason", "stuck", "--by", "olga", "--yes"]).await;
    assert_eq!(said.status, 0, "{}", said.err);
    assert_eq!(said.out, format!("revoked \"k\" from alice, with token {}\n", lease.token()));
    let LossCause::Revoked { by, reason } = lease.cancelled().await else { panic!("it was revoked") };
    assert_eq!((by.as_str(), reason.as_str()), ("olga", "stuck"));

    let shown = console.run(&["show", "k"]).await.out;
    assert!(shown.contains("REVOKED") && shown.contains("olga") && shown.contains("stuck"), "{shown}");
    let again = console.run(&["revoke", "k", "--reason", "stuck", "--yes"]).await;
    assert_eq!((again.status, again.out.as_str()), (1, ""));
    assert!(again.err.contains("\"k\" has no holder"), "{}", again.err);

    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    let said = console.run(&["revoke", "k", "--reason", "again", "--yes", "--json"]).await.json();
    assert_eq!(said, [serde_json::json!({ "key": "k", "owner": "alice", "token": lease.token().get() })]);
    let LossCause::Revoked { by, .. } = lease.cancelled().await else { panic!("it was revoked") };
    assert!(by.contains('@'), "user and host: {by}");
    assert_eq!(console.run(&["revoke", "k", "--yes"]).await.status, 125, "a reason is wanted");
}

#[tokio::test]
async fn purge_says_what_went_and_leaves_what_lives() {
    let console = Console::new("purge").await;
    let seal = console.seal("alice");
    let lives = seal.acquire("lives").ttl(secs(600)).await.unwrap();
    assert_eq!(console.run(&["purge"]).await.out, "Nothing to delete.\n");
    let spoil = async || {
        let lapsed = seal.acquire("lapsed").ttl(Duration::from_millis(20)).without_refresh().await.unwrap();
        let token = lapsed.token();
        lapsed.orphan();
        tokio::time::sleep(Duration::from_millis(60)).await;
        token
    };
    let token = spoil().await;
    let said = console.run(&["ls", "--expired", "lap"]).await;
    assert!(said.out.contains("expired"), "{}", said.out);
    let said = console.run(&["purge"]).await;
    assert!(
        said.status == 0
            && said.out.starts_with(&format!("deleted the lease on \"lapsed\" of alice with token {token}"))
    );
    assert_eq!(said.out.lines().count(), 1);

    let token = spoil().await;
    // The server's own monitor may be sooner, so that it is looked for what went and not how.
    let long_ago = DateTime::from_millis(1);
    let idle = doc! {
        "_id": "idle", "v": 1, "version": 1_i64, "holders": [], "queue": [], "handover": "", "history": [],
        "last_seen": long_ago, "expires_at": long_ago,
    };
    console.db.records().insert_one(idle).await.unwrap();
    let gone = console.run(&["purge", "--json"]).await.json();
    assert!(gone.iter().any(|gone| gone["purged"] == "lease" && gone["token"] == token.get()), "{gone:?}");
    assert_eq!(console.run(&["show", "idle"]).await.status, 1);
    lives.verify().await.unwrap();
}

/// What is seen on a terminal of script(1), with this typed into it, and the status.
async fn on_a_terminal(console: &Console, words: &str, typed: &str) -> (String, i32) {
    let script = format!("printf '{typed}' | script --quiet --return --command \"{words}\" /dev/null");
    let said = shell(&console.uri, &script).await;
    (said.out, said.status)
}

#[tokio::test]
async fn on_a_terminal_revoke_shows_who_holds_and_only_a_yes_takes_it_away() {
    let console = Console::new("revoke_asks").await;
    let lease = console.seal("alice").acquire("k").ttl(secs(600)).await.unwrap();
    let words = "mongoseal revoke k --reason stuck";
    for typed in ["n\\n", "\\n", "nyes\\n"] {
        let (seen, status) = on_a_terminal(&console, words, typed).await;
        assert!(seen.contains(&format!("\"k\" is held by alice with token {}", lease.token())), "{seen}");
        assert!(seen.contains("[y/N]") && seen.contains("nothing was revoked"), "{seen}");
        assert_eq!(status, 1);
        lease.verify().await.unwrap();
    }
    let (seen, status) = on_a_terminal(&console, words, "y\\n").await;
    assert!(status == 0 && seen.contains("revoked \"k\" from alice"), "{seen}");
    lease.cancelled().await;
}

#[tokio::test]
async fn a_terminal_gets_colours_unless_it_wants_none_and_its_screen_back() {
    let console = Console::new("terminal").await;
    let lease = console.seal("alice").acquire("k").ttl(secs(600)).await.unwrap();
    let (seen, status) = on_a_terminal(&console, "mongoseal ls", "").await;
    assert!(status == 0 && seen.contains("\u{1b}[1mKEY"), "{seen:?}");
    let (seen, _) = on_a_terminal(&console, "NO_COLOR=1 mongoseal ls", "").await;
    assert!(seen.contains("KEY") && !seen.contains('\u{1b}'), "{seen:?}");
    for signal in ["INT", "TERM", "HUP"] {
        let words = format!("timeout --signal {signal} --preserve-status 2 mongoseal watch k");
        let (seen, status) = on_a_terminal(&console, &words, "").await;
        let (entered, left) = (seen.find("\u{1b}[?1049h").unwrap(), seen.rfind("\u{1b}[?1049l").unwrap());
        assert!(status == 0 && entered < left && seen[entered..left].contains("alice"), "{signal} {status} {seen:?}");
        assert!(seen[left..].len() < 20, "nothing comes behind it: {seen:?}");
    }
    let (seen, _) = on_a_terminal(&console, "timeout --signal INT 2 mongoseal watch k --plain", "").await;
    assert!(seen.contains("  holds  ") && !seen.contains("1049"), "{seen:?}");
    lease.release().await.unwrap();
}
