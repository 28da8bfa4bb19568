//! A client in a worker that acquires keys with a document, campaigns, and revokes such keys.

use std::time::Duration;

use fastrand::Rng;
use mongoseal::Error;

use super::{
    LEADERSHIP, OPERATION_TIMEOUT, WRITTEN_KEYS, Worker,
    client::{Aim, Plan, asked, waiting},
    say,
};
use crate::words::{Event, Inspect, Revoke, Seen, micros, now};

/// Looks or takes away first, now and then.
pub(super) async fn plan(worker: &Worker, rng: &mut Rng) -> Plan {
    let (key, aim) = match rng.usize(..5) {
        _ if !worker.has_documents() => (LEADERSHIP, Aim::Lead),
        4 => (LEADERSHIP, Aim::Lead),
        number => (WRITTEN_KEYS[number], if number < 2 { Aim::Fence } else { Aim::Transaction }),
    };
    if aim == Aim::Lead && rng.u8(..4) == 0 {
        look(worker).await;
    }
    // What is revoked is excused when it is known, and a sabotaged run is judged all the while.
    if worker.spec.sabotage.is_none() && rng.u8(..8) == 0 {
        revoke(worker, key).await;
    }
    let wait = rng.bool().then(|| Duration::from_secs(3));
    Plan { key: key.into(), aim, wait, ..waiting(rng) }
}

/// Who leads.
async fn look(worker: &Worker) {
    let begin = now();
    let seen = match worker.handles.seal.leader(LEADERSHIP).await {
        Ok(None) => Seen::Nobody,
        Ok(Some(leader)) => Seen::Record {
            version: leader.token.get(),
            holders: vec![leader.token.get()],
            asked: asked(leader.owner.as_str(), &leader.value).into_iter().collect(),
        },
        Err(Error::Unavailable { .. }) => Seen::Unavailable,
        Err(error) => Seen::Other { message: error.to_string() },
    };
    let (key, worker, end, within) = (LEADERSHIP.into(), worker.spec.worker, now(), micros(OPERATION_TIMEOUT));
    say(&Event::Inspect(Inspect { worker, key, begin, end, within, seen }));
}

async fn revoke(worker: &Worker, key: &str) {
    let begin = now();
    let end = begin + micros(OPERATION_TIMEOUT);
    let (outcome, tokens) = ("begun".into(), Vec::new());
    let asked_for = Revoke { worker: worker.spec.worker, key: key.into(), begin, end, outcome, tokens };
    // It may be made, and whoever asked for it killed.
    say(&Event::Revoke(asked_for.clone()));
    let answer = worker.handles.plain[0].revoke(key).reason("on purpose").await;
    let outcome = match &answer {
        Ok(_) => "ok".into(),
        Err(Error::Unavailable { .. }) => "unavailable".into(),
        Err(error) => error.to_string(),
    };
    let tokens = answer.into_iter().flatten().map(|revoked| revoked.token.get()).collect();
    say(&Event::Revoke(Revoke { end: now(), outcome, tokens, ..asked_for }));
}
