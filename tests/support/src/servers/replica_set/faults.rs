//! Faults of processes and clocks.

use mongodb::bson::{Document, doc};

use super::ReplicaSet;
use crate::servers::{clock, fail_point::FailPoint, runtime::run, server::Server};

impl ReplicaSet {
    /// Kills a member with SIGKILL and waits until it is gone.
    pub async fn kill(&self, member: usize) {
        self.with_server(member, Server::kill).await;
    }

    /// Ends a member with SIGTERM and waits until it is gone: a primary hands over first, and then
    /// serves reads for `shutdownTimeoutMillisForSignaledShutdown`, 15 s by default.
    pub async fn terminate(&self, member: usize) {
        self.with_server(member, Server::terminate).await;
    }

    /// Starts a killed member again, with its data, and waits until it accepts connections.
    /// [`settled`](Self::settled) waits until it takes part again.
    pub async fn restart(&self, member: usize) {
        self.with_server(member, Server::restart).await;
    }

    /// Stops a member where it is, with SIGSTOP. Its connections stay open, and silent.
    pub async fn pause(&self, member: usize) {
        self.with_server(member, Server::pause).await;
    }

    /// Lets a paused member go on.
    pub async fn resume(&self, member: usize) {
        self.with_server(member, Server::resume).await;
    }

    /// Shifts the wall clock of a member of a set with [`own_clocks`](super::Builder::own_clocks):
    /// `-1h`, `+30`, `+0`, as libfaketime reads it. The member notices within a second.
    pub fn set_clock(&self, member: usize, shift: &str) {
        clock::set(self.inner.owned().members[member].server.directory(), shift);
    }

    /// Arms a fail point on one member with a whole `configureFailPoint` command.
    pub async fn fail_point(&self, member: usize, command: Document) -> FailPoint {
        let inner = self.inner.clone();
        run(FailPoint::arm(inner, member, command)).await
    }

    /// Stops all secondaries from applying writes, so that no majority confirms one.
    pub async fn stop_replication(&self) -> Vec<FailPoint> {
        let primary = self.primary().await;
        let mut points = Vec::new();
        for member in (0..self.hosts().len()).filter(|member| *member != primary) {
            let stop = doc! { "configureFailPoint": "rsSyncApplyStop", "mode": "alwaysOn" };
            points.push(self.fail_point(member, stop).await);
        }
        points
    }

    /// Arms `failCommand` on the primary: what `data` says happens to the next `times` of these
    /// `commands` from the client `app_name`.
    pub async fn fail_command(&self, app_name: &str, commands: &[&str], data: Document, times: u32) -> FailPoint {
        let mut all = doc! { "failCommands": commands, "appName": app_name };
        all.extend(data);
        let command = doc! { "configureFailPoint": "failCommand", "mode": { "times": times }, "data": all };
        let inner = self.inner.clone();
        run(async move {
            let primary = inner.primary().await;
            FailPoint::arm(inner, primary, command).await
        })
        .await
    }
}
