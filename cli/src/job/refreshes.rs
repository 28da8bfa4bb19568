//! Why refreshes fail, for the message about a lease whose time ran out.

use std::sync::{Mutex, PoisonError};

use mongoseal::observe::{HandleEvent, RefreshOutcome};

use crate::exit_status::Failure;

/// Why the last refresh of this program failed. `None`: it was confirmed, or there was none.
static REFRESH_FAILURE: Mutex<Option<String>> = Mutex::new(None);

/// Notes how refreshes end: the observer of the handles of this program.
pub(crate) fn note(event: &HandleEvent<'_>) {
    let failure = match event {
        HandleEvent::RefreshFinished { outcome: RefreshOutcome::Failed(error), .. }
        | HandleEvent::AtRisk { error, .. } => Some(Failure::from(*error).message().to_owned()),
        HandleEvent::RefreshFinished { outcome: RefreshOutcome::Confirmed, .. } => None,
        _ => return,
    };
    *REFRESH_FAILURE.lock().unwrap_or_else(PoisonError::into_inner) = failure;
}

/// Returns why the last refresh failed, behind a colon; nothing if it did not.
pub(crate) fn last_failure() -> String {
    let failure = REFRESH_FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default()
}
