//! `console generate`: completes a text on the topology that serves the model, assigning one if necessary.
mod chat;
mod chat_command;
mod chat_store;
mod cluster_chat;
mod http_answer;
mod http_chat;
mod line_editor;
mod printing;
mod prompt_source;
pub(crate) mod run;
pub(crate) mod run_options;

use std::sync::Arc;

use common::{
    chat::FinishReason,
    fault::{Fault, FaultKind},
    ids::MemberIndex,
    latency::{RequestTimes, TransferTimes},
};
use protocol::message::{self, Finished, TokenLogprob};
use serde_json::{Value, json};
use telemetry::{PhaseTotals, RankTotals};
use tokenizer::answer::{AnswerParser, AnswerPart};
use tokio::sync::mpsc::channel;
use tokio_util::sync::CancellationToken;
use topology::{Member, Topology};

pub(crate) use self::prompt_source::prompt;
use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, options, output},
    topology::ensure::{Obtained, obtain},
};
use crate::client::{
    assign::{Assigned, report},
    event::GenerateEvent,
    generate::generate,
    session::Session,
};
use crate::http::{Ask, Kind, new_request_id};
use assignment::desired::least_loaded;

/// Largest number of queued events.
const EVENTS_MAX: usize = 64;

/// A finished generation.
#[derive(Clone, Debug)]
pub struct Completion {
    pub(crate) text: String,
    /// What the model thought first; only of chats.
    pub(crate) thought: String,
    pub(crate) prompt_token_ids: Vec<u32>,
    pub(crate) token_ids: Vec<u32>,
    pub(crate) logprobs: Vec<Vec<TokenLogprob>>,
    /// Its end, as the head reported it.
    pub finished: Finished,
    /// How often another head continued the answer.
    pub(crate) resumed: u32,
    /// The topology and head that finished it, if another one started it.
    pub(crate) moved: Option<(Assigned, MemberIndex)>,
    /// The exit code of the signal that ended it early.
    pub interrupted: Option<u8>,
}

/// Runs the command.
pub(crate) async fn run(options: options::Generate) -> Result<u8, Failure> {
    // A --url on the command line has priority over nodes from the environment.
    if !options.endpoint.url.is_empty() {
        return over_http(options).await;
    }
    let (nodes, model, options) = (options.nodes, options.model.unwrap_or_default(), options.completing);
    let prompt = prompt(&options)?;
    let mut request = options.sampling.request(prompt, options.logprobs);
    let seed = request.sampling.seed;
    let mut interrupts = Interrupts::listen()?;
    let asked = options.assignment.asked(&model);
    let obtained = obtain(&nodes, &asked, "complete the text", options.consent, options.json);
    let Some(Obtained { sessions, assigned }) = interrupts.end(obtained).await? else { return Ok(0) };
    if !options.json && request.sampling.temperature > 0.0 {
        output::note(&format!("seed {seed}"));
    }
    let head = interrupts.end(head(&sessions, &assigned.topology)).await?;
    request.model = Some(assigned.topology.roots().into());
    let completion =
        complete(&first(&sessions, &assigned.topology, head), request, !options.json, &mut interrupts).await?;
    if options.json {
        output::line(&object(&completion, (&assigned, head), seed, options.logprobs > 0).to_string());
    } else {
        output::line("");
        summary(&completion).iter().for_each(|line| output::note(line));
    }
    Ok(completion.interrupted.unwrap_or(0))
}

/// Completes the text over the HTTP API of a node.
async fn over_http(options: options::Generate) -> Result<u8, Failure> {
    let (completing, patience) = (&options.completing, options.endpoint.patience());
    let request = completing.sampling.request(prompt(completing)?, completing.logprobs);
    let apis = options.endpoint.apis();
    if completing.consent.dry_run {
        completing
            .consent
            .obtain("complete the text over the HTTP API given by --url", &Value::Null, completing.json)
            .await?;
        return Ok(0);
    }
    let mut interrupts = Interrupts::listen()?;
    let model = interrupts.end(options.endpoint.model(&apis, options.model.as_deref())).await?;
    let mut body = http_answer::body(&request, &model);
    body["prompt"] = json!(request.prompt.text().unwrap_or_default());
    if completing.logprobs > 0 {
        body["logprobs"] = json!(completing.logprobs);
    }
    if !completing.json && request.sampling.temperature > 0.0 {
        output::note(&format!("seed {}", request.sampling.seed));
    }
    let ask = Ask { kind: Kind::Text, body, request_id: new_request_id() };
    let outcome = http_answer::answer(&apis, &ask, patience, !completing.json, &mut interrupts).await?;
    outcome.show(completing.json, &ask.request_id, Some(request.sampling.seed));
    Ok(outcome.interrupted.unwrap_or(0))
}

