//! The library's records, with the numbers of a model in them.

use mongoseal::{
    FencingToken, LeaseId, Metadata, Sharing,
    record::{HoldLimits, Holder, LeaseSpec, Record, StoreClock, StoreTime, Waiter},
    store::HybridTime,
};

use crate::state::{Hybrid, Time};

/// A tick is a second.
const MILLIS: i64 = 1_000;
/// Where the model's time begins, so that a clock can go back from there.
const ORIGIN: u64 = HybridTime::EPOCH_SECONDS + 64;

pub(crate) fn store_time(time: Time) -> StoreTime {
    StoreTime::from_millis((i64::try_from(ORIGIN).unwrap() + i64::from(time)) * MILLIS)
}

pub(crate) fn model_time(time: StoreTime) -> Time {
    Time::try_from(time.millis() / MILLIS - i64::try_from(ORIGIN).unwrap()).unwrap()
}

pub(crate) fn millis(time: Time) -> u64 {
    u64::try_from(i64::from(time) * MILLIS).unwrap()
}

pub(crate) fn clock(now: Time, hlc: Hybrid) -> StoreClock {
    let seconds = ORIGIN.checked_add_signed(hlc.0.into()).unwrap();
    StoreClock { now: store_time(now), hlc: HybridTime { seconds, ordinal: hlc.1.into() } }
}

pub(crate) fn store_token(token: impl Into<u64>) -> FencingToken {
    FencingToken::new(token.into()).unwrap()
}

pub(crate) fn model_token<T: TryFrom<u64, Error: std::fmt::Debug>>(token: FencingToken) -> T {
    T::try_from(token.get()).unwrap()
}

/// What the acquire of an exclusive lease with this number asks for. Its lease id is not that of a released entry.
pub(crate) fn spec(number: u8, ttl: Time, grace: Time) -> LeaseSpec {
    LeaseSpec {
        lease: LeaseId::from_bytes([number + 1; 16]),
        acquire_id: format!("{:016x}/{number}", 7).parse().unwrap(),
        owner: format!("{number}").parse().unwrap(),
        sharing: Sharing::Exclusive,
        ttl: millis(ttl),
        grace: millis(grace),
        group: None,
        metadata: Metadata::default(),
        hold: HoldLimits::default(),
    }
}

/// The number of a lease, also of one that was released.
pub(crate) fn number_of(terms: &LeaseSpec) -> u8 {
    terms.owner.as_str().parse().unwrap()
}

pub(crate) fn holder(terms: LeaseSpec, version: FencingToken, expires_at: Time) -> Holder {
    Holder {
        terms,
        version,
        refreshes: 0,
        since: StoreTime::default(),
        last_seen: StoreTime::default(),
        expires_at: store_time(expires_at),
        not_after: None,
        released_at: None,
    }
}

/// A waiter until this time, whose requests all ask for the same ttl.
pub(crate) fn waiter(terms: LeaseSpec, ttl: Time, until: Time) -> Waiter {
    Waiter {
        terms,
        wait_ttl: millis(ttl),
        refreshes: 0,
        since: StoreTime::default(),
        last_seen: store_time(until - ttl),
        expires_at: store_time(until),
    }
}

/// A record without a holder.
pub(crate) fn record(version: FencingToken) -> Record {
    Record {
        version,
        holders: Vec::new(),
        queue: Vec::new(),
        handover: Vec::new(),
        last_seen: StoreTime::default(),
        expires_at: StoreTime::default(),
        history: Vec::new(),
        value: None,
        done: None,
        runs: Vec::new(),
    }
}
