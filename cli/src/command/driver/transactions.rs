//! Transactions.

use mongoseal::mongodb::{
    ClientSession,
    bson::Document,
    error::{Error, TRANSIENT_TRANSACTION_ERROR},
    options::{Acknowledgment, ReadConcern, WriteConcern},
};

use super::{Answer, Deployment, ReadPreference, Refusal, SelectionCriteria, TIMEOUT, with_timeout};

impl Deployment {
    /// Runs a command in a transaction, and commits it.
    pub(in crate::command) async fn commit(&self, command: Document) -> Answer<()> {
        let database = self.database.clone();
        with_timeout(TIMEOUT, async move {
            let mut session = database.client().start_session().await?;
            begin(&mut session).await?;
            database.run_command(command).session(&mut session).await?;
            session.commit_transaction().await
        })
        .await
    }

    /// Runs a command in a transaction, and meanwhile in another one, which must fail. Returns its error, and
    /// whether the error says that the transaction can be repeated. Returns `None` if it succeeded. Commits the first
    /// transaction, and aborts the other.
    pub(in crate::command) async fn provoke_conflict(&self, command: Document) -> Answer<Option<(Refusal, bool)>> {
        let database = self.database.clone();
        with_timeout(TIMEOUT, async move {
            let client = database.client();
            let (mut first, mut second) = (client.start_session().await?, client.start_session().await?);
            begin(&mut first).await?;
            database.run_command(command.clone()).session(&mut first).await?;
            begin(&mut second).await?;
            let refused = database.run_command(command).session(&mut second).await.err();
            // If this fails, the server aborts the transaction when its time has passed.
            drop(second.abort_transaction().await);
            first.commit_transaction().await?;
            Ok(refused.map(|error| {
                let is_transient = error.contains_label(TRANSIENT_TRANSACTION_ERROR);
                (error.into(), is_transient)
            }))
        })
        .await
    }
}

/// Begins a transaction with the concerns of the library's transactions.
async fn begin(session: &mut ClientSession) -> Result<(), Error> {
    session
        .start_transaction()
        .read_concern(ReadConcern::snapshot())
        .write_concern(WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .await
}
