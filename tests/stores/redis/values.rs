//! Keys of other programs.

use mongoseal::{Error, Mongoseal};

use crate::{client, count, open, send, shared};

/// A handle with keys of its own, and their prefix.
async fn seal() -> (Mongoseal, String) {
    let prefix = format!("values-{:016x}", fastrand::u64(..));
    let seal = open(Mongoseal::builder().collection(&prefix), shared().await.url()).await.unwrap();
    (seal, prefix)
}

async fn is_refused_as_corrupt(seal: &Mongoseal) {
    let errors = [seal.acquire("k").await.unwrap_err(), seal.inspect("k").await.unwrap_err()];
    for error in errors {
        assert!(matches!(&error, Error::Corrupt { key, .. } if key.as_str() == "k"), "{error:?}");
    }
    assert_eq!(count(seal).await, 0, "the list leaves it out");
    // A key beside it is not affected.
    seal.acquire("other").await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_value_of_another_type_is_corrupt_and_left_as_it_is() {
    let (seal, prefix) = seal().await;
    let () = send(shared().await, &format!("RPUSH {prefix}:k one")).await;
    is_refused_as_corrupt(&seal).await;
    let left: Vec<String> = send(shared().await, &format!("LRANGE {prefix}:k 0 -1")).await;
    assert_eq!(left, ["one"]);
}

pub(crate) async fn a_foreign_text_is_corrupt_and_left_as_it_is() {
    let (seal, prefix) = seal().await;
    for bytes in [&b"hello"[..], b"", b"\xff\xfe", b"{\"v\":1}"] {
        let mut redis = client(shared().await).await;
        let () = redis::cmd("SET").arg(format!("{prefix}:k")).arg(bytes).query_async(&mut redis).await.unwrap();
        is_refused_as_corrupt(&seal).await;
        let left: Vec<u8> = redis::cmd("GET").arg(format!("{prefix}:k")).query_async(&mut redis).await.unwrap();
        assert_eq!(left, bytes);
    }
}
