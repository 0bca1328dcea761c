//! `console run`: answers a prompt with a model of the cluster, or chats with it. The model may be named by a part of
//! its file name; if it does not run yet, the planner chooses a layout and the topology is assigned.
use std::io::{IsTerminal, stdin};

use clap::Args;
use common::{
    chat::{Chat, PROMPT_BYTES_MAX},
    fault::FaultKind,
};
use protocol::message::Prompt;
use serde_json::{Value, json};

use crate::cli::{
    Failure,
    generate::{
        Completion,
        chat::{HELP, InputLine, lines},
        complete, first, head, object, summary,
    },
    shared::{
        confirm::Consent,
        interrupts::Interrupts,
        options::{LayoutChoice, Nodes},
        output,
        sampling::BasicSampling,
    },
    topology::ensure::{Obtained, obtain},
};

/// Options of `console run`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("max_tokens", |argument| argument.default_value("512")))]
pub(crate) struct RunOptions {
    /// Model file on the nodes, or a part of its name: bard matches bard-q8_0.gguf
    #[arg(value_name = "MODEL")]
    model: String,
    /// Answer this prompt and exit [default: chat, one prompt per line of standard input]
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[arg(from_global)]
    json: bool,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    layout: LayoutChoice,
    #[command(flatten)]
    sampling: BasicSampling,
    #[command(flatten)]
    consent: Consent,
}

/// A conversation with a running topology.
struct ClusterChat<'a> {
    options: &'a RunOptions,
    obtained: Obtained,
    messages: Vec<Value>,
    /// Whether the model has no chat template: it then continues each prompt as a text.
    is_plain: bool,
}

/// Runs the command.
pub(crate) async fn run(options: RunOptions) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let asked = options.layout.asked(&options.model);
    let purpose = if options.prompt.is_some() { "answer the prompt" } else { "chat" };
    let obtained = obtain(&options.nodes.nodes, &asked, purpose, options.consent, options.json);
    let Some(obtained) = interrupts.end(obtained).await? else { return Ok(0) };
    let mut conversation = ClusterChat { options: &options, obtained, messages: Vec::new(), is_plain: false };
    conversation.clear();
    match &options.prompt {
        Some(prompt) => Ok(conversation.turn(prompt, &mut interrupts).await?.unwrap_or(0)),
        None => conversation.chat(&mut interrupts).await,
    }
}

impl ClusterChat<'_> {
    fn clear(&mut self) {
        let system = self.options.system.as_ref();
        self.messages = system.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
    }

    /// Reads prompts from standard input until it ends.
    async fn chat(&mut self, interrupts: &mut Interrupts) -> Result<u8, Failure> {
        let is_watched = stdin().is_terminal() && std::io::stderr().is_terminal();
        if is_watched {
            let topology = &self.obtained.assigned.topology;
            let (model, layout) = (output::clean(&topology.model), topology.layout);
            output::note(&format!("{model} on {layout}; /help lists the commands, Ctrl-D quits"));
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
                InputLine::Clear => self.clear(),
                InputLine::Say(text) => match self.turn(&text, interrupts).await {
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

    /// Answers a prompt and prints the answer. Returns the code of the signal that ended it early. The prompt and the
    /// answer become part of the conversation, unless the request fails.
    async fn turn(&mut self, text: &str, interrupts: &mut Interrupts) -> Result<Option<u8>, Failure> {
        self.messages.push(json!({"role": "user", "content": text}));
        let answered = match self.answer(text, interrupts).await {
            Err(Failure::Fault(fault)) if fault.kind == FaultKind::NoTemplate && !self.is_plain => {
                output::note("the model has no chat template: it continues the text of each prompt");
                self.is_plain = true;
                self.answer(text, interrupts).await
            }
            answered => answered,
        };
        let completion = match answered {
            Ok(completion) => completion,
            Err(failure) => {
                self.messages.pop();
                return Err(failure);
            }
        };
        self.messages.push(json!({"role": "assistant", "content": completion.text}));
        Ok(completion.interrupted)
    }

    async fn answer(&mut self, text: &str, interrupts: &mut Interrupts) -> Result<Completion, Failure> {
        let options = self.options;
        let mut request = options.sampling.request(text.to_owned());
        let seed = request.sampling.seed;
        if !self.is_plain {
            let messages = Value::Array(self.messages.clone()).to_string();
            if messages.len() > PROMPT_BYTES_MAX {
                let message = format!("the conversation is longer than {PROMPT_BYTES_MAX} bytes");
                return Err(Failure::Usage { message, next: "start a new conversation with /clear" });
            }
            request.prompt = Prompt::Chat(Box::new(Chat { messages, tools: None }));
        }
        let Obtained { sessions, assigned } = &self.obtained;
        let head = interrupts.end(head(sessions, &assigned.topology)).await?;
        request.model = Some(assigned.topology.roots().into());
        let completion = complete(&first(sessions, head), request, !options.json, interrupts).await?;
        if options.json {
            output::line(&object(&completion, (assigned, head), seed, false).to_string());
        } else {
            output::line("");
            summary(&completion).iter().for_each(|line| output::note(line));
        }
        Ok(completion)
    }
}
