//! Leases of one handle are refreshed together, and none is the worse for it.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongoseal::{
    EndReason, Lease, LeaseState, LossCause, Mongoseal, observe::HandleEvent, record::Request, store::Store,
};
use tokio::time::Instant;

use crate::{
    by_length,
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
    /// Counts from now on, while each refresh meets what `fault` says of its number, and whether it is one of many.
    fn of(store: &Faulty, fault: impl Fn(usize, bool) -> Option<Fault> + Send + 'static) -> Self {
        let asked = Self::default();
        let counts = asked.clone();
        store.script(move |call| match call {
            Call::Jointly(_) => fault(counts.together.fetch_add(1, Ordering::Relaxed), true),
            Call::Apply(Request::Refresh(_)) => fault(counts.alone.fetch_add(1, Ordering::Relaxed), false),
            _ => None,
        });
        asked
    }

    fn take(&self) -> (usize, usize) {
        (self.together.swap(0, Ordering::Relaxed), self.alone.swap(0, Ordering::Relaxed))
    }
}

/// So many leases, asked for one after another.
async fn leases(seal: &Mongoseal, count: usize, ttl: Duration) -> Vec<Lease> {
    let mut leases = Vec::new();
    for number in 0..count {
        leases.push(seal.acquire(format!("key/{number}")).ttl(ttl).await.unwrap());
    }
    leases
}

/// A store, a handle on it, and so many leases of it with a ttl of 30 seconds.
async fn held(count: usize) -> (Faulty, Mongoseal, Vec<Lease>) {
    let (store, seal) = Faulty::open();
    let leases = leases(&seal, count, secs(30)).await;
    (store, seal, leases)
}

fn are_held(leases: &[Lease]) -> bool {
    leases.iter().all(|lease| lease.is_valid() && lease.state() == LeaseState::Held)
}

#[tokio::test(start_paused = true)]
async fn leases_that_were_acquired_one_by_one_soon_share_full_parts() {
    for (part_size, few) in [(64, 150..=180), (512, 20..=24)] {
        let mut store = Faulty::new();
        store.part_size = part_size;
        let (seal, mut leases) = (store.seal(), Vec::new());
        for number in 0..1_000 {
            leases.push(seal.acquire(format!("key/{number}")).ttl(secs(30)).await.unwrap());
            tokio::time::sleep(millis(11)).await;
        }
        tokio::time::sleep(secs(10)).await;
        let asked = Asked::of(&store, |_, _| None);
        tokio::time::sleep(secs(100)).await;
        let (together, alone) = asked.take();
        assert!(few.contains(&together) && alone == 0, "in ten intervals {together} together, {alone} alone");
        assert!(are_held(&leases));
        assert!(leases.iter().all(|lease| lease.remaining() > secs(19)), "none waits longer than its interval");
    }
}

#[tokio::test(start_paused = true)]
async fn releases_that_overtake_parts_all_the_time_cost_no_other_lease() {
    let (store, _, mut leases) = held(1_500).await;
    // A part is under way for a second, so each large one is overtaken.
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Delay(secs(1))));
    for number in 0..600 {
        let any = number * 7_919 % leases.len();
        drop(leases.swap_remove(any));
        tokio::time::sleep(millis(100)).await;
    }
    assert!(are_held(&leases));
}

