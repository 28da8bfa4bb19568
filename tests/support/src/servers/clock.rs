//! A clock of a server's own, which a test can shift.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::servers::{programs, server::path};

/// How soon a server notices that its clock was shifted.
#[derive(Clone, Copy)]
pub(crate) enum Notices {
    /// With each look at the clock, which then reads a file.
    AtOnce,
    WithinASecond,
}

/// The beginning of a command line that puts the clock of a server in `home` at the mercy of a file there. Libraries
/// may be loaded beside libfaketime.
pub(crate) fn shifting(home: &Path, notices: Notices, beside: &[&str]) -> Vec<String> {
    fs::write(file(home), "+0\n").expect("the directory of a server is writable");
    let libraries = [&[path(&programs::libfaketime()).as_str()], beside].concat().join(":");
    let noticing = match notices {
        Notices::AtOnce => "FAKETIME_NO_CACHE",
        Notices::WithinASecond => "FAKETIME_CACHE_DURATION",
    };
    let environment = [
        ("LD_PRELOAD", libraries),
        ("FAKETIME_TIMESTAMP_FILE", path(&file(home))),
        (noticing, "1".into()),
        // Only what time it is moves: timers keep running as they did.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        // A workaround for a C library before 2.24. With a later one, waits of a mongod end late, and with a hundred
        // requests at a time each takes ten times as long.
        ("FAKETIME_FORCE_MONOTONIC_FIX", "0".into()),
    ];
    let environment = environment.map(|(name, value)| format!("{name}={value}"));
    ["env".to_owned()].into_iter().chain(environment).collect()
}

/// Shifts the clock of the server in `home`: `-1h`, `+30`, `+0`, as libfaketime reads it.
pub(crate) fn set(home: &Path, shift: &str) {
    let file = file(home);
    assert!(file.exists(), "only a server that was started with a clock of its own has one to set");
    // In one step, so that no half-written shift is read.
    let next = file.with_extension("next");
    fs::write(&next, format!("{shift}\n")).expect("the directory of a server is writable");
    fs::rename(next, file).expect("the directory of a server is writable");
}

/// The file whose content shifts the clock, in the language of libfaketime.
fn file(home: &Path) -> PathBuf {
    home.join("clock")
}
