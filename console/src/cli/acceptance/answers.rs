//! The steps that answer the fixed prompts on some of the nodes.
use std::{sync::Arc, time::Duration};

use assignment::{
    desired::{DesiredTopology, SLOTS_DEFAULT, TopologyRequest},
    identify::unexpected,
};
use collectives::Algorithm;
use common::{
    fault::Fault,
    latency::{RequestTimes, ratio},
    sampling::SamplingParameters,
};
use protocol::{
    bench::{BenchLinks, LINK_TOKENS_DEFAULT, REDUCES_DEFAULT},
    message::{Generate, Prompt, RequestBody, ResponseBody},
    texts::{TextRequest, TextResponse},
};
use topology::Topology;

use super::{
    bed::TestBed,
    predict::{Planned, context},
};
use crate::{
    cli::{
        Failure,
        generate::{Completion, complete, first, head},
        shared::{interrupts::Interrupts, sessions::assign_and_tell},
    },
    client::{bench::bench_links, session::Session},
    operator::acceptance::{
        AllReduceFacts, AnswerFacts, LayoutFacts, Speeds,
        ids::{IdsDiffer, first_difference, margin},
        prompts::{FixedPrompt, PROMPTS},
    },
};

/// Time limit for a head to tokenize a prompt.
const TOKENIZE: Duration = Duration::from_secs(30);
/// How many of the most probable tokens are searched for a near tie.
const PROBABLE: u32 = 10;

/// A topology that the test assigned, and sessions with its members.
pub(super) struct Serving {
    pub(super) sessions: Vec<Arc<Session>>,
    pub(super) topology: Topology,
}

/// Answers both prompts on the first `count` nodes.
pub(super) async fn answer(bed: &mut TestBed, count: usize) -> Result<LayoutFacts, Failure> {
    bed.clear().await?;
    let (serving, planned) = assign(bed, count).await?;
    let mut facts = LayoutFacts {
        topology: serving.topology.layout.to_string(),
        nodes: serving.topology.members.iter().map(|member| member.name.clone()).collect(),
        ..LayoutFacts::default()
    };
    match planned.speeds(serving.topology.layout) {
        Ok(speeds) => facts.predicted = Some(speeds),
        Err(reason) => facts.unpredicted = Some(reason),
    }
    for prompt in &PROMPTS {
        let expected = bed.report.expected(prompt.name).filter(|_| count > 1).map(<[u32]>::to_vec);
        facts.answers.push(serving.compared(prompt, expected.as_deref()).await?);
    }
    if serving.topology.layout.ranks > 1 {
        facts.all_reduces = serving.all_reduces(&planned).await?;
    }
    Ok(facts)
}

/// Assigns the model to the first `count` nodes. Also returns the plan, made before, while the nodes are idle.
pub(super) async fn assign(bed: &TestBed, count: usize) -> Result<(Serving, Planned), Failure> {
    let (mut sessions, model) = (bed.sessions().await?, bed.report.model.clone());
    sessions.truncate(count);
    let planned = Planned::of(&sessions, &model).await?;
    let layout = planned.layout().map_err(|message| Failure::State { message, next: "use a smaller model" })?;
    let context = context(&sessions[0], &model).await?;
    let open = TopologyRequest::open(&model, SLOTS_DEFAULT).wanted(count);
    let wanted = DesiredTopology { layout, context_length: Some(context), ..open };
    let assigned = assign_and_tell(&sessions, &wanted).await?;
    Ok((Serving { sessions, topology: assigned.topology }, planned))
}

impl Serving {
    /// The session of the head.
    fn head(&self) -> &Arc<Session> {
        &self.sessions[0]
    }

    /// The tokens of a prompt, cut to the context.
    pub(super) async fn tokens(&self, prompt: &FixedPrompt) -> Result<Vec<u32>, Fault> {
        let (text, session) = (prompt.text.to_owned(), self.head());
        let request = TextRequest::Tokenize { text, bos: true, special: false, with_pieces: false };
        let mut reply = session.ask(RequestBody::Text(Box::new(request))).await?;
        let mut ids = match reply.next("the tokens of a prompt", TOKENIZE).await? {
            ResponseBody::Text(found) => match *found {
                TextResponse::Tokens { ids, .. } => ids,
                other => return Err(unexpected(session, &ResponseBody::Text(Box::new(other)))),
            },
            other => return Err(unexpected(session, &other)),
        };
        let room = self.topology.context_length.saturating_sub(prompt.answer + 1) as usize;
        ids.truncate(prompt.tokens_max.min(room).max(1));
        Ok(ids)
    }

