//! Users of a set with access control.

use mongodb::bson::{Document, doc};

use super::ReplicaSet;
use crate::servers::runtime::run;

impl ReplicaSet {
    /// Makes a user of the database `db` who may do no more than `privileges`, documents with
    /// `resource` and `actions`. [`uri_as`](Self::uri_as) is for them.
    pub async fn add_user(&self, name: &str, password: &str, db: &str, privileges: Vec<Document>) {
        let inner = self.inner.clone();
        assert!(inner.owned().root.is_some(), "only a set built with auth() has users");
        let db = db.to_owned();
        let majority = doc! { "w": "majority" };
        let role = doc! { "createRole": name, "privileges": privileges, "roles": [], "writeConcern": &majority };
        let user = doc! { "createUser": name, "pwd": password, "roles": [name], "writeConcern": &majority };
        run(async move {
            let primary = inner.primary().await;
            for command in [role, user] {
                inner.command(primary, &db, command).await.expect("root can make roles and users");
            }
        })
        .await;
    }
}
