//! A client in a worker: acquires keys repeatedly.

use std::{future::pending, time::Duration};

use fastrand::Rng;
use mongoseal::{Error, Lease, Mongoseal};
use tokio::time::sleep;

use super::{
    BURST_EVERY, BUSY_KEYS, By, CROWDED_KEY, FLEET, HOT_KEYS, LEAST, OF_THREAD, OPERATION_TIMEOUT, OUTSTAYED_KEYS, OWN,
    PATIENCE, PATIENT_KEY, POOL, Role, SMALLEST_TTL, WRITTEN_KEYS, Worker, busy_key, closing, cold_key, fleet_key,
    holder, observed::NUMBER, opener, say, ticker,
};
use crate::{
    crew::SLOTS,
    sabotage::Sabotage,
    words::{Acquire, Event, Inspect, micros, now},
};

/// What is asked for, and what is done with it.
pub(crate) struct Plan {
    pub(crate) key: String,
    pub(crate) limit: u32,
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) refreshed: bool,
    pub(crate) hold: Duration,
    pub(crate) anew: bool,
    pub(crate) aim: Aim,
    pub(crate) by: By,
    /// The minimum hold.
    pub(crate) least: Duration,
}

/// What a key is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    Hold,
    /// To hold it for long, refreshed in the background alone.
    Keep,
    /// To hold it all the time, and only wait for its end.
    Last,
    /// To hold it until the lease expires.
    Outstay,
    /// To drop it.
    Drop,
    /// To write its document at the fence of the collection.
    Fence,
    /// To write its document in transactions.
    Transaction,
}

pub(super) async fn run(worker: &Worker, client: usize, role: Role, by: By) {
    let mut rng = Rng::with_seed(worker.spec.seed ^ (worker.id() << 8) ^ client as u64);
    if role == Role::Fleet {
        // Together they would take all connections, and a small machine's time.
        sleep(millis(&mut rng, 0..20_000)).await;
    }
    match role {
        Role::Ticking => return ticker::run(worker, &mut rng).await,
        Role::Opening => return opener::run(worker).await,
        Role::Closing => return closing::run(worker, &mut rng).await,
        _ => {}
    }
    while !worker.is_ending() {
        let plan = match role {
            Role::Waiting => waiting(&mut rng),
            Role::Trying => {
                let plan = trying(&mut rng);
                if rng.u8(..8) == 0 {
                    is_gone(worker, &plan.key).await;
                }
                plan
            }
            Role::SharingFilter => sharing(&mut rng),
            Role::Crowding => crowding(&mut rng),
            Role::Least => least(worker.spec.slot, &mut rng),
            Role::Patient => patient(&mut rng),
            Role::Writing => writing(&mut rng),
            Role::LeaseProbe if by == By::Threaded => {
                let mut plan = keeping(format!("{OF_THREAD}{}-{client}", worker.spec.slot), &mut rng);
                plan.ttl = Duration::from_secs(2);
                plan
            }
            Role::LeaseProbe => keeping(format!("kept/{}-{client}", worker.spec.slot), &mut rng),
            Role::Outstaying => outstaying(&mut rng),
            Role::Fleet => lasting(client % FLEET, &mut rng),
            Role::Again => Plan {
                key: format!("{OWN}{}-{client}", worker.spec.worker),
                wait: None,
                hold: millis(&mut rng, 100..400),
                aim: Aim::Drop,
                ..waiting(&mut rng)
            },
            Role::Bursting => {
                burst(worker.spec.slot).await;
                bursting(&mut rng)
            }
            _ => {
                let mut plan = cold(&mut rng);
                if rng.u8(..8) < 5 {
                    plan.anew = is_gone(worker, &plan.key).await;
                }
                plan
            }
        };
        let plan = worker.with_grace(Plan { by, ..plan });
        if let Some((lease, number)) = ask(worker, handle(worker, &plan, &mut rng), &plan).await {
            holder::hold(worker, &plan, lease, number, &mut rng).await;
        }
        let pause = match role {
            Role::Again => continue,
            Role::Trying if by == By::Observed => 1..20,
            Role::Outstaying => 100..400,
            Role::Fleet => 1_000..3_000,
            _ => 1..60,
        };
        sleep(millis(&mut rng, pause) + worker.relief()).await;
    }
}

