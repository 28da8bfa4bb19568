//! A client in a worker: acquires keys repeatedly.

use std::{future::pending, time::Duration};

use fastrand::Rng;
use mongoseal::{Error, FencingToken, Lease, LeaseId, Mongoseal, election::Leader};
use tokio::time::sleep;

use super::{
    BURST_EVERY, BUSY_KEYS, By, CROWDED_KEY, ENDING_KEY, ENDS_EVERY, FLEET, HOT_KEYS, LEAST, OF_THREAD,
    OPERATION_TIMEOUT, OUTSTAYED_KEYS, OWN, PATIENT_KEY, POOL, Role, SMALLEST_TTL, Worker, busy_key, cold_key,
    fleet_key,
    holder::{self, Held},
    observed::NUMBER,
    say, writer,
};
use crate::{
    crew::SLOTS,
    sabotage::Sabotage,
    words::{Acquire, Event, Inspect, Micros, Outcome, Seen, micros, now},
};

/// What is asked for, and what is done with it.
pub(crate) struct Plan {
    pub(crate) key: String,
    pub(crate) limit: u32,
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) refreshed: bool,
    pub(crate) group: Option<String>,
    pub(crate) hold: Duration,
    pub(crate) anew: bool,
    pub(crate) aim: Aim,
    pub(crate) by: By,
    /// The minimum hold.
    pub(crate) least: Duration,
    /// The lease that another client transferred.
    pub(crate) transferred: Option<Transferred>,
}

/// A transferred lease, which its receiver resumes.
#[derive(Clone, Copy)]
pub(crate) struct Transferred {
    pub(crate) id: LeaseId,
    pub(crate) token: FencingToken,
    /// When the transfer began.
    pub(crate) since: Micros,
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
    Lead,
}

