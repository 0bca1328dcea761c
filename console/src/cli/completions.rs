//! `console completions`: prints the completion script of a shell.
use clap::{Args, builder::PossibleValuesParser};
use clap_complete::{Shell, generate};

use crate::cli::{Failure, shared::output};

/// The shells with a completion script.
const SHELLS: [(&str, Shell); 3] = [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

/// Options of `console completions`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_parser = PossibleValuesParser::new(SHELLS.map(|(name, _)| name)))]
    shell: String,
}

/// Runs the command.
pub(crate) fn run(options: &Completions) -> Result<u8, Failure> {
    output::text(&script(&options.shell));
    Ok(0)
}

fn script(shell: &str) -> String {
    let mut script = Vec::new();
    if let Some((_, shell)) = SHELLS.iter().find(|(name, _)| *name == shell) {
        generate(*shell, &mut crate::cli::command(), "console", &mut script);
    }
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_complete_the_commands_of_each_shell() {
        for (shell, part) in
            [("bash", "complete -F _console"), ("zsh", "#compdef console"), ("fish", "complete -c console")]
        {
            let script = script(shell);
            assert!(script.contains(part) && script.contains("generate"), "{shell}");
        }
    }
}
