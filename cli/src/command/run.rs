//! `mongoseal run`.

use mongoseal::{Lease, LeaseSet, Mongoseal, ReleaseOutcome};

use crate::{
    acquire::{self, Wait, with_terms},
    arguments::Run,
    connection::Connection,
    exit_status::{Failure, Status},
    job,
    job::guard::protocol::Times,
    job::signals::Signals,
    leases::{Leases, is_end_of_time},
};

pub(crate) async fn perform(connection: &Connection, options: Run) -> Result<Status, Failure> {
    let times = Times::of(&options.lease, &options.hold)?;
    let mut signals = Signals::terminating()?;
    let seal = acquire::open(connection, options.lease.owner.as_deref(), &mut signals).await?;
    let acquired = acquire::unless_signalled(&seal, &mut signals, acquire(&seal, &options)).await;
    let held = acquired.map_err(|failure| options.wait.status_of(failure))?;
    let leases = held.leases();
    let verdict = job::perform(&leases, times, &options.command, &mut signals).await;
    let remaining = leases.remaining();
    job::finish(&seal, &mut signals, remaining, held.release(), verdict).await
}

/// What the command runs under.
enum Held {
    One(Lease),
    Several(LeaseSet),
}

impl Held {
    fn leases(&self) -> Leases<'_> {
        match self {
            Self::One(lease) => lease.into(),
            Self::Several(set) => set.into(),
        }
    }

    /// Releases all leases. Returns the outcome of the first that was lost before its expiry.
    async fn release(self) -> mongoseal::Result<ReleaseOutcome> {
        let outcomes = match self {
            Self::One(lease) => return lease.release().await,
            Self::Several(set) => set.release().await?,
        };
        let is_taken = |outcome: &ReleaseOutcome| matches!(outcome, ReleaseOutcome::AlreadyLost { cause } if !is_end_of_time(cause));
        let taken = outcomes.into_iter().map(|(_, outcome)| outcome).find(is_taken);
        Ok(taken.unwrap_or(ReleaseOutcome::Released))
    }
}

/// Sets the options that both builders have.
macro_rules! with_options {
    ($acquire:expr, $options:expr) => {{
        let options: &Run = $options;
        let mut acquire = with_terms!($acquire, &options.terms);
        if let Some(time) = options.hold.min_hold {
            acquire = acquire.min_hold(time);
        }
        if let Some(time) = options.hold.max_hold {
            acquire = acquire.max_hold(time);
        }
        if options.without_expiry { acquire.without_expiry() } else { acquire.ttl(options.lease.ttl) }
    }};
}

async fn acquire(seal: &Mongoseal, options: &Run) -> mongoseal::Result<Held> {
    let wait = Wait::new(seal, &options.keys, &options.wait);
    let held = match options.keys.as_slice() {
        [key] => {
            let attempt = |wait| with_options!(seal.acquire(key), options).wait(wait).into_future();
            Held::One(wait.acquire(attempt).await?)
        }
        keys => {
            let attempt = |wait| with_options!(seal.acquire_all(keys), options).wait(wait).into_future();
            Held::Several(wait.acquire(attempt).await?)
        }
    };
    wait.report_grant(&held.leases());
    Ok(held)
}
