//! What it takes to start this program again.

use std::{
    env,
    ffi::{CString, OsString},
    io,
    os::unix::ffi::OsStringExt,
    path::PathBuf,
};

/// Returns the path of this program, to start it again. If its file was replaced or deleted, this is the running image.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    let path = env::current_exe()?;
    Ok(if cfg!(target_os = "linux") && !path.exists() { "/proc/self/exe".into() } else { path })
}

/// Returns the strings in the form of the system. Fails if one has a NUL character.
pub(crate) fn to_c_strings(strings: impl Iterator<Item = OsString>) -> io::Result<Vec<CString>> {
    strings.map(|string| Ok(CString::new(string.into_vec())?)).collect()
}