/// The session of a member, if it is among these.
pub(crate) fn session_of<'a>(sessions: &'a [Arc<Session>], member: &Member) -> Option<&'a Arc<Session>> {
    sessions.iter().find(|session| session.identity.name == member.name)
}

/// The least loaded head. The sessions are those of the members that answer.
///
/// # Errors
/// No head answers.
pub async fn head(sessions: &[Arc<Session>], topology: &Topology) -> Result<MemberIndex, Failure> {
    let member = |head: MemberIndex| &topology.members[head.index()];
    let heads: Vec<MemberIndex> =
        topology.layout.heads().filter(|head| session_of(sessions, member(*head)).is_some()).collect();
    let Some(any) = heads.first() else {
        return Err(Fault::new("console", FaultKind::NotServing { state: "away".into() }).into());
    };
    let mut requests = vec![None; topology.members.len()];
    for head in heads.iter().filter(|_| topology.layout.replicas > 1) {
        // Skip replicas whose head does not serve, and those with an excluded member.
        let Some(session) = session_of(sessions, member(*head)) else { continue };
        let Ok(found) = report(session).await else { continue };
        let mut members = topology.replica(topology.place(*head).replica).iter();
        let has_excluded = members.any(|member| found.exclusions.of(&member.name, &member.address).is_some());
        if found.serves(topology) && !has_excluded {
            requests[head.index()] = Some(found.requests);
        }
    }
    Ok(least_loaded(topology, |head| requests[head.index()]).unwrap_or(*any))
}

/// All sessions, the head's first: if the head is lost, any other can continue the answer.
pub(crate) fn first(sessions: &[Arc<Session>], topology: &Topology, head: MemberIndex) -> Vec<Arc<Session>> {
    let (mut sessions, head) = (sessions.to_vec(), &topology.members[head.index()]);
    sessions.sort_by_key(|session| session.identity.name != head.name);
    sessions
}

/// Runs a request on the first node until it ends; `prints`: also prints the text as it arrives. The first signal
/// cancels the request on the head, the second ends the command without waiting for the head.
///
/// # Errors
/// The request fails or is interrupted.
pub async fn complete(
    nodes: &[Arc<Session>],
    request: message::Generate,
    prints: bool,
    interrupts: &mut Interrupts,
) -> Result<Completion, Failure> {
    let cancel = CancellationToken::new();
    let (events, mut received) = channel(EVENTS_MAX);
    let is_chat = matches!(request.prompt, message::Prompt::Chat(_));
    let running = async {
        generate(nodes, request, &cancel, &events).await;
        drop(events);
    };
    let collecting = async {
        let mut gathered = Gathered { is_chat, ..Gathered::default() };
        loop {
            tokio::select! {
                event = received.recv() => match event {
                    Some(event) => if gathered.take(event, prints)? { return gathered.done() },
                    None => return gathered.done(),
                },
                code = interrupts.next() => {
                    if gathered.interrupted.replace(code).is_some() {
                        return Err(Failure::Interrupted { code });
                    }
                    cancel.cancel();
                }
            }
            // Standard output is closed: cancel the rest of the answer.
            if prints && output::is_closed() {
                cancel.cancel();
            }
        }
    };
    tokio::pin!(running);
    tokio::pin!(collecting);
    let mut runs = true;
    loop {
        tokio::select! {
            result = &mut collecting => return result,
            () = &mut running, if runs => runs = false,
        }
    }
}

#[derive(Default)]
struct Gathered {
    text: String,
    thought: String,
    /// Of a chat whose answer has parts.
    parser: Option<AnswerParser>,
    /// Whether the request is a chat.
    is_chat: bool,
    prompt_token_ids: Vec<u32>,
    token_ids: Vec<u32>,
    logprobs: Vec<Vec<TokenLogprob>>,
    finished: Option<Finished>,
    resumed: u32,
    moved: Option<(Assigned, MemberIndex)>,
    interrupted: Option<u8>,
}

