//! Fencing tokens.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::types::{parse_error::ParseError, string_newtype::decimal};

/// A number that is larger for each later holder of a key, for ever.
///
/// Send it with each write to the storage that the lease protects. The storage must refuse a token smaller than the
/// largest that it has seen. That, and not the lease, stops a holder that was paused past its deadline and does not
/// know it.
///
/// A token is at least 1 and below 2^53, so it survives JSON, JavaScript and Lua, where numbers are doubles. It has the
/// seconds since 2020 and a count within the second, from the store's hybrid logical clock. So tokens grow even if the
/// record of a key was deleted or restored from a backup. Tokens of one key are not consecutive. Tokens of different
/// keys cannot be compared.
///
/// ```
/// use mongoseal::FencingToken;
///
/// let older: FencingToken = "226650000000".parse()?;
/// let newer = FencingToken::new(226_650_000_001)?;
/// assert!(newer > older);
/// assert_eq!(older.sortable(), "0000226650000000"); // sorts as text, too
/// # Ok::<(), mongoseal::Error>(())
/// ```
// Signed, because BSON has no unsigned integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct FencingToken(u64);

impl FencingToken {
    /// The smallest token.
    pub const MIN: Self = Self(1);
    /// The largest token, 2^53 - 1.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// The token with this number, which must be from 1 to 2^53 - 1.
    pub fn new(number: u64) -> Result<Self, ParseError> {
        if (Self::MIN.0..=Self::MAX.0).contains(&number) {
            Ok(Self(number))
        } else {
            Err(ParseError(format!(
                "a fencing token is a number from 1 to 2^53 - 1 and {number} is not: pass the token of a lease"
            )))
        }
    }

    /// The token as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The token as sixteen digits, for names and headers. Their order as text is that of the numbers.
    #[must_use]
    pub fn sortable(self) -> String {
        format!("{:016}", self.0)
    }

    /// The token of this time of the store's hybrid clock: the seconds since the Unix epoch, and the count within the second.
    /// On MongoDB these are the parts of `$clusterTime`.
    #[must_use]
    pub fn at_clock(seconds: u64, ordinal: u64) -> Self {
        Self::following(None, HybridTime { seconds, ordinal }, 0)
    }

    /// The time for which the token stands, in seconds since the Unix epoch. It is the second in which the token was issued,
    /// unless the key has issued more tokens than the clock.
    #[must_use]
    pub fn clock_seconds(self) -> u64 {
        HybridTime::from(self).seconds
    }

    /// The token after `last` at the time `hlc` of the store's hybrid clock, if this many `others` wait for the key. It is the
    /// larger of `last + 1` and the clock's number less the number of others.
    ///
    /// One write may grant the key to many waiters. It moves the clock on by one, and tokens by many. But each of these
    /// waiters moved the clock on when it was queued. With these in reserve no token is ever ahead of the clock, so the
    /// next token is larger even if the record was deleted. Waiters of the write itself have not moved the clock on
    /// yet, so they do not count as others. (If an older copy with waiters was put back, the next token is larger from
    /// the clock's next second on.)
    #[must_use]
    pub fn following(last: Option<Self>, hlc: HybridTime, others: usize) -> Self {
        let next = last.map_or(Self::MIN.0, |last| last.0.saturating_add(1));
        let by_clock = hlc.number().saturating_sub(u64::try_from(others).unwrap_or(u64::MAX));
        Self(next.max(by_clock).clamp(Self::MIN.0, Self::MAX.0))
    }
}

/// A reading of a store's hybrid logical clock: seconds since the Unix epoch and a count within the second. It never
/// goes back, and each write moves it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HybridTime {
    /// Seconds since the Unix epoch.
    pub seconds: u64,
    /// The count within the second.
    pub ordinal: u64,
}

impl HybridTime {
    /// The second zero of tokens: 2020-01-01T00:00:00Z.
    pub const EPOCH_SECONDS: u64 = 1_577_836_800;
    /// How many bits of a token are the count within the second.
    pub const ORDINAL_BITS: u32 = 20;
    /// The largest count within a second that a token can have.
    pub const MAX_ORDINAL: u64 = (1 << Self::ORDINAL_BITS) - 1;

    /// The two halves have no bit in common, so `^` for `|` would mean the same.
    fn number(self) -> u64 {
        let seconds = self.seconds.saturating_sub(Self::EPOCH_SECONDS);
        seconds.saturating_mul(1 << Self::ORDINAL_BITS) | self.ordinal.min(Self::MAX_ORDINAL)
    }
}

