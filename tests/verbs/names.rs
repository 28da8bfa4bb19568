//! What can be passed as a key, an owner or a group.

use mongoseal::{Error, Group, IntoName, Key, Mongoseal, Owner, ParseError};

/// A caller's own type, as a newtype of an id.
struct OrderId(u32);

impl TryFrom<OrderId> for Key {
    type Error = ParseError;

    fn try_from(OrderId(id): OrderId) -> Result<Self, ParseError> {
        format!("orders/{id}").parse()
    }
}

impl From<OrderId> for Group {
    fn from(OrderId(id): OrderId) -> Self {
        format!("group/{id}").parse().unwrap()
    }
}

#[tokio::test]
async fn texts_names_and_types_of_the_caller_are_names_of_leases() {
    let (owner, me, k, g): (Owner, _, _, _) =
        ("me".parse().unwrap(), String::from("me"), String::from("k"), String::from("g"));
    for builder in [
        Mongoseal::builder().owner("me"),
        Mongoseal::builder().owner(String::from("me")),
        Mongoseal::builder().owner(&me),
        Mongoseal::builder().owner(&owner),
        Mongoseal::builder().owner(owner.clone()),
    ] {
        let seal = builder.in_memory().unwrap();
        assert_eq!(seal.owner(), &owner);
    }
    let seal = Mongoseal::in_memory();
    let (key, group): (Key, Group) = ("k".parse().unwrap(), "g".parse().unwrap());
    for acquire in [
        seal.acquire("k").group("g"),
        seal.acquire(String::from("k")).group(String::from("g")),
        seal.acquire(&k).group(&g),
        seal.acquire(&key).group(&group),
        seal.acquire(key.clone()).group(group.clone()),
    ] {
        let lease = acquire.await.unwrap();
        assert_eq!(lease.key(), &key);
        assert_eq!(seal.release_group("g").await.unwrap().len(), 1);
    }
    let lease = seal.acquire(OrderId(7)).group(OrderId(8)).await.unwrap();
    assert_eq!(lease.key().as_str(), "orders/7");
    assert_eq!(seal.release_group("group/8").await.unwrap().len(), 1);
}

/// As code of a caller that is generic, by the trait or by what it stands for.
#[tokio::test]
async fn generic_callers_pass_names_on() {
    async fn by_trait(seal: &Mongoseal, key: impl IntoName<Key>) -> Key {
        seal.acquire(key).await.unwrap().key().clone()
    }
    async fn by_conversion<K>(seal: &Mongoseal, key: K) -> Key
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        seal.acquire(key).await.unwrap().key().clone()
    }
    let seal = Mongoseal::in_memory();
    assert_eq!(by_trait(&seal, "a").await.as_str(), "a");
    assert_eq!(by_conversion(&seal, "b").await.as_str(), "b");
}
