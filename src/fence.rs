//! Fences: the check that makes a lease safe, at the storage that is written.
//!
//! | the storage is | the check is |
//! |---|---|
//! | documents that only holders write | a fenced collection, [`Fence::fenced`] |
//! | anything in the same MongoDB | a fenced transaction, [`Lease::transaction`](crate::Lease::transaction) |
//! | a service of yours | a [`FenceGate`] in it |
//! | an object in S3 | a conditional write: see the [guide](crate::guide::fencing) |
//! | something that cannot compare | names with the [token](crate::FencingToken::sortable) in them |
//!
//! For the choice see [`guide::fencing`](crate::guide::fencing).

#[cfg(feature = "mongodb")]
pub(crate) mod mongo;
#[cfg(feature = "test-util")]
pub(crate) mod table;

use std::{collections::HashMap, sync::Mutex};

#[cfg(feature = "mongodb")]
pub use mongo::{ByDeref, ByItself, Change, Fence, Fenced, FencedWrite, FencedWriter, WorkError};

use crate::types::{
    error::{Error, Result},
    lock::lock,
    token::FencingToken,
};

/// The check in a service: remembers the largest token of each resource, and refuses smaller tokens.
///
/// ```
/// use mongoseal::{Error, FenceGate, FencingToken};
///
/// let gate = FenceGate::new();
/// let (earlier, later) = (FencingToken::new(33)?, FencingToken::new(34)?);
/// gate.admit("printer", earlier)?;
/// gate.admit("printer", later)?;
/// gate.admit("printer", later)?; // a holder may write again
/// assert!(matches!(gate.admit("printer", earlier), Err(Error::Fenced { newer }) if newer == later));
/// # Ok::<(), mongoseal::Error>(())
/// ```
///
/// # Guarantees
///
/// Once a token was admitted to a resource, no smaller one is admitted: over all threads, while the gate lives and the
/// resource is not [forgotten](Self::forget).
///
/// # Caveats
///
/// - Admission is not the write. Two admitted writers may write in either order unless something keeps them apart. So
///   admit under the lock, or in the queue, in which the resource is written.
/// - A gate begins empty. If the resource outlives the process, save its [`mark`](Self::mark) with it, and
///   [`admit`](Self::admit) the mark first.
/// - Each resource takes the memory of its name and about 50 bytes until it is forgotten. A forgotten resource admits
///   older tokens again. So forget a resource only if it is gone, or if no token below its mark can come any more.
#[derive(Debug, Default)]
pub struct FenceGate {
    marks: Mutex<HashMap<String, FencingToken>>,
}

impl FenceGate {
    /// A gate without resources.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Admits a write to `resource` with this token. From then on smaller tokens are refused. A holder that calls it before
    /// it reads claims the resource: no earlier holder writes in between.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`] if a larger token was admitted before.
    pub fn admit(&self, resource: impl AsRef<str>, token: FencingToken) -> Result<()> {
        let resource = resource.as_ref();
        let mut marks = lock(&self.marks);
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
        lock(&self.marks).get(resource.as_ref()).copied()
    }

    /// Forgets a resource that is gone. Afterwards it admits any token.
    pub fn forget(&self, resource: impl AsRef<str>) {
        lock(&self.marks).remove(resource.as_ref());
    }

    /// Forgets the resources for which `keep` returns `false`. `keep` gets the name and the mark.
    pub fn retain(&self, mut keep: impl FnMut(&str, FencingToken) -> bool) {
        lock(&self.marks).retain(|resource, mark| keep(resource, *mark));
    }

    /// How many resources have a mark.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.marks).len()
    }

    /// Whether no resource has a mark.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.marks).is_empty()
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
        gate.retain(|_, _| false);
        assert!(gate.is_empty());
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
                        // As in a service: admission and write are one step.
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
