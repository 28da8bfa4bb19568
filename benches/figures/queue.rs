//! Measures a queue of 1,000 waiters of one key.

use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use mongoseal::Mongoseal;

use crate::{
    cpu::ServerTime,
    figures::{Figures, Round, Samples},
    measured_set::MeasuredSet,
};

const HANDLES: usize = 4;
const WORK: Duration = Duration::from_millis(1);

/// What became of many waiters.
pub(crate) struct PassedOn {
    /// When each was granted the key, in the order of their tokens.
    grants: Vec<Instant>,
    commands: u64,
    /// The commands from the first release on, and what the servers spent on them.
    hand_overs: (u64, ServerTime),
    /// The largest that the record was, in bytes.
    size: usize,
}

/// So few that their number costs nothing.
const FEW: usize = 8;

impl PassedOn {
    /// From one grant to the next.
    pub(crate) fn gaps(&self) -> Vec<Duration> {
        self.grants.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0])).collect()
    }
}

/// Measures from one grant to the next.
pub(crate) async fn measure(measured: &MeasuredSet, quick: bool) -> Figures {
    let (waiters, times) = if quick { (100, 2) } else { (1_000, 10) };
    let crew = Crew::new(measured).await;
    let mut few = Vec::new();
    for _ in 0..times {
        few.extend(crew.pass_on(measured, "few", FEW).await.gaps());
    }
    let passed_on = crew.pass_on(measured, "queue", waiters).await;
    let (commands, size) = (passed_on.commands, passed_on.size);
    let ours = Samples { took: passed_on.gaps(), servers: passed_on.hand_overs.1, commands: passed_on.hand_overs.0 };
    for _ in 0..times {
        few.extend(crew.pass_on(measured, "few", FEW).await.gaps());
    }
    crew.shutdown().await;
    let mut floor = Samples::default();
    floor.add(&measured.clocks().await, measured.floor(waiters / 4)).await;
    floor.commands = floor.took.len() as u64;
    #[expect(clippy::cast_precision_loss, reason = "a count is small")]
    let rate = |gaps: &[Duration]| gaps.len() as f64 / gaps.iter().sum::<Duration>().as_secs_f64();
    let (rate, rate_of_few) = (rate(&ours.took), rate(&few));
    #[expect(clippy::cast_precision_loss, reason = "a count is small")]
    let commands = commands as f64 / waiters as f64;
    let notes = vec![
        format!(
            "{waiters} waiters of {HANDLES} handles: {rate:.0} grants a second, {:.2} of the {rate_of_few:.0} of {FEW} \
             waiters before and after",
            rate / rate_of_few
        ),
        format!("largest record: {size} bytes"),
        "processor time is of the hand-overs, without the queueing".into(),
    ];
    Figures {
        case: "queue-1000",
        what: "one grant to the next, with 1 ms of work",
        rounds: vec![Round { ours, floor }],
        commands,
        notes,
    }
}

/// One who holds a key, and the handles of those who wait for it.
pub(crate) struct Crew {
    holder: Mongoseal,
    handles: Vec<Mongoseal>,
}

impl Crew {
    pub(crate) async fn new(measured: &MeasuredSet) -> Self {
        let mut handles = Vec::new();
        for _ in 0..HANDLES {
            handles.push(measured.handle().await);
        }
        Self { holder: measured.handle().await, handles }
    }

    /// Queues so many behind a holder, who then releases the key.
    pub(crate) async fn pass_on(&self, measured: &MeasuredSet, key: &str, waiters: usize) -> PassedOn {
        let clocks = measured.clocks().await;
        let first = self.holder.acquire(key).await.expect("the key is free");
        let before = measured.writes_sent().await;
        let mut waiting = Vec::new();
        for seal in &self.handles {
            for _ in 0..waiters / HANDLES {
                let acquire = seal.acquire(key).wait(Duration::MAX);
                waiting.push(tokio::spawn(async move {
                    let lease = acquire.await.expect("it is granted");
                    let granted = (Instant::now(), lease.token());
                    tokio::time::sleep(WORK).await;
                    lease.release().await.expect("it is released");
                    granted
                }));
            }
        }
        let mut size = 0;
        while queued(measured, key, &mut size).await < waiters {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let queued = measured.writes_sent().await;
        let handing_over = async {
            first.release().await.expect("it is released");
            let mut grants = Vec::new();
            for waiter in waiting {
                grants.push(waiter.await.expect("no waiter panics"));
            }
            grants
        };
        let (mut grants, servers) = clocks.spent(handing_over).await;
        let ended = measured.writes_sent().await;
        grants.sort_by_key(|(_, token)| *token);
        PassedOn {
            grants: grants.into_iter().map(|(granted, _)| granted).collect(),
            commands: ended - before,
            hand_overs: (ended - queued, servers),
            size,
        }
    }

    pub(crate) async fn shutdown(self) {
        for seal in self.handles {
            seal.shutdown().await;
        }
        self.holder.shutdown().await;
    }
}

/// How many wait, and how large the record is.
async fn queued(measured: &MeasuredSet, key: &str, size: &mut usize) -> usize {
    let record: Option<Document> = measured.records().find_one(doc! { "_id": key }).await.expect("it can be read");
    let Some(record) = record else { return 0 };
    *size = mongodb::bson::to_vec(&record).map_or(0, |bytes| bytes.len()).max(*size);
    record.get_array("queue").map_or(0, Vec::len)
}
