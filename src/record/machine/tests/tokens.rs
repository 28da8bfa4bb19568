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

    fn send(&mut self, request: &Request) {
        let now = StoreTime::from_millis(1_700_000_000_000);
        let at = Moment { now, tick: Tick { seconds: 1_700_000_000, ordinal: self.writes } };
        let (after, _outcome) = apply(self.record.as_ref(), at, request);
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

#[derive(Clone, Debug)]
enum Step {
    Ask(Request),
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
