//! Tests of queues and turns, with a sender that answers when the test says so.

use super::*;
use crate::{record::Outcome, types::clock::Clock};

/// A request: a number, and what it is.
type Request = (u8, What);

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Acquire,
    /// Waits, and is sent alone.
    Shared,
    Leave,
}

/// Sends requests of one kind together. Each command takes this long.
struct Recorder {
    home: Arc<Home>,
    coalescer: Coalescer<Request>,
    takes: Mutex<VecDeque<Duration>>,
    sent: Mutex<Vec<Vec<u8>>>,
}

impl SendTogether for Recorder {
    type Request = Request;

    const PATIENCE: Duration = Duration::from_millis(100);

    fn coalescer(&self) -> &Coalescer<Request> {
        &self.coalescer
    }

    fn home(&self) -> &Home {
        &self.home
    }

    fn join(others: &[Queued<Request>], (_, what): &Request) -> Join {
        match (others[0].request.1, *what) {
            (What::Acquire, What::Acquire) | (What::Leave, What::Leave) => Join::Together,
            (_, What::Leave) | (What::Leave, _) => Join::Later,
            _ => Join::Stop,
        }
    }

    fn send(self: Arc<Self>, turn: Turn<Self>, mut requests: Vec<Queued<Request>>) -> BoxFuture<Option<Turn<Self>>> {
        Box::pin(async move {
            let (key, mut turn) = (turn.key().clone(), Some(turn));
            prepare(&key, &mut requests);
            self.sent.lock().unwrap().push(requests.iter().map(|queued| queued.request.0).collect());
            let takes = self.takes.lock().unwrap().pop_front().unwrap_or(Duration::from_millis(10));
            wait_for(&mut turn, tokio::time::sleep(takes)).await;
            for queued in requests {
                let applied = Applied { outcome: Outcome::Released, at: None, changed: true, sent: None };
                queued.answer(Ok(applied));
            }
            turn
        })
    }
}

impl Recorder {
    /// Commands that take so many milliseconds, one after another.
    fn with(takes: &[u64]) -> Arc<Self> {
        Self::at(Home::here(), takes)
    }

    fn at(home: Arc<Home>, takes: &[u64]) -> Arc<Self> {
        let takes = Mutex::new(takes.iter().copied().map(Duration::from_millis).collect());
        Arc::new(Self { home, takes, coalescer: Coalescer::default(), sent: Mutex::default() })
    }

    /// Sends a request, and lets it reach the queue.
    async fn sends(self: &Arc<Self>, number: u8, what: What) -> tokio::task::JoinHandle<Result<Applied>> {
        let (sender, deadline) = (Arc::clone(self), Deadline::after(Clock::tokio(), Duration::from_secs(5)));
        #[allow(clippy::disallowed_methods, reason = "as a caller does")]
        let sending =
            tokio::spawn(async move { apply(&sender, &"k".parse().unwrap(), (number, what), deadline).await });
        tokio::task::yield_now().await;
        sending
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        self.sent.lock().unwrap().clone()
    }
}

async fn all(sending: Vec<tokio::task::JoinHandle<Result<Applied>>>) {
    for sending in sending {
        sending.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_kind_go_together_with_the_first_of_them_and_acquires_keep_their_order() {
    let recorder = Recorder::with(&[]);
    let mut sending = Vec::new();
    let crowd = [What::Acquire, What::Leave, What::Acquire, What::Leave, What::Shared, What::Acquire, What::Leave];
    for (number, what) in (0..).zip(crowd) {
        sending.push(recorder.sends(number, what).await);
    }
    all(sending).await;
    assert_eq!(recorder.sent(), [vec![0], vec![1, 3, 6], vec![2], vec![4], vec![5]]);
    assert!(lock(&recorder.coalescer).is_empty(), "an empty queue is forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_leaves_does_not_delay_an_acquire_before_them() {
    let recorder = Recorder::with(&[]);
    let mut sending = vec![recorder.sends(0, What::Acquire).await, recorder.sends(1, What::Acquire).await];
    for number in 2..20 {
        sending.push(recorder.sends(number, What::Leave).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    all(sending).await;
    let at = recorder.sent().iter().position(|command| command.contains(&1));
    assert!(at <= Some(2), "{:?}", recorder.sent());
}

#[tokio::test(start_paused = true)]
async fn a_crowd_is_sent_by_few_commands_of_limited_size() {
    let recorder = Recorder::with(&[]);
    let mut sending = Vec::new();
    for number in 0..=200 {
        sending.push(recorder.sends(number, What::Acquire).await);
    }
    all(sending).await;
    assert_eq!(recorder.sent().iter().map(Vec::len).collect::<Vec<_>>(), [1, 64, 64, 64, 8]);
    assert!(recorder.sent().concat().is_sorted());
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_request_is_never_sent() {
    let recorder = Recorder::with(&[]);
    let first = recorder.sends(0, What::Acquire).await;
    let abandoned = recorder.sends(1, What::Acquire).await;
    let last = recorder.sends(2, What::Acquire).await;
    abandoned.abort();
    all(vec![first, last]).await;
    assert_eq!(recorder.sent(), [[0], [2]]);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_delays_others_for_the_patience_and_each_further_one_for_twice_as_long() {
    let recorder = Recorder::with(&[4_000, 4_000, 4_000]);
    let (clock, began) = (Clock::tokio(), Clock::tokio().now());
    let mut late = Vec::new();
    for number in 0..3 {
        late.push(recorder.sends(number, What::Shared).await);
    }
    let next = recorder.sends(3, What::Shared).await;
    next.await.unwrap().unwrap();
    let took = clock.now().since(began);
    assert!((Duration::from_millis(710)..Duration::from_millis(715)).contains(&took), "100 + 200 + 400 + 10: {took:?}");
    // An answer that comes in time ends that.
    all(late).await;
    let again = clock.now();
    all(vec![recorder.sends(4, What::Shared).await]).await;
    assert!(clock.now().since(again) <= Duration::from_millis(12));
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_time_is_over_says_so_whether_it_was_sent_or_not() {
    let recorder = Recorder::with(&[60_000; 64]);
    let mut sending = Vec::new();
    for number in 0..10 {
        sending.push(recorder.sends(number, What::Shared).await);
    }
    for sending in sending {
        let error = sending.await.unwrap().unwrap_err().to_string();
        assert!(error.contains("was not confirmed within 5 s"), "{error}");
    }
    // After 100, 300, 700, 1,500 and 3,100 milliseconds another one is sent.
    assert_eq!(recorder.sent().len(), 6);
}

#[test]
fn a_runtime_that_ends_ends_all_requests_and_leaves_no_queue() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (home, caller) = (runtime(), runtime());
    let recorder = home.block_on(async { Recorder::with(&[60_000]) });
    let waiting = caller.block_on(async {
        let mut waiting = Vec::new();
        for number in 0..3 {
            waiting.push(recorder.sends(number, What::Acquire).await);
        }
        waiting
    });
    home.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    drop(home);
    for waiting in waiting {
        let ended = caller.block_on(waiting).unwrap();
        assert!(ended.is_err_and(|error| error.to_string().contains("make a new handle")));
    }
    assert!(lock(&recorder.coalescer).is_empty());
    assert_eq!(recorder.sent(), [[0]]);
    // What comes later ends, too.
    let late = caller.block_on(async { recorder.sends(3, What::Acquire).await.await.unwrap() });
    assert!(late.is_err() && lock(&recorder.coalescer).is_empty());
}
