//! The example `fence_file`.

use std::{fs, path::PathBuf, sync::Arc};

use mongoseal::FencingToken;

use crate::{
    example,
    fence_file::{latest, write},
    race::{Storage, race},
};

pub(crate) async fn the_example_runs() {
    example("fence_file", None, "readers pass over token").await;
}

/// A directory that is removed at the end, whatever the end.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

impl Storage for Arc<Directory> {
    async fn write(&mut self, token: FencingToken) -> bool {
        let reports = self.clone();
        tokio::task::spawn_blocking(move || write(&reports.0, &token.to_string(), token).unwrap()).await.unwrap()
    }

    async fn read(&mut self) -> Option<(String, u64)> {
        latest(&self.0).unwrap().map(|(body, token)| (body, token.get()))
    }
}

pub(crate) async fn the_largest_of_racing_tokens_is_read() {
    let reports = Arc::new(Directory(std::env::temp_dir().join(format!("mongoseal-files-{}", std::process::id()))));
    fs::create_dir_all(&reports.0).unwrap();
    race((0..17).map(|_| reports.clone())).await;
}