pub(super) async fn run(worker: &Worker, client: usize, role: Role, by: By) {
    let mut rng = Rng::with_seed(worker.spec.seed ^ (worker.id() << 8) ^ client as u64);
    if role == Role::Fleet {
        // Together they would take all connections, and a small machine's time.
        sleep(millis(&mut rng, 0..20_000)).await;
    }
    while !worker.is_ending() {
        let plan = match role {
            Role::Waiting => waiting(&mut rng),
            Role::Trying => {
                let plan = trying(&mut rng);
                if rng.u8(..8) == 0 {
                    inspect(worker, &plan.key).await;
                }
                plan
            }
            Role::SharingFilter => sharing(&mut rng),
            Role::Crowding => crowding(&mut rng),
            Role::Least => least(worker.spec.slot, &mut rng),
            Role::Patient => patient(Duration::from_micros(worker.spec.patience), &mut rng),
            Role::Ending => ending(&mut rng),
            Role::Writing => writer::plan(worker, &mut rng).await,
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
            Role::Cold => {
                let mut plan = cold(&mut rng);
                if rng.u8(..8) < 5 {
                    plan.anew = inspect(worker, &plan.key).await;
                }
                // A group is refreshed by the handle that holds its leases.
                if by == By::Observed && rng.u8(..4) == 0 {
                    plan.group = Some(format!("group-{}-{client}", worker.spec.worker));
                }
                plan
            }
        };
        let mut next = Some(worker.with_grace(Plan { by, ..plan }));
        while let Some(plan) = next.take() {
            let Some((held, number)) = ask(worker, &plan).await else { break };
            let handed_to = holder::hold(worker, &plan, held, number, &mut rng).await;
            next = handed_to.map(|lease| Plan { transferred: Some(lease), wait: None, anew: false, ..plan });
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
        group: None,
        hold: hold(rng),
        anew: false,
        aim: Aim::Hold,
        by: By::Observed,
        least: Duration::ZERO,
        transferred: None,
    }
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

fn patient(wait: Duration, rng: &mut Rng) -> Plan {
    let hold = millis(rng, 200..600);
    Plan { key: PATIENT_KEY.into(), wait: Some(wait), hold, ..waiting(rng) }
}

/// Waits for the key of its process, and gives it back before the end of its minimum hold. The ttl is long, because a waiter
/// that is not told of that end sends its next request after a third of it.
fn least(slot: u32, rng: &mut Rng) -> Plan {
    let (ttl, wait) = (Duration::from_millis(3500), Some(Duration::from_secs(6)));
    let (least, hold) = (millis(rng, 250..350), millis(rng, 2..40));
    Plan { key: format!("{LEAST}{slot}"), ttl, wait, least, hold, ..waiting(rng) }
}

/// Waits until the same moment as all others, if that is not too near. One of them has the key for most of the time.
fn ending(rng: &mut Rng) -> Plan {
    let every = micros(ENDS_EVERY);
    let left = every - now() % every;
    let left = if left < every / 4 { left + every } else { left };
    let hold = millis(rng, 1000..1900);
    Plan { key: ENDING_KEY.into(), wait: Some(Duration::from_micros(left)), refreshed: true, hold, ..waiting(rng) }
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
pub(super) async fn inspect(worker: &Worker, key: &str) -> bool {
    let begin = now();
    let seen = seen(worker.handles.seal.inspect(key).await);
    let gone = matches!(seen, Seen::Nothing);
    let (worker, end, within) = (worker.spec.worker, now(), micros(OPERATION_TIMEOUT));
    say(&Event::Inspect(Inspect { worker, key: key.into(), begin, end, within, seen }));
    gone
}

pub(crate) fn seen(answer: mongoseal::Result<Option<mongoseal::inspect::Inspection>>) -> Seen {
    match answer {
        Ok(None) => Seen::Nothing,
        Ok(Some(record)) => {
            let live = || record.holders.iter().filter(|holding| !holding.is_expired());
            let asked = live().filter_map(|holding| asked(holding.owner.as_str(), holding.metadata.get(NUMBER)?));
            let holders = live().map(|holding| holding.token.get()).collect();
            Seen::Record { version: record.version.get(), holders, asked: asked.collect() }
        }
        Err(Error::Unavailable { .. }) => Seen::Unavailable,
        Err(error) => Seen::Other { message: error.to_string() },
    }
}

/// Which acquire a holder came of, by who it is and what it says of itself.
pub(super) fn asked(owner: &str, number: &str) -> Option<(u32, u64)> {
    let (_, worker) = owner.split_once('/')?;
    Some((worker.parse().ok()?, number.parse().ok()?))
}

/// Asks for a key, by the handle that its aim needs.
async fn acquire(worker: &Worker, plan: &Plan, number: u64) -> mongoseal::Result<Lease> {
    // Each handle waits for its own releases only.
    let is_elsewhere = plan.aim == Aim::Drop && worker.is_sabotaged(Sabotage::NoOwnWait);
    let needs_plain =
        plan.by == By::Plain || plan.aim == Aim::Transaction || plan.transferred.is_some() || is_elsewhere;
    let any = usize::try_from(number).unwrap_or_default() % worker.handles.plain.len();
    let seal: &Mongoseal = match plan.by {
        _ if needs_plain => &worker.handles.plain[any],
        By::Threaded => &worker.handles.threaded,
        _ => &worker.handles.seal,
    };
    if let Some(Transferred { id, token, .. }) = plan.transferred {
        let resume = seal.resume(plan.key.as_str(), id, token);
        return if plan.refreshed { resume.await } else { resume.without_refresh().await };
    }
    let mut ask = seal.acquire(plan.key.as_str()).ttl(plan.ttl).grace(plan.grace);
    ask = ask.metadata(NUMBER, number.to_string());
    if plan.limit > 0 {
        ask = ask.shared_up_to(plan.limit);
    }
    if let Some(wait) = plan.wait {
        ask = ask.wait(wait);
    }
    if let Some(group) = &plan.group {
        ask = ask.group(group.as_str());
    }
    if !plan.refreshed {
        ask = ask.without_refresh();
    }
    if !plan.least.is_zero() {
        ask = ask.min_hold(plan.least);
    }
    ask.await
}

async fn campaign(worker: &Worker, plan: &Plan, number: u64) -> mongoseal::Result<Leader> {
    let campaign = worker.handles.seal.campaign(plan.key.as_str()).value(number.to_string());
    let campaign = campaign.ttl(plan.ttl).stop_margin(plan.grace);
    campaign.wait(plan.wait.unwrap_or_default()).await
}

async fn ask(worker: &Worker, plan: &Plan) -> Option<(Held, u64)> {
    let number = worker.next_lease();
    let begin = now();
    let answer = match plan.aim {
        Aim::Lead => campaign(worker, plan, number).await.map(Held::Leader),
        _ => acquire(worker, plan, number).await.map(Held::Lease),
    };
    let end = now();
    // A transferred lease may have ended before its receiver resumed it.
    if matches!(answer, Err(Error::Lost { .. })) {
        return None;
    }
    let outcome = outcome(answer.as_ref().map(|held| held.lease().token()));
    let noted = worker.notes.take(number, answer.is_ok());
    say(&Event::Acquire(Acquire {
        worker: worker.spec.worker,
        lease: number,
        key: plan.key.clone(),
        limit: plan.limit,
        ttl: micros(plan.ttl),
        grace: micros(plan.grace),
        group: plan.group.clone(),
        begin,
        end,
        within: micros(OPERATION_TIMEOUT + plan.wait.unwrap_or_default()),
        outcome,
        attempts: noted.attempts,
        doubts: noted.doubts,
        queued: noted.queued,
        anew: plan.anew,
        probe: false,
        refreshes: plan.refreshed || plan.aim == Aim::Lead,
        since: plan.transferred.map(|lease| lease.since),
        least: micros(plan.least),
    }));
    answer.ok().map(|held| (held, number))
}

pub(crate) fn outcome(answer: Result<FencingToken, &Error>) -> Outcome {
    match answer {
        Ok(token) => Outcome::Granted { token: token.get() },
        Err(Error::Held { .. }) => Outcome::Held,
        Err(Error::QueueFull { .. }) => Outcome::Full,
        Err(error @ Error::Unavailable { .. }) => Outcome::Unavailable { message: error.to_string() },
        Err(error) => Outcome::Other { message: error.to_string() },
    }
}
