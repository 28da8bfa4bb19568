//! Checks of the server: its role, version, eviction, persistence and replicas. What fails here the library refuses, too.

use mongoseal_redis::RedisBackend;

use super::Finding;
use crate::command::redis::{Answer, InfoDict, Server};

/// What a server reports about itself.
pub(super) struct Facts {
    info: InfoDict,
    flushes: Option<String>,
    /// The number of replicas without which the server refuses writes.
    min_replicas: Option<String>,
}

impl Facts {
    pub(super) async fn read(server: &Server) -> Answer<Self> {
        Ok(Self {
            info: server.info().await?,
            flushes: server.option("appendfsync").await,
            min_replicas: server.option("min-replicas-to-write").await,
        })
    }

    /// Judges the facts. `wanted`: how many replicas must acknowledge each write.
    pub(super) fn judged(&self, wanted: u32) -> Vec<Finding> {
        let mut findings = vec![self.role(), self.cluster(), self.version(), self.eviction(), self.append_only_file()];
        if !self.is("aof_enabled", "0") {
            findings.push(self.flushes());
        }
        if !self.is("role", "slave") {
            findings.push(self.replicas(wanted));
        }
        findings
    }

    fn text(&self, field: &str) -> Option<String> {
        self.info.get(field)
    }

    fn is(&self, field: &str, value: &str) -> bool {
        self.text(field).is_some_and(|found| found == value)
    }

    fn role(&self) -> Finding {
        const CHECK: &str = "role";
        let advice = "use the address of the primary";
        if self.is("redis_mode", "sentinel") {
            return Finding::fail(CHECK, "sentinel, which keeps no leases", advice);
        }
        if self.is("role", "slave") {
            let part = |field| self.text(field).unwrap_or_else(|| "?".into());
            let primary = format!("{}:{}", part("master_host"), part("master_port"));
            return Finding::fail(CHECK, format!("replica of {primary}, which takes no writes"), advice);
        }
        Finding::pass(CHECK, "primary")
    }

    fn cluster(&self) -> Finding {
        const CHECK: &str = "cluster";
        if self.is("cluster_enabled", "1") || self.is("redis_mode", "cluster") {
            let found = "cluster mode is on, in which each failover can lose a key";
            return Finding::fail(CHECK, found, "use a server without cluster mode");
        }
        Finding::pass(CHECK, "cluster mode is off")
    }

    fn version(&self) -> Finding {
        let version = self.text("redis_version").unwrap_or_default();
        let found = match self.text("valkey_version") {
            Some(valkey) => format!("Valkey {valkey}, which speaks as Redis {version}"),
            None => format!("Redis {version}"),
        };
        if read_version(&version).is_none_or(|version| version < RedisBackend::MIN_VERSION) {
            return Finding::fail("version", found, "upgrade to Redis 6.2 or later");
        }
        Finding::pass("version", found)
    }

    fn eviction(&self) -> Finding {
        const CHECK: &str = "eviction";
        match self.text("maxmemory_policy").unwrap_or_default().as_str() {
            "" => Finding::skip(
                CHECK,
                "the server does not report maxmemory-policy",
                "an operator can check that it is noeviction",
            ),
            "noeviction" => Finding::pass(CHECK, "maxmemory-policy is noeviction, so a full memory forgets no lease"),
            policy => Finding::fail(
                CHECK,
                format!("maxmemory-policy is {policy}, so leases are forgotten when the memory is full"),
                "set maxmemory-policy to noeviction",
            ),
        }
    }

    fn append_only_file(&self) -> Finding {
        const CHECK: &str = "append-only file";
        match self.text("aof_enabled").as_deref() {
            Some("0") => {
                Finding::warn(CHECK, "off, so a restart of the server forgets leases", "set appendonly to yes")
            }
            Some(_) => Finding::pass(CHECK, "on, so leases outlast a restart of the server"),
            None => {
                Finding::skip(CHECK, "the server does not report it", "an operator can check that appendonly is yes")
            }
        }
    }

    fn flushes(&self) -> Finding {
        const CHECK: &str = "flushes";
        match self.flushes.as_deref() {
            Some("always") => Finding::pass(CHECK, "appendfsync is always"),
            Some(value) => Finding::warn(
                CHECK,
                format!("appendfsync is {value}, so a crash of the server's machine forgets the last leases"),
                "set appendfsync to always, or accept it",
            ),
            None => Finding::skip(
                CHECK,
                "the user may not read appendfsync",
                "grant +config|get, or check that appendfsync is always",
            ),
        }
    }