#[tokio::test(start_paused = true)]
async fn no_more_refreshes_are_under_way_at_once_than_the_connections_allow_while_the_store_answers() {
    let cases = [(64, 1_000, [6, 8]), (10, 200, [1, 2])];
    for (alone, (connections, count, [parts_most, singles_most])) in
        cases.into_iter().flat_map(|case| [(false, case), (true, case)])
    {
        let mut store = Faulty::new();
        store.connections = connections;
        let leases = leases(&store.seal(), count, secs(30)).await;
        for number in (0..count).filter(|number| alone && number % 50 == 0) {
            store.records.remove(leases[number].key());
        }
        let takes = millis(20);
        let sent = Arc::new(Mutex::new([Vec::new(), Vec::new()]));
        let noted = Arc::clone(&sent);
        Asked::of(&store, move |_, is_part| {
            noted.lock().unwrap()[usize::from(is_part)].push(Instant::now());
            Some(Fault::DelayReply(takes))
        });
        tokio::time::sleep(secs(19)).await;
        let [singles, parts] = sent.lock().unwrap().clone();
        for (sent, most) in [(parts, parts_most), (singles, singles_most)] {
            let at_once =
                sent.iter().map(|at| sent.iter().filter(|other| **other <= *at && *at < **other + takes).count());
            assert!(at_once.max().unwrap_or_default() <= most, "{connections} connections: {sent:?}");
        }
        assert_eq!(leases.iter().filter(|lease| !lease.is_valid()).count(), if alone { count / 50 } else { 0 });
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadlines_of_a_batch_are_counted_from_before_its_send() {
    let (store, _, leases) = held(10).await;
    Asked::of(&store, |_, _| Some(Fault::DelayReply(millis(900))));
    // Sent after 10 seconds, and an eighth of a second in which leases gather for the part.
    tokio::time::sleep(millis(11_100)).await;
    for lease in &leases {
        let remaining = lease.remaining();
        assert!(remaining > secs(28) && remaining < secs(29), "{remaining:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn those_of_a_batch_that_are_over_are_found_and_the_others_are_kept() {
    let (store, _, leases) = held(1_000).await;
    let over = [3, 500, 998];
    for number in over {
        store.records.remove(leases[number].key());
    }
    let asked = Asked::of(&store, |_, _| None);
    // Who came along is due an eighth later than who began.
    tokio::time::sleep(secs(12)).await;
    for (number, lease) in leases.iter().enumerate() {
        let expected =
            if over.contains(&number) { LeaseState::Lost { cause: LossCause::Removed } } else { LeaseState::Held };
        assert_eq!(lease.state(), expected, "{number}");
    }
    let (together, alone) = asked.take();
    assert!(together <= 20 && alone <= over.len() * 64, "{together} and {alone}");
    tokio::time::sleep(secs(40)).await;
    let (together, alone) = asked.take();
    assert!(together <= 5 * 17 && alone == 0, "they travel together again: {together} and {alone}");
    assert_eq!(leases.iter().filter(|lease| lease.is_valid()).count(), 997);
}

#[tokio::test(start_paused = true)]
async fn while_no_refresh_is_confirmed_few_are_sent_and_all_leases_are_at_risk_and_held_again_if_one_is_in_time() {
    let faults = [Fault::Hang, Fault::Fail, Fault::Refuse];
    for (fault, many, ends) in faults.into_iter().flat_map(|fault| [(fault, 100, true), (fault, 500, false)]) {
        let (store, _, leases) = held(many).await;
        let asked = Asked::of(&store, move |_, _| Some(fault));
        tokio::time::sleep(secs(20)).await;
        assert!(leases.iter().all(|lease| lease.is_valid() && lease.state() == LeaseState::AtRisk), "{fault:?}");
        if ends {
            let (together, alone) = asked.take();
            let is_few = (2..10).contains(&together) && alone == 0;
            assert!(is_few || !matches!(fault, Fault::Refuse), "{together} together, {alone} alone");
            store.heal();
            tokio::time::sleep(secs(4)).await;
            assert!(are_held(&leases), "{fault:?}");
            tokio::time::sleep(secs(60)).await;
            assert!(are_held(&leases), "{fault:?}");
            continue;
        }
        tokio::time::sleep(secs(10)).await;
        let expired = LeaseState::Lost { cause: LossCause::Expired };
        assert!(leases.iter().all(|lease| lease.state() == expired), "{fault:?}");
        let (together, alone) = asked.take();
        // The parts and single refreshes that have a permit, and eight without.
        let is_few = match fault {
            Fault::Hang => together <= 6 && (8..=16).contains(&alone),
            // Six at a time, 0.32 to 0.64 seconds apart.
            _ => (10..300).contains(&together) && alone == 0,
        };
        assert!(is_few, "{fault:?}: {together} together, {alone} alone");
    }
}

#[tokio::test(start_paused = true)]
async fn records_that_cannot_be_written_in_each_part_take_no_other_lease_with_them() {
    let cases = [(100, 2), (100, 10), (100, 50), (300, 120)];
    for ((many, locked), part_size) in cases.into_iter().flat_map(|case| [64, 512].map(|size| (case, size))) {
        let mut store = Faulty::new();
        store.part_size = part_size;
        let leases = leases(&store.seal(), many, secs(30)).await;
        let is_locked = move |number: usize| (number * locked) % many < locked;
        let keys: HashSet<_> =
            (0..many).filter(|number| is_locked(*number)).map(|number| leases[number].key().clone()).collect();
        let ids: HashSet<_> = leases.iter().filter(|lease| keys.contains(lease.key())).map(Lease::id).collect();
        assert_eq!(keys.len(), locked);
        // The store never says that it has given up, unlike MongoDB.
        store.script(move |call| match call {
            Call::Jointly(leases) => leases.iter().any(|(key, _)| keys.contains(key)).then_some(Fault::Hang),
            Call::Apply(Request::Refresh(refresh)) => ids.contains(&refresh.lease).then_some(Fault::Hang),
            _ => None,
        });
        tokio::time::sleep(secs(40)).await;
        let lost = (0..many).filter(|number| !is_locked(*number) && !leases[*number].is_valid()).count();
        assert_eq!(lost, 0, "{locked} of {many} are locked, with parts of {part_size}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_holds_nobody_up_for_long_who_comes_due_after_it() {
    let (store, seal, early) = held(50).await;
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
async fn the_error_of_a_batch_puts_no_lease_at_risk_that_was_refreshed_meanwhile() {
    let store = Faulty::new();
    let at_risk = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&at_risk);
    let seal = store.build(Mongoseal::builder().observer(Arc::new(move |event: &HandleEvent<'_>| {
        count.fetch_add(usize::from(matches!(event, HandleEvent::AtRisk { .. })), Ordering::Relaxed);
    })));
    let leases = leases(&seal, 2, secs(30)).await;
    let asked = Asked::of(&store, |number, is_part| (is_part && number == 0).then_some(Fault::Hang));
    tokio::time::sleep(secs(19)).await;
    assert_eq!(asked.take(), (1, 2), "each was refreshed alone");
    // At the deadlines that the leases had when it was sent, the batch fails.
    tokio::time::sleep(secs(12)).await;
    assert!(are_held(&leases));
    assert_eq!(at_risk.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_for_ever_lets_another_find_those_of_it_that_are_over() {
    let (store, seal) = Faulty::open();
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
    let (store, seal, mut leases) = held(20).await;
    Asked::of(&store, |_, _| Some(Fault::DelayReply(millis(900))));
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

/// Replies become late, so requests wait for new connections, too: the first part so long that it is late, and that a
/// release overtakes it. Alone, eight at a time, half of its leases would not be refreshed in time.
#[tokio::test(start_paused = true)]
async fn a_part_that_waits_for_a_connection_and_is_overtaken_by_a_release_costs_no_lease() {
    for waits in [300, 900, 1_300] {
        let store = Faulty::new();
        let mut leases = leases(&store.seal(), 64, secs(3)).await;
        Asked::of(&store, move |number, is_part| {
            let is_first = is_part && number == 0;
            Some(if is_first { Fault::Delay(millis(waits)) } else { Fault::DelayReply(millis(450)) })
        });
        tokio::time::sleep(millis(1_050)).await;
        leases.pop().unwrap().release().await.unwrap();
        tokio::time::sleep(secs(9)).await;
        let held = leases.iter().filter(|lease| lease.is_valid()).count();
        assert_eq!(held, 63, "the part waited for {waits} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn each_lease_of_a_batch_keeps_what_is_its_own() {
    let store = Faulty::new();
    let seal = store.build(Mongoseal::builder().owner("me"));
    let plain = leases(&seal, 3, secs(30)).await;
    let grace = seal.acquire("grace").grace(secs(40)).await.unwrap();
    let words = seal.acquire("words").metadata("said", "first").await.unwrap();
    let shares =
        [seal.acquire("pool").shared_up_to(2).await.unwrap(), seal.acquire("pool").shared_up_to(2).await.unwrap()];
    let often = seal.acquire("often").refresh_every(secs(2)).await.unwrap();
    tokio::time::sleep(secs(25)).await;
    assert!(are_held(&plain) && are_held(&shares) && grace.is_valid() && words.is_valid());
    assert!(often.remaining() >= secs(27), "one that asks for more often gets it: {:?}", often.remaining());
    let left = seal.inspect("grace").await.unwrap().unwrap().holders[0].free_in;
    assert!(left > secs(60), "at the store its grace comes on top: {left:?}");
    assert_eq!(seal.inspect("words").await.unwrap().unwrap().holders[0].metadata.get("said"), Some("first"));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_batch_that_hangs() {
    let (store, seal, leases) = held(20).await;
    Asked::of(&store, |_, _| Some(Fault::Hang));
    tokio::time::sleep(secs(11)).await;
    let began = store.records.clock().now();
    seal.shutdown().await;
    // The releases of many hang, too, for a fifth of the operation timeout.
    assert!(store.records.clock().now() < began + millis(2_100));
    assert!(leases.iter().all(|lease| lease.state() == LeaseState::Ended { reason: EndReason::ShutDown }));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_after_all_its_leases_were_dropped_holds_up_no_lease_of_a_sibling() {
    let mut store = Faulty::new();
    // For one batch at a time.
    store.connections = 10;
    let seal = store.seal();
    let dropped = leases(&seal, 4, secs(30)).await;
    Asked::of(&store, |_, _| Some(Fault::Hang));
    tokio::time::sleep(secs(10) + millis(500)).await;
    drop(dropped);
    tokio::time::sleep(secs(1)).await;
    store.heal();
    let sibling = Mongoseal::builder().sibling_of(&seal).unwrap();
    let kept = leases(&sibling, 4, secs(30)).await;
    tokio::time::sleep(secs(60)).await;
    assert!(are_held(&kept));
}

#[tokio::test(start_paused = true)]
async fn while_nothing_is_answered_a_lone_lease_on_ten_connections_is_sent_again_until_its_deadline() {
    let mut store = Faulty::new();
    store.connections = 10;
    let held = leases(&store.seal(), 1, secs(30)).await;
    let asked = Asked::of(&store, |_, _| Some(Fault::Hang));
    tokio::time::sleep(secs(21)).await;
    let (_, alone) = asked.take();
    assert!((3..10).contains(&alone), "{alone}");
    store.heal();
    tokio::time::sleep(secs(19)).await;
    assert!(are_held(&held));
}

/// Batches without an order by deadlines fall behind on such a store, and so do batches that are sent again in small
/// parts.
#[tokio::test(start_paused = true)]
async fn a_store_that_can_just_keep_up_is_asked_for_the_earliest_deadlines_first_and_no_lease_is_lost() {
    // Once for all of them takes a third of the ttl.
    let (many, ttl) = by_length((2_500, secs(15)), (10_000, secs(60)));
    let each = millis(2);
    let store = Faulty::new();
    let leases = leases(&store.seal(), many, ttl).await;
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
    tokio::time::sleep(4 * ttl).await;
    assert_eq!(leases.iter().filter(|lease| !lease.is_valid()).count(), 0, "of {many}");
    let work = work.load(Ordering::Relaxed);
    assert!(work <= 13 * many, "{work} refreshes in twelve thirds of a ttl");
}
