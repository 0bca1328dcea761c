//! A conversation with a topology, over sessions with its nodes.
use common::{chat::Chat, fault::FaultKind};
use protocol::message::Prompt;

use super::{
    Completion,
    chat::{Conversation, Transcript},
    complete, first, head, object,
    run_options::RunOptions,
    summary,
};
use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, output},
    topology::ensure::Obtained,
};

/// A conversation with a running topology.
pub(super) struct ClusterChat<'a> {
    options: &'a RunOptions,
    obtained: Obtained,
    transcript: Transcript,
    /// Whether the model has no chat template: it then continues each prompt as a text.
    is_plain: bool,
}

impl<'a> ClusterChat<'a> {
    /// Starts a conversation.
    pub(super) fn start(options: &'a RunOptions, obtained: Obtained) -> Self {
        Self { options, obtained, transcript: Transcript::new(options.system.as_deref()), is_plain: false }
    }

    async fn answer(&self, text: &str, interrupts: &mut Interrupts) -> Result<Completion, Failure> {
        let options = self.options;
        let mut request = options.sampling.request(text.to_owned(), 0);
        let seed = request.sampling.seed;
        if !self.is_plain {
            let messages = self.transcript.messages()?.to_string();
            request.prompt = Prompt::Chat(Box::new(Chat { messages, ..Chat::default() }));
        }
        let Obtained { sessions, assigned } = &self.obtained;
        let head = interrupts.end(head(sessions, &assigned.topology)).await?;
        request.model = Some(assigned.topology.roots().into());
        let completion =
            complete(&first(sessions, &assigned.topology, head), request, !options.json, interrupts).await?;
        if options.json {
            output::line(&object(&completion, (assigned, head), seed, false).to_string());
        } else {
            output::line("");
            summary(&completion).iter().for_each(|line| output::note(line));
        }
        Ok(completion)
    }
}

impl Conversation for ClusterChat<'_> {
    fn title(&self) -> String {
        let topology = &self.obtained.assigned.topology;
        format!("{} on {}", topology.model, topology.layout)
    }

    fn clear(&mut self) {
        self.transcript = Transcript::new(self.options.system.as_deref());
    }

    async fn turn(&mut self, text: &str, interrupts: &mut Interrupts) -> Result<Option<u8>, Failure> {
        self.transcript.say("user", text);
        let answered = match self.answer(text, interrupts).await {
            Err(Failure::Fault(fault)) if fault.kind == FaultKind::NoTemplate && !self.is_plain => {
                output::note("the model has no chat template: it continues the text of each prompt");
                self.is_plain = true;
                self.answer(text, interrupts).await
            }
            answered => answered,
        };
        match answered {
            Ok(completion) => {
                self.transcript.say("assistant", &completion.text);
                Ok(completion.interrupted)
            }
            Err(failure) => {
                self.transcript.unsay();
                Err(failure)
            }
        }
    }
}
