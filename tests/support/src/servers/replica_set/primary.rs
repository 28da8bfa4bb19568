//! Finds the primary, and makes another member primary.

use std::time::Duration;

use futures_util::future::join_all;
use mongodb::bson::{Document, doc};

use super::{Inner, ReplicaSet};
use crate::servers::runtime::{Waiting, run};

/// More than half a minute went by before a member gave up a paused source to follow another, and more than a minute
/// on a machine with twenty times the work it can do.
pub(super) const LIMIT: Duration = Duration::from_secs(180);

impl ReplicaSet {
    /// The member that is primary and accepts majority writes, waiting for there to be one for at
    /// most three minutes.
    ///
    /// A member may call itself primary for seconds before it can have writes confirmed, or after
    /// another was elected; so this makes it write.
    pub async fn primary(&self) -> usize {
        let inner = self.inner.clone();
        run(async move { inner.primary().await }).await
    }

    /// Waits until every running member is primary or secondary, they agree on who is which, and
    /// the primary accepts majority writes.
    pub async fn settled(&self) {
        let inner = self.inner.clone();
        run(async move { inner.settled().await }).await;
    }

    /// Makes the primary step down. Returns once it has; [`primary`](Self::primary) waits for the
    /// next one.
    pub async fn step_down(&self) {
        let inner = self.inner.clone();
        run(async move { inner.step_down().await }).await;
    }

    /// Makes `member` the primary.
    pub async fn step_up(&self, member: usize) {
        let inner = self.inner.clone();
        run(async move { inner.step_up(member).await }).await;
    }
}

impl Inner {
    pub(crate) async fn primary(&self) -> usize {
        if self.owned.is_none() {
            return 0;
        }
        let waiting = Waiting::new("for a primary that accepts majority writes", LIMIT);
        loop {
            match self.writable_primary().await {
                Ok(member) => return member,
                Err(state) => waiting.pause(state).await,
            }
        }
    }

    /// One look; an error says what it saw.
    async fn writable_primary(&self) -> Result<usize, String> {
        let hellos = self.hellos().await;
        let primaries = hellos.iter().enumerate().filter_map(|(member, hello)| {
            let hello = hello.as_ref().ok()?;
            // Election ids grow, so the largest is of the primary that is not stale.
            hello.get_bool("isWritablePrimary").ok().filter(|yes| *yes)?;
            Some((hello.get_object_id("electionId").ok()?, member))
        });
        let Some((_, member)) = primaries.max() else {
            return Err(describe(&hellos));
        };
        let write = doc! {
            "appendOplogNote": 1,
            "data": { "by": "mongoseal-test-support" },
            "writeConcern": { "w": "majority", "wtimeout": 1000 },
        };
        match self.quick_command(member, write).await {
            Ok(answer) => match answer.get("writeConcernError") {
                None => Ok(member),
                Some(error) => Err(format!("member {member} is primary, but {error}")),
            },
            Err(error) => Err(format!("member {member} is primary, but {error}")),
        }
    }

    async fn settled(&self) {
        let waiting = Waiting::new("for all running members to agree on the primary", LIMIT);
        loop {
            let hellos = self.hellos().await;
            let running = self.owned().members.iter().zip(&hellos).filter(|(member, _)| member.server.is_running());
            let views: Vec<_> = running.map(|(_, hello)| hello.as_ref().ok().and_then(view)).collect();
            if views.iter().all(|view| view.is_some() && *view == views[0]) {
                break;
            }
            waiting.pause(describe(&hellos)).await;
        }
        self.primary().await;
    }

    async fn step_down(&self) {
        let members = self.owned().members.len();
        let waiting = Waiting::new("for the primary to step down", LIMIT);
        // A primary without others has nobody to hand over to. Among others, one that is caught up
        // takes over at once; after a while without such, the primary gives in.
        let mut force = members == 1;
        loop {
            let primary = self.primary().await;
            let command = doc! { "replSetStepDown": 2, "secondaryCatchUpPeriodSecs": 1, "force": force };
            match self.command(primary, "admin", command).await {
                Ok(_) => return,
                Err(error) => waiting.pause(error).await,
            }
            force = true;
        }
    }

    async fn step_up(&self, member: usize) {
        let waiting = Waiting::new(format!("for member {member} to become primary"), LIMIT);
        loop {
            let hello = self.quick_command(member, doc! { "hello": 1 }).await;
            if hello.is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false)) {
                return;
            }
            // Refused while it lags behind or somebody else is being elected.
            let outcome = self.quick_command(member, doc! { "replSetStepUp": 1 }).await;
            waiting.pause(outcome.err().unwrap_or_else(|| "elected, not yet writable".into())).await;
        }
    }

    async fn hellos(&self) -> Vec<Hello> {
        let members = 0..self.owned().members.len();
        join_all(members.map(|member| self.quick_command(member, doc! { "hello": 1 }))).await
    }

    /// A command to a member that may be unable to answer.
    async fn quick_command(&self, member: usize, command: Document) -> Hello {
        if !self.owned().members[member].server.is_running() {
            return Err("killed".into());
        }
        match tokio::time::timeout(Duration::from_millis(2500), self.command(member, "admin", command)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err("no answer".into()),
        }
    }
}

type Hello = Result<Document, String>;

/// Who is primary in the eyes of a member that takes part.
fn view(hello: &Document) -> Option<&str> {
    let is = |field| hello.get_bool(field).unwrap_or(false);
    let (primary, me) = (hello.get_str("primary").ok()?, hello.get_str("me").ok()?);
    let consistent = if is("isWritablePrimary") { primary == me } else { is("secondary") && primary != me };
    consistent.then_some(primary)
}

/// The state of each member, for people.
fn describe(hellos: &[Hello]) -> String {
    let state = |(member, hello): (usize, &Hello)| match hello {
        Err(error) => format!("{member}: {error}"),
        Ok(hello) if hello.get_bool("isWritablePrimary").unwrap_or(false) => {
            format!("{member}: primary")
        }
        Ok(hello) if hello.get_bool("secondary").unwrap_or(false) => format!("{member}: secondary"),
        Ok(hello) => format!("{member}: {}", hello.get_str("info").unwrap_or("neither primary nor secondary")),
    };
    hellos.iter().enumerate().map(state).collect::<Vec<_>>().join(", ")
}
