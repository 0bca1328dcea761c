//! A chat with a topology, over sessions with its nodes.
use common::{chat::Chat, fault::FaultKind};
use protocol::message::Prompt;

use super::{
    Completion,
    chat::{Responder, TurnEnd},
    complete, first, head, object,
    run_options::RunOptions,
    summary,
};
use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, output, sampling::Sampling},
    topology::ensure::Obtained,
};
use crate::conversation::{ChatAnswer, figures};

/// A running topology that answers.
pub(super) struct ClusterChat<'a> {
    options: &'a RunOptions,
    sampling: Sampling,
    obtained: Obtained,
    /// Whether the model has no chat template: it then continues each prompt as a text.
    is_plain: bool,
}

impl<'a> ClusterChat<'a> {
    /// Starts a chat.
    pub(super) fn start(options: &'a RunOptions, obtained: Obtained) -> Self {
        Self { options, sampling: options.sampling.clone(), obtained, is_plain: false }
    }

    /// Completes the conversation with these messages; `None` continues the prompt as a text.
    async fn complete(
        &self,
        prompt: &str,
        messages: Option<String>,
        interrupts: &mut Interrupts,
    ) -> Result<Completion, Failure> {
        let options = self.options;
        let mut request = self.sampling.request(prompt.to_owned(), 0);
        let seed = request.sampling.seed;
        if let Some(messages) = messages {
            request.prompt = Prompt::Chat(Box::new(Chat { messages, ..Chat::default() }));
            // The marks show where the answer thinks.
            request.shows_marks = true;
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

impl Responder for ClusterChat<'_> {
    fn title(&self) -> String {
        let topology = &self.obtained.assigned.topology;
        format!("{} on {}", topology.model, topology.layout)
    }

    fn sampling(&mut self) -> &mut Sampling {
        &mut self.sampling
    }

    async fn answer(
        &mut self,
        prompt: &str,
        messages: String,
        interrupts: &mut Interrupts,
    ) -> Result<TurnEnd, Failure> {
        let messages = Some(messages).filter(|_| !self.is_plain);
        let completion = match self.complete(prompt, messages, interrupts).await {
            Err(Failure::Fault(fault)) if fault.kind == FaultKind::NoTemplate && !self.is_plain => {
                output::note("the model has no chat template: it continues the text of each prompt");
                self.is_plain = true;
                self.complete(prompt, None, interrupts).await
            }
            completed => completed,
        }?;
        let Completion { text, thought, finished, interrupted, .. } = completion;
        let figures = figures(&finished.times, finished.reason);
        let model = self.obtained.assigned.topology.model.clone();
        Ok(TurnEnd { answer: ChatAnswer { model, thought, text, figures, failure: None }, interrupted })
    }
}
