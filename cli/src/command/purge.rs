//! `mongoseal purge`.

use mongoseal::inspect::StoreTime;
use serde_json::json;

use crate::{
    arguments::Purge,
    connection::Connection,
    exit_status::{Failure, Status},
    time,
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: Purge) -> Result<Status, Failure> {
    let purged = connection.with_handle(async |seal| seal.purge().await).await??;
    for lease in &purged {
        let (key, holding) = (&lease.key, &lease.holder);
        let (owner, token) = (&holding.owner, holding.token);
        let view = json!({
            "purged": "lease",
            "key": key.as_str(),
            "token": token.get(),
            "owner": owner.as_str(),
            "since": holding.since.to_string(),
        });
        let ago = |from: StoreTime| time::brief(lease.read_at.since(from));
        let text = format!(
            "deleted the lease on {key:?} of {owner} with token {token}, granted {} ago, last seen {} ago",
            ago(holding.since),
            ago(holding.last_seen),
        );
        output::json_or_line(options.json, &view, &text)?;
    }
    if !options.json && purged.is_empty() {
        output::line("Nothing to delete.")?;
    }
    Ok(Status::DONE)
}
