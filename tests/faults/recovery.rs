//! After a fault of any one member, a holder's refresh works again, and its lease stays valid meanwhile.

use std::time::{Duration, Instant};

use mongoseal::{LeaseState, Mongoseal};
use mongoseal_test_support::{How, Peer, ReplicaSet};

use crate::{connect, millis, secs};

/// Much longer than it takes, which `cargo bench -p mongoseal-tests --bench figures -- recovery` measures: a machine may be busy.
const LONGEST: Duration = Duration::from_secs(25);

pub(super) async fn a_refresh_works_again_and_no_lease_of_thirty_seconds_is_lost_after_a_fault_of_any_one_member() {
    let set = || ReplicaSet::builder().members(3).election_timeout(secs(2));
    let of_primary = set().proxied().start().await;
    for fault in ["kill", "blackhole", "pause of the primary"] {
        outlast(&of_primary, fault).await;
    }
    // If another secondary replicated from the paused one, writes would wait until the server gives the paused one up. That
    // has taken longer than this ttl: `docs/failure-modes.md`.
    outlast(&set().without_chaining().start().await, "pause of a secondary").await;
}

/// Holds two leases over one fault.
async fn outlast(set: &ReplicaSet, fault: &str) {
    set.settled().await;
    let primary = set.primary().await;
    let seal = connect(Mongoseal::builder(), set.uri()).await;
    let kept = seal.acquire("kept").ttl(secs(30)).await.unwrap();
    let asked = seal.acquire("asked").ttl(secs(30)).without_refresh().await.unwrap();
    let began = Instant::now();
    match fault {
        "kill" => set.kill(primary).await,
        "pause of the primary" => set.pause(primary).await,
        "blackhole" => set.proxy().cut_both(&Peer::Member(primary), &Peer::Anyone, How::Blackhole),
        _ => set.pause((primary + 1) % 3).await,
    }
    while let Err(error) = asked.refresh().await {
        assert!(began.elapsed() < LONGEST, "{fault}: {error}");
    }
    println!("{fault}: {:?}", began.elapsed());
    let refreshed = async {
        while kept.remaining() + began.elapsed() < secs(30) {
            assert!(kept.is_valid(), "{fault}: lost");
            tokio::time::sleep(millis(50)).await;
        }
    };
    tokio::time::timeout(secs(30), refreshed).await.expect("it refreshes itself");
    assert_eq!(kept.state(), LeaseState::Held, "{fault}");
    match fault {
        "kill" => set.restart(primary).await,
        "pause of the primary" => set.resume(primary).await,
        "blackhole" => set.proxy().heal(),
        _ => set.resume((primary + 1) % 3).await,
    }
    set.settled().await;
    kept.verify().await.unwrap();
    for lease in [kept, asked] {
        lease.release().await.unwrap();
    }
    seal.shutdown().await;
}
