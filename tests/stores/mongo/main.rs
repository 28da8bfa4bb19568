//! The library on a real replica set without faults.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]

mod bad_input;
mod batch;
mod clocks;
mod commands;
mod concerns;
mod crowd;
mod downgrade;
mod errors;
mod features;
mod foreign_schedules;
mod formats;
mod groups;
mod index;
mod inspect;
mod lease;
mod now;
mod observer;
mod once;
mod privileges;
mod purge;
mod raise;
mod refused;
mod repeated_acquires;
mod runtimes;
mod secrets;
mod siblings;
mod tls;
mod tokens;
mod upgrade;
mod value;
mod waiting;
mod watch;
mod watch_prefix;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongoseal::{
    Builder, HandleEvent, LeaseId, Metadata, Mongoseal, Sharing,
    record::{HoldLimits, LeaseSpec},
};
use mongoseal_test_support::{Sent, TestDatabase, by_length, eventually, millis, noting_client, secs};

/// An exclusive lease of the owner "me", with this ttl in milliseconds.
pub(crate) fn terms(lease: LeaseId, ttl: u64) -> LeaseSpec {
    LeaseSpec {
        lease,
        acquire_id: "0123456789abcdef/1".parse().unwrap(),
        owner: "me".parse().unwrap(),
        sharing: Sharing::Exclusive,
        ttl,
        grace: 0,
        group: None,
        metadata: Metadata::default(),
        hold: HoldLimits::default(),
    }
}

/// The default grace of a lease with a ttl of 5 seconds or more.
const GRACE: Duration = millis(500);

/// How many streams of grants and revocations were opened by handles that it observes.
#[derive(Clone, Default)]
struct OpenedStreams(Arc<AtomicUsize>);

impl OpenedStreams {
    fn builder(&self) -> Builder {
        let opened = Arc::clone(&self.0);
        Mongoseal::builder().observer(Arc::new(move |event: &HandleEvent<'_>| {
            if matches!(event, HandleEvent::StreamOpened) {
                opened.fetch_add(1, Ordering::Relaxed);
            }
        }))
    }

    /// Waits until this many were opened.
    async fn wait_for(&self, count: usize) {
        eventually(secs(30), "the streams are open", async || self.0.load(Ordering::Relaxed) == count).await;
    }
}
