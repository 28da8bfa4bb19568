//! The task of an observation.

use std::sync::Arc;

use mongoseal::election::LeaderStream;
use tokio::sync::oneshot;

use super::{event::Event, refusal::Refusal, request::Id, shared::Shared};

/// Observes a leadership until `end` comes, with the id of its request.
pub(super) async fn serve(shared: Arc<Shared>, id: Id, name: String, mut end: oneshot::Receiver<Id>) {
    let begun = tokio::select! {
        biased;
        begun = shared.seal.observe(name.as_str()) => begun,
        Ok(by) = &mut end => {
            let cancelled = Refusal::new("cancelled", "the observation was ended by a request");
            shared.output.print(&Event::refused(Some(id.clone()), None, cancelled));
            shared.output.print(&Event::Unobserved { id: Some(by), observation: id, error: None });
            return;
        }
    };
    match begun {
        Ok(leaders) => {
            shared.output.print(&Event::Observing { id: id.clone() });
            follow(&shared, &id, leaders, &mut end).await;
        }
        Err(error) => {
            shared.forget(&id);
            shared.output.print(&Event::refused(Some(id), None, error.into()));
        }
    }
    // A request that came meanwhile.
    if let Ok(by) = end.try_recv() {
        shared.output.print(&Event::refused(Some(by), None, Refusal::unknown_observation()));
    }
}

async fn follow(shared: &Shared, id: &Id, mut leaders: LeaderStream, end: &mut oneshot::Receiver<Id>) {
    loop {
        let event = tokio::select! {
            biased;
            Ok(by) = &mut *end => {
                shared.output.print(&Event::Unobserved { id: Some(by), observation: id.clone(), error: None });
                return;
            }
            leader = leaders.next() => leader,
        };
        match event {
            Some(Ok(leader)) => shared.output.print(&Event::leader(id, leader)),
            Some(Err(error)) => {
                shared.forget(id);
                let error = Some(error.into());
                shared.output.print(&Event::Unobserved { id: None, observation: id.clone(), error });
                return;
            }
            None => return shared.forget(id),
        }
    }
}
