//! The history: all events in the order in which the runner received them, and the resources that holders write.

use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write as _},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mongoseal::{FenceGate, FencingToken};

use crate::words::Event;

#[derive(Clone, Default)]
pub(crate) struct History {
    events: Arc<Mutex<Vec<Event>>>,
    /// What stands before the resources: one for each key that is held alone.
    gate: Arc<FenceGate>,
}

impl History {
    /// Notes an event; a write passes the gate, or does not, at that.
    pub(crate) fn note(&self, mut event: Event) {
        let mut events = self.lock();
        if let Event::Write(write) = &mut event
            && !write.key.starts_with("pool")
        {
            let token = FencingToken::new(write.token).expect("a holder has a token");
            write.accepted = Some(self.gate.admit(&write.key, token).is_ok());
        }
        events.push(event);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn save(events: &[Event], file: &Path) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    for event in events {
        serde_json::to_writer(&mut out, event)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

pub(crate) fn load(file: &Path) -> std::io::Result<Vec<Event>> {
    let lines = BufReader::new(File::open(file)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
