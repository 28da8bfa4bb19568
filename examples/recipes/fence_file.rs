//! Fences files, and objects in a storage without conditional writes: the name carries the token, and readers take the
//! greatest.
//!
//!     cargo run -p mongoseal-tests --example fence_file
//!
//! Each holder writes a name of its own, so no holder overwrites another's file. The text of `sortable()` sorts as the
//! tokens do. A file appears as a whole, by rename; an object by its PUT. As long as the greatest name is kept, readers
//! never return to the data of an earlier holder.
//!
//! Limits:
//! - No write is refused. The late file of an earlier holder exists, and readers skip it; the holder notices only if it
//!   reads. So this fences what is read through `latest`, and no effects such as e-mails or payments.
//! - Two writes with one token replace each other. With `If-None-Match: *`, which keeps the first object of a name
//!   (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html>), add a number after the token.
//! - A listing must show all completed writes: S3 does, a network file system may cache.
//! - Delete smaller names only. A reader whose file was deleted meanwhile lists again.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use mongoseal::{FencingToken, Mongoseal};

/// Publishes the report under a name of the token's. Says whether it is the one that readers see.
pub(crate) fn write(reports: &Path, body: &str, token: FencingToken) -> io::Result<bool> {
    // Another name for each attempt, of one that dies half-way nothing is seen.
    let partial = reports.join(format!(".{}.partial", uuid::Uuid::new_v4()));
    let mut file = File::create_new(&partial)?;
    file.write_all(body.as_bytes())?;
    file.sync_all()?;
    fs::rename(partial, reports.join(format!("{}.txt", token.sortable())))?;
    // The name lasts once its directory is on the disk.
    File::open(reports)?.sync_all()?;
    Ok(latest(reports)?.is_some_and(|(_, greatest)| greatest == token))
}

/// The report of the largest token.
pub(crate) fn latest(reports: &Path) -> io::Result<Option<(String, FencingToken)>> {
    let names: Vec<_> = fs::read_dir(reports)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    // What is not a token is not a report, such as a partial one.
    let token = |name: &std::ffi::OsString| name.to_str()?.strip_suffix(".txt")?.parse::<FencingToken>().ok();
    let Some(greatest) = names.iter().filter_map(token).max() else { return Ok(None) };
    Ok(Some((fs::read_to_string(reports.join(format!("{}.txt", greatest.sortable())))?, greatest)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reports = std::env::temp_dir().join(format!("mongoseal-example-{}", uuid::Uuid::new_v4()));
    fs::create_dir(&reports)?;
    let seal = Mongoseal::in_memory();

    let first = seal.acquire("reports/nightly").await?;
    let older = first.token();
    assert!(write(&reports, "draft", older)?, "nobody wrote it before");
    // Or loses it, and does not notice.
    first.release().await?;

    let second = seal.acquire("reports/nightly").await?;
    let newer = second.token();
    assert!(write(&reports, "final", newer)?, "a newer token writes");
    assert!(write(&reports, "final, again", newer)?, "an equal one, too");

    assert!(!write(&reports, "late", older)?, "the older one is passed over");
    assert_eq!(latest(&reports)?, Some(("final, again".into(), newer)));
    println!("readers pass over token {older}: {newer} has written");
    fs::remove_dir_all(reports)?;
    seal.shutdown().await;
    Ok(())
}
