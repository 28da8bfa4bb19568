//! Locks whose data stays whole if a thread panics under them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic under the lock: each change of the data is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
