//! The product of a server.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The product that a connection string is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Product {
    MongoDb,
    /// Redis or Valkey.
    Redis,
}

impl Product {
    /// Returns the product of a connection string. The library refuses those of Redis.
    pub(super) fn of(uri: &str) -> Self {
        match uri.split_once("://") {
            Some(("redis" | "rediss" | "redis+unix" | "valkey" | "valkeys" | "valkey+unix", _)) => Self::Redis,
            _ => Self::MongoDb,
        }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MongoDb => "MongoDB",
            Self::Redis => "Redis",
        })
    }
}

#[cfg(test)]
mod tests {
    use mongoseal::Mongoseal;

    use super::*;

    #[tokio::test]
    async fn a_connection_string_is_for_redis_if_the_library_names_the_package_for_redis() {
        for scheme in
            ["redis", "rediss", "redis+unix", "valkey", "valkeys", "valkey+unix", "mongodb", "mongodb+srv", "x"]
        {
            let uri = format!("{scheme}://:bad:port:");
            let error = Mongoseal::connect(&uri).await.unwrap_err().to_string();
            let is_redis = error.contains("mongoseal-redis");
            assert_eq!(Product::of(&uri) == Product::Redis, is_redis, "{scheme}: {error}");
        }
    }
}
