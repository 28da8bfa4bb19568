//! Each fenced write passes for an equal or a larger token, which is stored, and is refused for a smaller one.

use mongodb::{
    bson::{Bson, doc},
    options::{Collation, CollationStrength, ReturnDocument, UpdateOptions},
};
use mongoseal::{Error, Fence, OnceOutcome, Tick};
use serde::{Deserialize, Serialize};

use crate::{
    Orders, TestDatabase, invalid, is_duplicate, millis, one, plus, refused_by, secs, shop, token, write_in_each_way,
};

#[tokio::test]
async fn each_write_passes_and_is_stored_where_there_is_no_token_an_equal_one_or_a_smaller_one() {
    let db = TestDatabase::new("mongoseal_fence_passes").await;
    for met in [doc! { "_id": 1 }, doc! { "_id": 1, "fence": Bson::Null }]
        .into_iter()
        .chain([4_i64, 5].map(|number| doc! { "_id": 1, "fence": number }))
    {
        db.put(met.clone()).await;
        write_in_each_way(&db.by(5), async |write, answer| {
            answer.unwrap_or_else(|error| panic!("{write} of {met}: {error:?}"));
            let order = db.orders().find_one(one()).await.unwrap();
            if write.ends_with("deletion") {
                assert_eq!(order, None, "{write} of {met}");
            } else {
                let order = order.unwrap();
                assert_eq!(order.get_i64("fence"), Ok(5), "{write} of {met}");
                let written = match write {
                    _ if write.contains("pipeline") => Some(("m", 1)),
                    _ if write.contains("replac") => Some(("m", 2)),
                    _ if write.contains("claim") || write.ends_with("insertion") => None,
                    _ => Some(("n", 1)),
                };
                let others = order.iter().filter(|(name, _)| !["_id", "fence"].contains(&name.as_str()));
                let others: Vec<_> = others.map(|(name, value)| (name.as_str(), value.as_i32().unwrap())).collect();
                assert!(others.iter().eq(&written), "{write} of {met}: {order}");
                db.put(met.clone()).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_larger_token_and_anything_else_in_the_field_refuse_each_write_and_stay_as_they_are() {
    let db = TestDatabase::new("mongoseal_fence_refuses").await;
    let later = Bson::from(9_i64);
    let foreign: [Bson; 9] = [
        "7".into(),
        3.into(),
        3.0.into(),
        true.into(),
        doc! { "a": 3_i64 }.into(),
        Bson::Array(vec![]),
        vec![3_i64, 99].into(),
        vec![Bson::Null].into(),
        i64::MAX.into(),
    ];
    for value in foreign.iter().chain([&later]) {
        let document = doc! { "_id": 1, "n": 0, "fence": value.clone() };
        db.put(document.clone()).await;
        write_in_each_way(&db.by(5), async |write, answer| {
            match answer {
                Err(Error::Fenced { newer }) if *value == later && newer == token(9) => {}
                Err(Error::Invalid { message, .. }) if *value != later && message.contains("not a fencing token") => {}
                other => panic!("{write} of {value}: {other:?}"),
            }
            assert_eq!(db.order(1).await, document, "{write} of {value}");
        })
        .await;
    }
}

#[tokio::test]
async fn an_update_and_a_find_return_what_those_of_the_driver_do() {
    let db = shop("returns").await;
    let done = db.by(5).update_one(one(), plus()).await.unwrap();
    assert_eq!((done.matched_count, done.modified_count, done.upserted_id), (1, 1, None));
    let before = db.by(5).find_one_and_update(one(), plus()).await.unwrap();
    assert_eq!(before, Some(doc! { "_id": 1, "n": 1, "fence": 5_i64 }));
    let after = db.by(6).find_one_and_update(one(), plus()).return_document(ReturnDocument::After).await.unwrap();
    assert_eq!(after, Some(doc! { "_id": 1, "n": 3, "fence": 6_i64 }));
}

#[tokio::test]
async fn a_deletion_leaves_nothing_that_refuses() {
    let db = TestDatabase::new("mongoseal_fence_delete").await;
    db.put(doc! { "_id": 1, "fence": 5_i64 }).await;
    for deleted in [1, 0] {
        assert_eq!(db.by(5).delete_one(one()).await.unwrap().deleted_count, deleted);
    }
    db.by(4).insert_one(one()).await.unwrap();
    assert_eq!(db.order(1).await.get_i64("fence").unwrap(), 4, "as the documentation warns");
}

#[tokio::test]
async fn an_insertion_tells_a_later_holder_from_a_plain_duplicate() {
    let db = TestDatabase::new("mongoseal_fence_insert").await;
    let done = db.by(5).insert_one(doc! { "_id": 1, "n": 1 }).await.unwrap();
    assert_eq!(done.inserted_id.as_i32(), Some(1));
    assert_eq!(db.order(1).await, doc! { "_id": 1, "n": 1, "fence": 5_i64 });
    for number in [5, 6] {
        let error = invalid(db.by(number).insert_one(one()).await, "with code 11000");
        assert!(is_duplicate(&error), "{error:?}");
    }
    refused_by(db.by(4).insert_one(one()).await, 5);
    let id = db.by(5).insert_one(doc! { "n": 2 }).await.unwrap().inserted_id;
    assert!(id.as_object_id().is_some());
}

#[tokio::test]
async fn a_filter_that_finds_nothing_is_not_a_refusal() {
    let db = TestDatabase::new("mongoseal_fence_nothing").await;
    db.put(doc! { "_id": 1, "state": "paid", "fence": 9_i64 }).await;
    let (by, open) = (db.by(5), || doc! { "_id": 1, "state": "open" });
    let done = by.update_one(open(), plus()).await.unwrap();
    assert_eq!((done.matched_count, done.modified_count), (0, 0));
    assert_eq!(by.replace_one(open(), doc! {}).await.unwrap().matched_count, 0);
    assert_eq!(by.delete_one(open()).await.unwrap().deleted_count, 0);
    assert_eq!(by.find_one_and_update(open(), plus()).await.unwrap(), None);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    _id: i32,
    lines: Vec<String>,
    #[serde(default)]
    fence: Option<mongoseal::FencingToken>,
}

#[tokio::test]
async fn documents_of_a_type_are_written_and_read_as_such() {
    let db = TestDatabase::new("mongoseal_fence_typed").await;
    let orders = db.database.collection::<Order>("orders");
    let order = |line: &str, fence| Order { _id: 1, lines: vec![line.into()], fence };
    orders.fenced(token(5)).insert_one(order("pen", None)).await.unwrap();
    orders.fenced(token(6)).replace_one(one(), order("ink", Some(token(5)))).await.unwrap();
    let pushed = doc! { "$push": { "lines": "cap" } };
    let read = orders.fenced(token(6)).find_one_and_update(one(), pushed).await.unwrap();
    assert_eq!(read, Some(order("ink", Some(token(6)))));
    refused_by(orders.fenced(token(5)).replace_one(one(), order("nib", None)).await, 6);
    db.put(doc! { "_id": 2, "lines": 7 }).await;
    let misfit = orders.fenced(token(5)).find_one_and_update(doc! { "_id": 2 }, doc! {}).await;
    invalid(misfit, "was written, but");
}

#[tokio::test]
async fn options_of_the_driver_count() {
    let db = TestDatabase::new("mongoseal_fence_options").await;
    db.put(doc! { "_id": 1, "lines": [{ "sku": "a", "n": 1 }, { "sku": "b", "n": 1 }] }).await;
    let options = UpdateOptions::builder().array_filters(vec![doc! { "line.sku": "b" }]).build();
    let update = doc! { "$inc": { "lines.$[line].n": 1 } };
    db.by(5).update_one(one(), update).with_options(options).await.unwrap();
    let order = db.order(1).await;
    assert_eq!(order.get_array("lines").unwrap()[1], doc! { "sku": "b", "n": 2 }.into());
    // An element that the filter found is still the one that `$` means.
    db.by(5).update_one(doc! { "_id": 1, "lines.sku": "a" }, doc! { "$set": { "lines.$.n": 9 } }).await.unwrap();
    let order = db.order(1).await;
    assert_eq!(order.get_array("lines").unwrap()[0], doc! { "sku": "a", "n": 9 }.into());

    let collation = Collation::builder().locale("en").strength(CollationStrength::Secondary).build();
    let options = UpdateOptions::builder().collation(collation).build();
    db.put(doc! { "_id": 2, "name": "Ada", "fence": 9_i64 }).await;
    let other_case = db.by(5).update_one(doc! { "name": "ADA" }, doc! {}).with_options(options);
    refused_by(other_case.await, 9);
}

#[tokio::test]
async fn a_lease_writes_while_it_holds_and_is_refused_here_once_it_has_ended() {
    let db = shop("lease").await;
    let lease = db.seal().acquire("orders/1").await.unwrap();
    db.orders().fenced(&lease).update_one(one(), plus()).await.unwrap();
    assert_eq!(db.order(1).await.get_i64("fence").unwrap(), i64::from(lease.token()));
    let old = lease.token();
    lease.release().await.unwrap();

    let lease = db.seal().acquire("orders/1").ttl(millis(500)).without_refresh().await.unwrap();
    lease.cancelled().await;
    let before = db.order(1).await;
    let (noted, sent) = db.by_client("appName=lease").await;
    let ended = noted.orders().fenced(&lease).update_one(one(), plus()).await;
    assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
    assert_eq!(sent.take_names(), [""; 0], "nothing is sent");
    assert_eq!(db.order(1).await, before);

    // What it believes does not matter: its token is what counts, and that was not overtaken yet.
    db.orders().fenced(lease.token()).update_one(one(), plus()).await.unwrap();
    let next = db.seal().acquire("orders/1").wait(secs(60)).await.unwrap();
    db.orders().fenced(&next).update_one(one(), plus()).await.unwrap();
    let late = db.orders().fenced(old).update_one(one(), plus()).await;
    refused_by(late, next.token().get());
}

#[tokio::test]
async fn a_leader_and_the_work_of_a_tick_write_as_the_holder_that_they_are() {
    let db = shop("leader").await;
    let (orders, seal) = (db.orders(), db.seal());
    let leader = seal.campaign("scheduler").value("here").await.unwrap();
    orders.fenced(&leader).update_one(one(), plus()).await.unwrap();
    assert_eq!(db.order(1).await.get_i64("fence").unwrap(), i64::from(leader.token()));
    let ran = seal.once("orders/nightly", Tick::number(1)).run(async |tick| {
        orders.fenced(tick).update_one(one(), plus()).await?;
        Ok::<_, Error>(tick.token())
    });
    let OnceOutcome::Ran(token) = ran.await.unwrap() else { panic!("the tick is new") };
    assert_eq!(db.order(1).await.get_i64("fence").unwrap(), i64::from(token));
}
