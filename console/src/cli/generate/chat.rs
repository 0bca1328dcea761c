//! The loop of a chat, for conversations with a topology and over the HTTP API: prompts from standard input, one per
//! line. Ctrl-C cancels an answer.
use std::io::{BufRead, IsTerminal, Read, stdin};

use anyhow::anyhow;
use common::chat::PROMPT_BYTES_MAX;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, channel};

use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, output},
};

/// The commands of a chat.
const HELP: &str = "/clear starts a new conversation, /bye or Ctrl-D quits, Ctrl-C cancels an answer";

/// A conversation with a model.
pub(super) trait Conversation {
    /// The model, and where it runs.
    fn title(&self) -> String;

    /// Starts a new conversation.
    fn clear(&mut self);

    /// Answers a prompt and prints the answer. Returns the code of the signal that ended it early. The prompt and the
    /// answer become part of the conversation, unless the request fails.
    async fn turn(&mut self, text: &str, interrupts: &mut Interrupts) -> Result<Option<u8>, Failure>;
}

/// The messages of a conversation.
#[derive(Clone, Debug)]
pub(super) struct Transcript {
    messages: Vec<Value>,
}

impl Transcript {
    /// A conversation that begins with the system prompt, if there is one.
    pub(super) fn new(system: Option<&str>) -> Self {
        let mut transcript = Self { messages: Vec::new() };
        if let Some(text) = system {
            transcript.say("system", text);
        }
        transcript
    }

    /// Adds a message.
    pub(super) fn say(&mut self, role: &str, text: &str) {
        self.messages.push(json!({"role": role, "content": text}));
    }

    /// Removes the last message.
    pub(super) fn unsay(&mut self) {
        self.messages.pop();
    }

    /// The messages as a JSON list.
    ///
    /// # Errors
    /// They are longer than a request may be.
    pub(super) fn messages(&self) -> Result<Value, Failure> {
        let messages = json!(self.messages);
        if messages.to_string().len() <= PROMPT_BYTES_MAX {
            return Ok(messages);
        }
        let message = format!("the conversation is longer than {PROMPT_BYTES_MAX} bytes");
        Err(Failure::State { message, next: "start a new conversation with /clear" })
    }
}

/// A line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
enum InputLine {
    /// A prompt.
    Say(String),
    /// Start a new conversation.
    Clear,
    /// Print the commands.
    Help,
    /// End the chat.
    Quit,
    /// An empty line.
    Nothing,
}

impl InputLine {
    /// Parses a line; a command stands alone on its line.
    fn read(text: &str) -> Self {
        match text.trim() {
            "" => Self::Nothing,
            "/bye" | "/quit" | "/exit" => Self::Quit,
            "/clear" => Self::Clear,
            "/help" => Self::Help,
            text => Self::Say(text.into()),
        }
    }
}

/// Answers prompts from standard input until it ends.
pub(super) async fn chat(mut conversation: impl Conversation, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    let is_watched = stdin().is_terminal() && std::io::stderr().is_terminal();
    if is_watched {
        output::note(&output::clean(&format!("{}; /help lists the commands, Ctrl-D quits", conversation.title())));
    }
    let mut lines = lines();
    loop {
        if is_watched {
            output::note_part("> ");
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            code = interrupts.next() => return Err(Failure::Interrupted { code }),
        };
        let Some(line) = line else { return Ok(0) };
        match InputLine::read(&line?) {
            InputLine::Quit => return Ok(0),
            InputLine::Nothing => {}
            InputLine::Help => output::note(HELP),
            InputLine::Clear => conversation.clear(),
            InputLine::Say(text) => match conversation.turn(&text, interrupts).await {
                // In an interactive chat, Ctrl-C cancels only the answer; other signals end the command.
                Ok(Some(code)) if code != 130 || !is_watched => return Ok(code),
                Ok(_) if output::is_closed() => return Ok(0),
                Ok(_) => {}
                // In an interactive chat, the user can try again, on the topology that runs then.
                Err(failure) if is_watched => drop(failure.report(false)),
                Err(failure) => return Err(failure),
            },
        }
    }
}

/// Lines of standard input, read by a separate thread, which ends with the program.
fn lines() -> Receiver<Result<String, Failure>> {
    let (sender, receiver) = channel(1);
    std::thread::spawn(move || {
        loop {
            let mut line = String::new();
            let read = stdin().lock().take(PROMPT_BYTES_MAX as u64 + 1).read_line(&mut line);
            let result = match read {
                Ok(0) => return,
                Ok(count) if count > PROMPT_BYTES_MAX => {
                    Err(anyhow!("an input line is longer than {PROMPT_BYTES_MAX} bytes").into())
                }
                Ok(_) => Ok(line),
                Err(error) => Err(anyhow!("cannot read standard input: {error}").into()),
            };
            let is_last = result.is_err();
            if sender.blocking_send(result).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_commands() {
        for (text, line) in [
            ("/quit\n", InputLine::Quit),
            ("/bye", InputLine::Quit),
            ("  \n", InputLine::Nothing),
            ("/clear", InputLine::Clear),
            ("/help ", InputLine::Help),
        ] {
            assert_eq!(InputLine::read(text), line);
        }
        assert_eq!(InputLine::read("/etc/passwd is a file\n"), InputLine::Say("/etc/passwd is a file".into()));
    }

    #[test]
    fn conversation_begins_with_the_system_prompt_and_is_bounded() {
        let mut transcript = Transcript::new(Some("be short"));
        transcript.say("user", "hello");
        transcript.unsay();
        let system = json!([{"role": "system", "content": "be short"}]);
        assert_eq!(transcript.messages().expect("it is short"), system);
        assert_eq!(Transcript::new(None).messages().expect("it is short"), json!([]));
        transcript.say("user", &"x".repeat(PROMPT_BYTES_MAX));
        assert_eq!(transcript.messages().expect_err("it is long").code(), 8);
    }
}
