//! Invariant I3 in MongoDB: documents that are written with a fence, or in transactions under a lease.

use std::collections::BTreeMap;

use super::{Case, Violation};
use crate::words::Entry;

impl Case<'_> {
    /// Each write that was acknowledged counted one more than those before and left its token there; no
    /// older one came after a newer one, whether it was acknowledged or not; and none is gone.
    pub(super) fn documents_keep_their_writes(&self, found: &mut Vec<Violation>) {
        let mut documents: BTreeMap<&str, Vec<(i64, u64, &Entry)>> = BTreeMap::new();
        for entry in &self.entries {
            if let Some((count, token)) = entry.before {
                documents.entry(&entry.key).or_default().push((count, token, entry));
            }
        }
        for (key, mut entries) in documents {
            entries.sort_by_key(|(count, _, entry)| (*count, entry.token.is_none()));
            let mut begun = 0;
            for pair in entries.windows(2) {
                let ((count, before, entry), (next_count, next_before, next)) = (pair[0], pair[1]);
                let left = entry.token.unwrap_or(before);
                begun = entry.begin.max(begun);
                let what = if entry.token.is_some() && count == next_count {
                    "one was lost"
                } else if next_before < left || next.token.is_some_and(|token| token < next_before) {
                    "an older token came after a newer one"
                } else if next.end < begun {
                    "one that was acknowledged is gone"
                } else {
                    continue;
                };
                let what = format!("{key}: {what}: {entry:?}, {next:?}");
                found.push(Violation { of: "I3", what });
            }
        }
    }
}