/// Holds a lease by each handle, so that each listens.
pub(super) async fn listen_all_the_time(worker: u32, handles: Vec<Mongoseal>) {
    let mut leases = Vec::new();
    for (number, seal) in handles.iter().enumerate() {
        let key = format!("listening/{worker}-{number}");
        leases.push(seal.acquire(key).ttl(Duration::from_secs(30)).await);
    }
    // Until all is over.
    pending::<()>().await;
}

/// Waits for the next burst of this slot. Those of the slots follow one another.
async fn burst(slot: u32) {
    let (every, own) = (micros(BURST_EVERY), u64::from(slot) * micros(BURST_EVERY) / u64::from(SLOTS));
    let next = every - (now() + every - own) % every;
    sleep(Duration::from_micros(next)).await;
}

fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

/// Mostly short, sometimes past the ttl.
fn hold(rng: &mut Rng) -> Duration {
    if rng.u8(..12) == 0 { millis(rng, 800..2800) } else { millis(rng, 2..60) }
}

pub(super) fn waiting(rng: &mut Rng) -> Plan {
    Plan {
        key: HOT_KEYS[rng.usize(..3)].into(),
        limit: 0,
        ttl: Duration::from_secs(2),
        grace: Duration::from_millis(if rng.bool() { 0 } else { 300 }),
        wait: Some(Duration::from_secs(3)),
        refreshed: rng.u8(..4) > 0,
        hold: hold(rng),
        anew: false,
        aim: Aim::Hold,
        by: By::Observed,
        least: Duration::ZERO,
    }
}

fn writing(rng: &mut Rng) -> Plan {
    let number = rng.usize(..WRITTEN_KEYS.len());
    let aim = if number < 2 { Aim::Fence } else { Aim::Transaction };
    let wait = rng.bool().then(|| Duration::from_secs(3));
    Plan { key: WRITTEN_KEYS[number].into(), aim, wait, ..waiting(rng) }
}

fn trying(rng: &mut Rng) -> Plan {
    Plan { wait: None, ttl: SMALLEST_TTL, refreshed: rng.bool(), ..waiting(rng) }
}

fn keeping(key: String, rng: &mut Rng) -> Plan {
    let ttl = if rng.bool() { SMALLEST_TTL } else { Duration::from_secs(2) };
    let hold = millis(rng, 2000..8000);
    Plan { key, ttl, wait: None, refreshed: true, hold, aim: Aim::Keep, ..waiting(rng) }
}

/// One of many leases of a handle that are due together.
fn lasting(number: usize, rng: &mut Rng) -> Plan {
    let (ttl, hold) = (Duration::from_secs(3), millis(rng, 15_000..30_000));
    Plan { key: fleet_key(number), ttl, wait: None, refreshed: true, hold, aim: Aim::Last, ..waiting(rng) }
}

/// A client that retries often acquires the key soon after the lease expires, also if the lease expires too early.
fn outstaying(rng: &mut Rng) -> Plan {
    Plan {
        key: OUTSTAYED_KEYS[rng.usize(..OUTSTAYED_KEYS.len())].into(),
        ttl: Duration::from_secs(3),
        grace: Duration::ZERO,
        wait: None,
        refreshed: false,
        hold: Duration::from_secs(4),
        aim: Aim::Outstay,
        ..waiting(rng)
    }
}

/// Mostly one of many keys, sometimes one that others hold.
fn bursting(rng: &mut Rng) -> Plan {
    if rng.u8(..5) == 0 {
        return Plan { hold: millis(rng, 2..60), ..trying(rng) };
    }
    Plan { key: busy_key(rng.usize(..BUSY_KEYS)), ..cold(rng) }
}

fn sharing(rng: &mut Rng) -> Plan {
    let limit = if rng.u8(..10) == 0 { 0 } else { POOL };
    let wait = rng.bool().then(|| Duration::from_secs(3));
    Plan { key: HOT_KEYS[rng.usize(3..5)].into(), limit, wait, ..waiting(rng) }
}

/// Several of a process at the same time, whose requests so travel together.
fn crowding(rng: &mut Rng) -> Plan {
    Plan { key: CROWDED_KEY.into(), grace: Duration::ZERO, hold: millis(rng, 1..15), ..waiting(rng) }
}

fn patient(rng: &mut Rng) -> Plan {
    let hold = millis(rng, 200..600);
    Plan { key: PATIENT_KEY.into(), wait: Some(PATIENCE), hold, ..waiting(rng) }
}

