//! One server without a replica set.

use crate::servers::{mongod::Options, runtime::run_blocking, server::Server};

/// A mongod that belongs to no replica set; it ends with this value, or with the process.
pub struct Standalone {
    server: Server,
}

impl Standalone {
    /// Starts one.
    pub async fn start() -> Self {
        let server = run_blocking(|| Server::start(&Options::default())).await;
        Self { server }
    }

    /// Where clients find it.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?heartbeatFrequencyMS=500&serverMonitoringMode=poll", self.server.address())
    }
}
