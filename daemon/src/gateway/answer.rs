//! One answer on any replica: when its head is lost, it continues on another replica, or on the same one once that
//! serves again. The client sees a single stream.
use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use common::{
    changes::TemplateChanges,
    chat::{AnswerForm, FinishReason},
    fault::{Fault, FaultKind, Loss},
    ids::ModelRoots,
    latency::RequestTimes,
};
use protocol::{
    message::{Finished, Generate, RequestBody, ResponseBody, TokenEvent},
    session::{Reply, Session},
};
use tokio::time::sleep;

use super::{
    Gateway,
    admission::{Claim, Refused, ReplicaSlot},
    budget::ThoughtBudget,
    continuation::{AfterFault, Continuation, may_not_begin},
    ended::{joined, nothing_further},
    error::ApiError,
    older_heads::adapt,
    pinned::Pinned,
    request::Wish,
    route::RequestOutcome,
};

pub(super) use super::ended::Ended;

/// Silence after which a head is asked for a report.
const LOOK: Duration = Duration::from_secs(1);
/// First wire version in which heads compare the model of a request.
const MODEL_COMPARED_FROM: u16 = 5;
/// Pause between attempts to place an answer.
const PAUSE: Duration = Duration::from_millis(50);

/// An event of an answer.
#[derive(Debug)]
pub(super) enum Said {
    /// It has begun.
    Started(AnswerForm),
    /// The next tokens of its prompt with their log probabilities.
    Scored(Vec<TokenEvent>),
    /// The embedding of its prompt.
    Embedded(Vec<f32>),
    /// A part of it.
    Token(TokenEvent),
    /// Its end.
    Finished(Box<Ended>),
}

/// A request on a head.
struct Attempt {
    model: ModelRoots,
    reply: Reply,
    session: Session,
    place: ReplicaSlot,
    /// Number of tokens of the answer at which this part of it ends.
    end: u32,
}

/// An answer.
pub(super) struct Answer {
    gateway: Arc<Gateway>,
    wish: Wish,
    /// The model that computes it.
    model: Arc<Pinned>,
    accepted: Instant,
    /// When its turn among the choices of its request came, from which its wait for a slot counts.
    turn: Instant,
    attempt: Option<Attempt>,
    /// Its prompt and tokens so far.
    so_far: Continuation,
    /// Numeric version of the head that began it: only heads with the same version sample the same tokens.
    numeric: Option<u32>,
    /// Whether its calls are constrained in the model's syntax: every head that continues it must do the same.
    has_own_calls: bool,
    /// Changes of its conversation: heads that continue it receive tokens, and report none.
    changes: TemplateChanges,
    /// Tokens of the prompt whose log probabilities the client has, and those that this attempt has sent: a second attempt
    /// sends all of them again.
    scored: [usize; 2],
    /// Text that came without a token: the end must follow, otherwise the text would be sent twice.
    rest: Option<TokenEvent>,
    budget: ThoughtBudget,
    /// The last token of a part, until it is known whether the answer ends with it: if not, the next part computes it again. A
    /// head sends all text with it, also text that may belong to a character or a stop string that is not complete.
    last: Option<TokenEvent>,
    /// Events that follow.
    ready: VecDeque<Said>,
    /// Times of its earlier parts on the same head.
    earlier: Option<RequestTimes>,
    dispatched: Option<Duration>,
    first_token: Option<Duration>,
    last_token: Duration,
    /// Why the latest attempt failed.
    why: Option<ApiError>,
}

impl Answer {
    /// Creates an answer that has not been sent to a head.
    pub(super) fn new(gateway: Arc<Gateway>, wish: Wish, model: Arc<Pinned>, accepted: Instant) -> Self {
        gateway.running.fetch_add(1, Ordering::Relaxed);
        let wish_budget = wish.thought_tokens_max;
        Self {
            gateway,
            wish,
            model,
            accepted,
            turn: accepted,
            attempt: None,
            so_far: Continuation::default(),
            numeric: None,
            has_own_calls: false,
            changes: TemplateChanges::default(),
            scored: [0; 2],
            rest: None,
            budget: ThoughtBudget::new(wish_budget),
            last: None,
            ready: VecDeque::new(),
            earlier: None,
            dispatched: None,
            first_token: None,
            last_token: Duration::ZERO,
            why: None,
        }
    }

    /// Number of tokens of its prompt; 0 until a head has reported them.
    pub(super) fn prompt_tokens(&self) -> usize {
        self.so_far.prompt.as_ref().map_or(0, Vec::len)
    }

    /// How heads changed its conversation for the chat template.
    pub(super) fn changes(&self) -> TemplateChanges {
        self.changes
    }

    /// Takes note that no thoughts follow.
    pub(super) fn end_thoughts(&mut self) {
        self.budget.answered();
    }

