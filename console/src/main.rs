//! console: the operator's terminal for a bramble cluster.
use std::process::ExitCode;

fn main() -> ExitCode {
    console::cli::run()
}
