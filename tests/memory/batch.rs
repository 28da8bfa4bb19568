//! Leases of one handle are refreshed together, and none is the worse for it.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongoseal::{Lease, LeaseState, LossCause, Mongoseal, record::Request, store::Store};
use tokio::time::Instant;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// How often a store was asked to refresh: many leases at once, and single ones.
#[derive(Clone, Default)]
struct Asked {
    together: Arc<AtomicUsize>,
    alone: Arc<AtomicUsize>,
}

impl Asked {
    /// Counts from now on, while each refresh of many meets what `fault` says of its number.
    fn of(store: &Faulty, fault: impl Fn(usize) -> Option<Fault> + Send + 'static) -> Self {
        let asked = Self::default();
        let counts = asked.clone();
        store.script(move |call| match call {
            Call::Jointly(_) => fault(counts.together.fetch_add(1, Ordering::Relaxed)),
            Call::Apply(Request::Refresh(_)) => {
                counts.alone.fetch_add(1, Ordering::Relaxed);
                None
            }
            _ => None,
        });
        asked
    }

    fn take(&self) -> (usize, usize) {
        (self.together.swap(0, Ordering::Relaxed), self.alone.swap(0, Ordering::Relaxed))
    }
}

/// So many leases, asked for one after another, a pause after each.
async fn leases(seal: &Mongoseal, count: usize, ttl: Duration, pause: Duration) -> Vec<Lease> {
    let mut leases = Vec::new();
    for number in 0..count {
        leases.push(seal.acquire(format!("key/{number}")).ttl(ttl).await.unwrap());
        tokio::time::sleep(pause).await;
    }
    leases
}

fn are_held(leases: &[Lease]) -> bool {
    leases.iter().all(|lease| lease.is_valid() && lease.state() == LeaseState::Held)
}

#[tokio::test(start_paused = true)]
async fn leases_that_were_acquired_one_by_one_are_soon_refreshed_by_two_requests_an_interval() {
    let store = Faulty::new();
    let leases = leases(&store.seal(), 1_000, secs(30), millis(11)).await;
    tokio::time::sleep(secs(10)).await;
    let asked = Asked::of(&store, |_| None);
    tokio::time::sleep(secs(100)).await;
    let (together, alone) = asked.take();
    assert!((10..=20).contains(&together) && alone == 0, "in ten intervals {together} together, {alone} alone");
    assert!(are_held(&leases));
    assert!(leases.iter().all(|lease| lease.remaining() > secs(19)), "none waits longer than its interval");
}

