//! The leases that a command runs under: one, or one for each of several keys.

use std::{env, ffi::OsString, fmt, str::FromStr, time::Duration};

use futures_util::future::select_all;
use mongoseal::{
    FencingToken, Lease, LeaseId, LeaseState, LossCause,
    store::{Clock, Instant},
};

/// The deadline of leases without expiry: a time on the boot-time clock that is never reached.
const NEVER: Instant = Instant::at(Duration::from_secs(1 << 40));

/// The variables by which a command finds its leases. With several leases, the first three end with a number.
const KEY: &str = "MONGOSEAL_KEY";
const TOKEN: &str = "MONGOSEAL_TOKEN";
const LEASE_ID: &str = "MONGOSEAL_LEASE_ID";
const DEADLINE: &str = "MONGOSEAL_DEADLINE";
/// The variable by which a command of `once` finds its tick.
const TICK: &str = "MONGOSEAL_TICK";

/// Leases that are of use only together.
pub(crate) struct Leases<'a> {
    leases: Vec<&'a Lease>,
    /// The tick for which the lease is held, if it is that of a schedule.
    tick: Option<u64>,
}

impl fmt::Display for Leases<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.leases.iter().map(|lease| format!("{:?} with token {}", lease.key(), lease.token()));
        f.write_str(&texts.collect::<Vec<_>>().join(", "))
    }
}

impl<'a> Leases<'a> {
    pub(crate) fn of(leases: impl IntoIterator<Item = &'a Lease>, tick: Option<u64>) -> Self {
        Self { leases: leases.into_iter().collect(), tick }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().copied()
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.leases.iter().all(|lease| lease.is_valid())
    }

    /// Returns how long all leases last without a refresh.
    pub(crate) fn remaining(&self) -> Duration {
        self.leases.iter().map(|lease| lease.remaining()).min().unwrap_or_default()
    }

    /// Returns the first deadline of the leases on the boot-time clock, or slightly less.
    pub(crate) fn deadline(&self) -> Instant {
        let now = Clock::Boot.now();
        now.after(self.remaining()).min(NEVER)
    }

    /// Whether the leases are valid and no refresh extends their first deadline any more, because a maximum hold ends then.
    pub(crate) fn is_at_maximum(&self) -> bool {
        let remaining = self.remaining();
        !remaining.is_zero() && self.leases.iter().any(|lease| lease.remaining_hold() <= remaining)
    }

    /// Waits until one of the leases is lost.
    pub(crate) async fn cancelled(&self) {
        select_all(self.leases.iter().map(|lease| Box::pin(lease.cancelled()))).await;
    }

    /// Returns the lease that decides how the command ends, as a text, and its state: a lease that was lost before its
    /// deadline, otherwise one that has reached it, otherwise the first.
    pub(crate) fn decisive(&self) -> (String, LeaseState) {
        let rank = |state: &LeaseState| match state {
            LeaseState::Lost { cause } if is_end_of_time(cause) => 1,
            LeaseState::Lost { .. } => 0,
            _ => 2,
        };
        let states = self.leases.iter().map(|lease| (lease, lease.state()));
        let decisive = states.min_by_key(|(_, state)| rank(state));
        decisive.map_or_else(
            || (String::new(), LeaseState::Lost { cause: LossCause::Expired }),
            |(lease, state)| (format!("the lease on {:?} with token {}", lease.key(), lease.token()), state),
        )
    }

    /// Returns the variables of the command's environment.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let mut variables = Vec::new();
        for (at, lease) in self.leases.iter().enumerate() {
            let suffix = if self.leases.len() == 1 { String::new() } else { format!("_{}", at + 1) };
            variables.push((format!("{KEY}{suffix}"), lease.key().as_str().to_owned()));
            variables.push((format!("{TOKEN}{suffix}"), lease.token().to_string()));
            variables.push((format!("{LEASE_ID}{suffix}"), lease.id().expose()));
        }
        variables.extend(self.tick.map(|tick| (TICK.to_owned(), tick.to_string())));
        let deadline = self.deadline();
        if deadline < NEVER {
            variables.push((DEADLINE.into(), deadline.since_origin().as_millis().to_string()));
        }
        variables
    }
}

/// Whether the lease was held until its deadline, and no other lease was granted the key before. A command of
/// this program ends before that.
pub(crate) fn is_end_of_time(cause: &LossCause) -> bool {
    matches!(cause, LossCause::Expired | LossCause::HeldTooLong)
}

/// The leases under which this program itself was started, by its environment.
pub(crate) struct OuterLeases {
    variables: Vec<(String, OsString)>,
}

impl OuterLeases {
    pub(crate) fn of_environment() -> Self {
        let is_of_lease =
            |name: &str| [KEY, TOKEN, LEASE_ID, DEADLINE, TICK].iter().any(|base| suffix(name, base).is_some());
        let variables = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self { variables: variables.filter(|(name, _)| is_of_lease(name)).collect() }
    }

    /// Returns the names of the variables.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().map(|(name, _)| name.as_str())
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.names().any(|name| suffix(name, LEASE_ID).is_some())
    }

    /// Returns the tokens of the leases on this key.
    pub(crate) fn tokens(&self, key: &str) -> impl Iterator<Item = FencingToken> {
        self.suffixes(key).filter_map(|suffix| self.read(TOKEN, suffix))
    }

    /// Returns the id and the token of the lease on this key.
    pub(crate) fn lease(&self, key: &str) -> Option<(LeaseId, FencingToken)> {
        self.suffixes(key).find_map(|suffix| Some((self.read(LEASE_ID, suffix)?, self.read(TOKEN, suffix)?)))
    }

    /// Returns what follows the bases of the variables' names of the leases on this key.
    fn suffixes(&self, key: &str) -> impl Iterator<Item = &str> {
        let of_key = self.variables.iter().filter(move |(_, value)| value == key);
        of_key.filter_map(|(name, _)| suffix(name, KEY))
    }

    fn read<T: FromStr>(&self, base: &str, suffix: &str) -> Option<T> {
        let name = format!("{base}{suffix}");
        let (_, value) = self.variables.iter().find(|(other, _)| *other == name)?;
        value.to_str()?.parse().ok()
    }
}

/// Returns what follows the base of a variable's name: nothing, or `_` and a number.
fn suffix<'a>(name: &'a str, base: &str) -> Option<&'a str> {
    let suffix = name.strip_prefix(base)?;
    let is_number = || suffix.strip_prefix('_').is_some_and(|number| number.parse::<u32>().is_ok());
    (suffix.is_empty() || is_number()).then_some(suffix)
}
