//! A client in a worker: shuts a handle down while work under its lease computes and notices nothing.

use std::{future::pending, time::Duration};

use fastrand::Rng;
use mongoseal::{Lease, Mongoseal};
use tokio::{
    task::{block_in_place, yield_now},
    time::sleep,
};

use super::{OPERATION_TIMEOUT, Worker, client, handles, say};
use crate::{
    sabotage::Sabotage,
    words::{Acquire, Event, Micros, Worked, micros, now},
};

/// The key that one client of each process wants.
const KEY: &str = "closing/0";
const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(3);

pub(super) async fn run(worker: &Worker) {
    let mut rng = Rng::with_seed(worker.spec.seed ^ (worker.id() << 8) ^ (1 << 40));
    while !worker.is_ending() {
        let seal = handles::sibling(&worker.spec, &worker.handles);
        let since = now();
        let asked = seal.acquire(KEY).ttl(TTL).grace(worker.spec.least_grace()).wait(WAIT);
        if let Ok(lease) = asked.await {
            let number = say_granted(worker, since, &lease);
            close(worker, &seal, &lease, number, since, &mut rng).await;
        }
        seal.shutdown().await;
        sleep(Duration::from_millis(rng.u64(1..200))).await;
    }
}

/// Says that the lease was granted. Returns the number of its acquire.
fn say_granted(worker: &Worker, begin: Micros, lease: &Lease) -> u64 {
    let number = worker.next_lease();
    say(&Event::Acquire(Acquire {
        worker: worker.spec.worker,
        lease: number,
        key: KEY.into(),
        ttl: micros(TTL),
        grace: micros(worker.spec.least_grace()),
        begin,
        end: now(),
        within: micros(OPERATION_TIMEOUT + WAIT),
        outcome: client::outcome(Ok(lease.token())),
        attempts: 1,
        refreshes: true,
        ..Acquire::default()
    }));
    number
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
        say(&Event::Ends { worker: id, lease: number, key: KEY.into(), token, at: now(), how });
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
