//! Writes man pages and shell completions of both programs, generated from their command lines, into a folder: `cargo
//! run -p bramble-tests --bin manual -- FOLDER`.
use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

fn main() -> anyhow::Result<()> {
    let folder: PathBuf = std::env::args_os().nth(1).context("usage: manual FOLDER")?.into();
    fs::create_dir_all(&folder)?;
    let (daemon, console) = (daemon::command_line::CommandLine::command(), console::cli::command());
    for command in [&daemon, &console] {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command.clone(), command.get_name(), &folder)?;
        }
    }
    // One page per console command; the daemon has a single page in section 8.
    clap_mangen::generate_to(console.disable_help_subcommand(true), &folder)?;
    let mut page = Vec::new();
    Man::new(daemon).section("8").manual("Bramble").render(&mut page)?;
    fs::write(folder.join("brambled.8"), page)?;
    Ok(())
}
