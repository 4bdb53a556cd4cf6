//! Manual pages, one for each command, from the definitions that `--help` prints. Packages install them. A page never depends on the
//! machine or the day that prints it: two builds of a release are equal.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::output::failed;

/// An example for the help.
pub const EXAMPLE: &str = "Example:\n  portcullis man --out /usr/local/share/man/man1";

/// The flags of `man`.
#[derive(Debug, Args)]
pub struct ManFlags {
    /// The directory to write the pages to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl ManFlags {
    /// Writes the pages of a program and of every command below it.
    pub fn run(&self, program: Command) -> ExitCode {
        // `help` and `--help` are not explained: the pages take their place.
        let mut program = program.disable_help_subcommand(true);
        program.build();
        match std::fs::create_dir_all(&self.out).and_then(|()| write(&program, &self.out)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&format!("--out {}: {error}", self.out.display())),
        }
    }
}

/// Writes the page of a command, and those of the commands below it.
fn write(command: &Command, dir: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut page = BufWriter::new(File::create(dir.join(format!("{name}.1")))?);
    Man::new(command.clone()).render(&mut page)?;
    page.flush()?;
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| write(below, dir))
}
