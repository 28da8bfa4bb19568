//! The history: all events in the order in which the runner received them.

use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write as _},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::words::Event;

#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<Vec<Event>>>);

impl History {
    pub(crate) fn note(&self, event: Event) {
        self.lock().push(event);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
