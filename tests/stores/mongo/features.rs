//! A login that needs a feature which is off: the driver says so when it logs in.

use mongoseal::{Error, Mongoseal};

use crate::TestDatabase;

#[tokio::test]
async fn a_login_that_needs_a_feature_which_is_off_is_refused_with_its_name() {
    let db = TestDatabase::new("mongoseal_features").await;
    for cloud in ["azure", "gcp"] {
        let properties = format!("authMechanismProperties=ENVIRONMENT:{cloud},TOKEN_RESOURCE:mongodb%3A%2F%2Fcluster");
        let uri = db.set.uri_with(&format!("authMechanism=MONGODB-OIDC&{properties}"));
        let error = Mongoseal::connect(uri).await.unwrap_err();
        let says = format!("needs the cargo feature `{cloud}-oidc`");
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(&says), "{error:?}");
    }
}
