//! Gauges after random acquires, ends and faults.

use std::future::IntoFuture;

use fastrand::Rng;
use mongoseal::{Lease, LeaseId, LeaseSet, LeaseState, Mongoseal, Result, Retry, election::Leader};
use tokio::task::JoinHandle;

use super::{observed, recorder::Recorded};
use crate::{
    faulty::{Fault, Faulty},
    millis, secs,
};

/// What a process holds and waits for.
struct Process {
    rng: Rng,
    store: Faulty,
    seal: Mongoseal,
    leases: Vec<Lease>,
    sets: Vec<LeaseSet>,
    leaders: Vec<Leader>,
    acquires: Vec<JoinHandle<Result<Lease>>>,
    campaigns: Vec<JoinHandle<Result<Leader>>>,
}

impl Process {
    fn new(seed: u64) -> Self {
        let store = Faulty::new();
        let seal = store.build(observed().ttl(secs(10)).operation_timeout(secs(3)).queue_limit(3));
        let (rng, leases, sets, leaders) = (Rng::with_seed(seed), Vec::new(), Vec::new(), Vec::new());
        Self { rng, store, seal, leases, sets, leaders, acquires: Vec::new(), campaigns: Vec::new() }
    }

    fn lease(&mut self) -> Option<Lease> {
        (!self.leases.is_empty()).then(|| self.leases.swap_remove(self.rng.usize(..self.leases.len())))
    }

    async fn step(&mut self) {
        let key = self.rng.choice(["a", "b", "c", "d"]).unwrap();
        match self.rng.u8(..16) {
            0..=3 => self.start_acquire(key),
            4 => {
                if let Ok(set) = self.seal.acquire_all([key, "d"]).wait(secs(2)).await {
                    self.sets.push(set);
                }
            }
            5 => {
                let name = self.rng.choice(["x", "y"]).unwrap();
                self.campaigns.push(tokio::spawn(self.seal.campaign(name).into_future()));
            }
            6 | 7 => self.abandon(),
            8 => drop(self.lease()),
            9 => {
                if let Some(lease) = self.lease() {
                    drop(lease.release().await);
                }
            }
            10 => self.lease().into_iter().for_each(Lease::orphan),
            11 => self.transfer().await,
            12 => drop(self.seal.revoke(key).await),
            13 => drop(self.seal.release_group("g").await),
            14 => {
                if let Some(set) = self.sets.pop() {
                    drop(set.release().await);
                }
                if let Some(leader) = self.leaders.pop() {
                    drop(leader.resign().await);
                }
            }
            _ => self.hurt(),
        }
        self.collect().await;
    }

    fn start_acquire(&mut self, key: &str) {
        let mut acquire = self.seal.acquire(key);
        acquire = match self.rng.u8(..5) {
            0 => acquire,
            1 => acquire.retry(Retry::fixed(secs(1)).attempts(3)),
            _ => acquire.wait(secs(self.rng.u64(1..40))),
        };
        acquire = match self.rng.u8(..6) {
            0 => acquire.group("g"),
            1 => acquire.max_hold(secs(15)),
            2 => acquire.stalled_after(secs(12)),
            3 => acquire.shared(),
            4 => acquire.without_refresh(),
            _ => acquire,
        };
        self.acquires.push(tokio::spawn(acquire.into_future()));
    }

    /// Drops the future of an acquire or a campaign.
    fn abandon(&mut self) {
        if !self.acquires.is_empty() {
            self.acquires.swap_remove(self.rng.usize(..self.acquires.len())).abort();
        } else if let Some(campaign) = self.campaigns.pop() {
            campaign.abort();
        }
    }

    /// Transfers a lease, and resumes it under its new id.
    async fn transfer(&mut self) {
        let Some(lease) = self.lease() else { return };
        let (key, to) = (lease.key().clone(), LeaseId::random());
        if let Ok(token) = lease.transfer(to).await
            && let Ok(lease) = self.seal.resume(key, to, token).await
        {
            self.leases.push(lease);
        }
    }

    /// Injects a fault for a few requests, or until the next fault.
    fn hurt(&mut self) {
        let fault = match self.rng.u8(..6) {
            0 => Fault::Hang,
            1 => Fault::Fail,
            2 => Fault::LoseReply,
            3 => Fault::DelayReply(millis(self.rng.u64(..4_000))),
            4 => Fault::Delay(millis(self.rng.u64(..4_000))),
            _ => return self.store.heal(),
        };
        let mut left = self.rng.u32(1..30);
        self.store.script(move |_| {
            left = left.saturating_sub(1);
            (left > 0).then_some(fault)
        });
    }

    /// Takes up what was granted.
    async fn collect(&mut self) {
        async fn take<T>(asked: &mut Vec<JoinHandle<Result<T>>>, granted: &mut Vec<T>) {
            for ended in asked.extract_if(.., |task| task.is_finished()) {
                granted.extend(ended.await.into_iter().flatten());
            }
        }
        tokio::time::sleep(millis(self.rng.u64(..3_000))).await;
        take(&mut self.acquires, &mut self.leases).await;
        take(&mut self.campaigns, &mut self.leaders).await;
    }

    /// How many of its leases have not ended.
    fn held(&self) -> f64 {
        let leases = self.leases.iter().chain(self.sets.iter().flatten()).chain(self.leaders.iter().map(Leader::lease));
        let held = leases.filter(|lease| matches!(lease.state(), LeaseState::Held | LeaseState::AtRisk));
        u32::try_from(held.count()).unwrap().into()
    }
}

#[tokio::test(start_paused = true)]
async fn gauges_agree_with_the_leases_after_random_acquires_ends_and_faults_and_return_to_zero() {
    let mut ends = 0;
    for seed in 0..30 {
        let (recorded, _guard) = Recorded::install();
        let mut process = Process::new(seed);
        for _ in 0..60 {
            process.step().await;
        }
        // Requests of before the faults end by their timeouts.
        process.store.heal();
        tokio::time::sleep(secs(120)).await;
        process.collect().await;
        recorded.assert_sums([("mongoseal.leases", process.held())]);

        let Process { seal, leases, sets, leaders, acquires, campaigns, .. } = process;
        campaigns.iter().for_each(JoinHandle::abort);
        if seed % 2 == 0 {
            drop((leases, sets, leaders, acquires, campaigns));
            seal.shutdown().await;
        } else {
            seal.shutdown().await;
            drop((leases, sets, leaders, acquires, campaigns));
        }
        tokio::time::sleep(secs(120)).await;
        recorded.assert_sums([("mongoseal.leases", 0.0), ("mongoseal.waiters", 0.0)]);
        for leader in recorded.with("mongoseal.leader") {
            recorded.assert_sums([(&leader, 0.0)]);
        }
        ends += recorded.with("held.duration").iter().map(|series| recorded.updates(series)).sum::<usize>();
    }
    assert!(ends > 300, "only {ends} leases");
}
