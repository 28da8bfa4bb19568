//! A stream as an iterator.

use std::{future::poll_fn, pin::Pin};

use futures_core::Stream;

use super::executor::Blocking;
use crate::types::error::Error;

/// A stream as an iterator, whose `next` blocks until the next item.
///
/// It is made by [`Mongoseal::watch`](super::Mongoseal::watch), [`Leases::run`](super::Leases::run) and other calls that
/// return a stream in the asynchronous API. The documentation of that stream says which items it has. It ends with
/// the stream.
///
/// Another thread can end the wait for an event by [`Mongoseal::shutdown`](super::Mongoseal::shutdown).
#[derive(Debug)]
#[must_use = "an iterator does nothing until its `next` is called"]
pub struct StreamIter<S> {
    /// `None` after the end.
    stream: Option<S>,
    executor: Blocking,
}

impl<S> StreamIter<S> {
    pub(super) fn new(stream: S, executor: Blocking) -> Self {
        Self { stream: Some(stream), executor }
    }
}

impl<S> Iterator for StreamIter<S>
where
    S: Stream<Item: Send> + Send + Unpin + 'static,
{
    type Item = S::Item;

    fn next(&mut self) -> Option<S::Item> {
        let mut stream = self.stream.take()?;
        let next = self.executor.wait(async move {
            let item = poll_fn(|task| Pin::new(&mut stream).poll_next(task)).await;
            Ok::<_, Error>((item, stream))
        });
        // Fails only if the runtime has ended, and with it the stream.
        let (item, stream) = next.ok()?;
        self.stream = item.is_some().then_some(stream);
        item
    }
}
