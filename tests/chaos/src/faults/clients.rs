//! Faults of the workers, which are killed, stopped or blocked.

use fastrand::Rng;

use super::{Chaos, Done, Kind, millis};
use crate::crew::SLOTS;

impl<S> Chaos<S> {
    /// Hurts a worker. Faults of servers have no effect here.
    pub(super) async fn hurt_client(&self, kind: Kind, rng: &mut Rng) -> Done {
        match kind {
            Kind::KillClient => self.kill_client(rng).await,
            Kind::PauseClient => self.pause_client(rng).await,
            Kind::BlockClient => self.block_client(rng).await,
            _ => Done::from(String::from("not of these servers")),
        }
    }

    async fn kill_client(&self, rng: &mut Rng) -> Done {
        let slot = rng.u32(..SLOTS);
        self.crew.kill(slot, millis(rng, 0..1000)).await;
        Done { what: format!("the worker of slot {slot}"), slot: Some(slot), ..Done::default() }
    }

    async fn pause_client(&self, rng: &mut Rng) -> Done {
        let (slot, length) = (rng.u32(..SLOTS), millis(rng, 300..6000));
        self.crew.pause(slot, length).await;
        Done { what: format!("the worker of slot {slot} for {length:?}"), slot: Some(slot), ..Done::default() }
    }

    /// Blocks all threads of a worker's runtime, for longer than its ttls. The process runs.
    async fn block_client(&self, rng: &mut Rng) -> Done {
        let (slot, length) = (rng.u32(..SLOTS), millis(rng, 2500..5000));
        self.crew.block(slot, length).await;
        Done { what: format!("the worker of slot {slot} for {length:?}"), slot: Some(slot), ..Done::default() }
    }
}
