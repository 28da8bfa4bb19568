//! A report that several processes write, once for each tick of a schedule. The programs in `src/bin` have a scheduler each,
//! which calls [`Reporter::report`] at each tick.
//!
//! Each process has a scheduler of its own, so that any of them can die. The schedulers do not know each other: `once` decides
//! which process writes the report of a tick.

use std::{env, time::Duration};

use mongoseal::{
    Fence, Mongoseal, OnceOutcome, Result, Tick, TickLease,
    mongodb::{
        Client, Collection,
        bson::{Document, doc},
    },
};
use tokio::time::sleep;

/// When the schedulers call the job: each five seconds. The first field has the seconds.
pub const CRON: &str = "*/5 * * * * *";
/// The same for the ticks.
pub const PERIOD: Duration = Duration::from_secs(5);

/// What the job needs.
#[derive(Clone)]
pub struct Reporter {
    seal: Mongoseal,
    client: Client,
    reports: Collection<Document>,
    name: String,
}

impl Reporter {
    /// Connects to the server that `MONGODB_URI` names. The first argument of the program is the name of the process.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached.
    pub async fn connect() -> Result<Self> {
        let name = env::args().nth(1).unwrap_or_else(|| format!("process {}", std::process::id()));
        let uri = env::var("MONGODB_URI").unwrap_or_else(|_| "mongodb://127.0.0.1/?replicaSet=rs0".into());
        let client = Client::with_uri_str(&uri).await?;
        let database = client.default_database().unwrap_or_else(|| client.database("mongoseal"));
        let reports = database.collection("reports");
        // If a process dies, the next one begins its tick after the ttl and the grace. Both fit into a period.
        let seal = Mongoseal::builder().owner(name.as_str()).ttl(Duration::from_secs(2)).connect(&uri).await?;
        Ok(Self { seal, client, reports, name })
    }

    /// Writes the report of the tick, unless another process has written it or writes it.
    ///
    /// # Errors
    ///
    /// The tick is not completed by this process. Another process that waits for it writes the report.
    pub async fn report(&self, tick: Tick) -> Result<()> {
        // The processes that wait are in a queue: if the one that writes dies, the next one writes.
        let once = self.seal.once("reports/schedule", tick).wait(PERIOD);
        match once.run(async |tick| self.write(tick).await).await {
            Ok(OnceOutcome::Ran(tick)) => println!("{} completed {tick}", self.name),
            Ok(OnceOutcome::Skipped(_)) => {}
            Err(error) => {
                println!("{} failed: {error}", self.name);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The work. The fence refuses it if a later process has begun the tick meanwhile.
    async fn write(&self, tick: &TickLease) -> Result<u64> {
        let (reports, id) = (self.reports.fenced(tick), tick.number().cast_signed());
        // From here on, the writes of processes that began this tick earlier are refused.
        reports.claim(doc! { "_id": id }).upsert(true).await?;
        println!("{} begins {id} with token {}", self.name, tick.token());
        sleep(Duration::from_millis(1_500)).await; // the work
        // If a process died between its write and the completion of the tick, the report is here, and stays as it is.
        let unwritten = doc! { "_id": id, "written": { "$exists": false } };
        let report = doc! { "$push": { "written": { "by": &self.name, "token": tick.token() } } };
        reports.update_one(unwritten, report).await?;
        Ok(tick.number())
    }

    /// Completes or releases what is held.
    pub async fn shutdown(self) {
        self.seal.shutdown().await;
        // Otherwise a task of the driver can outlive the runtime, and prints that it has panicked.
        self.client.shutdown().immediate(true).await;
    }
}
