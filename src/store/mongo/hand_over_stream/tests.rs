use mongodb::error::Error as DriverError;

use super::*;

fn at(increment: u32) -> Timestamp {
    Timestamp { time: 7, increment }
}

/// An event that hands a key to each of these, with token 9.
fn event(field: &str, to: &[(HandleId, u64)], increment: u32) -> Document {
    let handed = to.iter().map(|(handle, number)| format!("{}=9;", AcquireId { handle: *handle, number: *number }));
    let handover = doc! { "handover": handed.collect::<String>() };
    let fields = if field == "fullDocument" {
        handover
    } else {
        doc! { "updatedFields": handover }
    };
    doc! { "clusterTime": at(increment), field: fields }
}

fn handed(number: u64) -> Notification {
    Notification::Granted { number, token: FencingToken::new(9).unwrap() }
}

/// A stream that this handle has opened, at time 0.
fn opened(handle: HandleId) -> (Reading, UnboundedReceiver<Passed>) {
    let traffic = Arc::new(Traffic::default());
    let (pass_on, passed) = mpsc::unbounded_channel();
    let Joined::First { number } = traffic.hand_over_streams.join("0", handle, at(0), &pass_on) else {
        panic!("it is the first")
    };
    (Reading { traffic, digits: "0".into(), number }, passed)
}

fn told(passed: &mut UnboundedReceiver<Passed>) -> Vec<Notification> {
    std::iter::from_fn(|| passed.try_recv().ok()?.ok()).collect()
}

#[test]
fn an_event_tells_a_handle_of_what_is_its_own_in_either_form() {
    let (own, other) = (HandleId::random(), HandleId::random());
    let (reading, mut passed) = opened(own);
    for field in ["fullDocument", "updateDescription"] {
        reading.pass_on(&event(field, &[(other, 1), (own, 2), (own, 3)], 1));
        assert_eq!(told(&mut passed), [2, 3].map(handed));
    }
    for strange in
        [doc! {}, doc! { "fullDocument": { "handover": 1 } }, doc! { "fullDocument": { "handover": "x=y;" } }]
    {
        let mut strange = strange;
        strange.insert("clusterTime", at(1));
        reading.pass_on(&strange);
        assert_eq!(told(&mut passed), []);
    }
    assert!(reading.is_heard());
    drop(passed);
    assert!(!reading.is_heard(), "nobody listens");
}

#[test]
fn a_handle_that_joins_is_told_of_what_happened_since_the_time_for_which_it_asks_if_the_stream_keeps_it() {
    let (own, other) = (HandleId::random(), HandleId::random());
    let (reading, _passed) = opened(other);
    for number in 1..=3 {
        reading.pass_on(&event("fullDocument", &[(own, number.into())], number));
    }
    let streams = &reading.traffic.hand_over_streams;
    let (pass_on, mut passed) = mpsc::unbounded_channel();
    assert!(matches!(streams.join("0", own, at(1), &pass_on), Joined::Open { has_all: true }));
    let watching = Notification::Started { since: super::super::tick(at(1)) };
    assert_eq!(told(&mut passed), [watching, handed(2), handed(3)]);
    for number in 0..u32::try_from(MAX_KEPT).unwrap() {
        reading.pass_on(&event("fullDocument", &[(other, 0)], 4 + number));
    }
    let (pass_on, mut passed) = mpsc::unbounded_channel();
    assert!(matches!(streams.join("0", own, at(2), &pass_on), Joined::Open { has_all: false }));
    assert_eq!(told(&mut passed), []);
    assert!(matches!(streams.join("0", own, at(3), &pass_on), Joined::Open { has_all: true }));
}

#[test]
fn a_stream_that_cannot_be_opened_says_why_to_the_handle_that_opened_it_and_one_that_fails_to_all() {
    let error = || DriverError::custom("it is too old");
    for (end, is_told) in [(End::NotOpened(error()), false), (End::Failed(error()), true)] {
        let (reading, mut first) = opened(HandleId::random());
        let (pass_on, mut second) = mpsc::unbounded_channel();
        reading.traffic.hand_over_streams.join("0", HandleId::random(), at(0), &pass_on);
        told(&mut second);
        drop(pass_on);
        reading.end(&end);
        drop(reading);
        assert!(matches!(first.try_recv(), Ok(Err(_))));
        assert_eq!(matches!(second.try_recv(), Ok(Err(_))), is_told);
        assert!(matches!(second.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)), "it listens again");
    }
}

#[test]
fn who_listens_to_a_stream_whose_reader_has_ended_or_is_replaced_is_left() {
    let own = HandleId::random();
    let (reading, mut passed) = opened(own);
    let streams = Arc::clone(&reading.traffic);
    reading.with(|stream| stream.heard_at = Duration::ZERO).unwrap();
    let (pass_on, mut passed_again) = mpsc::unbounded_channel();
    let Joined::First { number } = streams.hand_over_streams.join("0", own, at(1), &pass_on) else {
        panic!("the stream was silent for long")
    };
    assert!(matches!(passed.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
    assert!(!reading.is_heard(), "another stream has taken its place");
    drop((reading, pass_on));
    assert!(matches!(passed_again.try_recv(), Err(mpsc::error::TryRecvError::Empty)), "this one goes on");
    drop(Reading { traffic: Arc::clone(&streams), digits: "0".into(), number });
    assert!(matches!(passed_again.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
}
