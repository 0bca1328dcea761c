//! The loop of a chat, for conversations with a topology and over the HTTP API. On a terminal, prompts are edited and
//! conversations stored; else standard input has one prompt per line. Ctrl-C cancels an answer.
use std::{
    io::{IsTerminal, stdin, stdout},
    time::{SystemTime, UNIX_EPOCH},
};

use common::fault::FaultKind;
use tokio::sync::mpsc::{Receiver, channel};

use super::{
    chat_command::{ChatCommand, HELP, WORDS_HINT},
    chat_store::ChatStore,
    line_editor::{EditedLine, LineEditor},
    prompt_source,
};
use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, output, sampling::Sampling},
};
use crate::conversation::{ChatAnswer, ChatTurn, Conversation, SYSTEM_BYTES_MAX};

/// An answer, and the exit code of the signal that ended it early.
pub(super) struct TurnEnd {
    pub(super) answer: ChatAnswer,
    pub(super) interrupted: Option<u8>,
}

/// A model that answers.
pub(super) trait Responder {
    /// The model, and where it runs.
    fn title(&self) -> String;

    /// The parameters of the next answers.
    fn sampling(&mut self) -> &mut Sampling;

    /// Answers a prompt and prints the answer. `messages`: the conversation up to this prompt, as a JSON list.
    async fn answer(&mut self, prompt: &str, messages: String, interrupts: &mut Interrupts)
    -> Result<TurnEnd, Failure>;
}

/// A chat: the model, the conversation, and where conversations are stored.
pub(super) struct ChatLoop<R> {
    responder: R,
    conversation: Conversation,
    store: ChatStore,
}

/// How the loop continues after a line.
enum Continue {
    Next,
    /// The chat ends with this exit code.
    End(u8),
}

impl<R: Responder> ChatLoop<R> {
    /// A new conversation.
    pub(super) fn new(responder: R, system: Option<&str>) -> Self {
        let conversation = Conversation::new(new_id(), system.unwrap_or_default().to_owned());
        Self { responder, conversation, store: ChatStore::none() }
    }

    /// Answers prompts from standard input until it ends.
    pub(super) async fn run(mut self, interrupts: &mut Interrupts) -> Result<u8, Failure> {
        let is_watched = stdin().is_terminal() && std::io::stderr().is_terminal();
        let mut lines = Lines::open(is_watched);
        if is_watched {
            self.store = ChatStore::open();
            output::note(&output::clean(&format!(
                "{}; /help lists the commands, Ctrl-D quits",
                self.responder.title()
            )));
        }
        loop {
            let line = tokio::select! {
                line = lines.next(is_watched) => line,
                code = interrupts.next() => return Err(Failure::Interrupted { code }),
            };
            let text = match line? {
                EditedLine::Text(text) => text,
                EditedLine::Cancelled => {
                    output::note("Ctrl-D or /bye quits");
                    continue;
                }
                EditedLine::End => return Ok(0),
            };
            match self.take(ChatCommand::read(&text, is_watched), is_watched, interrupts).await? {
                Continue::Next => {}
                Continue::End(code) => return Ok(code),
            }
        }
    }

    /// Performs a command, or answers a prompt.
    async fn take(
        &mut self,
        command: ChatCommand,
        is_watched: bool,
        interrupts: &mut Interrupts,
    ) -> Result<Continue, Failure> {
        match command {
            ChatCommand::Quit => return Ok(Continue::End(0)),
            ChatCommand::Nothing => {}
            ChatCommand::Help => output::note(HELP),
            ChatCommand::Unknown(word) => {
                output::note(&output::clean(&format!("unknown command {word}. {WORDS_HINT}")));
                output::note(HELP);
            }
            ChatCommand::Clear => {
                let system = self.conversation.system.clone();
                self.conversation = Conversation::new(new_id(), system);
            }
            ChatCommand::Say(text) => return self.say(text, is_watched, interrupts).await,
            ChatCommand::Again => {
                let Some(turn) = self.conversation.turns.pop() else {
                    output::note("there is no message to answer again");
                    return Ok(Continue::Next);
                };
                let others = self.conversation.turns.len();
                let done = self.say(turn.prompt.clone(), is_watched, interrupts).await;
                if self.conversation.turns.len() == others {
                    // It failed: the earlier answer stays.
                    self.conversation.turns.push(turn);
                }
                return done;
            }
            ChatCommand::System(text) => self.system(text),
            ChatCommand::Set(name, value) => self.set(&name, &value),
            ChatCommand::Show => self.show(),
            ChatCommand::Save(file) => self.report(self.store.export(&self.conversation, &file)),
            ChatCommand::List => self.report(self.store.list()),
            ChatCommand::Load(name) => match self.store.load(&name) {
                Ok(found) => {
                    self.conversation = found;
                    self.recall();
                }
                Err(reason) => self.report(Err(reason)),
            },
        }
        Ok(Continue::Next)
    }

