//! `console chat`: a conversation over the HTTP API. Each request carries all previous messages. Ctrl-C cancels an
//! answer.
use std::io::{BufRead, IsTerminal, Read, stdin};

use anyhow::anyhow;
use clap::Args;
use common::chat::PROMPT_BYTES_MAX;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, channel};

use crate::cli::{
    Failure,
    generate::http_answer::{self, Outcome},
    shared::{endpoint::Endpoint, interrupts::Interrupts, output, sampling::Sampling},
};
use crate::http::{Api, Ask, Kind, new_request_id};

/// Options of `console chat`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Chat {
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Send this prompt, print the answer and exit [default: read prompts from standard input, one per line]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Name of the model [default: the served model]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[arg(from_global)]
    pub(crate) json: bool,
    #[command(flatten)]
    endpoint: Endpoint,
    #[command(flatten)]
    sampling: Sampling,
}

/// The messages of a conversation, and the total length of their texts in bytes.
#[derive(Clone, Debug, Default)]
struct Conversation {
    messages: Vec<Value>,
    bytes: usize,
}

impl Conversation {
    fn new(system: Option<&str>) -> Self {
        let mut conversation = Self::default();
        if let Some(text) = system {
            conversation.say("system", text);
        }
        conversation
    }

    fn say(&mut self, role: &str, text: &str) {
        self.bytes += text.len();
        self.messages.push(json!({"role": role, "content": text}));
    }

    /// Removes the last message.
    fn unsay(&mut self) {
        let last = self.messages.pop();
        self.bytes -= last.and_then(|last| last["content"].as_str().map(str::len)).unwrap_or(0);
    }
}

/// The commands of a chat.
pub(super) const HELP: &str = "/clear starts a new conversation, /bye or Ctrl-D quits, Ctrl-C cancels an answer";

/// A line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InputLine {
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
    pub(super) fn read(text: &str) -> Self {
        match text.trim() {
            "" => Self::Nothing,
            "/bye" | "/quit" | "/exit" => Self::Quit,
            "/clear" => Self::Clear,
            "/help" => Self::Help,
            text => Self::Say(text.into()),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(options: Chat) -> Result<u8, Failure> {
    if options.endpoint.url.is_empty() {
        let message = "no server given".into();
        let next = "add --url http://NODE:9980, or use console run MODEL, which contacts the nodes of the cluster";
        return Err(Failure::Usage { message, next });
    }
    let apis = options.endpoint.apis();
    let mut interrupts = Interrupts::listen()?;
    let model = interrupts.end(options.endpoint.model(&apis, options.model.as_deref())).await?;
    let mut conversation = Conversation::new(options.system.as_deref());
    if let Some(prompt) = &options.prompt {
        let outcome = turn(&options, &apis, &model, &mut conversation, prompt, &mut interrupts).await?;
        return Ok(outcome.interrupted.unwrap_or(0));
    }
    let is_watched = stdin().is_terminal() && std::io::stderr().is_terminal();
    if is_watched {
        output::note(&output::clean(&format!("{model}; /help lists the commands, Ctrl-D quits")));
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
            InputLine::Clear => conversation = Conversation::new(options.system.as_deref()),
            InputLine::Say(text) => {
                match turn(&options, &apis, &model, &mut conversation, &text, &mut interrupts).await {
                    // In an interactive chat, Ctrl-C cancels only the answer; other signals end the command.
                    Ok(Outcome { interrupted: Some(code), .. }) if code != 130 || !is_watched => return Ok(code),
                    Ok(_) if output::is_closed() => return Ok(0),
                    Ok(_) => {}
                    // In an interactive chat, the user can retry.
                    Err(failure) if is_watched => drop(failure.report(false)),
                    Err(failure) => return Err(failure),
                }
            }
        }
    }
}

/// Sends the user's text. The text and the answer become part of the conversation, unless the request fails.
async fn turn(
    options: &Chat,
    apis: &[Api],
    model: &str,
    conversation: &mut Conversation,
    text: &str,
    interrupts: &mut Interrupts,
) -> Result<Outcome, Failure> {
    if conversation.bytes + text.len() > PROMPT_BYTES_MAX {
        let message = format!("the conversation is longer than {PROMPT_BYTES_MAX} bytes");
        return Err(Failure::Usage { message, next: "start a new conversation with /clear" });
    }
    let request = options.sampling.request(String::new(), 0);
    conversation.say("user", text);
    let mut body = http_answer::body(&request, model);
    body["messages"] = json!(conversation.messages);
    let ask = Ask { kind: Kind::Chat, body, request_id: new_request_id() };
    match http_answer::answer(apis, &ask, options.endpoint.patience(), !options.json, interrupts).await {
        Ok(outcome) => {
            outcome.show(options.json, &ask.request_id, Some(request.sampling.seed));
            conversation.say("assistant", &outcome.answer.text);
            Ok(outcome)
        }
        Err(failure) => {
            conversation.unsay();
            Err(failure)
        }
    }
}

/// Lines of standard input, read by a separate thread, which ends with the program.
pub(super) fn lines() -> Receiver<Result<String, Failure>> {
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
    fn failed_turn_leaves_conversation_unchanged() {
        let mut conversation = Conversation::new(Some("be short"));
        conversation.say("user", "hello");
        conversation.unsay();
        assert_eq!(
            (conversation.messages, conversation.bytes),
            (vec![json!({"role": "system", "content": "be short"})], 8)
        );
    }
}
