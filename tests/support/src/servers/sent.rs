//! The commands that a client sends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mongodb::{
    Client,
    bson::Document,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};

/// The commands that a client has sent since the last [`Sent::take`].
#[derive(Clone, Debug, Default)]
pub struct Sent(Arc<Mutex<Vec<Document>>>);

/// A client of this address, and the commands that it sends.
pub async fn noting_client(uri: &str) -> (Client, Sent) {
    let sent = Sent::default();
    let mut options = ClientOptions::parse(uri).await.expect("the address is valid");
    let note = sent.clone();
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event {
            note.lock().push(started.command);
        }
    }));
    (Client::with_options(options).expect("the options are valid"), sent)
}

impl Sent {
    fn lock(&self) -> MutexGuard<'_, Vec<Document>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all.
    pub fn take(&self) -> Vec<Document> {
        std::mem::take(&mut self.lock())
    }

    /// Takes all, and returns their names.
    pub fn take_names(&self) -> Vec<String> {
        self.take().iter().filter_map(command_name).map(str::to_owned).collect()
    }

    /// How many of this name there are. It takes none.
    pub fn count(&self, of: &str) -> usize {
        self.lock().iter().filter(|command| command_name(command) == Some(of)).count()
    }
}

/// The name of a command, which is its first field.
pub fn command_name(command: &Document) -> Option<&str> {
    command.keys().next().map(String::as_str)
}