impl Gathered {
    /// Processes an event; true if it is the last one.
    fn take(&mut self, event: GenerateEvent, prints: bool) -> Result<bool, Failure> {
        match event {
            GenerateEvent::Started { prompt_token_ids } => self.prompt_token_ids = prompt_token_ids,
            GenerateEvent::Form(form) if self.is_chat => {
                self.parser = Some(AnswerParser::new(form.tool_format, form.thinking, None));
            }
            GenerateEvent::Form(_) => {}
            GenerateEvent::Token(token) => {
                let parts = match &mut self.parser {
                    Some(parser) => parser.push(&token.text),
                    None => vec![AnswerPart::Content(token.text.to_string())],
                };
                self.add(parts, prints);
                if let Some(id) = token.id {
                    self.token_ids.push(id);
                    self.logprobs.push(token.logprobs);
                }
            }
            GenerateEvent::Finished(finished) => {
                let rest = self.parser.take().map(AnswerParser::finish);
                self.add(rest.unwrap_or_default(), prints);
                self.finished = Some(*finished);
                return Ok(true);
            }
            GenerateEvent::Waits { fault, seconds } => {
                output::note(&output::clean(&format!(
                    "{fault}; waiting up to {seconds} s for a head to continue the answer (Ctrl-C cancels)"
                )));
            }
            GenerateEvent::Moved { fault, epoch, topology, head } => {
                let node = topology.members.get(head.index()).map_or("?", |member| member.name.as_str());
                tracing::info!("{node} continues the answer on {}: {fault}", topology.layout);
                self.resumed += 1;
                self.moved = Some((Assigned { epoch, topology: *topology, reused: true }, head));
            }
            GenerateEvent::Failed(fault) => {
                if prints {
                    printing::end_line(&self.thought, &self.text);
                }
                // After a signal, the fault is a consequence of the cancellation.
                return Err(self.interrupted.map_or(fault.into(), |code| Failure::Interrupted { code }));
            }
        }
        Ok(false)
    }

    /// Adds parts of the answer.
    fn add(&mut self, parts: Vec<AnswerPart>, prints: bool) {
        for part in parts {
            match part {
                AnswerPart::Thought(text) => {
                    if prints {
                        printing::thought(&text);
                    }
                    self.thought.push_str(&text);
                }
                AnswerPart::Content(text) => {
                    if prints {
                        printing::content(&text, self.text.is_empty() && !self.thought.is_empty());
                    }
                    self.text.push_str(&text);
                }
                // Without tools, no calls are sought.
                AnswerPart::Call { .. } | AnswerPart::Arguments { .. } | AnswerPart::Broken { .. } => {}
            }
        }
    }

    fn done(self) -> Result<Completion, Failure> {
        let finished = self.finished.ok_or_else(|| anyhow::anyhow!("the generation ended without a result"))?;
        let Self { text, thought, prompt_token_ids, token_ids, logprobs, resumed, moved, interrupted, .. } = self;
        Ok(Completion { text, thought, prompt_token_ids, token_ids, logprobs, finished, resumed, moved, interrupted })
    }
}

/// Tokens, times and the end of an answer, in one or two lines.
pub(super) fn summary(completion: &Completion) -> Vec<String> {
    let times = &completion.finished.times;
    let ending = ending(reason(completion.finished.reason));
    let tokens = completion.token_ids.len();
    let (ttft, speed) = (times.ttft_ms(), times.decode_tokens_per_second());
    let saved =
        saved([times.cached_tokens, times.stored_tokens, times.drafted_tokens, times.accepted_tokens].map(u64::from));
    let mut lines = vec![format!("{tokens} tokens, TTFT {ttft:.0} ms, {speed:.1} tokens/s{saved}, {ending}")];
    if completion.resumed > 0 {
        let (count, plural) = (completion.resumed, if completion.resumed == 1 { "" } else { "s" });
        lines.push(format!("resumed {count} time{plural}; the times cover the part since the last one"));
    }
    lines
}

/// The work that was saved: counts of cached prompt tokens, those of them read from disks or copies, speculative
/// tokens, and accepted ones.
pub(super) fn saved(counts: [u64; 4]) -> String {
    let [cached, stored, proposed, accepted] = counts;
    let mut text = String::new();
    if cached > 0 {
        text.push_str(&format!(", {cached} prompt tokens cached"));
    }
    if stored > 0 {
        text.push_str(&format!(" ({stored} from disks or copies)"));
    }
    if proposed > 0 {
        text.push_str(&format!(", {accepted} of {proposed} speculative tokens accepted"));
    }
    text
}

/// A finish reason in words.
pub(super) fn ending(reason: &str) -> &str {
    match reason {
        "stop" => "complete",
        "length" => "max tokens reached",
        "context" => "context full",
        other => other,
    }
}

/// The name of a finish reason in JSON.
pub(crate) fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Context => "context",
        FinishReason::Cancelled => "cancelled",
    }
}

