//! Other products that speak MongoDB's protocol.
//!
//! A product is recognised by a mark in its answers. The table has the source of each mark; no product was at hand for
//! a test.
//!
//! | product | mark | from |
//! |---|---|---|
//! | FerretDB 1 | `ferretdbVersion` in `buildInfo` | [its source](https://github.com/FerretDB/FerretDB/blob/0bc7d4582a86feaab5de1868629365273eb88ab5/internal/handler/msg_buildinfo.go) |
//! | FerretDB 2 | `ferretdb` in `buildInfo` | [MongoDB's own tools](https://github.com/mongodb-js/devtools-shared/blob/61b694262882936e155cf4fd0e0659f76a916955/packages/mongodb-build-info/src/index.ts) |
//! | DocumentDB, the extension of PostgreSQL | `internal.documentdb_versions` in `hello` | [an issue](https://github.com/documentdb/documentdb/issues/672) |
//! | Azure DocumentDB, once Cosmos DB for MongoDB vCore | the same, or `internal.cosmos_versions`; `internal.kind` | [its extension of VS Code](https://github.com/microsoft/vscode-documentdb), [a user's test](https://github.com/powersync-ja/powersync-service/blob/f220713bacd65d7e41c5f2d67d49d34586b2da56/modules/module-mongodb/test/src/documentdb_helpers.test.ts) |
//! | Azure Cosmos DB for MongoDB | `_t: "BuildInfoResponse"` in `buildInfo`; hosts below `cosmos.azure.com` | [MongoDB's own tools](https://github.com/mongodb-js/devtools-shared/blob/0c7549ee44d10f2c526d8a707498148d56791c27/packages/mongodb-build-info/test/fixtures.ts) |
//! | Amazon DocumentDB | hosts below `docdb.amazonaws.com` and `docdb-elastic.amazonaws.com` | the same |

use mongodb::bson::{Bson, Document};

use crate::types::error::Error;

const FERRETDB: &str = "FerretDB";
const DOCUMENTDB: &str = "DocumentDB on PostgreSQL";
const AZURE_DOCUMENTDB: &str = "Azure DocumentDB";
const COSMOS_DB: &str = "Azure Cosmos DB";
const AMAZON_DOCUMENTDB: &str = "Amazon DocumentDB";

/// The ends of host names. Those of China have one more part.
const HOST_SUFFIXES: [(&str, &str); 7] = [
    (".mongocluster.cosmos.azure.com", AZURE_DOCUMENTDB),
    (".cosmos.azure.com", COSMOS_DB),
    (".cosmos.azure.cn", COSMOS_DB),
    (".docdb.amazonaws.com", AMAZON_DOCUMENTDB),
    (".docdb-elastic.amazonaws.com", AMAZON_DOCUMENTDB),
    (".docdb.amazonaws.com.cn", AMAZON_DOCUMENTDB),
    (".docdb-elastic.amazonaws.com.cn", AMAZON_DOCUMENTDB),
];

/// The error that refuses a product.
pub(super) fn refuse(name: &str) -> Error {
    Error::invalid(format!("this server is {name}, which only speaks MongoDB's protocol: use MongoDB 6.0 or later"))
}

/// Returns the name of the product that gave these answers, if it is not MongoDB.
pub(super) fn recognise(hello: &Document, build: Option<&Document>) -> Option<&'static str> {
    let build_has = |field: &str| build.is_some_and(|build| build.contains_key(field));
    if build_has("ferretdb") || build_has("ferretdbVersion") {
        return Some(FERRETDB);
    }
    if let Ok(internal) = hello.get_document("internal")
        && (internal.contains_key("documentdb_versions") || internal.contains_key("cosmos_versions"))
    {
        let is_azure = internal.contains_key("cosmos_versions")
            || internal.get_str("kind").is_ok_and(|kind| kind == "azuredocumentdb");
        return Some(if is_azure { AZURE_DOCUMENTDB } else { DOCUMENTDB });
    }
    if build.is_some_and(|build| build.get_str("_t").is_ok_and(|name| name == "BuildInfoResponse")) {
        return Some(COSMOS_DB);
    }
    let hosts = hello.get_array("hosts").into_iter().flatten().filter_map(Bson::as_str);
    hosts.chain(hello.get_str("me")).chain(hello.get_str("primary")).find_map(find_by_address)
}

