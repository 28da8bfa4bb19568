//! The loop of an elector: it campaigns, runs the work while it leads, and gives way.
//!
//! Mechanism: a campaign and a leadership have the same reasons to stop, and [`StopSignals`] waits for all of them.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{Leader, campaign::Candidacy, leadership::LeadershipPublisher};
use crate::{engine::retry::Backoff, types::error::Error};

/// Called when this candidate stops leading.
pub(super) type OnStopped = Box<dyn FnMut() + Send>;

/// The signals that stop a candidate.
pub(super) struct StopSignals {
    pub(super) end: CancellationToken,
    /// Whether the candidate is eligible. `None` is always.
    pub(super) health: Option<watch::Receiver<bool>>,
}

impl StopSignals {
    /// Waits until the candidate must neither lead nor wait, and returns why. `step_down` is cancelled if it is to step down.
    async fn stopped(&self, step_down: &CancellationToken) -> &'static str {
        tokio::select! {
            biased;
            () = self.end.cancelled() => "the end was requested",
            () = self.health_is(false) => "it is not eligible",
            () = step_down.cancelled() => "it steps down",
        }
    }

    /// Waits until the candidate may campaign. Returns `false` if the end of the elector was requested before.
    async fn wait_until_eligible(&self) -> bool {
        tokio::select! {
            biased;
            () = self.end.cancelled() => false,
            () = self.health_is(true) => true,
        }
    }

    /// Waits until the candidate is eligible, or until it is not. A sender that was dropped leaves the last value.
    async fn health_is(&self, wanted: bool) {
        let changed = match &self.health {
            Some(health) => health.clone().wait_for(|is_healthy| *is_healthy == wanted).await.is_ok(),
            None => wanted,
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }
}

/// Leads again and again.
pub(super) async fn lead<T, E: From<Error>>(
    candidacy: &Candidacy,
    mut on_stopped: Option<OnStopped>,
    stop: &StopSignals,
    publisher: &LeadershipPublisher,
    mut work: impl AsyncFnMut(&Leader) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let mut backoff = Backoff::new();
    // Only a leader can step down.
    let never = CancellationToken::new();
    while stop.wait_until_eligible().await {
        let elected = tokio::select! {
            biased;
            reason = stop.stopped(&never) => {
                debug!(name = %candidacy.name, reason, "withdraws");
                continue;
            }
            elected = candidacy.campaign(publisher.begin_campaign()) => elected,
        };
        let leader = match elected {
            Ok(leader) => leader,
            Err(error @ (Error::Invalid { .. } | Error::Corrupt { .. })) => return Err(error.into()),
            // The campaign has recorded its error.
            Err(_recorded) => {
                debug!(name = %candidacy.name, "not elected: retrying");
                candidacy.pause(&mut backoff, &stop.end).await;
                continue;
            }
        };
        let began = candidacy.now();
        let step_down = publisher.begin_leadership(leader.lease());
        info!(name = %candidacy.name, token = %leader.token(), "leads");
        let done = tokio::select! {
            biased;
            reason = stop.stopped(&step_down) => Err(reason),
            done = leader.lease().run(work(&leader)) => Ok(done),
        };
        publisher.end_leadership();
        if let Some(call) = &mut on_stopped {
            call();
        }
        info!(name = %candidacy.name, token = %leader.token(), "leads no more");
        let returned = match done {
            // The lease is lost, and has logged why.
            Ok(Err(_lost)) => {
                if candidacy.now().since(began) > candidacy.ttl {
                    backoff = Backoff::new();
                }
                candidacy.pause(&mut backoff, &stop.end).await;
                continue;
            }
            Ok(Ok(returned)) => Some(returned),
            Err(reason) => {
                debug!(name = %candidacy.name, reason, "gives way");
                None
            }
        };
        // Before the next campaign, so that it waits behind the present candidates.
        // If this fails, the ttl ends the leadership, and a warning says so.
        drop(leader.resign().await);
        if let Some(returned) = returned {
            return returned.map(Some);
        }
    }
    Ok(None)
}
