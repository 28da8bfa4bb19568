//! Faults of commands, which fail, hang, or are not confirmed.

use std::time::Duration;

use fastrand::Rng;
use mongodb::bson::{Bson, Document, doc};
use mongoseal_test_support::{FailPoint, How, Peer, ReplicaSet};
use tokio::time::sleep;

use super::{Chaos, millis};
use crate::{
    crew::{SLOTS, app_name},
    words::Fault,
};

/// Codes of a server that cannot do it now: a lock is not to be had, it is out of time or unavailable, or is overloaded. With
/// the codes of a change of its state the driver would close all connections at each refusal.
const REFUSALS: [i32; 9] = [24, 46, 50, 202, 365, 433, 449, 450, 462];
/// The part of the commands that is refused.
const REFUSED: f64 = 0.7;

/// The labels of an error of an overloaded server, and its possible codes.
const OVERLOADED: [&str; 2] = ["SystemOverloadedError", "RetryableError"];
pub(crate) const OVERLOADED_CODES: [i32; 4] = [433, 449, 450, 462];

/// The codes of a server that cannot serve a login now.
pub(crate) const LOGIN_CODES: [i32; 4] = [91, 189, 11600, 462];

impl Chaos<ReplicaSet> {
    /// Arms `failCommand` on the primary.
    async fn fail(&self, commands: &[&str], how: Document, mode: impl Into<Bson>) -> FailPoint {
        let primary = self.servers.primary().await;
        let mut data = doc! { "failCommands": commands };
        data.extend(how);
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode.into(), "data": data };
        self.servers.fail_point(primary, command).await
    }

    /// Writes are made, and said not to be confirmed.
    pub(super) async fn unconfirmed(&self, rng: &mut Rng) -> String {
        let code = if rng.bool() { 64 } else { 91 };
        let how = doc! { "writeConcernError": { "code": code, "errmsg": "said on purpose" } };
        let point = self.fail(&["findAndModify", "update"], how, doc! { "times": rng.u32(5..40) }).await;
        sleep(millis(rng, 500..1500)).await;
        format!("{} with code {code}", point.off().await)
    }

    /// Most commands are refused for a while, with the codes and labels of a server that cannot do them now. An overload
    /// has its labels, or its code alone.
    pub(super) async fn refuse(&self, rng: &mut Rng) -> String {
        let code = REFUSALS[rng.usize(..REFUSALS.len())];
        let labels = match (OVERLOADED_CODES.contains(&code), rng.bool()) {
            (true, true) => OVERLOADED.as_slice(),
            (false, true) => &["RetryableWriteError"],
            (_, false) => &[],
        };
        let commands = ["findAndModify", "update", "find", "aggregate", "commitTransaction", "abortTransaction"];
        let how = doc! { "errorCode": code, "errorLabels": labels.to_vec() };
        let point = self.fail(&commands, how, doc! { "activationProbability": REFUSED }).await;
        sleep(millis(rng, 1500..5000)).await;
        format!("{} with code {code} and {} labels", point.off().await, labels.len())
    }

    /// The checks of a handle that opens are refused for a while by an overload.
    pub(super) async fn refuse_checks(&self, rng: &mut Rng) -> String {
        let length = millis(rng, 1500..4000);
        self.overload(&["buildInfo", "replSetGetConfig", "explain"], length, rng).await
    }

    /// Commits alone are refused by an overload, for longer than a call may take.
    pub(super) async fn refuse_commits(&self, rng: &mut Rng) -> String {
        let length = millis(rng, 3500..5000);
        self.overload(&["commitTransaction"], length, rng).await
    }

    /// These commands are refused for so long by an overload.
    async fn overload(&self, commands: &[&str], length: Duration, rng: &mut Rng) -> String {
        let code = OVERLOADED_CODES[rng.usize(..OVERLOADED_CODES.len())];
        let how = doc! { "errorCode": code, "errorLabels": OVERLOADED.to_vec() };
        let point = self.fail(commands, how, "alwaysOn").await;
        sleep(length).await;
        format!("{} with code {code}", point.off().await)
    }

    /// A worker loses its connections, and its logins fail for a while as if the server could not do them now.
    pub(super) async fn refuse_logins(&self, rng: &mut Rng) -> Fault {
        let primary = self.servers.primary().await;
        let (slot, code) = (rng.u32(..SLOTS), LOGIN_CODES[rng.usize(..4)]);
        let how = doc! { "errorCode": code, "appName": app_name(slot) };
        let point = self.fail(&["saslStart", "saslContinue"], how, "alwaysOn").await;
        self.servers.proxy().cut_both(&Peer::client(app_name(slot)), &Peer::Member(primary), How::Reset);
        sleep(millis(rng, 50..200)).await;
        self.servers.proxy().heal();
        sleep(millis(rng, 1500..4000)).await;
        let what = format!("{} of the worker of slot {slot} with code {code}", point.off().await);
        Fault { what, slot: Some(slot), ..Fault::default() }
    }

    /// Writes are made by a primary that the others do not follow, and which then may be gone.
    pub(super) async fn uncommitted(&self, rng: &mut Rng) -> String {
        let primary = self.servers.primary().await;
        let points = self.servers.stop_replication().await;
        sleep(millis(rng, 1000..4500)).await;
        let kill = rng.bool();
        if kill {
            self.servers.kill(primary).await;
        }
        for point in points {
            point.off().await;
        }
        if kill {
            sleep(millis(rng, 500..3000)).await;
            self.servers.restart(primary).await;
        }
        format!("at member {primary}{}", if kill { ", which was killed" } else { "" })
    }

    /// Commands take long before they are executed.
    pub(super) async fn delay(&self, rng: &mut Rng) -> String {
        let by = rng.i32(300..3500);
        let how = doc! { "blockConnection": true, "blockTimeMS": by };
        let point = self.fail(&["findAndModify", "update"], how, doc! { "times": rng.u32(3..30) }).await;
        sleep(millis(rng, 500..2500)).await;
        format!("{} by {by} ms", point.off().await)
    }

    /// Change streams end.
    pub(super) async fn kill_stream(&self, rng: &mut Rng) -> String {
        // One that cannot be resumed, and two that can: the cursor is gone, or was killed.
        let code = [280, 43, 237][rng.usize(..3)];
        let point = self.fail(&["getMore"], doc! { "errorCode": code }, doc! { "times": rng.u32(3..12) }).await;
        sleep(millis(rng, 800..2000)).await;
        format!("{} with code {code}", point.off().await)
    }
}
