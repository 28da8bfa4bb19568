//! Lease files.

use std::fs;

use crate::{Console, done, mongoseal};

pub(crate) async fn a_lease_file_is_refused_with_another_product_database_or_prefix() {
    let console = Console::new().await;
    console.run(&["acquire", "k", "--ttl", "1m", "--lease-file", "lease"]).await.printed();
    let path = console.folder.join("lease");
    let written = fs::read_to_string(&path).unwrap();
    let content: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!((&content["store"], &content["database"]), (&"redis".into(), &"0".into()));
    assert_eq!(content["collection"], console.prefix.as_str());
    let with = async |uri: &str, prefix: &str, arguments: &[&str]| {
        let mut command = mongoseal(arguments);
        command.args(["--lease-file", "lease"]).current_dir(&console.folder);
        command.env("MONGOSEAL_URI", uri).env("MONGOSEAL_COLLECTION", prefix);
        done(command).await
    };
    let other = format!("{}/1", console.uri);
    // A server of MongoDB is not needed: the file is checked first.
    for (uri, prefix, part) in [
        (other.as_str(), console.prefix.as_str(), "of the database \"0\" on Redis, and the options name the prefix"),
        (&console.uri, "other", "name the prefix \"other\""),
        ("mongodb://127.0.0.1:9/0", &console.prefix, "on MongoDB: pass the connection options of `mongoseal acquire`"),
    ] {
        for command in ["refresh", "release"] {
            with(uri, prefix, &[command]).await.says(125, part);
        }
    }
    // As `acquire` writes it on MongoDB.
    fs::write(&path, written.replace("\"redis\"", "\"mongodb\"")).unwrap();
    with(&console.uri, &console.prefix, &["release"]).await.says(125, "is in the collection");
    fs::write(&path, &written).unwrap();
    with(&console.uri, &console.prefix, &["release"]).await.printed();
    // With the number of the database in the connection string it is found again.
    let zero = format!("{}/0", console.uri);
    with(&console.uri, &console.prefix, &["acquire", "k", "--ttl", "1m"]).await.printed();
    with(&zero, &console.prefix, &["release"]).await.printed();
}
