//! The task of an observation.

use std::sync::Arc;

use mongoseal::LeaderStream;
use tokio::sync::oneshot;

use super::{
    Session,
    event::{Event, Refusal},
    request::Id,
};

/// Observes a leadership until `end` comes, with the id of its request.
pub(super) async fn serve(session: Arc<Session>, id: Id, name: String, mut end: oneshot::Receiver<Id>) {
    let begun = tokio::select! {
        biased;
        begun = session.seal.observe(name.as_str()) => begun,
        Ok(by) = &mut end => {
            let cancelled = Refusal::new("cancelled", "the observation was ended by a request");
            session.output.print(&Event::refused(Some(id.clone()), None, cancelled));
            session.output.print(&Event::Unobserved { id: Some(by), observation: id, error: None });
            return;
        }
    };
    match begun {
        Ok(leaders) => {
            session.output.print(&Event::Observing { id: id.clone() });
            follow(&session, &id, leaders, &mut end).await;
        }
        Err(error) => {
            session.forget(&id);
            session.output.print(&Event::refused(Some(id), None, error.into()));
        }
    }
    // A request that came meanwhile.
    if let Ok(by) = end.try_recv() {
        session.output.print(&Event::refused(Some(by), None, Refusal::unknown_observation()));
    }
}

async fn follow(session: &Session, id: &Id, mut leaders: LeaderStream, end: &mut oneshot::Receiver<Id>) {
    loop {
        let event = tokio::select! {
            biased;
            Ok(by) = &mut *end => {
                session.output.print(&Event::Unobserved { id: Some(by), observation: id.clone(), error: None });
                return;
            }
            leader = leaders.next() => leader,
        };
        match event {
            Some(Ok(leader)) => session.output.print(&Event::leader(id, leader)),
            Some(Err(error)) => {
                session.forget(id);
                let error = Some(error.into());
                session.output.print(&Event::Unobserved { id: None, observation: id.clone(), error });
                return;
            }
            None => return session.forget(id),
        }
    }
}