    /// Begins its turn.
    pub(super) fn take_turn(&mut self, now: Instant) {
        self.turn = now;
    }

    /// The next event; nothing follows `Finished`. Dropping the answer cancels it on its head.
    ///
    /// # Errors
    /// The answer was refused, was cancelled by an operator, or cannot be continued anywhere.
    pub(super) async fn next(&mut self) -> Result<Said, ApiError> {
        loop {
            if let Some(said) = self.ready.pop_front() {
                return Ok(said);
            }
            if self.attempt.is_none() {
                if self.so_far.tokens.len() >= self.wish.generate.max_tokens as usize {
                    // All tokens had arrived, only the report of the end was lost.
                    self.finish(nothing_further());
                    continue;
                }
                self.attempt = Some(self.begin().await?);
            }
            let Some(attempt) = &mut self.attempt else { continue };
            let body = heard(&self.gateway, attempt).await;
            match body {
                Ok(ResponseBody::Started { prompt_token_ids, form, changes }) => {
                    self.changes = self.changes.union(changes);
                    if self.so_far.prompt.is_none() {
                        self.model.begin(&attempt.model)?;
                    }
                    if self.so_far.started(prompt_token_ids) {
                        self.numeric = Some(attempt.session.identity.numeric);
                        self.budget.begin(&form);
                        self.has_own_calls = form.has_own_calls;
                        return Ok(Said::Started(form));
                    }
                }
                Ok(ResponseBody::Scored(tokens)) => {
                    let new = self.new_scores(tokens);
                    if !new.is_empty() {
                        return Ok(Said::Scored(new));
                    }
                }
                Ok(ResponseBody::Embedded(values)) => return Ok(Said::Embedded(values)),
                Ok(ResponseBody::Token(token)) => match token.id {
                    Some(id) => {
                        let now = self.accepted.elapsed();
                        self.first_token.get_or_insert(now);
                        self.last_token = now;
                        self.so_far.token(id);
                        if !self.ends_part() {
                            return Ok(Said::Token(token));
                        }
                        self.last = Some(token);
                    }
                    None => self.rest = Some(token),
                },
                // The client has not cancelled it, so an operator has, on the head.
                Ok(ResponseBody::Finished(finished)) if finished.reason == FinishReason::Cancelled => {
                    self.finish(finished);
                    self.gateway.metrics.cancelled();
                    return Err(ApiError::cancelled(self.so_far.tokens.len()));
                }
                Ok(ResponseBody::Finished(finished)) if self.is_part(&finished) => self.prolong(&finished).await?,
                Ok(ResponseBody::Finished(finished)) => self.finish(finished),
                Ok(_) => {
                    let kind = FaultKind::Malformed { reason: "unexpected response".into() };
                    let head = self.attempt.as_ref().map_or("", |attempt| &attempt.session.identity.name);
                    return Err(ApiError::from(&Fault::new(head, kind)));
                }
                Err(fault) => self.fail(&fault)?,
            }
        }
    }

    /// The tokens of the prompt among these that the client does not have.
    fn new_scores(&mut self, tokens: Vec<TokenEvent>) -> Vec<TokenEvent> {
        let [known, sent] = &mut self.scored;
        let again = known.saturating_sub(*sent).min(tokens.len());
        *sent += tokens.len();
        *known = (*known).max(*sent);
        tokens.into_iter().skip(again).collect()
    }

    /// Whether more tokens follow the latest one, with which a part of the answer ends.
    fn ends_part(&self) -> bool {
        let count = self.so_far.tokens.len();
        let is_last = self.attempt.as_ref().is_some_and(|attempt| count == attempt.end as usize);
        is_last && count < self.wish.generate.max_tokens as usize && self.budget.closing(count) == 0
    }

    /// Whether a head has ended only a part of the answer. If the tokens that end its thoughts leave no room for another one,
    /// it ends within them.
    fn is_part(&self, finished: &Finished) -> bool {
        let (count, closing) = (self.so_far.tokens.len(), self.budget.closing(self.so_far.tokens.len()));
        let is_full = closing > 0 && self.prompt_tokens() + count + closing >= self.model.context();
        let is_complete = is_full || count + closing >= self.wish.generate.max_tokens as usize;
        let is_reached = self.attempt.as_ref().is_some_and(|attempt| count >= attempt.end as usize);
        finished.reason == FinishReason::Length && is_reached && !is_complete
    }

