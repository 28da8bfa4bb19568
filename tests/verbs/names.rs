//! What can be passed as a key, an owner or a group. `IntoName` documents types of callers.

use mongoseal::{Error, Group, IntoName, Key, Mongoseal, Owner};

#[tokio::test]
async fn texts_and_names_are_names_of_leases_and_generic_callers_pass_them_on() {
    async fn by_trait(seal: &Mongoseal, key: impl IntoName<Key>) -> Key {
        seal.acquire(key).await.unwrap().key().clone()
    }
    async fn by_conversion<K: TryInto<Key, Error: Into<Error>>>(seal: &Mongoseal, key: K) -> Key {
        seal.acquire(key).await.unwrap().key().clone()
    }
    let (text, key): (_, Key) = (String::from("k"), "k".parse().unwrap());
    let (owner, group): (Owner, Group) = ("k".parse().unwrap(), "k".parse().unwrap());
    let has_owner = |builder: mongoseal::Builder| assert_eq!(builder.in_memory().unwrap().owner(), &owner);
    has_owner(Mongoseal::builder().owner(text.clone()));
    has_owner(Mongoseal::builder().owner(&text));
    has_owner(Mongoseal::builder().owner(&owner));
    has_owner(Mongoseal::builder().owner(owner.clone()));
    let seal = Mongoseal::in_memory();
    for acquire in [
        seal.acquire("k").group("k"),
        seal.acquire(text.clone()).group(text.clone()),
        seal.acquire(&text).group(&text),
        seal.acquire(&key).group(&group),
        seal.acquire(key.clone()).group(group.clone()),
    ] {
        let _lease = acquire.await.unwrap();
        assert_eq!(seal.release_group("k").await.unwrap()[0].key, key);
    }
    assert_eq!(by_trait(&seal, "k").await, key);
    assert_eq!(by_conversion(&seal, "k").await, key);
}
