//! Judges the records of a store: whether the library can read all of them.

use std::fmt;

use mongoseal::Error;

use super::Finding;
use crate::command::driver::Scan;

const RECORDS: &str = "records";
/// The largest number of records that are checked.
pub(super) const MAX: usize = 100_000;
/// The largest number of ids in a finding.
const MAX_IDS: usize = 3;

/// What the library cannot read as a record, with its id.
pub(super) enum Unreadable {
    Foreign(String),
    Newer(String),
}

impl Unreadable {
    /// Returns it if the library's check has failed.
    pub(super) fn of(checked: mongoseal::Result<()>, id: impl FnOnce() -> String) -> Option<Self> {
        match checked {
            Ok(()) => None,
            Err(Error::Invalid { .. }) => Some(Self::Newer(id())),
            Err(_not_a_record) => Some(Self::Foreign(id())),
        }
    }
}

/// Reports that the records could not be read.
pub(super) fn unread(refusal: &impl fmt::Display, advice: &str) -> Finding {
    Finding::warn(RECORDS, format!("cannot read them ({refusal})"), advice)
}

/// Judges a scan. `noun`: the name of a record at the store. `remedy`: what to do with what is no record.
pub(super) fn judged(scan: &Scan<Unreadable>, noun: &str, remedy: &str) -> Finding {
    let (mut foreign, mut newer) = (Vec::new(), Vec::new());
    for unreadable in &scan.found {
        match unreadable {
            Unreadable::Foreign(id) => foreign.push(id.as_str()),
            Unreadable::Newer(id) => newer.push(id.as_str()),
        }
    }
    let checked = match (scan.has_more, scan.count) {
        (true, count) => format!("the first {count} {noun}s"),
        (false, 1) => format!("1 {noun}"),
        (false, count) => format!("{count} {noun}s"),
    };
    if !foreign.is_empty() {
        return Finding::warn(
            RECORDS,
            format!(
                "{} of {checked} cannot be read as lease records ({}), so requests for these keys fail",
                foreign.len(),
                first_ids(&foreign)
            ),
            remedy,
        );
    }
    if !newer.is_empty() {
        return Finding::warn(
            RECORDS,
            format!("a newer mongoseal wrote {} of {checked} ({})", newer.len(), first_ids(&newer)),
            "upgrade this mongoseal",
        );
    }
    Finding::pass(RECORDS, format!("{checked} checked, all can be read"))
}

/// Lists the first ids, and the number of others.
fn first_ids(ids: &[&str]) -> String {
    let named = ids.iter().take(MAX_IDS).copied().collect::<Vec<_>>().join(", ");
    match ids.len().saturating_sub(MAX_IDS) {
        0 => named,
        others => format!("{named} and {others} more"),
    }
}