/// Returns the name of the product at an address, `host:port` or a host.
pub(super) fn find_by_address(address: &str) -> Option<&'static str> {
    let host = address.split(':').next().unwrap_or_default().to_ascii_lowercase();
    HOST_SUFFIXES.iter().find(|(end, _product)| host.ends_with(end)).map(|(_end, product)| *product)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn each_product_is_recognised_by_what_it_says_of_itself() {
        // FerretDB returns a set name if its configuration has one: see its `internal/handler/msg_hello.go`.
        let ferretdb =
            doc! { "isWritablePrimary": true, "setName": "rs0", "hosts": ["localhost:27017"], "maxWireVersion": 21 };
        let version_1 = doc! { "version": "7.0.42", "ferretdbVersion": "v1.24.0", "ferretdbFeatures": {} };
        let version_2 = doc! { "version": "7.0.77", "ferretdb": { "version": "v2.7.0" } };
        assert_eq!(recognise(&ferretdb, Some(&version_1)), Some(FERRETDB));
        assert_eq!(recognise(&ferretdb, Some(&version_2)), Some(FERRETDB));

        let vcore = doc! {
            "isWritablePrimary": true, "msg": "isdbgrid", "setName": "globaldb",
            "internal": { "cosmos_versions": ["1.104-1", "1.105.0", "12.1-1"] },
        };
        assert_eq!(recognise(&vcore, None), Some(AZURE_DOCUMENTDB));
        let azure = doc! {
            "isWritablePrimary": true, "msg": "isdbgrid",
            "internal": { "documentdb_versions": ["1.111-0", "1.112.0", "12.1-1"], "kind": "azuredocumentdb" },
        };
        assert_eq!(recognise(&azure, None), Some(AZURE_DOCUMENTDB));
        let on_postgresql = doc! {
            "isWritablePrimary": true, "msg": "isdbgrid",
            "internal": { "documentdb_versions": ["0.113-0", "0.113.0"], "kind": "" },
        };
        assert_eq!(recognise(&on_postgresql, None), Some(DOCUMENTDB));

        let cosmos = doc! { "_t": "BuildInfoResponse", "version": "3.2.0", "javascriptEngine": "Chakra" };
        assert_eq!(recognise(&doc! {}, Some(&cosmos)), Some(COSMOS_DB));
        let amazon = doc! {
            "isWritablePrimary": true, "setName": "rs0",
            "hosts": ["docdb-2001-01-01.cluster-abc.eu-central-1.docdb.amazonaws.com:27017"],
        };
        assert_eq!(recognise(&amazon, None), Some(AMAZON_DOCUMENTDB));
    }

    #[test]
    fn a_host_tells_the_product_and_what_only_looks_alike_does_not() {
        assert_eq!(find_by_address("compass.mongo.cosmos.azure.com:10255"), Some(COSMOS_DB));
        assert_eq!(find_by_address("compass-vcore.mongocluster.cosmos.azure.com"), Some(AZURE_DOCUMENTDB));
        assert_eq!(
            find_by_address("elastic-docdb-1.eu-central-1.DOCDB-elastic.amazonaws.com:27017"),
            Some(AMAZON_DOCUMENTDB)
        );
        assert_eq!(find_by_address("a.docdb.amazonaws.com.example.org:27017"), None);
        assert_eq!(find_by_address("cluster0-shard-00-00.abc.mongodb.net:27017"), None);
        assert_eq!(find_by_address("[::1]:27017"), None);
    }

    #[test]
    fn mongodb_is_none_of_them() {
        let hello = doc! { "isWritablePrimary": true, "setName": "rs0", "hosts": ["db0:27017"], "me": "db0:27017", "primary": "db0:27017" };
        let build =
            doc! { "version": "6.0.5", "gitVersion": "c9a99c120371d4d4c52cbb15dac34a36ce8d3b1d", "modules": [] };
        assert_eq!(recognise(&hello, Some(&build)), None);
        assert_eq!(recognise(&hello, None), None);
    }
}