    fn replicas(&self, wanted: u32) -> Finding {
        const CHECK: &str = "replicas";
        let online = self.online_replicas();
        let connected = match online {
            0 => "no replica is connected".to_owned(),
            1 => "1 replica is connected".to_owned(),
            count => format!("{count} replicas are connected"),
        };
        if wanted > online {
            return Finding::fail(
                CHECK,
                format!("{connected}, and --redis-replicas is {wanted}, so no lease can be held"),
                "connect more replicas, or pass a smaller number",
            );
        }
        match self.min_replicas.as_ref().and_then(|minimum| minimum.parse().ok()) {
            Some(minimum) if minimum > online => Finding::fail(
                CHECK,
                format!("{connected}, and min-replicas-to-write is {minimum}, so the server refuses writes"),
                "connect more replicas, or set a smaller number",
            ),
            Some(0) if online > 0 => Finding::warn(
                CHECK,
                format!(
                    "{connected}, and min-replicas-to-write is 0, so a primary that was replaced can still grant keys"
                ),
                "set min-replicas-to-write to 1",
            ),
            Some(minimum) if online > 0 => {
                Finding::pass(CHECK, format!("{connected}, and min-replicas-to-write is {minimum}"))
            }
            None if online > 0 => Finding::skip(
                CHECK,
                format!("{connected}, and the user may not read min-replicas-to-write"),
                "grant +config|get, or check that it is 1 or more",
            ),
            _ => Finding::pass(CHECK, format!("{connected}, so no other server can take over")),
        }
    }

    /// Counts the replicas that receive each write.
    fn online_replicas(&self) -> u32 {
        let connected = self.info.get("connected_slaves").unwrap_or_default();
        let is_online = |number: &u32| {
            let replica = self.text(&format!("slave{number}")).unwrap_or_default();
            replica.split(',').any(|part| part == "state=online")
        };
        u32::try_from((0..connected).filter(is_online).count()).unwrap_or(u32::MAX)
    }
}

/// Reads the major and the minor version.
fn read_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::finding::Verdict;

    const FIT: &str = "redis_version:7.0.15\r\nrole:master\r\nredis_mode:standalone\r\ncluster_enabled:0\r\n\
                       maxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:0\r\n";

    /// A fit server, with these fields instead.
    fn facts(fields: &str, flushes: &str, min_replicas: &str) -> Facts {
        let setting = |text: &str| (text != "?").then(|| text.into());
        Facts {
            info: InfoDict::new(&format!("{FIT}{fields}\r\n")),
            flushes: setting(flushes),
            min_replicas: setting(min_replicas),
        }
    }

    /// The checks that do not pass, with their verdicts.
    fn doubts(facts: &Facts, wanted: u32) -> Vec<(&'static str, Verdict)> {
        let doubtful =
            |finding: Finding| (finding.verdict != Verdict::Pass).then_some((finding.check, finding.verdict));
        facts.judged(wanted).into_iter().filter_map(doubtful).collect()
    }

    #[test]
    fn each_setting_that_loses_leases_has_a_finding_of_its_own() {
        use Verdict::{Fail, Skip, Warn};
        assert_eq!(doubts(&facts("", "always", "0"), 0), []);
        for (fields, flushes, expected) in [
            ("redis_mode:sentinel", "always", ("role", Fail)),
            ("role:slave\r\nmaster_host:h\r\nmaster_port:1", "always", ("role", Fail)),
            ("cluster_enabled:1", "always", ("cluster", Fail)),
            ("redis_mode:cluster", "always", ("cluster", Fail)),
            ("redis_version:6.0.16", "always", ("version", Fail)),
            ("redis_version:?", "always", ("version", Fail)),
            ("maxmemory_policy:volatile-lru", "always", ("eviction", Fail)),
            ("maxmemory_policy:", "always", ("eviction", Skip)),
            ("aof_enabled:0", "everysec", ("append-only file", Warn)),
            ("", "everysec", ("flushes", Warn)),
            ("", "?", ("flushes", Skip)),
        ] {
            assert_eq!(doubts(&facts(fields, flushes, "0"), 0), [expected], "{fields} {flushes}");
        }
    }

    #[test]
    fn only_replicas_that_are_online_count() {
        use Verdict::{Fail, Skip, Warn};
        let two = "connected_slaves:2\r\nslave0:ip=h,port=1,state=online,offset=1,lag=0\r\nslave1:ip=h,port=2,state=wait_bgsave,lag=0";
        for (minimum, wanted, expected) in [
            ("1", 0, None),
            ("1", 1, None),
            ("1", 2, Some(("replicas", Fail))),
            ("2", 0, Some(("replicas", Fail))),
            ("0", 1, Some(("replicas", Warn))),
            ("?", 1, Some(("replicas", Skip))),
        ] {
            let found = doubts(&facts(two, "always", minimum), wanted);
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{minimum} {wanted}");
        }
        let none = facts("", "always", "0");
        assert_eq!(doubts(&none, 1), [("replicas", Fail)]);
        assert!(none.replicas(0).found.contains("no other server can take over"));
    }
}
