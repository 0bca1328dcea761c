//! console: the operator's terminal of a bramble.
use std::process::ExitCode;

fn main() -> ExitCode {
    console::cli::run()
}