/// Waits for the key of its process, and gives it back before the end of its minimum hold. The ttl is long, because a waiter
/// that is not told of that end sends its next request after a third of it.
fn least(slot: u32, rng: &mut Rng) -> Plan {
    let (ttl, wait) = (Duration::from_millis(3500), Some(Duration::from_secs(6)));
    let (least, hold) = (millis(rng, 250..350), millis(rng, 2..40));
    Plan { key: format!("{LEAST}{slot}"), ttl, wait, least, hold, ..waiting(rng) }
}

fn cold(rng: &mut Rng) -> Plan {
    Plan {
        key: cold_key(rng),
        ttl: Duration::from_millis(3500),
        grace: Duration::ZERO,
        wait: None,
        refreshed: rng.u8(..4) == 0,
        hold: millis(rng, 1..15),
        ..waiting(rng)
    }
}

/// Looks at a record, and says whether it is gone.
pub(super) async fn is_gone(worker: &Worker, key: &str) -> bool {
    let seen = inspect(worker.spec.worker, &worker.handles.seal, key).await;
    say(&Event::Inspect(seen.clone()));
    seen.outcome == "nothing"
}

/// Reads a record.
pub(crate) async fn inspect(worker: u32, seal: &Mongoseal, key: &str) -> Inspect {
    let begin = now();
    let answer = seal.inspect(key).await;
    let inspect = |outcome: &str| Inspect {
        worker,
        key: key.into(),
        begin,
        end: now(),
        outcome: outcome.into(),
        ..Inspect::default()
    };
    match answer {
        Ok(None) => inspect("nothing"),
        Ok(Some(record)) => {
            let live = record.holders.iter().filter(|holding| !holding.is_expired());
            let holders = live.map(|holding| holding.token.get()).collect();
            Inspect { version: record.version.get(), holders, ..inspect("record") }
        }
        Err(Error::Unavailable { .. }) => inspect("unavailable"),
        Err(error) => inspect(&error.to_string()),
    }
}

/// The handle that a plan needs.
fn handle<'a>(worker: &'a Worker, plan: &Plan, rng: &mut Rng) -> &'a Mongoseal {
    let handles = &worker.handles;
    // Each handle waits for its own releases only.
    let is_elsewhere = plan.aim == Aim::Drop && worker.is_sabotaged(Sabotage::NoOwnWait);
    match plan.by {
        By::Threaded => &handles.threaded,
        By::Observed if plan.aim != Aim::Transaction && !is_elsewhere => &handles.seal,
        _ => &handles.plain[rng.usize(..handles.plain.len())],
    }
}

async fn acquire(seal: &Mongoseal, plan: &Plan, number: u64) -> mongoseal::Result<Lease> {
    let mut ask = seal.acquire(plan.key.as_str()).ttl(plan.ttl).grace(plan.grace);
    ask = ask.metadata(NUMBER, number.to_string());
    if plan.limit > 0 {
        ask = ask.shared_up_to(plan.limit);
    }
    if let Some(wait) = plan.wait {
        ask = ask.wait(wait);
    }
    if !plan.refreshed {
        ask = ask.without_refresh();
    }
    if !plan.least.is_zero() {
        ask = ask.min_hold(plan.least);
    }
    ask.await
}

/// Asks for a key, and tells of it.
pub(super) async fn ask(worker: &Worker, seal: &Mongoseal, plan: &Plan) -> Option<(Lease, u64)> {
    let number = worker.next_lease();
    let begin = now();
    let answer = acquire(seal, plan, number).await;
    let end = now();
    let noted = worker.notes.take(number, answer.is_ok());
    say(&Event::Acquire(Acquire {
        worker: worker.spec.worker,
        lease: number,
        key: plan.key.clone(),
        limit: plan.limit,
        ttl: micros(plan.ttl),
        grace: micros(plan.grace),
        begin,
        end,
        within: micros(OPERATION_TIMEOUT + plan.wait.unwrap_or_default()),
        outcome: outcome(&answer),
        token: answer.as_ref().map_or(0, |lease| lease.token().get()),
        attempts: noted.attempts,
        doubts: noted.doubts,
        queued: noted.queued,
        anew: plan.anew,
        probe: false,
        refreshes: plan.refreshed,
        least: micros(plan.least),
    }));
    answer.ok().map(|lease| (lease, number))
}

pub(crate) fn outcome(answer: &mongoseal::Result<Lease>) -> String {
    match answer {
        Ok(_) => "granted".into(),
        Err(Error::Held { .. }) => "held".into(),
        Err(Error::QueueFull { .. }) => "full".into(),
        Err(Error::Unavailable { .. }) => "unavailable".into(),
        Err(error) => error.to_string(),
    }
}
