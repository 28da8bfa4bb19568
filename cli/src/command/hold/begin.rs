//! Begins leases, by the options of a request.

use std::{future::IntoFuture, time::Duration};

use mongoseal::{
    BeginOutcome, Lease, Mongoseal, ReleaseOutcome, Skipped, Tick, TickLease, election::Leader, inspect::StoreTime,
};

use super::{
    refusal::Refusal,
    request::{Acquire, BeginLease, Campaign, Millis, Once},
};

/// What is held.
pub(super) enum Held {
    Lease(Lease),
    Tick(TickLease),
    Leader(Leader),
}

impl Held {
    pub(super) fn lease(&self) -> &Lease {
        match self {
            Self::Lease(lease) => lease,
            Self::Tick(tick) => tick.lease(),
            Self::Leader(leader) => leader.lease(),
        }
    }

    /// The number of its tick.
    pub(super) fn tick(&self) -> Option<u64> {
        if let Self::Tick(tick) = self { Some(tick.number()) } else { None }
    }

    pub(super) async fn release(self) -> mongoseal::Result<ReleaseOutcome> {
        match self {
            Self::Lease(lease) => lease.release().await,
            Self::Tick(tick) => tick.release().await,
            Self::Leader(leader) => leader.resign().await,
        }
    }
}

/// How a request for a lease ended.
pub(super) enum Begun {
    Held(Box<Held>),
    /// The tick, or a later one, is done.
    Done {
        outcome: &'static str,
        tick: u64,
        by: String,
        at: StoreTime,
    },
}

/// Sets the options that a request has.
macro_rules! with {
    ($builder:expr, $($option:ident: $value:expr),+ $(,)?) => {{
        let mut builder = $builder;
        $(
            if let Some(value) = $value {
                builder = builder.$option(value);
            }
        )+
        builder
    }};
}

impl BeginLease {
    /// Begins it. Calls `on_queued` with the number of waiters ahead, if it is queued.
    pub(super) async fn begin(
        self,
        seal: Mongoseal,
        on_queued: impl Fn(usize) + Send + Sync + 'static,
    ) -> Result<Begun, Refusal> {
        match self {
            Self::Acquire(options) => acquire(&seal, options, on_queued).await,
            Self::Once(options) => once(&seal, options, on_queued).await,
            Self::Campaign(options) => campaign(&seal, options, on_queued).await,
        }
    }
}

async fn acquire(
    seal: &Mongoseal,
    options: Acquire,
    on_queued: impl Fn(usize) + Send + Sync + 'static,
) -> Result<Begun, Refusal> {
    let Acquire { key, shared, without_expiry, group, metadata, .. } = options;
    let mut acquire = with!(
        seal.acquire(key).wait(options.wait_ms.map_or(Duration::MAX, Millis::duration)).on_queued(on_queued),
        ttl: options.ttl_ms.map(Millis::duration),
        grace: options.grace_ms.map(Millis::duration),
        shared_up_to: shared,
        min_hold: options.min_hold_ms.map(Millis::duration),
        max_hold: options.max_hold_ms.map(Millis::duration),
        stalled_after: options.stalled_after_ms.map(Millis::duration),
        group: group,
    );
    if without_expiry {
        acquire = acquire.without_expiry();
    }
    for (name, text) in metadata {
        acquire = acquire.metadata(name, text);
    }
    Ok(Begun::Held(Box::new(Held::Lease(acquire.into_future().await?))))
}

async fn once(
    seal: &Mongoseal,
    options: Once,
    on_queued: impl Fn(usize) + Send + Sync + 'static,
) -> Result<Begun, Refusal> {
    let Once { key, tick, metadata, .. } = options;
    let (every, period) = (options.every_ms.map(Millis::duration), options.period_ms.map(Millis::duration));
    let wanted = match (every, tick, period) {
        (Some(every), ..) => Tick::of(every),
        (None, Some(millis), Some(period)) => Tick::at_millis(millis).period(period),
        (None, number, _) => Tick::number(number.unwrap_or_default()),
    };
    // The answer names the tick, and a schedule that goes on meanwhile does not change it.
    let number = wanted.number_at(seal.now().await?)?;
    let tick = every.map_or(wanted, |every| Tick::at_millis(number).period(every));
    let mut once = with!(
        seal.once(key, tick).wait(options.wait_ms.map_or(Duration::MAX, Millis::duration)).on_queued(on_queued),
        ttl: options.ttl_ms.map(Millis::duration),
        grace: options.grace_ms.map(Millis::duration),
        min_hold: options.min_hold_ms.map(Millis::duration),
        max_hold: options.max_hold_ms.map(Millis::duration),
        stalled_after: options.stalled_after_ms.map(Millis::duration),
        keep_for: options.keep_for_ms.map(Millis::duration),
    );
    for (name, text) in metadata {
        once = once.metadata(name, text);
    }
    let why = match once.begin().await? {
        BeginOutcome::Started(lease) => return Ok(Begun::Held(Box::new(Held::Tick(lease)))),
        BeginOutcome::Skipped(why) => why,
    };
    match why {
        Skipped::Superseded { tick, by, at } => Ok(Begun::Done { outcome: "superseded", tick, by, at }),
        Skipped::AlreadyDone { by, at } => Ok(Begun::Done { outcome: "already_done", tick: number, by, at }),
        Skipped::Busy { owner } => {
            Err(Refusal::new("held", format!("{owner:?} keeps the key: retry later, or wait longer")))
        }
        other => Err(Refusal::new("invalid", format!("the tick is not run: {other}"))),
    }
}

async fn campaign(
    seal: &Mongoseal,
    options: Campaign,
    on_queued: impl Fn(usize) + Send + Sync + 'static,
) -> Result<Begun, Refusal> {
    let Campaign { name, value, ttl_ms, wait_ms } = options;
    let wait = wait_ms.map_or(Duration::MAX, Millis::duration);
    let campaign =
        with!(seal.campaign(name).value(value).wait(wait).on_queued(on_queued), ttl: ttl_ms.map(Millis::duration));
    Ok(Begun::Held(Box::new(Held::Leader(campaign.into_future().await?))))
}
