//! bramble-bench: benchmarks of Bramble for developers.
use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run()
}
