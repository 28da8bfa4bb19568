//! The spans of operations.
//!
//! Purpose: a tracer shows how long an operation took, how it ended, and which operation of the caller it is part of.
//!
//! Mechanism: each operation runs in one span. At its end, the span receives the outcome and, if the operation failed, an
//! event with the error.
//!
//! Invariants: a span ends with its operation, so a held lease keeps none. An operation records the error that it returns,
//! and the layers below it do not.

use std::error::Error as StdError;

use tracing::{
    Instrument, Span, debug, debug_span,
    field::{DisplayValue, Empty, display},
};

use crate::types::{
    error::{Error, Result},
    key::Key,
    owner::Owner,
    token::FencingToken,
};

/// The span of an acquire of one key, from the call to its answer.
pub(crate) fn acquire(key: &Key, owner: &Owner) -> Span {
    debug_span!(
        target: "mongoseal",
        "mongoseal.acquire",
        %key,
        %owner,
        token = Empty,
        position = Empty,
        waited = Empty,
        outcome = Empty,
    )
}

/// The span of one request that refreshes this many leases. A single one has a key and a token. It is a root: the tasks of
/// leases send most of them.
pub(crate) fn refresh(one: Option<(&Key, FencingToken)>, leases: usize) -> Span {
    let (key, token) = fields(one);
    debug_span!(target: "mongoseal", parent: None, "mongoseal.refresh", key, token, leases, outcome = Empty)
}

/// The key and the token of one lease, as fields of a span.
fn fields(one: Option<(&Key, FencingToken)>) -> (Option<DisplayValue<&Key>>, Option<u64>) {
    one.map(|(key, token)| (display(key), token.get())).unzip()
}

/// The span of the end of one lease at the store. `caller`: the span of the caller that waits for it.
pub(crate) fn release(caller: Option<&Span>, key: &Key, token: FencingToken) -> Span {
    debug_span!(
        target: "mongoseal",
        parent: caller.and_then(Span::id),
        "mongoseal.release",
        %key,
        token = token.get(),
        outcome = Empty,
    )
}

/// The span of a check of one lease at the store.
pub(crate) fn verify(key: &Key, token: FencingToken) -> Span {
    debug_span!(target: "mongoseal", "mongoseal.verify", %key, token = token.get(), outcome = Empty)
}

/// The span of a fenced write of this collection.
#[cfg(feature = "mongodb")]
pub(crate) fn fenced_write(collection: impl std::fmt::Display, token: FencingToken) -> Span {
    debug_span!(
        target: "mongoseal",
        "mongoseal.fenced_write",
        %collection,
        token = token.get(),
        outcome = Empty,
    )
}

/// The span of a transaction with this many leases, with its retries. A single one has a key and a token.
#[cfg(feature = "mongodb")]
pub(crate) fn transaction(one: Option<(&Key, FencingToken)>, leases: usize) -> Span {
    let (key, token) = fields(one);
    debug_span!(target: "mongoseal", "mongoseal.transaction", key, token, leases, outcome = Empty)
}

/// Runs an operation in its span. Its end is recorded there: `done`, or the error with the message `failed`.
pub(crate) fn run<T>(
    span: Span,
    (done, failed): (&'static str, &'static str),
    operation: impl Future<Output = Result<T>>,
) -> impl Future<Output = Result<T>> {
    let operation = operation.instrument(span.clone());
    async move {
        let result = operation.await;
        match &result {
            Ok(_) => end(&span, Ok(done), failed),
            Err(error) => end(&span, Err(error), failed),
        }
        result
    }
}

/// Records how an operation ended in its span: the outcome, or the error with the message `failed`.
pub(crate) fn end(span: &Span, ended: Result<&'static str, &(dyn StdError + 'static)>, failed: &'static str) {
    match ended {
        Ok(outcome) => _ = span.record("outcome", outcome),
        Err(error) => {
            span.record("outcome", error.downcast_ref().map_or("failed", Error::kind));
            span.in_scope(|| debug!(error, "{failed}"));
        }
    }
}