/// The object of `--json`. `begun`: the assignment and head that started the answer.
pub(crate) fn object(
    completion: &Completion,
    begun: (&Assigned, MemberIndex),
    seed: u64,
    with_logprobs: bool,
) -> Value {
    let (assigned, head) = completion.moved.as_ref().map_or(begun, |(assigned, head)| (assigned, *head));
    let finished = &completion.finished;
    let replica = assigned.topology.place(head).replica;
    let members = assigned.topology.replica(replica).iter().map(|member| member.name.as_str());
    let ranks: Vec<Value> = finished.ranks.iter().zip(members).map(|(rank, node)| rank_object(node, rank)).collect();
    let head = finished.ranks.first().map(RankTotals::both).unwrap_or_default();
    let mut object = json!({
        "text": completion.text,
        "prompt_token_ids": completion.prompt_token_ids,
        "token_ids": completion.token_ids,
        "finish_reason": reason(finished.reason),
        "seed": seed,
        "topology": assigned.topology.layout.to_string(),
        "replica": replica,
        "epoch": assigned.epoch.0,
        "resumed": completion.resumed,
        "timings": timings(&finished.times, &head),
        "ranks": ranks,
    });
    if !completion.thought.is_empty() {
        object["reasoning"] = json!(completion.thought);
    }
    if with_logprobs {
        object["logprobs"] = completion.logprobs.iter().map(|list| logprobs(list)).collect();
    }
    object
}

/// The most probable tokens of a step.
fn logprobs(list: &[TokenLogprob]) -> Value {
    list.iter().map(|one| json!({"id": one.id, "text": one.text, "logprob": one.logprob})).collect()
}

fn timings(times: &RequestTimes, totals: &PhaseTotals) -> Value {
    let mut object = phase(totals);
    object["ttft_ms"] = json!(times.ttft_ms());
    object["tpot_ms"] = json!(times.tpot_ms());
    object["prefill_tokens_per_second"] = json!(times.prefill_tokens_per_second());
    object["decode_tokens_per_second"] = json!(times.decode_tokens_per_second());
    object["cached_tokens"] = json!(times.cached_tokens);
    object["stored_tokens"] = json!(times.stored_tokens);
    object["drafted_tokens"] = json!(times.drafted_tokens);
    object["accepted_tokens"] = json!(times.accepted_tokens);
    object["transfer"] = transfer(&times.transfer);
    object["trace"] = trace(times);
    object
}

/// Timestamps of a request, in milliseconds since the head received it, under the field names of the gateway's trace.
pub(crate) fn trace(times: &RequestTimes) -> Value {
    let sent = (times.sent.0 > 0).then(|| times.sent.milliseconds());
    json!({
        "t_prefill_start": times.dispatched.milliseconds(),
        "t_prefill_done": times.prefill_done().milliseconds(),
        "t_first_token": times.first_token.milliseconds(),
        "t_first_byte_sent": sent,
        "t_last_token": times.last_token.milliseconds(),
        "sampling_ms": times.sampling().milliseconds(),
        "flush_ms": sent.map(|_| times.flush().milliseconds()),
    })
}

/// Times and sizes of the KV transfer from a prefill group; null if there was none.
pub fn transfer(times: &TransferTimes) -> Value {
    if times.tokens == 0 {
        return Value::Null;
    }
    json!({
        "tokens": times.tokens,
        "bytes": times.bytes,
        "queued_ms": times.queued.milliseconds(),
        "compute_ms": times.compute.milliseconds(),
        "visible_ms": times.visible.milliseconds(),
    })
}

fn phase(totals: &PhaseTotals) -> Value {
    json!({
        "compute_ms": totals.compute.milliseconds(),
        "threads_ms": totals.threads.milliseconds(),
        "wait_ms": totals.wait.milliseconds(),
        "wire_ms": totals.wire.milliseconds(),
        "bubble_ms": totals.bubble.milliseconds(),
        "network_fraction": totals.network_fraction(),
    })
}

fn rank_object(node: &str, rank: &RankTotals) -> Value {
    let mut object = phase(&rank.both());
    object["node"] = json!(node);
    for (name, totals) in [("prefill", &rank.prefill), ("decode", &rank.decode)] {
        let mut part = phase(totals);
        part["steps"] = json!(totals.steps);
        part["tokens"] = json!(totals.tokens);
        part["bytes_sent"] = json!(totals.bytes_sent);
        part["messages_sent"] = json!(totals.messages_sent);
        object[name] = part;
    }
    object
}
