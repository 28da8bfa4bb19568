//! A server leaves no process and no file once it is dropped.

use std::{fs, path::Path, time::Duration};

use mongodb::bson::doc;
use mongoseal_test_support::{ReplicaSet, eventually};

#[tokio::test]
async fn a_set_on_disk_has_its_files_there_and_leaves_no_server_and_no_file_once_it_is_dropped() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("on-disk-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let set = ReplicaSet::builder().on_disk(&folder).start().await;
    let options = set.admin(0, doc! { "getCmdLineOpts": 1 }).await.unwrap();
    let storage = options.get_document("parsed").unwrap().get_document("storage").unwrap();
    assert_eq!(Path::new(storage.get_str("dbPath").unwrap()).parent(), Some(folder.as_path()));
    // A paused one has to go, too, and one with a fail point armed.
    let fault = set.fail_command("nobody", &["ping"], doc! { "errorCode": 91 }, 1).await;
    let process = Path::new("/proc").join(set.process_ids()[0].to_string());
    assert!(process.exists());
    set.pause(0).await;
    drop(fault);
    drop(set);
    // A folder that holds anything is not removed.
    let is_gone = async || {
        fs::remove_dir(&folder).ok();
        !process.exists() && !folder.exists()
    };
    eventually(Duration::from_secs(60), "the set leaves nothing", is_gone).await;
}