    /// Answers a prompt. It and the answer become part of the conversation, unless the request fails.
    async fn say(
        &mut self,
        prompt: String,
        is_watched: bool,
        interrupts: &mut Interrupts,
    ) -> Result<Continue, Failure> {
        match self.ask(prompt, interrupts).await {
            Ok(TurnEnd { answer, interrupted }) => {
                if let Some(turn) = self.conversation.turns.last_mut() {
                    turn.answer = Some(answer);
                }
                self.conversation.changed_ms = unix_ms();
                self.store.keep(&self.conversation);
                // In an interactive chat, Ctrl-C cancels only the answer; other signals end the command.
                match interrupted {
                    Some(code) if code != 130 || !is_watched => Ok(Continue::End(code)),
                    _ if output::is_closed() => Ok(Continue::End(0)),
                    _ => Ok(Continue::Next),
                }
            }
            Err(failure) => {
                self.conversation.turns.pop();
                if !is_watched || matches!(failure, Failure::Interrupted { code } if code != 130) {
                    return Err(failure);
                }
                // In an interactive chat, the user can try again, on the topology that runs then.
                let _ = advised(failure).report(false);
                Ok(Continue::Next)
            }
        }
    }

    /// Adds a prompt to the conversation and answers it.
    async fn ask(&mut self, prompt: String, interrupts: &mut Interrupts) -> Result<TurnEnd, Failure> {
        self.conversation.turns.push(ChatTurn { prompt: prompt.clone(), answer: None });
        let messages = self.conversation.messages();
        let messages =
            messages.map_err(|message| Failure::State { message, next: "start a new conversation with /clear" })?;
        self.responder.answer(&prompt, messages, interrupts).await
    }

    /// Answers one prompt and returns the exit code.
    pub(super) async fn once(mut self, prompt: &str, interrupts: &mut Interrupts) -> Result<u8, Failure> {
        Ok(self.ask(prompt.to_owned(), interrupts).await?.interrupted.unwrap_or(0))
    }

    fn system(&mut self, text: Option<String>) {
        match text {
            Some(text) if text.len() > SYSTEM_BYTES_MAX => {
                let size = text.len();
                return output::note(&format!(
                    "the system prompt has {size} bytes, at most {SYSTEM_BYTES_MAX} are allowed"
                ));
            }
            Some(text) => self.conversation.system = text,
            None => {}
        }
        let now = &self.conversation.system;
        let line = if now.is_empty() { "no system prompt" } else { now };
        output::note(&output::clean(&format!("system prompt: {line}")));
    }

    fn set(&mut self, name: &str, value: &str) {
        let sampling = self.responder.sampling();
        match if name.is_empty() { Ok(()) } else { sampling.set(name, value) } {
            Ok(()) => output::note(&sampling.summary()),
            Err(reason) => output::note(&output::clean(&reason)),
        }
    }

    fn show(&mut self) {
        let (title, count) = (self.conversation.title(), self.conversation.turns.len());
        let plural = if count == 1 { "" } else { "s" };
        output::note(&output::clean(&format!("{}\n{title}: {count} turn{plural}", self.responder.title())));
        self.system(None);
        self.set("", "");
    }

