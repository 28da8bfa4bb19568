//! What a change of the primary of Redis may lose, and what is counted instead of judged.
//!
//! A failover or a second primary excuses what a deletion by hand excuses, and reads of the old state. Tokens still grow, unless
//! the clocks differ by more than the bound of the change.
//!
//! The bound of a `failover` is the time from the loss of the old primary to the promotion, as the runner measures it: at least a
//! second. That of a `split-brain` is 0, because two primaries issue tokens at the same time. That of a `promote` is the
//! retention, because only the records that were idle for so long are gone. It is no more than the time since the last `drop`.

use super::{Case, Lease, Violation};
use crate::{
    faults::Kind,
    words::{Fault, Micros},
};

impl Case<'_> {
    /// Finds the faults that excuse something.
    pub(super) fn find_losses(&mut self) {
        let bounded = |fault: &&&Fault| fault.bound.is_some();
        for fault in self.faults.iter().filter(bounded) {
            if fault.kind != Kind::Promote {
                self.losses.push((fault.begin, fault.end));
            }
            if self.spread > self.bound(fault) {
                self.disorders.push((fault.begin, fault.end));
            }
        }
    }

    /// Up to which difference of clocks tokens grow over a change of the primary. An orderly one does not carry over the token
    /// of a record that was deleted by hand just before.
    fn bound(&self, fault: &Fault) -> Micros {
        let is_before = |drop: &&(Micros, Micros)| fault.kind == Kind::Promote && drop.0 <= fault.end;
        let since = self.drops.iter().filter(is_before).map(|(_, end)| fault.begin.saturating_sub(*end));
        since.chain(fault.bound).min().unwrap_or_default()
    }

    /// Whether confirmed writes may have been lost at some time in between.
    pub(super) fn was_lost(&self, from: Micros, to: Micros) -> bool {
        self.losses.iter().any(|(begin, end)| *begin <= to && *end >= from)
    }

    /// Whether the token of the later lease may be no larger than that of the earlier one. The clock of the new primary has
    /// passed that of the old one after the time by which they differ.
    pub(super) fn are_disordered(&self, before: &Lease<'_>, after: &Lease<'_>) -> bool {
        self.disorders.iter().any(|(begin, end)| {
            before.acquire.begin <= *end && *begin <= after.acquire.end && after.acquire.begin <= end + self.spread
        })
    }

    /// Tells how often what is not promised occurred, whether it is excused or not.
    pub(crate) fn figures(&self) -> String {
        let mut strict = Case::of(self.events);
        (strict.losses, strict.disorders) = (Vec::new(), Vec::new());
        let count = |judge: fn(&Self, &mut Vec<Violation>)| {
            let mut found = Vec::new();
            judge(&strict, &mut found);
            found.len()
        };
        let (repeated, disordered) = (count(Self::tokens_are_unique), count(Self::tokens_grow));
        let (overlaps, lost) = (strict.overlaps(), count(Self::losses_have_causes));
        let longest = overlaps.iter().map(|(length, _)| *length).max().unwrap_or(0) / 1_000;
        let (overlaps, losses, disorders) = (overlaps.len(), self.losses.len(), self.disorders.len());
        let lines = [
            format!("repeated     {repeated} tokens, and {disordered} out of order"),
            format!("overlaps     {overlaps}, the longest of {longest} ms"),
            format!("lost early   {lost} leases"),
            format!("excused by   {losses} changes of the primary that may lose writes, and tokens by {disorders}"),
        ];
        lines.join("\n")
    }
}
