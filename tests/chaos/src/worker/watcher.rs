//! A client in a worker: watches a key and a prefix that clients of all workers acquire, and reports each grant.

use mongoseal::inspect::{EventKind, EventStream, WatchItem};

use super::{HOT_KEYS, HOT_PREFIX, Worker, say};
use crate::words::Event;

/// Watches the first hot key, or all of them, until this is dropped.
pub(super) async fn run(worker: &Worker, of_prefix: bool) {
    let seal = &worker.handles.seal;
    let watch = if of_prefix { "prefix" } else { "key" };
    loop {
        let begun = if of_prefix { seal.watch_prefix(HOT_PREFIX).await } else { seal.watch(HOT_KEYS[0]).await };
        // The server may not answer now.
        if let Ok(stream) = begun {
            report(worker, watch, stream).await;
            // Behind the end of a stream, another one begins.
            say(&Event::Missed { worker: worker.spec.worker, watch: watch.into() });
        }
    }
}

async fn report(worker: &Worker, watch: &str, mut stream: EventStream) {
    let (worker, watch) = (worker.spec.worker, String::from(watch));
    while let Some(Ok(item)) = stream.next().await {
        let event = match item {
            WatchItem::Event(event) => event,
            _missed => {
                say(&Event::Missed { worker, watch: watch.clone() });
                continue;
            }
        };
        let token = match &event.kind {
            EventKind::Holds { .. } | EventKind::Granted { .. } => event.token,
            EventKind::Transferred { to } => to.token,
            _ => continue,
        };
        let (key, token) = (event.key.to_string(), token.get());
        say(&Event::Watched { worker, watch: watch.clone(), key, token });
    }
}
