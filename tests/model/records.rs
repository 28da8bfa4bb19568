//! The library's records, with the numbers of a model in them.

use mongoseal::{
    FencingToken,
    record::{LeaseSpec, StoreClock, StoreTime},
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

pub(crate) fn store_clock(now: Time, (second, ordinal): Hybrid) -> StoreClock {
    let seconds = ORIGIN.checked_add_signed(second.into()).unwrap();
    StoreClock { now: store_time(now), hlc: HybridTime { seconds, ordinal: ordinal.into() } }
}

pub(crate) fn store_token(token: impl Into<u64>) -> FencingToken {
    FencingToken::new(token.into()).unwrap()
}

pub(crate) fn model_token<T: TryFrom<u64, Error: std::fmt::Debug>>(token: FencingToken) -> T {
    T::try_from(token.get()).unwrap()
}

/// The number of a lease, also of one that was released.
pub(crate) fn number_of(terms: &LeaseSpec) -> u8 {
    terms.owner.as_str().parse().unwrap()
}
