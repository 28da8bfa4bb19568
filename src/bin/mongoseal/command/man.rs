//! `mongoseal man`.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_mangen::Man;

use crate::{
    arguments::Arguments,
    status::{Failure, Status},
};

pub(crate) fn perform() -> Result<Status, Failure> {
    let mut page = Vec::new();
    Man::new(Arguments::command()).render(&mut page)?;
    io::stdout().write_all(&page)?;
    Ok(Status::DONE)
}