    /// Asks the same head for the next part of the answer; the slot stays taken.
    async fn prolong(&mut self, finished: &Finished) -> Result<(), ApiError> {
        // The head sends text that it held back again, unless tokens follow that it did not sample.
        let rest = self.rest.take();
        if let Some((tokens, text)) = self.budget.close(self.so_far.tokens.len()) {
            self.so_far.tokens.extend_from_slice(tokens);
            let text = rest.map(|rest| rest.text).unwrap_or_default() + text;
            self.ready.push_back(Said::Token(TokenEvent { id: None, text, logprobs: Vec::new() }));
        }
        let mut times = finished.times;
        times.sampled_tokens = times.sampled_tokens.saturating_sub(self.take_back());
        self.earlier = Some(joined(self.earlier, times));
        let Some(mut attempt) = self.attempt.take() else { return Ok(()) };
        let generate = self.part(attempt.model);
        attempt.end = generate.max_tokens;
        let asked = attempt.session.ask(RequestBody::Generate(Box::new(generate))).await;
        let failed = asked.map(|reply| attempt.reply = reply).err();
        self.attempt = Some(attempt);
        failed.map_or(Ok(()), |fault| self.fail(&fault))
    }

    /// Drops the last token of a part, which is computed again; returns how many these are.
    fn take_back(&mut self) -> u32 {
        let last = self.last.take().and_then(|_| self.so_far.tokens.pop());
        u32::from(last.is_some())
    }

    /// The request for the next part of the answer.
    fn part(&self, model: ModelRoots) -> Generate {
        let mut generate = self.wish.generate(self.so_far.begun());
        generate.model = Some(model.into());
        if self.so_far.prompt.is_some() && !self.has_own_calls {
            generate.tool_use = None;
        }
        let end = self.budget.cap(self.so_far.part_end());
        generate.max_tokens = generate.max_tokens.min(end);
        generate
    }

    fn finish(&mut self, mut finished: Finished) {
        finished.times = joined(self.earlier, finished.times);
        let mut head = String::new();
        if let Some(Attempt { reply, session, mut place, .. }) = self.attempt.take() {
            drop(reply);
            let several = finished.times.sampled_tokens > 1;
            place.outcome = RequestOutcome::Done(several.then(|| finished.times.tpot_ms()));
            head.clone_from(&place.head);
            self.gateway.sessions.keep(&place.head, session);
        }
        let ended = Box::new(Ended {
            reason: finished.reason,
            finished,
            tokens: self.so_far.tokens.len(),
            thought_tokens: 0,
            prompt_tokens: self.prompt_tokens(),
            dispatched: self.dispatched.unwrap_or_default(),
            first_token: self.first_token,
            last_token: self.last_token,
            head,
            resumed: self.so_far.resumed,
        });
        self.ready.extend([self.last.take(), self.rest.take()].into_iter().flatten().map(Said::Token));
        self.ready.push_back(Said::Finished(ended));
    }

    /// Handles a fault of the head: returns an error, or prepares another attempt.
    fn fail(&mut self, fault: &Fault) -> Result<(), ApiError> {
        let Some(mut attempt) = self.attempt.take() else { return Ok(()) };
        match self.so_far.fail(fault, Instant::now()) {
            Ok(AfterFault::OtherModel) => {
                self.why = Some(fault.into());
                return Ok(());
            }
            Ok(AfterFault::Elsewhere { is_lost: true }) => attempt.place.outcome = RequestOutcome::Lost,
            Ok(AfterFault::Elsewhere { is_lost: false }) => {}
            Err(end) => {
                if end.is_its_doing {
                    attempt.place.outcome = RequestOutcome::Lost;
                    tracing::warn!(head = attempt.place.head, "giving up a request: {}", end.fault);
                }
                return Err(ApiError::from(&end.fault));
            }
        }
        (self.rest, self.earlier) = (None, None);
        self.take_back();
        self.why = Some(fault.into());
        self.gateway.metrics.resumed();
        let tokens = self.so_far.tokens.len();
        tracing::info!(head = attempt.place.head, tokens, "resuming an answer elsewhere: {fault}");
        Ok(())
    }