#[tokio::test(start_paused = true)]
async fn of_batches_that_are_due_at_once_each_is_sent_when_the_one_before_was_answered_or_hangs() {
    // As long as an attempt may last, 400 fit into one request.
    let (ttl, takes) = (millis(1_200), millis(15));
    // A sixteenth of the time to the deadline: less for the third, which has waited for two others.
    let hangs = [ttl / 24..=ttl / 24, ttl / 27..=ttl / 25];
    for (fault, apart) in [(Fault::DelayReply(takes), [takes..=takes, takes..=takes]), (Fault::Hang, hangs)] {
        let store = Faulty::new();
        let leases = leases(&store.seal(), 1_000, ttl, Duration::ZERO).await;
        let sent = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&sent);
        Asked::of(&store, move |_| {
            noted.lock().unwrap().push(Instant::now());
            Some(fault)
        });
        tokio::time::sleep(ttl / 2).await;
        let sent = sent.lock().unwrap().clone();
        let pauses: Vec<_> = sent.windows(2).take(2).map(|pair| pair[1] - pair[0]).collect();
        let is_apart = pauses.iter().zip(&apart).all(|(pause, apart)| apart.contains(pause));
        assert!(is_apart && pauses.len() == 2, "a thousand are three batches: {fault:?}, {pauses:?}");
        assert!(leases.iter().all(Lease::is_valid));
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadlines_of_a_batch_are_counted_from_before_its_send() {
    let store = Faulty::new();
    let leases = leases(&store.seal(), 10, secs(30), Duration::ZERO).await;
    Asked::of(&store, |_| Some(Fault::DelayReply(millis(900))));
    // Sent after 10 seconds.
    tokio::time::sleep(secs(11)).await;
    for lease in &leases {
        let remaining = lease.remaining();
        assert!(remaining > secs(28) && remaining < secs(29), "{remaining:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn those_of_a_batch_that_are_over_are_found_and_the_others_are_kept() {
    let store = Faulty::new();
    let leases = leases(&store.seal(), 1_000, secs(30), Duration::ZERO).await;
    let over = [3, 500, 998];
    for number in over {
        store.records.remove(leases[number].key());
    }
    let asked = Asked::of(&store, |_| None);
    // Who came along is due an eighth later than who began.
    tokio::time::sleep(secs(12)).await;
    for (number, lease) in leases.iter().enumerate() {
        let expected =
            if over.contains(&number) { LeaseState::Lost { cause: LossCause::Removed } } else { LeaseState::Held };
        assert_eq!(lease.state(), expected, "{number}");
    }
    let (together, alone) = asked.take();
    assert!(together <= 1 + 8 + 3 * 8 && alone <= over.len() * 64, "{together} and {alone}");
    tokio::time::sleep(secs(40)).await;
    let (together, alone) = asked.take();
    assert!(together <= 8 && alone == 0, "they travel together again: {together} and {alone}");
    assert_eq!(leases.iter().filter(|lease| lease.is_valid()).count(), 997);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_not_answered_is_sent_again_until_the_deadline_and_no_more_often_than_one_lease_would_be() {
    for fault in [Fault::Hang, Fault::Fail] {
        let store = Faulty::new();
        let leases = leases(&store.seal(), 500, secs(30), Duration::ZERO).await;
        let asked = Asked::of(&store, move |_| Some(fault));
        tokio::time::sleep(secs(20)).await;
        assert!(leases.iter().all(|lease| lease.is_valid() && lease.state() == LeaseState::AtRisk));
        tokio::time::sleep(secs(10)).await;
        for lease in &leases {
            assert_eq!(lease.state(), LeaseState::Lost { cause: LossCause::Expired });
        }
        let (together, alone) = asked.take();
        assert!((3..80).contains(&together) && alone == 0, "{fault:?}: {together} together, {alone} alone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_written_for_a_while_takes_nobody_with_it() {
    let store = Faulty::new();
    let leases = leases(&store.seal(), 1_000, secs(30), Duration::ZERO).await;
    let blocked = leases[77].key().clone();
    store.script(move |call| match call {
        Call::Jointly(leases) => leases.iter().any(|(key, _)| *key == blocked).then_some(Fault::Hang),
        _ => None,
    });
    tokio::time::sleep(secs(29)).await;
    let lost = leases.iter().filter(|lease| lease.remaining() < secs(5)).count();
    assert!(lost <= 16, "{lost} of a thousand");
}

#[tokio::test(start_paused = true)]
async fn leases_at_risk_together_are_held_again_when_the_store_is_back() {
    let store = Faulty::new();
    let leases = leases(&store.seal(), 100, secs(30), millis(30)).await;
    Asked::of(&store, |_| Some(Fault::Hang));
    tokio::time::sleep(secs(15)).await;
    assert!(leases.iter().all(|lease| lease.state() == LeaseState::AtRisk));
    store.heal();
    tokio::time::sleep(secs(7)).await;
    assert!(are_held(&leases));
    tokio::time::sleep(secs(60)).await;
    assert!(are_held(&leases));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_the_store_refuses_leaves_its_leases_at_risk_until_somebody_mends_it() {
    let store = Faulty::new();
    let leases = leases(&store.seal(), 100, secs(30), Duration::ZERO).await;
    let asked = Asked::of(&store, |_| Some(Fault::Refuse));
    tokio::time::sleep(secs(20)).await;
    assert!(leases.iter().all(|lease| lease.state() == LeaseState::AtRisk));
    let (together, alone) = asked.take();
    assert!((2..10).contains(&together) && alone == 0, "{together} together, {alone} alone");
    store.heal();
    tokio::time::sleep(secs(4)).await;
    assert!(are_held(&leases));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_holds_nobody_up_for_long_who_comes_due_after_it() {
    let store = Faulty::new();
    let seal = store.seal();
    let early = leases(&seal, 50, secs(30), Duration::ZERO).await;
    tokio::time::sleep(secs(6)).await;
    let short = seal.acquire("short").ttl(secs(3)).await.unwrap();
    let late = [seal.acquire("late/1").await.unwrap(), seal.acquire("late/2").await.unwrap()];
    // That of the early ones. That of the late ones is due before those are over.
    let hangs_until = Instant::now() + millis(11_500);
    let ids: HashSet<_> = early.iter().map(Lease::id).collect();
    store.script(move |call| match call {
        _ if Instant::now() > hangs_until => None,
        Call::Jointly(leases) => leases.iter().any(|(key, _)| key.as_str().starts_with("key/")).then_some(Fault::Hang),
        Call::Apply(Request::Refresh(refresh)) => ids.contains(&refresh.lease).then_some(Fault::Hang),
        _ => None,
    });
    tokio::time::sleep(millis(10_900)).await;
    assert!(early.iter().all(|lease| lease.state() == LeaseState::AtRisk));
    tokio::time::sleep(millis(500)).await;
    assert!(late.iter().all(|lease| lease.remaining() > secs(28)), "{:?}", late[0].remaining());
    assert!(short.remaining() > secs(1), "who is alone with its ttl refreshes alone: {:?}", short.remaining());
    tokio::time::sleep(secs(60)).await;
    assert!(are_held(&early) && are_held(&late) && short.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_for_ever_lets_another_find_those_of_it_that_are_over() {
    let store = Faulty::new();
    let seal = store.seal();
    let mut leases = Vec::new();
    for number in 0..600 {
        // Those that hang are due first.
        let (name, ttl) = if number < 100 { ("hangs", 29) } else { ("kept", 30) };
        leases.push(seal.acquire(format!("{name}/{number}")).ttl(secs(ttl)).await.unwrap());
    }
    let over = [150, 370, 590];
    for number in over {
        store.records.remove(leases[number].key());
    }
    store.script(|call| match call {
        Call::Jointly(named) if named[0].0.as_str().starts_with("hangs") => Some(Fault::Hang),
        Call::Jointly(_) => Some(Fault::DelayReply(millis(20))),
        _ => None,
    });
    tokio::time::sleep(secs(13)).await;
    for (number, lease) in leases.iter().enumerate().skip(100) {
        assert_eq!(lease.is_valid() && lease.remaining() > secs(20), !over.contains(&number), "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_leaves_a_batch_under_way_is_not_held_up_by_it_and_stays_away() {
    let store = Faulty::new();
    let seal = store.seal();
    let mut leases = leases(&seal, 20, secs(30), Duration::ZERO).await;
    Asked::of(&store, |_| Some(Fault::DelayReply(millis(900))));
    tokio::time::sleep(millis(10_200)).await;
    let left = leases.pop().unwrap();
    let key = left.key().clone();
    let asked_at = store.records.clock().now();
    left.release().await.unwrap();
    assert!(store.records.clock().now() < asked_at + secs(1), "the release does not wait for the batch");
    let next = seal.acquire(key).without_refresh().await.unwrap();
    tokio::time::sleep(secs(3)).await;
    assert!(are_held(&leases));
    assert!(next.remaining() < secs(28), "the batch is none of the next holder's: {:?}", next.remaining());
}

#[tokio::test(start_paused = true)]
async fn each_lease_of_a_batch_keeps_what_is_its_own() {
    let store = Faulty::new();
    let seal = store.build(Mongoseal::builder().owner("me"));
    let plain = leases(&seal, 3, secs(30), Duration::ZERO).await;
    let grace = seal.acquire("grace").grace(secs(40)).await.unwrap();
    let words = seal.acquire("words").metadata("said", "first").await.unwrap();
    let shares =
        [seal.acquire("pool").shared_up_to(2).await.unwrap(), seal.acquire("pool").shared_up_to(2).await.unwrap()];
    let often = seal.acquire("often").refresh_every(secs(2)).await.unwrap();
    tokio::time::sleep(secs(25)).await;
    assert!(are_held(&plain) && are_held(&shares) && grace.is_valid() && words.is_valid());
    assert!(often.remaining() >= secs(27), "one that asks for more often gets it: {:?}", often.remaining());
    let left = seal.inspect("grace").await.unwrap().unwrap().holders[0].remaining.unwrap();
    assert!(left > secs(60), "at the store its grace comes on top: {left:?}");
    assert_eq!(seal.inspect("words").await.unwrap().unwrap().holders[0].metadata.get("said"), Some("first"));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_batch_that_hangs() {
    let store = Faulty::new();
    let seal = store.seal();
    let leases = leases(&seal, 20, secs(30), Duration::ZERO).await;
    Asked::of(&store, |_| Some(Fault::Hang));
    tokio::time::sleep(secs(11)).await;
    let began = store.records.clock().now();
    seal.shutdown().await;
    // The releases of many hang, too, for a fifth of the operation timeout.
    assert!(store.records.clock().now() < began + millis(2_100));
    assert!(leases.iter().all(|lease| lease.state() == LeaseState::Lost { cause: LossCause::ShutDown }));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_can_just_keep_up_is_asked_for_the_earliest_deadlines_first_and_no_lease_is_lost() {
    // Once for all of them takes 20 seconds, a third of the ttl.
    let (many, each) = (10_000, millis(2));
    let store = Faulty::new();
    let leases = leases(&store.seal(), many, secs(60), Duration::ZERO).await;
    let (mut idle_at, work) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let done = Arc::clone(&work);
    store.script(move |call| {
        let refreshes = match call {
            Call::Jointly(leases) => leases.len(),
            Call::Apply(Request::Refresh(_)) => 1,
            _ => return None,
        };
        done.fetch_add(refreshes, Ordering::Relaxed);
        let now = Instant::now();
        idle_at = idle_at.max(now) + each * u32::try_from(refreshes).unwrap();
        Some(Fault::Delay(idle_at - now))
    });
    tokio::time::sleep(secs(240)).await;
    assert_eq!(leases.iter().filter(|lease| !lease.is_valid()).count(), 0, "of {many}");
    let work = work.load(Ordering::Relaxed);
    assert!(work <= 13 * many, "{work} refreshes in twelve times 20 seconds");
}

/// On a clock that runs, unlike the others.
#[tokio::test]
async fn a_batch_is_no_larger_than_what_the_store_refreshed_in_a_24th_of_the_ttl_the_last_times() {
    let (ttl, many) = (millis(2_400), 700);
    let store = Faulty::new();
    let leases = leases(&store.seal(), many, ttl, Duration::ZERO).await;
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&sizes);
    // A 24th of the ttl is 100 ms, in which such a store refreshes 350.
    store.script(move |call| match call {
        Call::Jointly(leases) => {
            noted.lock().unwrap().push(leases.len());
            Some(Fault::DelayReply(millis(200)))
        }
        _ => None,
    });
    tokio::time::sleep(secs(4)).await;
    assert!(leases.iter().all(Lease::is_valid));
    let sizes = sizes.lock().unwrap().clone();
    let last = &sizes[sizes.len().saturating_sub(4)..];
    assert!(last.len() == 4 && last.iter().all(|size| *size <= 400), "{sizes:?}");
}
