//! `ls` and `show` on terminals of 40, 80 and 160 columns.

use mongoseal::Lease;

use crate::{Console, on_a_terminal_of, secs};

/// Leases with keys and owners as the program makes them.
async fn leases(console: &Console) -> Vec<Lease> {
    let owners = ["web-1/24517/0f3a9c11", "batch-7/9921/77e0b2d4/nightly"];
    let mut leases = Vec::new();
    for (key, owner) in [("billing/invoices/2026-11", owners[0]), ("reports/daily", owners[1])] {
        leases.push(console.seal(owner).acquire(key).ttl(secs(600)).await.unwrap());
    }
    let limited = console.seal(owners[0]).acquire("reports/nightly").ttl(secs(600));
    leases.push(limited.metadata("build", "1.4.2").min_hold(secs(1200)).max_hold(secs(10_800)).await.unwrap());
    leases
}

/// What the program shows, without colours. No line is wider than the terminal. On a busy machine it notes on standard error
/// that the server is slow.
async fn shown(console: &Console, columns: u16, words: &str) -> String {
    let (seen, status) =
        on_a_terminal_of(columns, &console.uri, &format!("NO_COLOR=1 mongoseal {words} 2>/dev/null")).await;
    assert_eq!(status, 0, "{seen}");
    assert!(seen.lines().all(|line| line.chars().count() <= columns.into()), "{columns}: {words}\n{seen}");
    seen
}

#[tokio::test]
async fn ls_shows_each_key_in_full_and_leaves_out_what_all_leases_have_in_common() {
    let console = Console::new("widths_ls").await;
    let leases = leases(&console).await;
    for columns in [40, 80, 160] {
        let seen = shown(&console, columns, "ls").await;
        for lease in &leases {
            assert!(seen.contains(lease.key().as_str()) && seen.contains(&lease.token().to_string()), "{seen}");
        }
        for absent in ["MODE", "WAITERS", "GROUP", "exclusive"] {
            assert!(!seen.contains(absent), "{columns}: {absent}\n{seen}");
        }
        for present in ["KEY", "OWNER", "TOKEN", "HELD", "FREE IN"] {
            assert!(seen.contains(present), "{columns}: {present}\n{seen}");
        }
        // At 80 columns the longer owner gives room to the key.
        assert_eq!(seen.contains(leases[1].owner().as_str()), columns != 80, "{seen}");
        // At 40 columns each lease is a block of lines.
        assert_eq!(seen.matches("TOKEN").count(), if columns == 40 { 3 } else { 1 }, "{seen}");
    }
    let wide = shown(&console, 160, "ls -o wide").await;
    assert!(wide.contains("EXPIRES") && wide.contains("build=1.4.2") && wide.lines().count() == 4, "{wide}");
    let shared = console.seal("alice").acquire("gpu").shared_up_to(2).group("night").ttl(secs(600)).await.unwrap();
    let seen = shown(&console, 160, "ls").await;
    assert!(seen.contains("MODE") && seen.contains("shared by 2") && seen.contains("GROUP"), "{seen}");
    drop((leases, shared));
}

#[tokio::test]
async fn show_wraps_at_words_and_prints_when_each_hold_ends() {
    let console = Console::new("widths_show").await;
    let leases = leases(&console).await;
    let reason = "stuck since Monday, its host does not answer, and the engineer on call has restarted it twice";
    let seal = console.seal("olga");
    let gone = seal.acquire("gone").ttl(secs(600)).await.unwrap();
    seal.revoke("gone").by("olga@ops-1").reason(reason).await.unwrap();
    gone.cancelled().await;
    for columns in [40, 80, 160] {
        let seen = shown(&console, columns, "show reports/nightly").await;
        let words = seen.split_whitespace().collect::<Vec<_>>().join(" ");
        let token = leases[2].token();
        let limits = format!("token {token}: minimum 20 m, ends in 19 m ");
        assert!(words.contains(&limits) && words.contains("; maximum 3 h, ends in "), "{seen}");
        assert!(words.contains(leases[2].owner().as_str()) && words.contains("build=1.4.2"), "{seen}");
        assert!(!seen.contains('…'), "{seen}");

        let seen = shown(&console, columns, "show gone").await;
        for word in reason.split(' ').chain(["olga@ops-1"]) {
            assert!(seen.contains(word), "{columns}: {word} is whole in\n{seen}");
        }
    }
    drop(leases);
}
