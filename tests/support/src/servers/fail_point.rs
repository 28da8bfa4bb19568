//! Fail points that do not outlive their test.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mongodb::{
    bson::{Bson, Document, doc},
    error::ErrorKind,
};
use tokio::sync::OwnedMutexGuard;

use crate::servers::{
    replica_set::Inner,
    runtime::{run, runtime},
};

/// An armed fail point of one member.
///
/// [`off`](Self::off) disarms it for certain; dropping it disarms it soon, if the member still
/// answers.
///
/// A server has one fail point of a name: whoever arms it again changes it. So those who arm the same
/// one in this process take turns.
#[must_use = "a fail point is disarmed when this is dropped"]
pub struct FailPoint {
    set: Arc<Inner>,
    member: usize,
    name: String,
    before: i64,
    turn: Option<Turn>,
}

/// Held while a fail point is armed.
type Turn = OwnedMutexGuard<()>;

/// Whose turn it is, by member and name of the fail point.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<Named, Arc<tokio::sync::Mutex<()>>>>);

/// The member and the name of a fail point.
type Named = (usize, String);

impl Turns {
    /// How long to wait: a test that arms the same fail point twice waits for itself.
    const LIMIT: Duration = Duration::from_secs(120);

    async fn take(&self, member: usize, name: &str) -> Turn {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry((member, name.to_owned())).or_default())
        };
        let taken = tokio::time::timeout(Self::LIMIT, turn.lock_owned()).await;
        taken.unwrap_or_else(|_| panic!("the fail point {name} of member {member} stayed armed for {:?}", Self::LIMIT))
    }
}

impl FailPoint {
    pub(crate) async fn arm(set: Arc<Inner>, member: usize, command: Document) -> Self {
        let name = command.get_str("configureFailPoint").expect("a fail point has a name").to_owned();
        let turn = set.turns.take(member, &name).await;
        let answer = match set.command(member, "admin", command.clone()).await {
            // A connection that the member closed when it changed its state.
            Err(error) if matches!(*error.kind, ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. }) => {
                set.command(member, "admin", command).await
            }
            answer => answer,
        };
        let answer = answer.unwrap_or_else(|error| {
            panic!("the fail point {name} was refused, which it is without the parameter enableTestCommands: {error}")
        });
        Self { set, member, name, before: entered(&answer), turn: Some(turn) }
    }

    /// Waits until it was hit `times` since it was armed, for at most a minute.
    pub async fn hit(&self, times: u32) {
        let Self { set, member, name, before, .. } = self;
        let (set, member, what) = (set.clone(), *member, name.clone());
        let wait = doc! { "waitForFailPoint": name, "timesEntered": before + i64::from(times), "maxTimeMS": 60_000 };
        run(async move {
            if let Err(error) = set.command(member, "admin", wait).await {
                panic!("the fail point {what} was not hit {times} times: {error}");
            }
        })
        .await;
    }

    /// Disarms it, and returns how often it was hit.
    pub async fn off(mut self) -> u64 {
        let turn = self.turn.take();
        let (set, member, command) = (self.set.clone(), self.member, self.disarm());
        let answer = run(async move { set.command(member, "admin", command).await }).await;
        drop(turn);
        let answer = answer.unwrap_or_else(|error| panic!("the fail point {} stays armed: {error}", self.name));
        u64::try_from(entered(&answer) - self.before).expect("a fail point is not hit less often later")
    }

    fn disarm(&self) -> Document {
        doc! { "configureFailPoint": &self.name, "mode": "off" }
    }
}

impl Drop for FailPoint {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            let (set, member, command) = (self.set.clone(), self.member, self.disarm());
            runtime().spawn(async move {
                set.command(member, "admin", command).await.ok();
                drop(turn);
            });
        }
    }
}

/// How often the fail point was hit since the server started.
fn entered(answer: &Document) -> i64 {
    match answer.get("count") {
        Some(Bson::Int32(count)) => i64::from(*count),
        Some(Bson::Int64(count)) => *count,
        _ => 0,
    }
}
