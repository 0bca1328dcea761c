//! The lines of a chat: prompts, and commands that begin with a slash.

/// The commands of a chat.
pub(super) const HELP: &str = "\
/clear              start a new conversation
/regenerate         answer the last message again
/system [TEXT]      show or set the system prompt
/set [NAME VALUE]   show or set temperature, max_tokens, top_p, top_k, min_p, repeat_penalty, seed
/show               the model, the conversation and the settings
/list               stored conversations
/load NAME          continue a stored conversation
/save FILE          write the conversation to a new file: JSON if it ends in .json, else Markdown
/bye, Ctrl-D        quit; Ctrl-C cancels an answer
A line that ends in a backslash continues, and so does text between \"\"\" and \"\"\".";

/// What to do about an unknown command.
pub(super) const WORDS_HINT: &str = "To send a text that begins with a slash, write two (//). The commands are:";

/// The words, for completion.
pub(super) const WORDS: [&str; 10] =
    ["/bye", "/clear", "/help", "/list", "/load", "/regenerate", "/save", "/set", "/show", "/system"];

/// A line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
    /// A prompt.
    Say(String),
    /// Start a new conversation.
    Clear,
    /// Answer the last prompt again.
    Again,
    /// Set the system prompt; `None` shows it.
    System(Option<String>),
    /// Set a sampling parameter; an empty name shows all.
    Set(String, String),
    /// Print the state of the chat.
    Show,
    /// Write the conversation to a file.
    Save(String),
    /// Continue a stored conversation.
    Load(String),
    /// Print the stored conversations.
    List,
    /// Print the commands.
    Help,
    /// A word that is no command.
    Unknown(String),
    /// End the chat.
    Quit,
    /// An empty line.
    Nothing,
}

impl ChatCommand {
    /// Parses a line. Not typed on a terminal, only a whole line is a command, so that any other text is sent.
    pub(super) fn read(text: &str, is_typed: bool) -> Self {
        let text = text.trim();
        match text {
            "" => return Self::Nothing,
            "/bye" | "/quit" | "/exit" => return Self::Quit,
            "/clear" => return Self::Clear,
            "/help" | "/?" => return Self::Help,
            _ => {}
        }
        let Some(rest) = text.strip_prefix('/').filter(|_| is_typed) else { return Self::Say(text.to_owned()) };
        if rest.starts_with('/') {
            return Self::Say(rest.to_owned());
        }
        let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = argument.trim().to_owned();
        // A path is text.
        if word.contains('/') {
            return Self::Say(text.to_owned());
        }
        let needs = |command: fn(String) -> Self| {
            if argument.is_empty() {
                Self::Unknown(format!("/{word} without a name"))
            } else {
                command(argument.clone())
            }
        };
        match word {
            "regenerate" | "again" => Self::Again,
            "system" => Self::System((!argument.is_empty()).then_some(argument)),
            "set" => {
                let (name, value) = argument.split_once(char::is_whitespace).unwrap_or((&argument, ""));
                Self::Set(name.to_owned(), value.trim().to_owned())
            }
            "show" => Self::Show,
            "list" => Self::List,
            "save" => needs(Self::Save),
            "load" => needs(Self::Load),
            _ => Self::Unknown(format!("/{word}")),
        }
    }
}

/// A text of several lines as it was typed, without backslashes at the ends of lines and without the marks around it.
pub(super) fn joined(typed: &str) -> String {
    let text = typed.replace("\\\n", "\n");
    let inside = text.trim().strip_prefix("\"\"\"").and_then(|text| text.strip_suffix("\"\"\""));
    inside.map_or(text.clone(), |inside| inside.trim_matches('\n').to_owned())
}

/// Whether more lines follow.
pub(super) fn is_unfinished(typed: &str) -> bool {
    let is_open = typed.trim_start().starts_with("\"\"\"") && typed.matches("\"\"\"").count() < 2;
    is_open || typed.ends_with('\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_of_a_pipe_are_commands() {
        for (text, line) in [
            ("/quit\n", ChatCommand::Quit),
            ("/bye", ChatCommand::Quit),
            ("  \n", ChatCommand::Nothing),
            ("/clear", ChatCommand::Clear),
            ("/help ", ChatCommand::Help),
            ("/show", ChatCommand::Say("/show".into())),
        ] {
            assert_eq!(ChatCommand::read(text, false), line);
        }
        for is_typed in [false, true] {
            let path = ChatCommand::read("/etc/passwd is a file\n", is_typed);
            assert_eq!(path, ChatCommand::Say("/etc/passwd is a file".into()));
        }
    }

    #[test]
    fn typed_commands_take_arguments_and_unknown_ones_are_not_sent() {
        for (text, line) in [
            ("/set temperature 0.7", ChatCommand::Set("temperature".into(), "0.7".into())),
            ("/set", ChatCommand::Set(String::new(), String::new())),
            ("/system be short", ChatCommand::System(Some("be short".into()))),
            ("/system", ChatCommand::System(None)),
            ("/regenerate", ChatCommand::Again),
            ("/save talk.md", ChatCommand::Save("talk.md".into())),
            ("/load talk", ChatCommand::Load("talk".into())),
            ("/list", ChatCommand::List),
            ("/show", ChatCommand::Show),
            ("/foo bar", ChatCommand::Unknown("/foo".into())),
            ("//foo bar", ChatCommand::Say("/foo bar".into())),
        ] {
            assert_eq!(ChatCommand::read(text, true), line, "{text}");
        }
        assert!(matches!(ChatCommand::read("/load", true), ChatCommand::Unknown(_)));
        for word in WORDS {
            // Some commands need an argument, others take none.
            let lines = [word.to_owned(), format!("{word} x")];
            let mut read = lines.iter().map(|line| ChatCommand::read(line, true));
            assert!(read.any(|line| !matches!(line, ChatCommand::Say(_) | ChatCommand::Unknown(_))), "{word}");
        }
    }

    #[test]
    fn lines_continue_after_a_backslash_and_between_marks() {
        assert!(is_unfinished("one \\") && is_unfinished("\"\"\"one") && is_unfinished("\"\"\"one\ntwo"));
        assert!(!is_unfinished("one") && !is_unfinished("\"\"\"one\ntwo\"\"\"") && !is_unfinished("say \"\"\""));
        assert_eq!(joined("one\\\ntwo"), "one\ntwo");
        assert_eq!(joined("\"\"\"\none\ntwo\n\"\"\""), "one\ntwo");
        assert_eq!(joined("plain"), "plain");
    }
}
