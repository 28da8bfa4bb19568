//! All verbs that write, walked on a store that can confirm none of them.

use mongoseal::{
    BeginOutcome, Error, FencingToken, Lease, LeaseId, LeaseSet, Metadata, Mongoseal, ReleaseOutcome, Result, Sharing,
    Tick, TickLease,
};

use crate::secs;

/// How many leases verbs take, one each.
const LEASES: usize = 10;

/// What the verbs need, acquired while the store can confirm.
pub struct Walk {
    leases: Vec<Lease>,
    shared: Lease,
    set: LeaseSet,
    /// `None`: the store has no linearizable reads, which a tick needs.
    tick: Option<TickLease>,
    larger: FencingToken,
}

impl Walk {
    /// Acquires it.
    pub async fn prepare(seal: &Mongoseal) -> Self {
        let long = secs(600);
        let mut leases = Vec::new();
        for number in 0..LEASES {
            leases.push(seal.acquire(format!("walk/{number}")).ttl(long).without_refresh().await.unwrap());
        }
        leases[1].put_value("before").await.unwrap();
        for name in ["g/1", "g/2"] {
            seal.acquire(name).group("g").ttl(long).await.unwrap().orphan();
        }
        let shared = seal.acquire("shared").shared().ttl(long).await.unwrap();
        let set = seal.acquire_all(["s/1", "s/2"]).ttl(long).await.unwrap();
        let tick = if seal.capabilities().linearizable_reads {
            let begun = seal.once("walk/tick", Tick::number(7)).ttl(long).begin().await.unwrap();
            let BeginOutcome::Started(tick) = begun else { panic!("the tick is new: {begun:?}") };
            Some(tick)
        } else {
            None
        };
        let larger = FencingToken::new(leases[0].token().get() + 1_000_000).unwrap();
        Self { leases, shared, set, tick, larger }
    }

    /// Demands that the store confirms no verb: not to the holder, and not to an operator.
    pub async fn none_is_confirmed(self, seal: &Mongoseal) {
        let Self { leases, shared, set, tick, larger } = self;
        let leases: [Lease; LEASES] = leases.try_into().expect("one for each verb");
        let [put, cleared, with_value, downgraded, transferred, noted, refreshed, revoked, revoked_one, released] =
            leases;
        tokio::join!(
            async { is_unconfirmed("acquire", seal.acquire("new").await) },
            async { is_unconfirmed("put_value", put.put_value("after").await) },
            async { is_unconfirmed("clear_value", cleared.clear_value().await) },
            async { is_unconfirmed("release_with_value", with_value.release_with_value("last").await) },
            async { is_unconfirmed("downgrade", downgraded.downgrade(Sharing::UpTo(3)).await) },
            async { is_unconfirmed("upgrade", shared.upgrade().await) },
            async { is_unconfirmed("transfer", transferred.transfer(LeaseId::random()).await) },
            async { is_unconfirmed("update_metadata", noted.update_metadata(Metadata::default()).await) },
            async { is_unconfirmed("refresh", refreshed.refresh().await) },
            async { is_not_released("release", released.release().await) },
            async { is_unconfirmed("revoke", seal.revoke(revoked.key()).await) },
            async {
                let of_one = seal.revoke(revoked_one.key()).token(revoked_one.token());
                is_unconfirmed("revoke of a token", of_one.await);
            },
            async { is_unconfirmed("raise", seal.raise_token_floor("raised", larger).await) },
            async { is_unconfirmed("refresh_group", seal.refresh_group("g", secs(600)).await) },
            async {
                match set.release().await {
                    Err(error) => is_not_released("release of a set", Err(error)),
                    Ok(ended) => {
                        for (_, ended) in ended {
                            is_not_released("release of a set", Ok(ended));
                        }
                    }
                }
            },
            async {
                if let Some(tick) = tick {
                    is_unconfirmed("complete", tick.complete().await);
                }
            },
        );
    }
}

fn is_unconfirmed<T>(verb: &str, answer: Result<T>) {
    match answer {
        Err(Error::Unavailable { .. }) => {}
        Err(error) => panic!("{verb} has failed otherwise: {error:?}"),
        Ok(_) => panic!("{verb} was confirmed"),
    }
}

fn is_not_released(verb: &str, outcome: Result<ReleaseOutcome>) {
    match outcome {
        Err(Error::Unavailable { .. }) | Ok(ReleaseOutcome::Unknown) => {}
        other => panic!("{verb} was confirmed: {other:?}"),
    }
}
