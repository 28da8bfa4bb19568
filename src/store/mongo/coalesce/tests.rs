//! Lines without a server.

use super::*;
use crate::{
    Caller, HandleId, LeaseId, Metadata,
    record::{Patience, Terms},
};

/// A waiter for a key, and what keeps it waiting.
fn waiter(number: u8, limit: u32) -> (Queued, oneshot::Receiver<Dispatch>) {
    let terms = Terms {
        lease: LeaseId::from_bytes([number; 16]),
        caller: Caller { handle: HandleId::random(), number: number.into() },
        owner: "me".parse().unwrap(),
        limit,
        ttl: 1,
        grace: 0,
        group: None,
        metadata: Metadata::default(),
    };
    let request = Request::Acquire(Acquire { terms, patience: Some(Patience { lasts: 1, room: 9 }) });
    let (dispatch, dispatched) = oneshot::channel();
    (Queued::new(request, Duration::MAX, dispatch), dispatched)
}

#[tokio::test]
async fn a_line_is_sent_together_in_its_order_but_sharers_one_by_one_and_an_empty_line_is_forgotten() {
    let key: Key = "k".parse().unwrap();
    let mut lines = Lines::default();
    let (mut line, mut kept) = (VecDeque::new(), Vec::new());
    for (number, limit) in [(1, 0), (2, 1), (3, 9), (4, 9), (5, 0), (6, 0), (7, 0)] {
        let (queued, dispatched) = waiter(number, limit);
        line.push_back(queued);
        // The sixth is gone.
        kept.extend(Some(dispatched).filter(|_| number != 6));
    }
    lines.0.insert(key.clone(), line);
    let mut next = || -> Vec<u8> {
        let next = lines.next(&key, false);
        next.iter().map(|queued| queued.request.lease().unwrap().to_bytes()[0]).collect()
    };
    assert_eq!([next(), next(), next(), next()], [vec![1, 2], vec![3], vec![4], vec![5, 7]]);
    assert_eq!(next(), Vec::<u8>::new());
    assert!(lines.0.is_empty());
}
