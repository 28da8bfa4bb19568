//! Connection strings that need a feature which is off. No server is needed: the driver refuses them at once.
use mongoseal::{Error, Mongoseal};

#[tokio::test]
async fn a_connection_string_that_needs_a_feature_which_is_off_is_refused_with_its_name() {
    for (feature, is_on, asks) in [
        ("zstd-compression", cfg!(feature = "zstd-compression"), "compressors=zstd"),
        ("zlib-compression", cfg!(feature = "zlib-compression"), "compressors=zlib"),
        ("zlib-compression", cfg!(feature = "zlib-compression"), "zlibCompressionLevel=3"),
        ("snappy-compression", cfg!(feature = "snappy-compression"), "compressors=snappy"),
        ("aws-auth", cfg!(feature = "aws-auth"), "authMechanism=MONGODB-AWS"),
        ("gssapi-auth", cfg!(feature = "gssapi-auth"), "authMechanism=GSSAPI"),
        ("socks5-proxy", cfg!(feature = "socks5-proxy"), "proxyHost=proxy"),
        ("cert-key-password", cfg!(feature = "cert-key-password"), "tls=true&tlsCertificateKeyFilePassword=hunter2"),
    ] {
        if is_on {
            continue;
        }
        for user in ["", "alice:hunter2@"] {
            let error = Mongoseal::connect(format!("mongodb://{user}db0/?{asks}")).await.unwrap_err();
            let (said, name) = (error.to_string(), format!("`{feature}`"));
            assert!(matches!(error, Error::Invalid { .. }) && said.contains("needs the cargo feature"), "{said}");
            assert!(said.contains(&name) && said.contains("of mongoseal, which is off: turn it on"), "{asks}: {said}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_connection_string_of_redis_is_refused_with_the_package_that_connects_to_it() {
    for scheme in ["redis", "rediss", "redis+unix", "valkey", "valkeys", "valkey+unix"] {
        let error = Mongoseal::connect(format!("{scheme}://:hunter2@db0")).await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::Invalid { .. }) && said.contains("package `mongoseal-redis`"), "{said}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}
