//! The leases that a command runs under: one, or one for each of several keys.

use std::{env, ffi::OsString, fmt, future::poll_fn, task::Poll, time::Duration};

use mongoseal::{Clock, FencingToken, Lease, LeaseSet, LeaseState, LossCause};

/// The deadline of leases without expiry: a time on the boot-time clock that is never reached.
const NEVER: Duration = Duration::from_secs(1 << 40);

/// The variables by which a command finds its leases. With several leases, the first three end with a number.
const KEY: &str = "MONGOSEAL_KEY";
const TOKEN: &str = "MONGOSEAL_TOKEN";
const LEASE_ID: &str = "MONGOSEAL_LEASE_ID";
const DEADLINE: &str = "MONGOSEAL_DEADLINE";

/// Leases that are of use only together.
pub(crate) struct Leases<'a>(Vec<&'a Lease>);

impl<'a> From<&'a Lease> for Leases<'a> {
    fn from(lease: &'a Lease) -> Self {
        Self(vec![lease])
    }
}

impl<'a> From<&'a LeaseSet> for Leases<'a> {
    fn from(set: &'a LeaseSet) -> Self {
        Self(set.iter().collect())
    }
}

impl fmt::Display for Leases<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.0.iter().map(|lease| format!("{:?} with token {}", lease.key(), lease.token()));
        f.write_str(&texts.collect::<Vec<_>>().join(", "))
    }
}

impl Leases<'_> {
    pub(crate) fn is_valid(&self) -> bool {
        self.0.iter().all(|lease| lease.is_valid())
    }

    /// Returns how long all leases last without a refresh.
    pub(crate) fn remaining(&self) -> Duration {
        self.0.iter().map(|lease| lease.remaining()).min().unwrap_or_default()
    }

    /// Returns the first deadline of the leases on the boot-time clock, or slightly less.
    pub(crate) fn deadline(&self) -> Duration {
        let now = Clock::Boot.now();
        now.saturating_add(self.remaining()).min(NEVER)
    }

    /// Waits until one of the leases is lost.
    pub(crate) async fn cancelled(&self) {
        let mut tokens: Vec<_> = self.0.iter().map(|lease| Box::pin(lease.cancelled())).collect();
        poll_fn(|context| {
            let is_lost = tokens.iter_mut().any(|lost| lost.as_mut().poll(context).is_ready());
            if is_lost { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns the lease that decides how the command ends, as a text, and its state: a lease that was lost before its
    /// expiry, otherwise one that has expired, otherwise the first.
    pub(crate) fn decisive(&self) -> (String, LeaseState) {
        let rank = |state: &LeaseState| match state {
            LeaseState::Lost { cause: LossCause::Expired } => 1,
            LeaseState::Lost { .. } => 0,
            _ => 2,
        };
        let states = self.0.iter().map(|lease| (lease, lease.state()));
        let decisive = states.min_by_key(|(_, state)| rank(state));
        decisive.map_or_else(
            || (String::new(), LeaseState::Lost { cause: LossCause::Expired }),
            |(lease, state)| (format!("the lease on {:?} with token {}", lease.key(), lease.token()), state),
        )
    }

    /// Returns the variables of the command's environment.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let mut variables = Vec::new();
        for (at, lease) in self.0.iter().enumerate() {
            let suffix = if self.0.len() == 1 { String::new() } else { format!("_{}", at + 1) };
            variables.push((format!("{KEY}{suffix}"), lease.key().as_str().to_owned()));
            variables.push((format!("{TOKEN}{suffix}"), lease.token().to_string()));
            variables.push((format!("{LEASE_ID}{suffix}"), lease.id().expose()));
        }
        let deadline = self.deadline();
        if deadline < NEVER {
            variables.push((DEADLINE.into(), deadline.as_millis().to_string()));
        }
        variables
    }
}

/// The leases under which this program itself was started, by its environment.
pub(crate) struct OuterLeases {
    variables: Vec<(String, OsString)>,
}

impl OuterLeases {
    pub(crate) fn of_environment() -> Self {
        let is_of_lease = |name: &str| [KEY, TOKEN, LEASE_ID, DEADLINE].iter().any(|base| suffix(name, base).is_some());
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
        let of_key = self.variables.iter().filter(move |(_, value)| value == key);
        let suffixes = of_key.filter_map(|(name, _)| suffix(name, KEY));
        suffixes.filter_map(|suffix| {
            let name = format!("{TOKEN}{suffix}");
            let (_, token) = self.variables.iter().find(|(other, _)| *other == name)?;
            token.to_str()?.parse().ok()
        })
    }
}

/// Returns what follows the base of a variable's name: nothing, or `_` and a number.
fn suffix<'a>(name: &'a str, base: &str) -> Option<&'a str> {
    let suffix = name.strip_prefix(base)?;
    let is_number = || suffix.strip_prefix('_').is_some_and(|number| number.parse::<u32>().is_ok());
    (suffix.is_empty() || is_number()).then_some(suffix)
}
