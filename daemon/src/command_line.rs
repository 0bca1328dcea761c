//! The command line of brambled: settings and subcommands.
use clap::{Parser, Subcommand};

use crate::{bench::Bench, check::Check, config::DaemonArguments, pair};

/// brambled holds one shard of a GGUF model and runs inference in lockstep with the other nodes of its topology. An
/// operator assigns topologies from `console`.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "brambled", version, after_help = "Example: brambled --listen 192.168.1.11:9999 --models /srv/models")]
pub struct CommandLine {
    /// Settings
    #[command(flatten)]
    pub settings: DaemonArguments,
    /// The command to run instead of serving
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Subcommands that run instead of the daemon.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Measure this machine
    #[command(subcommand)]
    Bench(Bench),
    /// Report problems of this machine with remedies; exit code 6: warnings, 7: errors
    Check(Check),
    /// Show a pairing code for adopting this node (as root: sudo brambled pair)
    Pair(pair::PairArguments),
    /// Prepare requests for the daemon that starts this process
    #[command(hide = true)]
    Text,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_accepted_before_and_after_a_subcommand() {
        let parse = |line: &str| {
            let parsed = CommandLine::try_parse_from(line.split(' ')).expect(line);
            assert!(matches!(parsed.command, Some(Command::Pair(_))), "{line}");
            format!("{:?}", parsed.settings)
        };
        let before = parse("brambled --state /tmp/x --name pi1 pair");
        assert_eq!(parse("brambled pair --state /tmp/x --name pi1"), before);
        assert_eq!(parse("brambled pair --minutes 5 --state /tmp/x --name pi1"), before);
        assert_ne!(parse("brambled pair"), before);
    }
}