    /// A request at temperature 0 that ends only after so many tokens.
    pub(super) fn request(&self, tokens: Vec<u32>, answer: u32, logprobs: u32) -> Generate {
        let sampling = SamplingParameters { temperature: 0.0, logprobs, ..SamplingParameters::default() };
        Generate {
            ignores_end: true,
            drafts_max: 0,
            model: Some(self.topology.roots().into()),
            ..Generate::new(Prompt::Tokens(tokens), answer, sampling, Vec::new())
        }
    }

    /// All sessions, the head's first.
    pub(super) async fn ordered(&self) -> Result<Vec<Arc<Session>>, Failure> {
        let head = head(&self.sessions, &self.topology).await?;
        Ok(first(&self.sessions, &self.topology, head))
    }

    async fn complete(&self, request: Generate) -> Result<Completion, Failure> {
        complete(&self.ordered().await?, request, false, &mut Interrupts::deaf()).await
    }

    /// The answer to a prompt, compared with the expected one.
    async fn compared(&self, prompt: &FixedPrompt, expected: Option<&[u32]>) -> Result<AnswerFacts, Failure> {
        let tokens = self.tokens(prompt).await?;
        let completion = self.complete(self.request(tokens.clone(), prompt.answer, 0)).await?;
        if completion.resumed > 0 {
            // A node was lost, or excluded as a straggler: the figures are of no topology.
            let message = "the topology changed during the answer".into();
            return Err(Failure::State { message, next: "console events shows why" });
        }
        let (times, ids) = (completion.finished.times, completion.token_ids);
        let differs = match expected {
            Some(expected) => self.differs(&tokens, expected, &ids).await?,
            None => None,
        };
        Ok(AnswerFacts {
            prompt: prompt.name.to_owned(),
            prompt_tokens: times.prompt_tokens.saturating_sub(times.cached_tokens),
            ttft_ms: times.ttft_ms(),
            speeds: speeds(&times),
            ids,
            differs,
        })
    }

    /// The first difference of two answers, and how close the two tokens are there.
    pub(super) async fn differs(
        &self,
        prompt: &[u32],
        expected: &[u32],
        found: &[u32],
    ) -> Result<Option<IdsDiffer>, Failure> {
        let Some(at) = first_difference(expected, found) else { return Ok(None) };
        let before = [prompt, &expected[..at]].concat();
        let completion = self.complete(self.request(before, 1, PROBABLE)).await?;
        let probable = completion.logprobs.first().map(Vec::as_slice).unwrap_or_default();
        let probable: Vec<(u32, f32)> = probable.iter().map(|token| (token.id, token.logprob)).collect();
        Ok(Some(IdsDiffer { at, margin: margin(&probable, expected[at], found[at]) }))
    }

    /// Times all-reduces of the first stage on its links.
    async fn all_reduces(&self, planned: &Planned) -> Result<Vec<AllReduceFacts>, Failure> {
        let algorithms: Vec<Algorithm> = Algorithm::candidates().collect();
        let wanted = BenchLinks { tokens: LINK_TOKENS_DEFAULT.to_vec(), algorithms, repeats: REDUCES_DEFAULT };
        let found = bench_links(self.head(), wanted).await?;
        let used = found.times.iter().filter(|time| time.is_used).map(|time| AllReduceFacts {
            tokens: time.tokens,
            algorithm: time.algorithm.name().to_owned(),
            p50_us: time.p50.0 as f64 / 1e3,
            p99_us: time.p99.0 as f64 / 1e3,
            predicted_us: planned.all_reduce_us(time.algorithm, time.tokens, &found),
        });
        Ok(used.collect())
    }
}

/// Prefill without queueing and without cached tokens, and decode.
fn speeds(times: &RequestTimes) -> Speeds {
    let computed = times.prompt_tokens.saturating_sub(times.cached_tokens);
    let prefill = times.first_token.0.saturating_sub(times.dispatched.0);
    Speeds { prefill: ratio(f64::from(computed), prefill as f64 / 1e9), decode: times.decode_tokens_per_second() }
}