    /// Prints the last turn of a conversation that was loaded.
    fn recall(&self) {
        output::note(&output::clean(&format!("{}; its last turn:", self.conversation.title())));
        if let Some(turn) = self.conversation.turns.last() {
            output::note(&output::clean(&format!("> {}", turn.prompt)));
            let answer = turn.answer.as_ref().map_or("(not answered)", |answer| answer.text.as_str());
            output::note(&output::clean(answer));
        }
    }

    fn report(&self, done: Result<String, String>) {
        output::note(&output::clean(&done.unwrap_or_else(|reason| reason)));
    }
}

/// An id for a new conversation.
fn new_id() -> String {
    format!("{}-{}", unix_ms(), std::process::id())
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The source of prompts.
enum Lines {
    /// A terminal whose lines are edited.
    Edited(LineEditor),
    /// Standard input, a prompt per line.
    Plain(Receiver<Result<String, Failure>>),
}

impl Lines {
    /// Edits lines if the terminal shows both the input and the answers.
    fn open(is_watched: bool) -> Self {
        if is_watched && stdout().is_terminal() {
            Self::Edited(LineEditor::start())
        } else {
            Self::Plain(plain_lines())
        }
    }

    async fn next(&mut self, is_watched: bool) -> Result<EditedLine, Failure> {
        match self {
            Self::Edited(editor) => editor.next().await,
            Self::Plain(lines) => {
                if is_watched {
                    output::note_part("> ");
                }
                lines.recv().await.map_or(Ok(EditedLine::End), |line| line.map(EditedLine::Text))
            }
        }
    }
}

/// Lines of standard input, read by a separate thread, which ends with the program.
fn plain_lines() -> Receiver<Result<String, Failure>> {
    let (sender, receiver) = channel(1);
    std::thread::spawn(move || {
        loop {
            let Some(result) = prompt_source::line(stdin().lock()).transpose() else { return };
            let is_last = result.is_err();
            if sender.blocking_send(result).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// The failure with the next step within a chat, where that is another one than for a single prompt.
fn advised(failure: Failure) -> Failure {
    match failure {
        Failure::Fault(fault) if matches!(fault.kind, FaultKind::PromptTooLong { .. }) => {
            Failure::Advised { fault: Box::new(fault), next: "start a new conversation with /clear".to_owned() }
        }
        failure => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::generate::run_options::RunOptions;

    /// Numbers its answers until it fails.
    struct Failing {
        sampling: Sampling,
        answers: u32,
        fails_after: u32,
    }

    impl Responder for Failing {
        fn title(&self) -> String {
            String::new()
        }

        fn sampling(&mut self) -> &mut Sampling {
            &mut self.sampling
        }

        async fn answer(&mut self, _: &str, _: String, _: &mut Interrupts) -> Result<TurnEnd, Failure> {
            if self.answers == self.fails_after {
                return Err(Failure::State { message: "no node answers".to_owned(), next: "try again" });
            }
            self.answers += 1;
            let answer = ChatAnswer { text: self.answers.to_string(), ..ChatAnswer::default() };
            Ok(TurnEnd { answer, interrupted: None })
        }
    }

    #[tokio::test]
    async fn earlier_answer_stays_if_it_cannot_be_answered_again() {
        let sampling = RunOptions::of("m", None, &[]).expect("the environment is valid").sampling;
        let mut chat = ChatLoop::new(Failing { sampling, answers: 0, fails_after: 2 }, None);
        let mut interrupts = Interrupts::deaf();
        // The same prompt twice, so that the turns differ in their answers only.
        for command in [ChatCommand::Say("go on".into()), ChatCommand::Say("go on".into()), ChatCommand::Again] {
            chat.take(command, true, &mut interrupts).await.expect("an interactive chat continues");
        }
        let turns = chat.conversation.turns.iter();
        let answers: Vec<&str> = turns.map(|turn| turn.answer.as_ref().map_or("", |one| one.text.as_str())).collect();
        assert_eq!(answers, ["1", "2"]);
    }
}
