use fastrand::Rng;

use super::*;

/// A store whose clock moves on by its writes only, all within one second.
struct Second {
    record: Option<Record>,
    writes: u64,
    issued: Vec<FencingToken>,
}

impl Second {
    fn new() -> Self {
        Self { record: None, writes: 0, issued: Vec::new() }
    }

    fn at(&self) -> StoreClock {
        let now = StoreTime::from_millis(1_700_000_000_000);
        StoreClock { now, hlc: HybridTime { seconds: 1_700_000_000, ordinal: self.writes } }
    }

    fn send(&mut self, request: &Request) {
        let (after, _outcome) = apply(self.record.as_ref(), self.at(), request);
        self.write(after);
    }

    fn send_together(&mut self, requests: &[Request]) {
        let (after, _outcomes) = apply_together(self.record.as_ref(), self.at(), requests);
        self.write(after);
    }

    fn send_in_turn(&mut self, requests: &[KeyRequest]) -> usize {
        let (after, outcomes) = apply_in_turn(self.record.as_ref(), self.at(), requests);
        self.write(after);
        outcomes.len()
    }

    fn write(&mut self, after: Option<Record>) {
        let before = self.record.as_ref().map(|record| record.version);
        let mut new: Vec<_> = after.iter().flat_map(|record| &record.holders).map(|holder| holder.version).collect();
        new.retain(|version| before.is_none_or(|before| *version > before));
        self.issued.extend(new);
        if after != self.record {
            self.writes += 1;
            self.record = after;
        }
    }

    /// Deletes the record, as an operator might.
    fn delete(&mut self) {
        self.writes += u64::from(self.record.take().is_some());
    }
}

/// One write grants the key to three waiters, so their tokens are ahead of the clock. After a deletion, the next token
/// comes from the clock alone.
#[test]
fn tokens_that_were_handed_out_together_are_not_ahead_of_the_clock_if_the_record_is_deleted_at_once() {
    let mut second = Second::new();
    second.send(&once(1, 0));
    for waiter in 2..=5 {
        second.send(&wait(waiter, 9));
    }
    second.send(&release(1));
    second.delete();
    second.send(&once(6, 0));
    assert_eq!(second.issued.len(), 6);
    assert!(second.issued.is_sorted_by(|one, next| one < next), "{:?}", second.issued);
}

/// One write, which moves the clock by one step, queues all of them. So tokens cannot count on one step for each.
#[test]
fn acquires_of_one_command_for_a_deleted_record_are_granted_larger_tokens_than_before() {
    let mut second = Second::new();
    second.send(&once(1, 0));
    second.delete();
    second.send_together(&(2..=9).map(alone).map(Request::Acquire).collect::<Vec<_>>());
    for holder in 2..=9 {
        second.send(&release(holder));
    }
    second.delete();
    second.send(&once(10, 0));
    assert_eq!(second.issued.len(), 10);
    assert!(second.issued.is_sorted_by(|one, next| one < next), "{:?}", second.issued);
}

#[test]
fn acquires_of_one_command_for_a_restored_copy_are_granted_larger_tokens_than_its_version() {
    let mut second = Second::new();
    second.send(&once(1, 0));
    second.send(&release(1));
    let copy = second.record.clone();
    second.send(&once(2, 0));
    second.send(&release(2));
    second.delete();
    second.record = copy;
    second.writes += 1;
    second.issued.truncate(2);
    second.send_together(&(3..=9).map(alone).map(Request::Acquire).collect::<Vec<_>>());
    assert_eq!(second.issued.len(), 3);
    assert!(second.issued.is_sorted_by(|one, next| one < next), "{:?}", second.issued);
}

/// An exclusive acquire that waits.
fn alone(number: u8) -> Acquire {
    match acquire(number, 0, Some(WaitSpec { ttl: 500, queue_limit: 100 })) {
        Request::Acquire(acquire) => acquire,
        other => panic!("{other:?}"),
    }
}

enum Step {
    Send(Request),
    SendTogether(std::collections::BTreeSet<u8>),
    /// So many, which the record determines.
    SendInTurn(usize),
    Transfer(u8, u8),
    /// The next request finds no record.
    SendAndDelete(Request),
}

/// A random step.
fn step(rng: &mut Rng) -> Step {
    let (number, limit) = (rng.u8(1..9), if rng.u8(..5) == 0 { 0 } else { 9 });
    match rng.u8(..21) {
        0..8 => Step::Send(wait(number, limit)),
        8..10 => Step::Send(once(number, limit)),
        10..12 => Step::Send(release(number)),
        12..14 => Step::SendTogether((0..rng.usize(2..20)).map(|_| rng.u8(1..30)).collect()),
        14 => Step::Transfer(number, rng.u8(1..9)),
        15 => Step::SendAndDelete(release(number)),
        16..20 => Step::SendInTurn(rng.usize(2..9)),
        _ => Step::SendAndDelete(revoke()),
    }
}

#[test]
fn tokens_grow_within_a_second_for_all_requests_and_deletions_of_the_record() {
    let mut several = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        let mut second = Second::new();
        for _ in 0..rng.usize(1..60) {
            match step(&mut rng) {
                Step::Send(request) => second.send(&request),
                Step::SendTogether(leases) => {
                    second.send_together(&leases.into_iter().map(alone).map(Request::Acquire).collect::<Vec<_>>());
                }
                Step::SendInTurn(count) => {
                    let requests: Vec<_> =
                        (0..count).map(|_| in_turn::request(&mut rng, second.record.as_ref())).collect();
                    several += usize::from(second.send_in_turn(&requests) > 1);
                }
                Step::Transfer(from, to) => {
                    let holder = second.record.as_ref().and_then(|record| record.holder(lease(from)));
                    if let Some(token) = holder.map(|holder| holder.version) {
                        second.send(&Request::Transfer(Transfer { lease: lease(from), token, to: lease(to) }));
                    }
                }
                Step::SendAndDelete(request) => {
                    second.send(&request);
                    second.delete();
                }
            }
        }
        assert!(second.issued.is_sorted_by(|one, next| one < next), "seed {seed}: {:?}", second.issued);
    }
    assert!(several > 1_000, "{several} writes had several requests");
}
