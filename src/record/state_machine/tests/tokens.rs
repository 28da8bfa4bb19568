use proptest::{collection::vec, prelude::*};

use super::*;

/// A store whose clock moves on by nothing but its writes, all within one second.
struct Second {
    record: Option<Record>,
    writes: u64,
    issued: Vec<FencingToken>,
}

impl Second {
    fn new() -> Self {
        Self { record: None, writes: 0, issued: Vec::new() }
    }

    fn at(&self) -> Moment {
        let now = StoreTime::from_millis(1_700_000_000_000);
        Moment { now, tick: Tick { seconds: 1_700_000_000, ordinal: self.writes } }
    }

    fn send(&mut self, request: &Request) {
        let (after, _outcome) = apply(self.record.as_ref(), self.at(), request);
        self.write(after);
    }

    fn send_together(&mut self, requests: &[Request]) {
        let (after, _outcomes) = apply_together(self.record.as_ref(), self.at(), requests);
        self.write(after);
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

    /// Somebody deletes the record by hand.
    fn delete(&mut self) {
        self.writes += u64::from(self.record.take().is_some());
    }
}

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

#[test]
fn those_who_ask_together_for_a_key_without_a_record_are_granted_tokens_larger_than_those_of_the_one_that_was() {
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
fn those_who_ask_together_where_an_older_copy_was_put_back_are_granted_tokens_larger_than_those_since() {
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

/// One who waits to have the key alone.
fn alone(number: u8) -> Acquire {
    match acquire(number, 0, Some(Patience { lasts: 500, room: 100 })) {
        Request::Acquire(acquire) => acquire,
        other => panic!("{other:?}"),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Request),
    AskTogether(std::collections::BTreeSet<u8>),
    Transfer(u8, u8),
    /// What follows is asked of a key without a record.
    AskAndDelete(Request),
}

fn step() -> impl Strategy<Value = Step> {
    let lease = 1..9_u8;
    let limit = prop_oneof![1 => Just(0_u32), 4 => Just(9)];
    prop_oneof![
        8 => (lease.clone(), limit.clone()).prop_map(|(number, limit)| Step::Ask(wait(number, limit))),
        2 => (lease.clone(), limit).prop_map(|(number, limit)| Step::Ask(once(number, limit))),
        2 => lease.clone().prop_map(|number| Step::Ask(release(number))),
        2 => proptest::collection::btree_set(1..30_u8, 2..20).prop_map(Step::AskTogether),
        1 => (lease.clone(), lease.clone()).prop_map(|(from, to)| Step::Transfer(from, to)),
        1 => lease.prop_map(|number| Step::AskAndDelete(release(number))),
        1 => Just(Step::AskAndDelete(revoke())),
    ]
}

proptest! {
    #[test]
    fn tokens_grow_within_a_second_whatever_is_asked_and_however_often_the_record_is_deleted(steps in vec(step(), 1..60)) {
        let mut second = Second::new();
        for step in steps {
            match step {
                Step::Ask(request) => second.send(&request),
                Step::AskTogether(who) => second.send_together(&who.into_iter().map(alone).map(Request::Acquire).collect::<Vec<_>>()),
                Step::Transfer(from, to) => {
                    let holder = second.record.as_ref().and_then(|record| record.holder(lease(from)));
                    if let Some(token) = holder.map(|holder| holder.version) {
                        second.send(&Request::Transfer(Transfer { lease: lease(from), token, to: lease(to) }));
                    }
                }
                Step::AskAndDelete(request) => {
                    second.send(&request);
                    second.delete();
                }
            }
        }
        prop_assert!(second.issued.is_sorted_by(|one, next| one < next), "{:?}", second.issued);
    }
}
