//! The keys of the terminal, without Enter and without echo.
//!
//! Invariants: the modes of the terminal are changed only in the foreground, because the system stops a program that
//! changes them in the background. The drop restores them.

use std::{fs::OpenOptions, future::pending, io::ErrorKind, os::unix::fs::OpenOptionsExt};

use nix::libc::{O_NOCTTY, O_NONBLOCK};
use rustix::{
    process::getpgrp,
    termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr},
};
use tokio::net::unix::pipe::Receiver;

/// The controlling terminal, if there is one.
pub(super) struct Keyboard {
    /// It is read as a pipe is: without blocking.
    terminal: Option<Receiver>,
    /// The modes to restore.
    saved: Option<Termios>,
}

impl Keyboard {
    pub(super) fn open() -> Self {
        let file = OpenOptions::new().read(true).write(true).custom_flags(O_NOCTTY | O_NONBLOCK).open("/dev/tty");
        // Some systems cannot wait for this file. Then no key is read, and signals still end the program.
        Self { terminal: file.and_then(Receiver::from_file_unchecked).ok(), saved: None }
    }

    /// Returns whether another process group has the terminal.
    pub(super) fn is_in_background(&self) -> bool {
        let foreground = self.terminal.as_ref().and_then(|terminal| tcgetpgrp(terminal).ok());
        foreground.is_some_and(|foreground| foreground != getpgrp())
    }

    /// Sets the modes: keys come without Enter, and are not echoed. Keys such as Ctrl-C still send signals.
    pub(super) fn start(&mut self) {
        let Some(terminal) = self.terminal.as_ref().filter(|_| !self.is_in_background()) else { return };
        let Ok(modes) = tcgetattr(terminal) else { return };
        let mut quiet = modes.clone();
        quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ECHONL);
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        if tcsetattr(terminal, OptionalActions::Now, &quiet).is_ok() {
            self.saved.get_or_insert(modes);
        }
    }

    /// Restores the modes. In the background, the shell has already set its own.
    pub(super) fn stop(&mut self) {
        let saved = self.saved.take().filter(|_| !self.is_in_background());
        if let (Some(terminal), Some(saved)) = (&self.terminal, saved) {
            // Fails if the terminal is gone, and then there is nothing to restore.
            tcsetattr(terminal, OptionalActions::Now, &saved).unwrap_or_default();
        }
    }

    /// Waits until one of the keys that were pressed is this one. Dropping the future loses nothing.
    pub(super) async fn pressed(&self, key: u8) {
        if let Some(terminal) = &self.terminal {
            while terminal.readable().await.is_ok() {
                let mut keys = [0; 64];
                match terminal.try_read(&mut keys) {
                    Ok(0) => break,
                    Ok(count) if keys.iter().take(count).any(|pressed| *pressed == key) => return,
                    Err(error) if ![ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => break,
                    Ok(_) | Err(_) => {}
                }
            }
        }
        // The terminal is gone. A signal reports that, too.
        pending::<()>().await;
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.stop();
    }
}
