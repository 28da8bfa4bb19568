//! Reports a wait on the standard error: on a terminal by a line that is rewritten, otherwise, if wanted, by messages.

use std::{pin::pin, time::Duration};

use mongoseal::{FencingToken, Mongoseal, inspect::Inspection};
use tokio::time::sleep;

use super::OuterLeases;
use crate::{
    time,
    ui::message::{self, ProgressLine},
};

/// The wait after which it is first reported, and the interval of the updates.
const DELAY: Duration = Duration::from_millis(300);
const INTERVAL: Duration = Duration::from_secs(2);

/// The progress of a wait for keys.
pub(super) struct Progress<'a> {
    seal: &'a Mongoseal,
    keys: &'a [String],
    outer: OuterLeases,
    form: Form,
    /// Whether one of the keys has the name of a key that this program was started under, and this was not reported.
    may_wait_for_itself: bool,
}

enum Form {
    /// Prints nothing.
    Silent,
    /// Prints a message when the position or the holder changes.
    Messages {
        last: Option<(String, Option<FencingToken>)>,
    },
    Line(ProgressLine),
}

impl<'a> Progress<'a> {
    pub(super) fn new(seal: &'a Mongoseal, keys: &'a [String], verbose: bool) -> Self {
        let form = match (verbose, message::has_progress_line()) {
            (true, _) => Form::Messages { last: None },
            (false, true) => Form::Line(ProgressLine::default()),
            (false, false) => Form::Silent,
        };
        let outer = OuterLeases::of_environment();
        let may_wait_for_itself = keys.iter().any(|key| outer.tokens(key).next().is_some());
        Self { seal, keys, outer, form, may_wait_for_itself }
    }

    /// Waits for `request`, and reports the wait meanwhile.
    pub(super) async fn during<T>(&mut self, request: impl Future<Output = T>) -> T {
        let mut request = pin!(request);
        let mut pause = DELAY;
        while !self.is_idle() {
            tokio::select! {
                biased;
                result = &mut request => return self.end(result),
                () = sleep(pause) => {}
            }
            tokio::select! {
                biased;
                result = &mut request => return self.end(result),
                () = self.report() => {}
            }
            pause = INTERVAL;
        }
        request.await
    }

    /// Returns whether there is nothing to report, so that no record must be read.
    fn is_idle(&self) -> bool {
        matches!(self.form, Form::Silent) && !self.may_wait_for_itself
    }

    fn end<T>(&mut self, result: T) -> T {
        if let Form::Line(line) = &mut self.form {
            line.erase();
        }
        result
    }

    /// Reads the records, and reports the wait for the first key that another lease holds.
    async fn report(&mut self) {
        for key in self.keys {
            let Ok(Some(record)) = self.seal.inspect(key).await else { continue };
            self.warn_of_own_lease(&record);
            let is_waited_for = record.queue.iter().any(|waiter| waiter.owner == *self.seal.owner());
            if !is_waited_for && self.keys.len() > 1 {
                continue;
            }
            let position = position(&record, self.seal);
            match &mut self.form {
                Form::Silent => {}
                Form::Messages { last } => {
                    let state = (position.clone(), live_holder(&record));
                    if last.as_ref() != Some(&state) {
                        message::print_note(&text(&record, &position));
                        *last = Some(state);
                    }
                }
                Form::Line(line) => line.show(&text(&record, &position)),
            }
            return;
        }
    }

    /// Warns if this program waits for a lease that it was itself started under: it would wait until the lease ends.
    fn warn_of_own_lease(&mut self, record: &Inspection) {
        let key = record.key.as_str();
        let is_own = self.outer.tokens(key).any(|token| record.holders.iter().any(|holder| holder.token == token));
        if is_own && self.may_wait_for_itself {
            self.end(());
            message::print_warning(&format!(
                "this program waits for itself: it was started under the lease on {key:?}, which MONGOSEAL_KEY names"
            ));
            self.may_wait_for_itself = false;
        }
    }
}

fn live_holder(record: &Inspection) -> Option<FencingToken> {
    record.holders.iter().find(|holder| !holder.is_expired()).map(|holder| holder.token)
}

fn position(record: &Inspection, seal: &Mongoseal) -> String {
    // If several waiters have this owner, the position of this one is unknown.
    let mut ours = record.queue.iter().filter(|waiter| waiter.owner == *seal.owner());
    match (ours.next(), ours.next()) {
        (Some(waiter), None) if waiter.position == 0 => "next in line".to_owned(),
        (Some(waiter), None) => format!("{} ahead in the queue", waiter.position),
        _ => format!("{} in the queue", record.queue.len()),
    }
}

/// Returns the text of the report. The position and the holder come first, because a narrow terminal cuts the end.
fn text(record: &Inspection, position: &str) -> String {
    let of_key = format!("for {:?}", record.key.as_str());
    let mut holders = record.holders.iter().filter(|holder| !holder.is_expired());
    let Some(holder) = holders.next() else { return format!("waiting, {position}, {of_key}") };
    let free_in =
        time::finite(holder.free_in).map(|time| format!(" (free in {})", time::brief(time))).unwrap_or_default();
    let others = match holders.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let held = if holder.released_at.is_some() { "kept" } else { "held" };
    format!("waiting, {position}; {held} by {}{free_in}{others}, {of_key}", holder.owner)
}
