//! A conversation over the HTTP API. Each request carries all previous messages.
use super::{
    chat::{Responder, TurnEnd},
    http_answer,
    run_options::RunOptions,
};
use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, sampling::Sampling},
};
use crate::conversation::ChatAnswer;
use crate::http::{Api, Ask, HttpAnswer, Kind, new_request_id};

/// A conversation with the first of some servers that answers.
pub(super) struct HttpChat<'a> {
    options: &'a RunOptions,
    apis: Vec<Api>,
    model: String,
    sampling: Sampling,
}

impl<'a> HttpChat<'a> {
    /// Starts a conversation with the model of the command line, or the one that a server serves.
    ///
    /// # Errors
    /// No server answers, or none serves a model.
    pub(super) async fn start(options: &'a RunOptions) -> Result<Self, Failure> {
        let apis = options.endpoint.apis();
        let model = options.endpoint.model(&apis, options.model.as_deref()).await?;
        Ok(Self { options, apis, model, sampling: options.sampling.clone() })
    }
}

impl Responder for HttpChat<'_> {
    fn title(&self) -> String {
        self.model.clone()
    }

    fn sampling(&mut self) -> &mut Sampling {
        &mut self.sampling
    }

    async fn answer(&mut self, _: &str, messages: String, interrupts: &mut Interrupts) -> Result<TurnEnd, Failure> {
        let options = self.options;
        let request = self.sampling.request(String::new(), 0);
        let mut body = http_answer::body(&request, &self.model);
        body["messages"] = serde_json::from_str(&messages).map_err(anyhow::Error::from)?;
        let ask = Ask { kind: Kind::Chat, body, request_id: new_request_id() };
        let patience = options.endpoint.patience();
        let outcome = http_answer::answer(&self.apis, &ask, patience, !options.json, interrupts).await?;
        outcome.show(options.json, &ask.request_id, Some(request.sampling.seed));
        let (model, figures) = (self.model.clone(), outcome.summary());
        let HttpAnswer { thought, text, .. } = outcome.answer;
        let answer = ChatAnswer { model, thought, text, figures, failure: None };
        Ok(TurnEnd { answer, interrupted: outcome.interrupted })
    }
}