    /// Finds a slot and sends the request there; retries while there is time.
    async fn begin(&mut self) -> Result<Attempt, ApiError> {
        let settings = &self.gateway.settings;
        let is_resumed = self.so_far.waits_since().is_some();
        let mut deadline = self.so_far.deadline(self.turn, settings.queue_wait, settings.resume_wait);
        loop {
            // The begun answers of its request are not thrown away because another one waits for long.
            let has_others = !is_resumed && self.model.has_begun();
            if has_others {
                deadline = deadline.max(self.accepted + settings.request_max);
            }
            if let Some(why) = self.why.take() {
                if Instant::now() + PAUSE >= deadline {
                    return Err(why);
                }
                sleep(PAUSE).await;
            }
            let model = self.model.next(&self.gateway.cluster, self.so_far.tokens.len()).await?;
            let Some(model) = model else { return Err(self.gateway.not_serving(None)) };
            let claim = Claim { model, prefix: self.wish.prefix, deadline, is_resumed, has_others };
            let mut place = match self.gateway.admission.admit(claim).await {
                Ok(place) => place,
                Err(Refused::Gone) => continue,
                Err(Refused::Overdue) if !is_resumed && !has_others && self.model.has_begun() => continue,
                Err(refused) => return Err(self.refusal(refused, &model)),
            };
            // The gateway's information may be slightly old: the head itself compares the model, too.
            let sent = self.accepted.elapsed();
            match self.send(&place.head, model).await {
                Ok((session, reply, end)) => {
                    self.scored[1] = 0;
                    self.dispatched.get_or_insert(sent);
                    return Ok(Attempt { model, reply, session, place, end });
                }
                Err(fault) if self.so_far.may_change_model(&fault) => self.why = Some(ApiError::from(&fault)),
                // A request that no head can run is no evidence against this one.
                Err(fault) if may_not_begin(&fault.kind) => return Err(ApiError::from(&fault)),
                Err(fault) => {
                    place.outcome = RequestOutcome::Lost;
                    self.why = Some(ApiError::from(&fault));
                }
            }
        }
    }

    fn refusal(&self, refused: Refused, model: &ModelRoots) -> ApiError {
        let retry_after = self.gateway.admission.retry_after(model);
        match refused {
            Refused::Full => ApiError::queue_full(self.gateway.admission.waiting(model), retry_after),
            Refused::Overdue => ApiError::queue_overdue(self.gateway.settings.queue_wait.as_secs(), retry_after),
            Refused::Nowhere | Refused::Gone => self.gateway.not_serving(Some(model)),
        }
    }

    /// Sends the request for the next part; returns the number of tokens at which that ends, too.
    async fn send(&self, head: &str, model: ModelRoots) -> Result<(Session, Reply, u32), Fault> {
        let mut generate = self.part(model);
        let end = generate.max_tokens;
        let session = self.gateway.sessions.open(head, &self.gateway.identity).await?;
        if let Err(what) = adapt(&mut generate, session.version, self.has_own_calls) {
            let kind = FaultKind::PeerOlder { version: session.version, what: what.into() };
            return Err(Fault::new(&session.identity.name, kind));
        }
        self.check_head(&session, model).await?;
        let reply = session.ask(RequestBody::Generate(Box::new(generate))).await?;
        Ok((session, reply, end))
    }

    /// Checks whether a head would continue the answer consistently. Heads of wire version 4 do not compare models, so
    /// their report is used.
    async fn check_head(&self, session: &Session, expected: ModelRoots) -> Result<(), Fault> {
        let theirs = session.identity.numeric;
        if let Some(own) = self.numeric.filter(|own| *own != theirs && !self.so_far.tokens.is_empty()) {
            return Err(Fault::new(&session.identity.name, FaultKind::NumericVersion { theirs, own }));
        }
        if session.version >= MODEL_COMPARED_FROM {
            return Ok(());
        }
        let mut reply = session.ask(RequestBody::Report).await?;
        let ResponseBody::Report(report) = reply.next("a report", self.gateway.settings.silent).await? else {
            return Ok(());
        };
        match report.topology {
            Some((topology, ..)) if topology.roots().differs(&expected) => {
                let actual = topology.roots();
                let kind = FaultKind::ModelReplaced {
                    model: topology.model,
                    expected: expected.into(),
                    actual: actual.into(),
                };
                Err(Fault::new(&session.identity.name, kind))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.gateway.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The next response; a head that does not even answer a report request is lost, although its connection is open.
async fn heard(gateway: &Gateway, attempt: &mut Attempt) -> Result<ResponseBody, Fault> {
    let Attempt { reply, session, place, .. } = attempt;
    tokio::select! {
        // Responses that have arrived are taken first: only a silent head is suspected.
        biased;
        body = reply.received() => body,
        fault = silence(gateway, session, &place.head) => Err(fault),
    }
}

/// Returns when the node hangs or its network is cut. Silence alone is no proof: long prompts and queues are silent,
/// too.
async fn silence(gateway: &Gateway, session: &Session, head: &str) -> Fault {
    let patience = gateway.settings.silent;
    loop {
        sleep(patience.min(LOOK)).await;
        // A head whose reports arrive is alive: no need for one report request per waiting answer.
        if gateway.cluster.node(head).is_some_and(|seen| seen.at.elapsed() < patience.min(LOOK)) {
            continue;
        }
        let answered = match session.ask(RequestBody::Report).await {
            Ok(mut reply) => reply.next("a report", patience).await,
            Err(fault) => Err(fault),
        };
        match answered {
            Ok(_) => {}
            Err(Fault { kind: FaultKind::Timeout { .. }, .. }) => {
                return Fault::new(&session.identity.name, FaultKind::NodeLost { how: Loss::Silent });
            }
            Err(fault) => return fault,
        }
    }
}
