//! brambled: the daemon of a node.
use std::process::ExitCode;

use clap::Parser;
use daemon::command_line::CommandLine;
use engine::Variant;

fn main() -> ExitCode {
    match daemon::run::run(CommandLine::parse(), Variant::default()) {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            eprintln!("brambled: {error:#}");
            ExitCode::from(1)
        }
    }
}
