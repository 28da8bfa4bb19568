//! Which deployments are refused, by a server's answer to `hello`.

use mongodb::bson::Document;
use tracing::warn;

use super::super::product;
use crate::types::error::{Error, Result};

/// The wire version of MongoDB 6.0, the first that has all that the pipeline uses.
const WIRE_VERSION_6_0: i32 = 17;

/// Refuses a deployment that cannot keep the promises, by its answers to `hello` and, if there is one, to `buildInfo`.
pub(super) fn check(hello: &Document, build: Option<&Document>, allow_sharded: bool) -> Result<()> {
    if let Some(name) = product::recognise(hello, build) {
        return Err(product::refuse(name));
    }
    let wire_version = hello.get_i32("maxWireVersion").unwrap_or(0);
    if wire_version < WIRE_VERSION_6_0 {
        return Err(Error::invalid(format!(
            "this MongoDB server speaks wire version {wire_version} and mongoseal needs {WIRE_VERSION_6_0}: upgrade to MongoDB 6.0 or later"
        )));
    }
    // A router says so.
    if hello.get_str("msg").is_ok_and(|message| message == "isdbgrid") {
        if !allow_sharded {
            return Err(Error::invalid(
                "this is a sharded cluster, where the clocks of the routers time leases and number tokens, so two leases can hold a key and a token can repeat: use a replica set, or set `allow_sharded` (--allow-sharded) if expiry is all that is needed",
            ));
        }
        warn!(
            "this is a sharded cluster: leases are timed by its routers' clocks, so keep those together and the retention of idle records far above any lag"
        );
    } else if hello.get_bool("isreplicaset").unwrap_or(false) {
        return Err(Error::unavailable(
            "this MongoDB server waits for the configuration of its replica set: run rs.initiate() (one member is enough), and retry",
        ));
    } else if !hello.contains_key("setName") {
        return Err(Error::invalid(
            "this MongoDB server is a standalone, which cannot confirm a write by a majority: start it with --replSet and run rs.initiate() (one member is enough)",
        ));
    }
    if hello.get_array("arbiters").is_ok_and(|arbiters| !arbiters.is_empty()) {
        warn!(
            "this replica set has an arbiter: with one data-bearing member down, no majority can confirm a write and leases are lost: replace the arbiter by a data-bearing member"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn refusal(hello: &Document, allow_sharded: bool) -> String {
        check(hello, None, allow_sharded).unwrap_err().to_string()
    }

    #[test]
    fn a_server_below_6_0_is_refused() {
        let error = refusal(&doc! { "setName": "rs0", "maxWireVersion": 13 }, false);
        assert!(error.contains("upgrade to MongoDB 6.0"), "{error}");
        assert!(check(&doc! { "setName": "rs0", "maxWireVersion": 17 }, None, false).is_ok());
    }

    #[test]
    fn a_member_that_waits_for_its_configuration_is_passing_and_a_standalone_is_not() {
        // As in MongoDB's manual: https://www.mongodb.com/docs/manual/reference/command/hello/#replica-sets
        let waiting = check(&doc! { "isreplicaset": true, "maxWireVersion": 17 }, None, false).unwrap_err();
        assert!(matches!(waiting, Error::Unavailable { .. }), "{waiting:?}");
        let standalone = check(&doc! { "isWritablePrimary": true, "maxWireVersion": 17 }, None, false).unwrap_err();
        assert!(matches!(standalone, Error::Invalid { .. }), "{standalone:?}");
    }

    #[test]
    fn a_router_is_refused_unless_sharded_clusters_are_allowed() {
        // As in MongoDB's manual: https://www.mongodb.com/docs/manual/reference/command/hello/#sharded-instances
        let router = doc! { "isWritablePrimary": true, "msg": "isdbgrid", "maxWireVersion": 17 };
        let error = refusal(&router, false);
        assert!(error.contains("sharded cluster") && error.contains("set `allow_sharded`"), "{error}");
        assert!(check(&router, None, true).is_ok());
        // A router is allowed, but not an old one.
        assert!(refusal(&doc! { "msg": "isdbgrid", "maxWireVersion": 13 }, true).contains("upgrade"));
        assert!(refusal(&doc! { "maxWireVersion": 17 }, true).contains("run rs.initiate()"));
    }
}
