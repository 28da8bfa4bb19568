//! Tests of queues, without a server.

use super::*;
use crate::{
    AcquireId, Clock, HandleId, LeaseId, Metadata,
    record::{HoldLimits, LeaseSpec, Leave, WaitSpec},
};

/// A waiter for a key, and the receiver that keeps it waiting.
fn waiter(number: u8, limit: u32) -> (QueuedRequest, oneshot::Receiver<Dispatch>) {
    queued(acquire_of(number, limit, Some(WaitSpec { ttl: 1, queue_limit: 9 })))
}

fn queued(request: Request) -> (QueuedRequest, oneshot::Receiver<Dispatch>) {
    let (dispatch, dispatched) = oneshot::channel();
    (QueuedRequest::new(request, Deadline::at(Clock::Boot, Duration::MAX), dispatch), dispatched)
}

fn acquire_of(number: u8, limit: u32, wait: Option<WaitSpec>) -> Request {
    let terms = LeaseSpec {
        lease: LeaseId::from_bytes([number; 16]),
        caller: AcquireId { handle: HandleId::random(), number: number.into() },
        owner: "me".parse().unwrap(),
        limit,
        ttl: 1,
        grace: 0,
        group: None,
        metadata: Metadata::default(),
        hold: HoldLimits::default(),
    };
    Request::Acquire(Acquire { terms, wait })
}

fn release_of(number: u8) -> Request {
    let caller = AcquireId { handle: HandleId::random(), number: 1 };
    Request::Leave(Leave { lease: LeaseId::from_bytes([number; 16]), caller })
}

fn numbers(requests: &[QueuedRequest]) -> Vec<u8> {
    requests.iter().map(|queued| queued.request.lease().unwrap().to_bytes()[0]).collect()
}

#[tokio::test]
async fn a_queue_is_sent_together_in_its_order_but_sharers_one_by_one_and_an_empty_queue_is_forgotten() {
    let key: Key = "k".parse().unwrap();
    let mut queues = Queues::default();
    let (mut queue, mut kept) = (VecDeque::new(), Vec::new());
    for (number, limit) in [(1, 0), (2, 1), (3, 9), (4, 9), (5, 0), (6, 0), (7, 0)] {
        let (entry, dispatched) = waiter(number, limit);
        queue.push_back(entry);
        // The caller of the sixth is gone.
        kept.extend(Some(dispatched).filter(|_| number != 6));
    }
    queues.0.insert(key.clone(), queue);
    let mut next = || numbers(&queues.take_batch(&key, false));
    assert_eq!([next(), next(), next(), next()], [vec![1, 2], vec![3], vec![4], vec![5, 7]]);
    assert_eq!(next(), Vec::<u8>::new());
    assert!(queues.0.is_empty());
}

#[tokio::test]
async fn a_command_is_of_one_verb_and_the_order_of_the_queue_stays() {
    let key: Key = "k".parse().unwrap();
    let wait = |number| acquire_of(number, 0, Some(WaitSpec { ttl: 1, queue_limit: 9 }));
    let requests = [
        wait(1),
        wait(2),
        acquire_of(3, 0, None),
        acquire_of(4, 1, None),
        release_of(5),
        release_of(6),
        wait(7),
        acquire_of(8, 9, None),
        acquire_of(9, 0, None),
    ];
    let (queue, _kept): (VecDeque<_>, Vec<_>) = requests.into_iter().map(queued).unzip();
    let mut queues = Queues(HashMap::from([(key.clone(), queue)]));
    let mut next = || numbers(&queues.take_batch(&key, false));
    assert_eq!([next(), next(), next(), next()], [vec![1, 2], vec![3, 4], vec![5, 6], vec![7]]);
    assert_eq!([next(), next(), next()], [vec![8], vec![9], vec![]]);
}
