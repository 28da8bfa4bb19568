//! Faults that are built in on purpose, to test the judge: a run without findings is conclusive only if the same run
//! finds these.
//!
//! None is in the library. Most change the messages between the library and the servers, in the proxies. The others
//! change what the store returns to the engine, in a `Store` around the real one.
//!
//! A run with sabotage is judged all the while. So it leaves out the fault `drop`, which excuses a finding later. These clients
//! run with some sabotages only:
//!
//! - writers of documents: `no-fence` and `transaction-left`;
//! - clients that wait for longer than an outage: `impatient`;
//! - runners of schedules: `once-unchecked`;
//! - waiters for a key with a minimum hold: `untold-hold`;
//! - clients that shut a handle down under work: `unknown-work`;
//! - clients that open handles on a collection with a collation: `checks-skipped`;
//! - the fleet: `shared-refreshes`.

use std::time::{Duration, SystemTime};

use mongodb::bson::{Bson, DateTime, Document, doc};
use mongoseal_test_support::{ReplicaSet, Way};
use serde::{Deserialize, Serialize};

use crate::{
    faults::{LOGIN_CODES, OVERLOADED_CODES},
    worker::DOCUMENTS,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sabotage {
    /// Writes are acknowledged by the primary alone.
    W1,
    /// A token is the last one and one more, without the hybrid clock.
    VersionOnly,
    /// An acquire that changed nothing counts as one that was granted.
    NoOpSuccess,
    /// A write that the majority did not confirm counts as confirmed.
    IgnoreWriteConcernError,
    /// An answer that came too late is taken as one to the request that was sent last.
    LateReply,
    /// The time at which a record stops to matter may go back.
    LowerExpiry,
    /// Expiry is counted on the clocks of clients.
    ClientClock,
    /// A release ends whatever lease there is.
    ReleaseByKey,
    /// The fast path of an acquire does not check whether the key is held.
    FastGrant,
    /// The writes of a fenced collection carry no condition.
    NoFence,
    /// Each request of a handle waits until the one before has been answered.
    SharedFate,
    /// An acquire is granted by a read after its write.
    GrantByRead,
    /// A refresh is given up after a sixth of the ttl, and its answer is not used.
    ShortAttempts,
    /// Leases have no grace, though clocks differ.
    NoGrace,
    /// A waiter gives up with the first request that is not answered.
    Impatient,
    /// The handle that should have a thread of its own has none.
    NoThread,
    /// Handles that should share a change stream are independent.
    OwnStreams,
    /// An acquire does not wait for the release of the lease that its handle has dropped.
    NoOwnWait,
    /// A batch of refreshes is not sent, and counts as confirmed.
    UnsentBatch,
    /// Each refresh of a handle, of one lease or of a batch, waits until the one before has been answered.
    SharedRefreshes,
    /// The stores of a client are made for a hundred times as many connections as its pool has.
    OverdrawnPool,
    /// A store closes only when the pending request of its change stream has been answered.
    SlowClose,
    /// A runner that holds the key of a schedule does not see the last completed tick.
    OnceUnchecked,
    /// A waiter is not told that it is the first one for a key whose minimum hold has an end.
    UntoldHold,
    /// A handle does not know of the work under a lease.
    UnknownWork,
    /// The error of an overloaded server counts as a refusal for good.
    OverloadRefused,
    /// The error of a server that cannot serve a login now counts as a refusal of the credentials.
    LoginRefused,
    /// A check of the deployment that an overloaded server cannot answer counts as one that is not permitted.
    ChecksSkipped,
    /// A transaction whose commit was refused is not ended.
    TransactionLeft,
    /// A change stream that is resumed begins at the present.
    LostPosition,
    /// A swap does not compare the value.
    BlindSwap,
    /// A record is kept for a fraction of its time.
    ShortKeep,
    /// A swap whose reply is lost counts as one that was made.
    LostSwap,
    /// A write of a value counts as made before it is answered.
    EarlyPut,
}

impl Sabotage {
    /// Whether it is done on the way to the servers, and not in the workers.
    fn is_done_on_the_way(self) -> bool {
        matches!(
            self,
            Self::W1
                | Self::VersionOnly
                | Self::IgnoreWriteConcernError
                | Self::LowerExpiry
                | Self::ClientClock
                | Self::ReleaseByKey
                | Self::FastGrant
                | Self::NoFence
                | Self::OverloadRefused
                | Self::LoginRefused
                | Self::ChecksSkipped
                | Self::TransactionLeft
                | Self::LostPosition
        )
    }

    /// Does it, where it is done on the way between workers and servers.
    pub(crate) fn tamper(self, set: &ReplicaSet) {
        if self.is_done_on_the_way() {
            set.proxy().tamper_with(move |client, way, message| {
                client.starts_with(crate::crew::APP_NAME) && self.tampers(client, way, message)
            });
        }
    }

    fn tampers(self, client: &str, way: Way, message: &mut Document) -> bool {
        if way == Way::Reply {
            return match self {
                Self::IgnoreWriteConcernError => message.remove("writeConcernError").is_some(),
                Self::OverloadRefused => refuse(message, &OVERLOADED_CODES, 2),
                Self::LoginRefused => refuse(message, &LOGIN_CODES, 18),
                Self::ChecksSkipped => refuse(message, &OVERLOADED_CODES, 13),
                _ => false,
            };
        }
        if self == Self::TransactionLeft {
            // The next transaction of a session, by which the library ends one whose commit was refused.
            let is_next = message.get_bool("startTransaction").unwrap_or(false)
                && message.get_document("filter").is_ok_and(|filter| *filter == doc! { "_id": "" });
            if is_next {
                let rest = std::mem::replace(message, doc! { "noSuchCommand": 1 });
                message.extend(rest);
            }
            return is_next;
        }
        if self == Self::LostPosition {
            return message.contains_key("aggregate")
                && rewrite(message, &|value| {
                    let mut stage = value.as_document()?.clone();
                    stage.remove("resumeAfter").map(|_token| stage.into())
                });
        }
        let written = ["findAndModify", "update"].into_iter().find_map(|command| message.get_str(command).ok());
        if written.is_none_or(|collection| (collection == DOCUMENTS) != (self == Self::NoFence)) {
            return false;
        }
        match self {
            Self::NoFence => message.get_document_mut("query").is_ok_and(|query| {
                rewrite(query, &|value| value.as_document()?.contains_key("$or").then(|| doc! {}.into()))
            }),
            Self::W1 => message.get_document_mut("writeConcern").is_ok_and(|concern| concern.insert("w", 1).is_some()),
            Self::VersionOnly => rewrite(message, &|value| {
                // Of the whole pipeline, and of the fast path.
                let next = ["$v", "$version"].map(|version| Bson::from(doc! { "$add": [version, 1] }));
                let largest = value.as_document()?.get_array("$max").ok()?.first()?;
                next.contains(largest).then(|| doc! { "$ifNull": [largest.clone(), 1_i64] }.into())
            }),
            Self::LowerExpiry => rewrite(message, &|value| {
                let enough = doc! { "$gte": ["$r.expires_at", "$end"] };
                let [condition, _, anew] = value.as_document()?.get_array("$cond").ok()?.as_slice() else {
                    return None;
                };
                (condition == &Bson::from(enough)).then(|| anew.clone())
            }),
            Self::ClientClock => {
                // Every other one is four seconds ahead.
                let ahead = if client.ends_with(['1', '3', '5']) { 4 } else { 0 };
                let time = DateTime::from_system_time(SystemTime::now() + Duration::from_secs(ahead));
                rewrite(message, &|value| (value == &Bson::from("$$NOW")).then(|| doc! { "$literal": time }.into()))
            }
            Self::ReleaseByKey => {
                // The whole pipeline of a release then ends each holder, and not only its own.
                let own = doc! { "$eq": [["$$this.lease", "$$this.version"], ["$$lease", "$$token"]] };
                rewrite(message, &|value| {
                    let [condition, released, _] = value.as_document()?.get_array("$cond").ok()?.as_slice() else {
                        return None;
                    };
                    let merged = released.as_document()?.get_array("$mergeObjects").ok()?;
                    let is_release = merged.last()?.as_document()?.contains_key("released_at");
                    (is_release && condition == &Bson::from(own.clone())).then(|| released.clone())
                })
            }
            Self::FastGrant => rewrite(message, &|value| {
                let compared = value.as_document()?.get_array("$eq").ok()?.first()?.as_array()?;
                compared.contains(&"$r.holders".into()).then(|| Bson::from(true))
            }),
            _ => false,
        }
    }
}

/// If an error has one of these codes, replaces it by another error, without labels.
fn refuse(message: &mut Document, codes: &[i32], by: i32) -> bool {
    let is_one = message.get_i32("code").is_ok_and(|code| codes.contains(&code));
    if is_one {
        message.remove("errorLabels");
        message.insert("code", by);
    }
    is_one
}

/// Replaces what is to be replaced, wherever it is, and says whether there was any.
fn rewrite(document: &mut Document, replace: &impl Fn(&Bson) -> Option<Bson>) -> bool {
    let mut any = false;
    for (_, value) in document.iter_mut() {
        any |= rewrite_value(value, replace);
    }
    any
}

fn rewrite_value(value: &mut Bson, replace: &impl Fn(&Bson) -> Option<Bson>) -> bool {
    if let Some(other) = replace(value) {
        *value = other;
        return true;
    }
    match value {
        Bson::Document(document) => rewrite(document, replace),
        Bson::Array(values) => {
            let replaced = values.iter_mut().map(|value| rewrite_value(value, replace));
            replaced.filter(|replaced| *replaced).count() > 0
        }
        _ => false,
    }
}