/// The reading of the hybrid clock that a token stands for, if the clock numbered it.
impl From<FencingToken> for HybridTime {
    fn from(token: FencingToken) -> Self {
        let seconds = Self::EPOCH_SECONDS.saturating_add(token.0 >> Self::ORDINAL_BITS);
        Self { seconds, ordinal: token.0 & Self::MAX_ORDINAL }
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        // Never saturates: a token is below 2^53.
        i64::try_from(token.0).unwrap_or(i64::MAX)
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = ParseError;

    fn try_from(number: i64) -> Result<Self, ParseError> {
        Self::new(u64::try_from(number).unwrap_or(0))
    }
}

impl FromStr for FencingToken {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let number = decimal(text).ok_or_else(|| {
            ParseError("a fencing token has decimal digits only and is below 2^53: pass the token of a lease".into())
        })?;
        Self::new(number)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_number_from_1_to_2_pow_53_less_1() {
        assert!(FencingToken::new(0).is_err());
        assert!(FencingToken::new(1 << 53).is_err());
        assert!(FencingToken::try_from(-1_i64).is_err());
        assert_eq!(FencingToken::new((1 << 53) - 1).unwrap(), FencingToken::MAX);
        for text in ["", "-1", "+5", " 5", "5 ", "0", "1.5", "x", "9007199254740992"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_is_written_in_decimal_digits_and_is_that_number() {
        let token: FencingToken = "42".parse().unwrap();
        assert_eq!((token.to_string(), format!("{token:?}")), ("42".into(), "FencingToken(42)".into()));
        assert_eq!((token.get(), i64::from(token)), (42, 42));
    }

    #[test]
    fn the_sortable_form_sorts_and_parses() {
        let tokens = [1, 9, 10, 99, 1 << 40, (1 << 53) - 1].map(|n| FencingToken::new(n).unwrap());
        let mut forms = tokens.map(FencingToken::sortable);
        forms.sort();
        assert_eq!(forms.map(|form| form.parse::<FencingToken>().unwrap()), tokens);
    }

    #[test]
    fn a_token_is_a_number_in_json_and_a_bad_one_is_refused() {
        let token = FencingToken::new(42).unwrap();
        assert_eq!(serde_json::to_string(&token).unwrap(), "42");
        assert_eq!(serde_json::from_str::<FencingToken>("42").unwrap(), token);
        for text in ["0", "-1", "9007199254740992", "\"42\""] {
            assert!(serde_json::from_str::<FencingToken>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_following_token_is_the_larger_of_the_next_and_the_clock() {
        let hlc = HybridTime { seconds: HybridTime::EPOCH_SECONDS + 5, ordinal: 7 };
        let by_clock = FencingToken::new((5 << 20) | 7).unwrap();
        assert_eq!(FencingToken::following(None, hlc, 0), by_clock);
        assert_eq!(FencingToken::following(Some(FencingToken::MIN), hlc, 0), by_clock);
        assert_eq!(FencingToken::following(Some(FencingToken::MIN), hlc, 3).get(), by_clock.get() - 3);
        assert_eq!(FencingToken::following(Some(by_clock), hlc, 3).get(), by_clock.get() + 1);
    }

    #[test]
    fn a_token_stands_for_the_reading_of_the_clock_that_numbered_it() {
        for hlc in [(0, 1), (5, 7), (220_000_000, HybridTime::MAX_ORDINAL)] {
            let hlc = HybridTime { seconds: HybridTime::EPOCH_SECONDS + hlc.0, ordinal: hlc.1 };
            let token = FencingToken::following(None, hlc, 0);
            assert_eq!((HybridTime::from(token), token.clock_seconds()), (hlc, hlc.seconds));
        }
    }

    #[test]
    fn a_count_too_large_for_a_token_does_not_reach_into_the_seconds() {
        let hlc = HybridTime { seconds: HybridTime::EPOCH_SECONDS, ordinal: u64::MAX };
        assert_eq!(FencingToken::following(None, hlc, 0).get(), (1 << 20) - 1);
        let before_2020 = HybridTime { seconds: 0, ordinal: 0 };
        assert_eq!(FencingToken::following(None, before_2020, 1), FencingToken::MIN);
        let never = HybridTime { seconds: u64::MAX, ordinal: 0 };
        assert_eq!(FencingToken::following(None, never, 0), FencingToken::MAX);
    }
}
