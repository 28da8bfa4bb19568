//! A client in a worker: shuts a handle down while work under its lease computes and notices nothing.

use std::{future::pending, time::Duration};

use fastrand::Rng;
use mongoseal::{Lease, Mongoseal};
use tokio::{
    task::{block_in_place, yield_now},
    time::sleep,
};

use super::{
    Worker,
    client::{self, Plan},
    handles, say,
};
use crate::{
    sabotage::Sabotage,
    words::{Event, Micros, Worked, micros, now},
};

/// The key that one client of each process wants.
const KEY: &str = "closing/0";
const TTL: Duration = Duration::from_secs(2);

pub(super) async fn run(worker: &Worker, rng: &mut Rng) {
    while !worker.is_ending() {
        let seal = handles::sibling(&worker.spec, &worker.handles);
        let (key, wait, grace) = (KEY.into(), Some(Duration::from_secs(3)), worker.spec.least_grace);
        let plan = Plan { key, ttl: TTL, grace, wait, refreshed: true, ..client::waiting(rng) };
        let since = now();
        if let Some((lease, number)) = client::ask(worker, &seal, &plan).await {
            close(worker, &seal, &lease, number, since, rng).await;
        }
        seal.shutdown().await;
        sleep(Duration::from_millis(rng.u64(1..200))).await;
    }
}

/// Shuts the handle down while the work computes.
async fn close(worker: &Worker, seal: &Mongoseal, lease: &Lease, number: u64, since: Micros, rng: &mut Rng) {
    let (id, token) = (worker.spec.worker, lease.token().get());
    let ended = Ended { worker: id, token, since };
    let step = Duration::from_millis(rng.u64(5..150));
    let work = async move {
        let _ended = ended;
        loop {
            // The threads of the runtime do other tasks meanwhile.
            block_in_place(|| std::thread::sleep(step));
            yield_now().await;
        }
    };
    let working = async {
        if worker.is_sabotaged(Sabotage::UnknownWork) {
            lease.cancellation_token().run_until_cancelled(work).await;
        } else {
            lease.run(work).await.ok();
        }
    };
    let closing = async {
        sleep(Duration::from_millis(rng.u64(1..300))).await;
        let how = "shutdown".into();
        say(&Event::Ends { worker: id, lease: number, at: now(), how });
        // On a task of its own, because the work is polled by this one.
        let seal = seal.clone();
        tokio::spawn(async move { seal.shutdown().await }).await.ok();
        pending::<()>().await;
    };
    tokio::select! {
        () = working => {}
        () = closing => {}
    }
}

/// Says when the work has ended.
struct Ended {
    worker: u32,
    token: u64,
    since: Micros,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let Self { worker, token, since } = *self;
        say(&Event::Worked(Worked { worker, key: KEY.into(), token, since, ttl: micros(TTL), end: now() }));
    }
}
