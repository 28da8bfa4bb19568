//! Keys of other programs.

use mongoseal::{Error, Mongoseal};
use redis::AsyncCommands;

use crate::{client, count, open, shared};

pub(crate) async fn what_is_no_record_is_corrupt_and_left_as_it_is() {
    let prefix = format!("values-{:016x}", fastrand::u64(..));
    let seal = open(Mongoseal::builder().collection(&prefix), shared().await.url()).await.unwrap();
    let mut redis = client(shared().await).await;
    let key = format!("{prefix}:k");
    let is_refused = async || {
        for error in [seal.acquire("k").await.unwrap_err(), seal.inspect("k").await.unwrap_err()] {
            assert!(matches!(&error, Error::Corrupt { key, .. } if key.as_str() == "k"), "{error:?}");
        }
        assert_eq!(count(&seal).await, 0, "the list leaves it out");
        // A key beside it is not affected.
        seal.acquire("other").await.unwrap().release().await.unwrap();
    };
    for bytes in [&b"hello"[..], b"", b"\xff\xfe", b"{\"v\":1}"] {
        let () = redis.set(&key, bytes).await.unwrap();
        is_refused().await;
        assert_eq!(redis.get::<_, Vec<u8>>(&key).await.unwrap(), bytes);
    }
    // Of another type.
    let () = redis.del(&key).await.unwrap();
    let () = redis.rpush(&key, "one").await.unwrap();
    is_refused().await;
    assert_eq!(redis.lrange::<_, Vec<String>>(&key, 0, -1).await.unwrap(), ["one"]);
}
