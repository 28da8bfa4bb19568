//! What watches report. Some stores have no streams and poll, so each event is read before the next one happens.

use mongoseal::{
    FencingToken, Json, LeaseId, Sharing,
    inspect::{EventKind, EventStream},
};
use mongoseal_test_support::secs;

use crate::world::{World, soon};

/// The key, the kind and the token of the next event.
async fn next(events: &mut EventStream) -> (String, EventKind, FencingToken) {
    let event = soon(events.next()).await.expect("it goes on").unwrap().into_event().expect("no event is missing");
    (event.key.to_string(), event.kind, event.token)
}

async fn is_granted(events: &mut EventStream, key: &str, token: FencingToken) {
    let (of, kind, told) = next(events).await;
    assert!(of == key && told == token && matches!(kind, EventKind::Granted { .. }), "{of} {kind:?} {told}");
}

pub(crate) async fn a_watch_reports_each_way_in_which_a_lease_ends(world: &World) {
    let seal = world.seal();
    let mut events = seal.watch("k").await.unwrap();
    let told = |kind, token| ("k".to_owned(), kind, token);

    let lease = world.seal().acquire("k").ttl(secs(600)).await.unwrap();
    is_granted(&mut events, "k", lease.token()).await;
    let token = lease.token();
    lease.release().await.unwrap();
    assert_eq!(next(&mut events).await, told(EventKind::Released, token));

    let lease = world.seal().acquire("k").ttl(secs(600)).await.unwrap();
    is_granted(&mut events, "k", lease.token()).await;
    let (old, id) = (lease.token(), LeaseId::random());
    let larger = lease.transfer(id).await.unwrap();
    let (_, kind, token) = next(&mut events).await;
    assert!(token == old && matches!(&kind, EventKind::Transferred { to } if to.token == larger), "{kind:?}");
    world.seal().revoke("k").by("$alice").reason("$$ROOT").await.unwrap();
    let revoked = EventKind::Revoked { by: "$alice".into(), reason: "$$ROOT".into() };
    assert_eq!(next(&mut events).await, told(revoked, larger));

    // No request changes the record, and the watch reports the expiry.
    let dead = world.seal().acquire("k").ttl(secs(4)).without_refresh().await.unwrap();
    is_granted(&mut events, "k", dead.token()).await;
    assert_eq!(next(&mut events).await, told(EventKind::Expired, dead.token()));

    let lease = world.seal().acquire("k").ttl(secs(600)).await.unwrap();
    is_granted(&mut events, "k", lease.token()).await;
    // A downgrade is no event.
    lease.downgrade(Sharing::UpTo(2)).await.unwrap();
    world.remove("k").await;
    assert_eq!(next(&mut events).await, told(EventKind::Removed, lease.token()));
    let last = world.seal().acquire("k").ttl(secs(600)).await.unwrap();
    is_granted(&mut events, "k", last.token()).await;
    seal.shutdown().await;
    assert!(soon(events.next()).await.unwrap().is_err());
    assert!(events.next().await.is_none());
}

pub(crate) async fn a_watch_of_a_prefix_reports_each_of_its_keys_and_no_other(world: &World) {
    let seal = world.seal();
    let held = seal.acquire("k/held").ttl(secs(600)).await.unwrap();
    let mut events = seal.watch_prefix("k/").await.unwrap();
    let (key, kind, token) = next(&mut events).await;
    assert!(key == "k/held" && token == held.token() && matches!(kind, EventKind::Holds { .. }), "{key} {kind:?}");
    let _beside = seal.acquire("beside").ttl(secs(600)).await.unwrap();
    let other = world.seal().acquire("k/other").ttl(secs(600)).await.unwrap();
    is_granted(&mut events, "k/other", other.token()).await;
    held.release().await.unwrap();
    assert_eq!(next(&mut events).await, ("k/held".to_owned(), EventKind::Released, token));
    world.remove("k/other").await;
    assert_eq!(next(&mut events).await, ("k/other".to_owned(), EventKind::Removed, other.token()));
}

pub(crate) async fn a_watch_goes_on_beside_values_and_does_not_carry_them(world: &World) {
    let mut events = world.seal().watch("k").await.unwrap();
    let lease = world.seal().acquire("k").ttl(secs(600)).await.unwrap();
    is_granted(&mut events, "k", lease.token()).await;
    let big = "x".repeat(Json::MAX_BYTES - 2);
    for _ in 0..3 {
        lease.put_value(&big).await.unwrap();
        lease.put_value("small").await.unwrap();
    }
    let token = lease.token();
    lease.release_with_value(&big).await.unwrap();
    assert_eq!(next(&mut events).await, ("k".to_owned(), EventKind::Released, token));
    let next = world.seal().acquire("k").await.unwrap();
    assert_eq!(next.value::<String>().await.unwrap().unwrap().content, big);
}
