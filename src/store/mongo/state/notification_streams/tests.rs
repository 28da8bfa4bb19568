use mongodb::{
    bson::{DateTime, doc},
    error::Error as DriverError,
};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::*;

fn at(increment: u32) -> Timestamp {
    Timestamp { time: 7, increment }
}

/// An event that grants a key to each of these, with token 9.
fn event(field: &str, to: &[(HandleId, u64)], increment: u32) -> Document {
    let grants = to.iter().map(|(handle, number)| format!("{}=9;", AcquireId { handle: *handle, number: *number }));
    let handover = doc! { "handover": grants.collect::<String>(), "last_seen": DateTime::from_millis(5) };
    let fields = if field == "fullDocument" {
        handover
    } else {
        doc! { "updatedFields": handover }
    };
    // With fields that no server sends, as a later one may.
    doc! { "clusterTime": at(increment), field: fields, "ofALaterServer": { "handover": "x" } }
}

fn granted(number: u64) -> Notification {
    let at = Some(StoreTime::from_millis(5));
    Notification::Granted { number, token: FencingToken::new(9).unwrap(), at }
}

/// A stream that this handle has opened, at time 0.
fn opened(handle: HandleId) -> (StreamReader, UnboundedReceiver<Delivery>) {
    let streams = Arc::new(NotificationStreams::default());
    let (pass_on, passed) = mpsc::unbounded_channel();
    let Joined::First { number } = streams.join("0", handle, at(0), &pass_on) else { panic!("it must be the first") };
    (StreamReader { streams, digits: "0".into(), number }, passed)
}

fn received(passed: &mut UnboundedReceiver<Delivery>) -> Vec<Notification> {
    std::iter::from_fn(|| passed.try_recv().ok()?.ok()).collect()
}

#[test]
fn an_event_of_either_form_is_sent_to_the_handles_that_it_concerns() {
    let (own, other) = (HandleId::random(), HandleId::random());
    let (reader, mut passed) = opened(own);
    for field in ["fullDocument", "updateDescription"] {
        reader.pass_on(&event(field, &[(other, 1), (own, 2), (own, 3)], 1));
        assert_eq!(received(&mut passed), [2, 3].map(granted));
    }
    for strange in
        [doc! {}, doc! { "fullDocument": { "handover": 1 } }, doc! { "fullDocument": { "handover": "x=y;" } }]
    {
        let mut strange = strange;
        strange.insert("clusterTime", at(1));
        reader.pass_on(&strange);
        assert_eq!(received(&mut passed), []);
    }
    assert!(reader.has_listeners());
    drop(passed);
    assert!(!reader.has_listeners(), "no listener is left");
}

#[test]
fn a_handle_that_joins_gets_the_hand_overs_since_its_time_if_the_stream_keeps_them() {
    let (own, other) = (HandleId::random(), HandleId::random());
    let (reader, _passed) = opened(other);
    for number in 1..=3 {
        reader.pass_on(&event("fullDocument", &[(own, number.into())], number));
    }
    let streams = &reader.streams;
    let (pass_on, mut passed) = mpsc::unbounded_channel();
    assert!(matches!(streams.join("0", own, at(1), &pass_on), Joined::Open { has_all: true }));
    let watching = Notification::Started { since: hybrid_time(at(1)) };
    assert_eq!(received(&mut passed), [watching, granted(2), granted(3)]);
    for number in 0..u32::try_from(MAX_KEPT).unwrap() {
        reader.pass_on(&event("fullDocument", &[(other, 0)], 4 + number));
    }
    let (pass_on, mut passed) = mpsc::unbounded_channel();
    assert!(matches!(streams.join("0", own, at(2), &pass_on), Joined::Open { has_all: false }));
    assert_eq!(received(&mut passed), []);
    assert!(matches!(streams.join("0", own, at(3), &pass_on), Joined::Open { has_all: true }));
}

#[test]
fn a_stream_that_cannot_be_opened_notifies_the_handle_that_opened_it_and_one_that_fails_all_handles() {
    let error = || DriverError::custom("it is too old");
    for (end, is_sent_to_all) in [(StreamEnd::NotOpened(error()), false), (StreamEnd::Failed(error()), true)] {
        let (reader, mut first) = opened(HandleId::random());
        let (pass_on, mut second) = mpsc::unbounded_channel();
        reader.streams.join("0", HandleId::random(), at(0), &pass_on);
        received(&mut second);
        drop(pass_on);
        reader.end(&end);
        drop(reader);
        assert!(matches!(first.try_recv(), Ok(Err(_))));
        assert_eq!(matches!(second.try_recv(), Ok(Err(_))), is_sent_to_all);
        assert!(matches!(second.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)), "the handle joins again");
    }
}

#[test]
fn a_listener_of_a_stream_whose_reader_has_ended_or_is_replaced_is_dropped() {
    let own = HandleId::random();
    let (reader, mut passed) = opened(own);
    let streams = Arc::clone(&reader.streams);
    reader.with(|stream| stream.answered_at = Reading::ORIGIN).unwrap();
    let (pass_on, mut passed_again) = mpsc::unbounded_channel();
    let Joined::First { number } = streams.join("0", own, at(1), &pass_on) else {
        panic!("the stream was silent for long")
    };
    assert!(matches!(passed.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
    assert!(!reader.has_listeners(), "another stream has taken its place");
    drop((reader, pass_on));
    assert!(matches!(passed_again.try_recv(), Err(mpsc::error::TryRecvError::Empty)), "the new stream goes on");
    drop(StreamReader { streams: Arc::clone(&streams), digits: "0".into(), number });
    assert!(matches!(passed_again.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
}
