//! A conversation over the HTTP API. Each request carries all previous messages.
use super::{
    chat::{Conversation, Transcript},
    http_answer,
    run_options::RunOptions,
};
use crate::cli::{Failure, shared::interrupts::Interrupts};
use crate::http::{Api, Ask, Kind, new_request_id};

/// A conversation with the first of some servers that answers.
pub(super) struct HttpChat<'a> {
    options: &'a RunOptions,
    apis: Vec<Api>,
    model: String,
    transcript: Transcript,
}

impl<'a> HttpChat<'a> {
    /// Starts a conversation with the model of the command line, or the one that a server serves.
    ///
    /// # Errors
    /// No server answers, or none serves a model.
    pub(super) async fn start(options: &'a RunOptions) -> Result<Self, Failure> {
        let apis = options.endpoint.apis();
        let model = options.endpoint.model(&apis, options.model.as_deref()).await?;
        Ok(Self { options, apis, model, transcript: Transcript::new(options.system.as_deref()) })
    }

    async fn answer(&self, interrupts: &mut Interrupts) -> Result<http_answer::Outcome, Failure> {
        let options = self.options;
        let request = options.sampling.request(String::new(), 0);
        let mut body = http_answer::body(&request, &self.model);
        body["messages"] = self.transcript.messages()?;
        let ask = Ask { kind: Kind::Chat, body, request_id: new_request_id() };
        let patience = options.endpoint.patience();
        let outcome = http_answer::answer(&self.apis, &ask, patience, !options.json, interrupts).await?;
        outcome.show(options.json, &ask.request_id, Some(request.sampling.seed));
        Ok(outcome)
    }
}

impl Conversation for HttpChat<'_> {
    fn title(&self) -> String {
        self.model.clone()
    }

    fn clear(&mut self) {
        self.transcript = Transcript::new(self.options.system.as_deref());
    }

    async fn turn(&mut self, text: &str, interrupts: &mut Interrupts) -> Result<Option<u8>, Failure> {
        self.transcript.say("user", text);
        match self.answer(interrupts).await {
            Ok(outcome) => {
                self.transcript.say("assistant", &outcome.answer.text);
                Ok(outcome.interrupted)
            }
            Err(failure) => {
                self.transcript.unsay();
                Err(failure)
            }
        }
    }
}
