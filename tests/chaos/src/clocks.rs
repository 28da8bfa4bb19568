//! The wall clocks of the servers, which may differ.

use std::time::Duration;

use fastrand::Rng;
use mongoseal_test_support::find_libfaketime;

use crate::{options::Options, servers::MEMBERS, worker::SMALLEST_GRACE};

/// How the wall clocks of the servers are set.
pub(crate) struct Clocks {
    /// By how much the clock of each server is ahead. `None`: they agree.
    pub(crate) offsets: Option<[Duration; MEMBERS]>,
}

impl Clocks {
    /// As the options want it. Says so if that is not possible.
    pub(crate) fn of(options: &Options) -> Self {
        let wanted = options.clock_offsets || options.clock_offset.is_some();
        let offsets = (wanted && clocks_can_differ()).then(|| offsets(options));
        if let Some(offsets) = offsets {
            println!("clocks       ahead by {offsets:?}");
        }
        Self { offsets }
    }

    /// By how much they differ at most.
    pub(crate) fn spread(&self) -> Duration {
        self.offsets.into_iter().flatten().max().unwrap_or_default()
    }

    /// The smallest grace of a lease: as much as clocks differ, if that is little.
    pub(crate) fn least_grace(&self) -> Duration {
        let spread = self.spread();
        if spread.is_zero() || spread > SMALLEST_GRACE { Duration::ZERO } else { SMALLEST_GRACE }
    }

    /// The clock of a server, in the language of libfaketime.
    pub(crate) fn shift(&self, server: usize) -> String {
        format!("+{}", self.offsets.map_or(0.0, |offsets| offsets[server].as_secs_f64()))
    }
}

/// Whether there is a libfaketime. Says so if there is none.
fn clocks_can_differ() -> bool {
    let found = find_libfaketime();
    if let Err(error) = &found {
        println!("clocks       do not differ: {error}");
    }
    found.is_ok()
}

/// By how much the clock of each server is ahead: one not at all, one by the most, and one by either. If the most is given, it
/// is the first primary that is ahead, and no other.
fn offsets(options: &Options) -> [Duration; MEMBERS] {
    if let Some(most) = options.clock_offset {
        return [Duration::from_secs_f64(most), Duration::ZERO, Duration::ZERO];
    }
    let mut rng = Rng::with_seed(options.seed);
    let most = SMALLEST_GRACE.mul_f64(rng.f64().mul_add(0.25, 0.75));
    let mut offsets = [Duration::ZERO, if rng.bool() { Duration::ZERO } else { most }, most];
    rng.shuffle(&mut offsets);
    offsets
}
