//! The check at the storage being written: what makes a lease safe.
//!
//! | the storage is | the check is |
//! |---|---|
//! | documents that nobody writes but holders | a collection that is fenced, [`Fence::fenced`] |
//! | anything in the same MongoDB | a transaction that is fenced, [`Lease::transaction`](crate::Lease::transaction) |
//! | a service of yours | a [`FenceGate`] in it |
//! | something that cannot compare | names with the [token](crate::FencingToken::sortable) in them |
//!
//! When to choose which: [`guide::fencing`](crate::guide::fencing).

#[cfg(feature = "mongodb")]
pub(crate) mod mongo;

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

#[cfg(feature = "mongodb")]
pub use mongo::{ByDeref, ByItself, Change, Fence, Fenced, FencedWrite, FencedWriter, WorkError};

use crate::{Error, FencingToken, Result};

/// The check of a service that is written to: remembers the largest token that each resource has seen
/// and refuses smaller ones.
///
/// ```
/// use mongoseal::{Error, FenceGate, FencingToken};
///
/// let gate = FenceGate::new();
/// let (earlier, later) = (FencingToken::new(33)?, FencingToken::new(34)?);
/// gate.admit("printer", earlier)?;
/// gate.admit("printer", later)?;
/// gate.admit("printer", later)?; // a holder writes as often as it likes
/// assert!(matches!(gate.admit("printer", earlier), Err(Error::Fenced { newer }) if newer == later));
/// # Ok::<(), mongoseal::Error>(())
/// ```
///
/// # Guarantees
///
/// Once a token was admitted to a resource, no smaller one is: over all threads, as long as the gate
/// lives and nobody [`forgets`](Self::forget) the resource.
///
/// # Caveats
///
/// - Admission is not the write. Two that are admitted one after the other may write in the other order
///   unless something keeps them apart: admit under the lock, or in the queue, in which the resource is
///   written.
/// - A gate begins empty. Where the resource outlives the process, save its [`mark`](Self::mark) with it
///   and [`admit`](Self::admit) that first.
/// - Each resource takes the memory of its name and about 50 bytes until it is forgotten. Forgetting one
///   lets older tokens in again: forget those that are gone, or whose mark nobody can be behind any more.
#[derive(Debug, Default)]
pub struct FenceGate {
    marks: Mutex<HashMap<String, FencingToken>>,
}

impl FenceGate {
    /// A gate that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets a write to `resource` pass that shows `token`, and refuses smaller ones from then on.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`] where a larger one was admitted before.
    pub fn admit(&self, resource: impl AsRef<str>, token: FencingToken) -> Result<()> {
        let resource = resource.as_ref();
        let mut marks = self.marks();
        match marks.get_mut(resource) {
            Some(mark) if *mark > token => return Err(Error::Fenced { newer: *mark }),
            Some(mark) => *mark = token,
            None => {
                marks.insert(resource.to_owned(), token);
            }
        }
        Ok(())
    }

    /// The largest token that was admitted to `resource`.
    #[must_use]
    pub fn mark(&self, resource: impl AsRef<str>) -> Option<FencingToken> {
        self.marks().get(resource.as_ref()).copied()
    }

    /// Forgets a resource that is gone. Any token is admitted to it afterwards.
    pub fn forget(&self, resource: impl AsRef<str>) {
        self.marks().remove(resource.as_ref());
    }

    /// Forgets all resources but those of which `keep` says so, by name and mark.
    pub fn retain(&self, mut keep: impl FnMut(&str, FencingToken) -> bool) {
        self.marks().retain(|resource, mark| keep(resource, *mark));
    }

    /// How many resources are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.marks().len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks().is_empty()
    }

    /// Whoever panicked under the lock left every mark whole.
    fn marks(&self) -> MutexGuard<'_, HashMap<String, FencingToken>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    #[test]
    fn a_gate_admits_equal_and_larger_tokens_and_refuses_smaller_ones_by_resource() {
        let gate = FenceGate::new();
        for number in [5, 5, 7, 7] {
            gate.admit("a", token(number)).unwrap();
        }
        assert!(matches!(gate.admit("a", token(6)), Err(Error::Fenced { newer }) if newer == token(7)));
        gate.admit("b", token(1)).unwrap();
        assert_eq!((gate.mark("a"), gate.mark("b"), gate.mark("c")), (Some(token(7)), Some(token(1)), None));
    }

    #[test]
    fn what_is_forgotten_takes_no_memory_and_begins_anew() {
        let gate = FenceGate::new();
        for number in 1..=100 {
            gate.admit(format!("r{number}"), token(number)).unwrap();
        }
        gate.retain(|_, mark| mark > token(90));
        assert_eq!(gate.len(), 10);
        gate.forget("r100");
        assert_eq!((gate.len(), gate.is_empty()), (9, false));
        gate.admit("r100", token(1)).unwrap();
    }

    #[test]
    fn no_smaller_token_passes_after_a_larger_one_over_all_threads() {
        let gate = FenceGate::new();
        let passed = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for first in 1..=8_u64 {
                let (gate, passed) = (&gate, &passed);
                scope.spawn(move || {
                    for step in 0..500 {
                        let shown = token(first + 8 * (step * 7919 % 500));
                        // As a service does: admitted where it is written.
                        let mut passed = passed.lock().unwrap();
                        if gate.admit("r", shown).is_ok() {
                            passed.push(shown);
                        }
                    }
                });
            }
        });
        let passed = passed.into_inner().unwrap();
        assert!(passed.is_sorted() && passed.len() > 1);
    }
}
