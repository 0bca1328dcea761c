//! `bramble-bench disagg`: compares the same nodes with and without a prefill group, for several prompt lengths while
//! other requests decode: TTFT, the slowdown of the decoding requests, and whether the roles are worth it.
use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use clap::Args;
use common::{fault::Fault, ids::MemberIndex, latency::ratio, limits::KV_BLOCK_LENGTH, sampling::SamplingParameters};
use console::{
    cli::toolkit::{
        Assignment, Consent, Failure, Interrupts, assign_and_tell, clear_way, complete, head, layout, output, transfer,
    },
    client::{event::GenerateEvent, generate::generate, identify::identify, session::Session},
};
use protocol::message::{Generate, Prompt};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::channel,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use topology::{Layout, Topology};

const NEXT: &str = "bramble-bench disagg --help";
/// Gaps between tokens that each background request must have before the prompt is sent.
const QUIET_GAPS: usize = 48;
/// Time limit for the background requests to generate the required tokens.
const BEGIN: Duration = Duration::from_secs(120);
/// Length of the warm-up prompt in tokens: long enough for a prefill group.
const WARM_UP: u32 = 512;
/// Largest number of background requests: every head has at least this many slots, plus one for the prompt.
const RUNNING_MAX: i64 = 3;
/// A background request may use one part in this many of the context, so that the prompt finds KV blocks as well.
const ANSWER_SHARE: u32 = 8;

/// Options of `bramble-bench disagg`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Disaggregation {
    /// Model file; each node looks up its name in its model folders
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    /// Two layouts of the same nodes, one with and one without roles [default: prefill:tpN+decode:tpN, dp2-tpN]
    #[arg(long, value_delimiter = ',', value_name = "T,T", num_args = 2, value_parser = layout)]
    topologies: Vec<Layout>,
    /// Prompt lengths in tokens. Without --context, the context fits the longest prompt, up to the model's maximum
    #[arg(long, value_delimiter = ',', value_name = "N,..", default_value = "128,512,1024,2048,4096,8192",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    prompts: Vec<u32>,
    /// Output length in tokens
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    tokens: u32,
    /// Number of background requests that decode during the measurement
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=RUNNING_MAX))]
    running: u16,
    /// Repeats per length, of which the median is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=25))]
    repeats: u16,
    #[command(flatten)]
    assignment: Assignment,
    #[command(flatten)]
    consent: Consent,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The result for one prompt length on one topology; times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
struct PromptTimes {
    ttft: f64,
    /// Time per output token after the first.
    tpot: f64,
    /// p95 of the time between tokens of the background requests before the prompt. `beside`: during its prefill.
    quiet: f64,
    beside: f64,
    /// Times and sizes of the KV transfer from the prefill group, null without one.
    transfer: Value,
}

/// Runs the command.
pub(crate) async fn run(options: Disaggregation, nodes: Vec<String>) -> Result<u8, Failure> {
    let layouts = options.layouts(nodes.len()).map_err(|message| Failure::Usage { message, next: NEXT })?;
    let mut interrupts = Interrupts::listen()?;
    let purpose = format!("{} and {}, one after another", layouts[0], layouts[1]);
    let cleared = clear_way(&nodes, &purpose, options.consent, options.json);
    let Some(sessions) = interrupts.end(cleared).await? else { return Ok(0) };
    let mut found = Vec::new();
    let mut wanted = options.assignment.wanted(sessions.len(), &options.model);
    // Both topologies have the same context length, so that they are measured with the same prompts.
    let context = match wanted.context_length {
        Some(context) => context,
        None => {
            let card = interrupts.end(async { Ok::<_, Failure>(identify(&sessions[0], &wanted.model).await?) }).await?;
            options.context().min(card.context_length)
        }
    };
    wanted.context_length = Some(context);
    let prompts: Vec<u32> =
        options.prompts.iter().copied().filter(|tokens| options.needed(*tokens) <= context).collect();
    for layout in layouts {
        wanted.layout = layout;
        let assigned = interrupts.end(assign_and_tell(&sessions, &wanted)).await?;
        for head in layout.heads().map(MemberIndex::index) {
            // Warm up: at the first prompt, weights are read from the disk and unpacked.
            let first = request(prompt(WARM_UP.min(prompts.iter().copied().max().unwrap_or(1))), 1);
            complete(&sessions[head..=head], first, false, &mut interrupts).await?;
        }
        let mut rows = Vec::new();
        for tokens in prompts.iter().copied() {
            let mut runs = Vec::new();
            for _ in 0..options.repeats {
                let answers = Background::start(&sessions, layout, options.running, context);
                let asked = MeasuredPrompt { tokens, max_tokens: options.tokens };
                let run = beside(&sessions, &assigned.topology, asked, &answers, &mut interrupts).await;
                answers.end().await;
                runs.push(run?);
            }
            rows.push((tokens, median(runs)));
        }
        found.push((layout, rows));
    }
    let rows: Vec<Row> = rows(&found);
    if options.json {
        let rows: Vec<Value> = rows.iter().map(Row::object).collect();
        let left_out: Vec<Value> = options
            .left_out(context)
            .map(|(tokens, needed)| json!({"prompt_tokens": tokens, "context": context, "needed_context": needed}))
            .collect();
        output::line(
            &json!({"roles": found[0].0.to_string(), "alike": found[1].0.to_string(), "tokens": options.tokens,
                "running": options.running, "rows": rows, "left_out": left_out})
            .to_string(),
        );
    } else {
        table(&found[0].0, &found[1].0, &rows).iter().for_each(|line| output::line(line));
        for (tokens, needed) in options.left_out(context) {
            output::line(&format!("{tokens:>7}  -- (context {context}; --context {needed})"));
        }
    }
    Ok(0)
}

impl Disaggregation {
    /// The context length that a prompt and its answer need while the background requests run.
    fn needed(&self, tokens: u32) -> u32 {
        // A partly filled last KV block counts in full.
        let own = tokens.saturating_add(self.tokens).saturating_add(KV_BLOCK_LENGTH as u32);
        (u64::from(own) * u64::from(ANSWER_SHARE)).div_ceil(u64::from(ANSWER_SHARE) - u64::from(self.running)) as u32
    }

    /// The context length that the longest prompt needs.
    fn context(&self) -> u32 {
        self.prompts.iter().map(|tokens| self.needed(*tokens)).max().unwrap_or(1)
    }

    /// Prompts that do not fit into `context`, each with the context length that it needs.
    fn left_out(&self, context: u32) -> impl Iterator<Item = (u32, u32)> {
        self.prompts.iter().map(|tokens| (*tokens, self.needed(*tokens))).filter(move |(_, needed)| *needed > context)
    }

    /// The layout with roles, and the one without.
    fn layouts(&self, nodes: usize) -> Result<[Layout; 2], String> {
        if self.assignment.layout.topology.is_some() {
            return Err("--topology does not apply; pass two topologies with --topologies".into());
        }
        let [one, two] = match self.topologies.as_slice() {
            [one, two] => [*one, *two],
            _ if nodes.is_multiple_of(2) => {
                let text = format!("prefill:tp{0}+decode:tp{0}", nodes / 2);
                let roles = text.parse::<Layout>().map_err(|error| error.to_string())?;
                [roles, Layout::alike(2, 1, (nodes / 2) as u16)]
            }
            _ => return Err(format!("{nodes} nodes cannot form two equal groups; use --topologies")),
        };
        match (one.groups.is_empty(), two.groups.is_empty()) {
            (false, true) => Ok([one, two]),
            (true, false) => Ok([two, one]),
            _ => Err(format!("exactly one of {one} and {two} must have roles")),
        }
    }
}

/// Background requests that decode during a measurement; each is restarted when it ends.
struct Background {
    /// Arrival times of the tokens of each request.
    tokens: Vec<Arc<Mutex<Vec<Instant>>>>,
    tasks: JoinSet<()>,
    cancel: CancellationToken,
    /// The first fault of any of them.
    fault: Arc<OnceLock<Fault>>,
}

impl Background {
    fn start(sessions: &[Arc<Session>], layout: Layout, count: u16, context: u32) -> Self {
        let heads: Vec<MemberIndex> = layout.heads().collect();
        let (cancel, mut tasks, mut tokens) = (CancellationToken::new(), JoinSet::new(), Vec::new());
        let fault = Arc::new(OnceLock::new());
        for index in 0..usize::from(count) {
            let fault = Arc::clone(&fault);
            let session = Arc::clone(&sessions[heads[index % heads.len()].index()]);
            let (cancel, times) = (cancel.clone(), Arc::new(Mutex::new(Vec::new())));
            tokens.push(Arc::clone(&times));
            tasks.spawn(async move {
                while !cancel.is_cancelled() {
                    let (events, mut received) = channel(64);
                    let request = request(vec![3 + index as u32], (context / ANSWER_SHARE).saturating_sub(1));
                    let running = generate(std::slice::from_ref(&session), request, &cancel, &events);
                    let noting = async {
                        while let Some(event) = received.recv().await {
                            match event {
                                GenerateEvent::Token(token) if token.id.is_some() => lock(&times).push(Instant::now()),
                                GenerateEvent::Failed(found) => {
                                    fault.get_or_init(|| found);
                                    return cancel.cancel();
                                }
                                GenerateEvent::Finished(_) => return,
                                _ => {}
                            }
                        }
                    };
                    tokio::join!(running, noting);
                }
            });
        }
        Self { tokens, tasks, cancel, fault }
    }

    /// Waits until each has generated `count` tokens.
    async fn wait(&self, count: usize) -> Result<(), Failure> {
        let begin = Instant::now();
        while self.tokens.iter().any(|times| lock(times).len() < count) {
            if let Some(fault) = self.fault.get() {
                return Err(fault.clone().into());
            }
            if begin.elapsed() > BEGIN {
                let message =
                    format!("the background requests did not generate {count} tokens within {} s", BEGIN.as_secs());
                return Err(Failure::State { message, next: "check the nodes with console status" });
            }
            sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// p95 of the times between tokens from `begin` to `end`, in milliseconds.
    fn p95(&self, begin: Instant, end: Instant) -> f64 {
        let mut gaps = Vec::new();
        for times in &self.tokens {
            let times = lock(times);
            let inside = times.windows(2).filter(|pair| pair[1] >= begin && pair[0] <= end);
            gaps.extend(inside.map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3));
        }
        gaps.sort_by(f64::total_cmp);
        gaps.get((gaps.len() * 95 / 100).min(gaps.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    async fn end(mut self) {
        self.cancel.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

fn lock(times: &Mutex<Vec<Instant>>) -> std::sync::MutexGuard<'_, Vec<Instant>> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A random prompt of token ids that every vocabulary has. Prompts differ from their first tokens on, so that none
/// is in the prefix cache.
fn prompt(tokens: u32) -> Vec<u32> {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let seed = RandomState::new().build_hasher().finish();
    (0..u64::from(tokens))
        .map(|index| 3 + (seed.rotate_left(index as u32 % 64).wrapping_add(index * 7) % 250) as u32)
        .collect()
}

fn request(tokens: Vec<u32>, max_tokens: u32) -> Generate {
    let sampling = SamplingParameters { temperature: 0.0, ..SamplingParameters::default() };
    Generate::new(Prompt::Tokens(tokens), max_tokens.max(1), sampling, Vec::new())
}

/// A prompt to measure: its length, and the number of tokens to generate.
#[derive(Clone, Copy, Debug)]
struct MeasuredPrompt {
    tokens: u32,
    max_tokens: u32,
}

/// Measures one prompt while the background requests decode, on the least loaded head.
async fn beside(
    sessions: &[Arc<Session>],
    topology: &Topology,
    asked: MeasuredPrompt,
    answers: &Background,
    interrupts: &mut Interrupts,
) -> Result<PromptTimes, Failure> {
    interrupts.end(answers.wait(8)).await?;
    let begin = Instant::now();
    interrupts.end(answers.wait(8 + QUIET_GAPS)).await?;
    let head = interrupts.end(head(sessions, topology)).await?;
    let sent = Instant::now();
    let request = request(prompt(asked.tokens), asked.max_tokens);
    let completion = complete(&sessions[head.index()..=head.index()], request, false, interrupts).await?;
    if let Some(code) = completion.interrupted {
        return Err(Failure::Interrupted { code });
    }
    let times = &completion.finished.times;
    // Up to the first token: after that the request decodes like the others.
    let first = sent + Duration::from_nanos(times.first_token.0);
    let (quiet, beside) = (answers.p95(begin, sent), answers.p95(sent, first));
    Ok(PromptTimes { ttft: times.ttft_ms(), tpot: times.tpot_ms(), quiet, beside, transfer: transfer(&times.transfer) })
}

/// The median of each time, with the transfer of the run of median TTFT.
fn median(mut runs: Vec<PromptTimes>) -> PromptTimes {
    let mut of = |part: fn(&PromptTimes) -> f64| {
        runs.sort_by(|one, two| part(one).total_cmp(&part(two)));
        runs.get(runs.len() / 2).map_or(0.0, part)
    };
    let tpot = of(|run| run.tpot);
    let (quiet, beside, ttft) = (of(|run| run.quiet), of(|run| run.beside), of(|run| run.ttft));
    let transfer = runs.get(runs.len() / 2).map_or(Value::Null, |run| run.transfer.clone());
    PromptTimes { ttft, tpot, quiet, beside, transfer }
}

/// The results of one prompt length on both topologies.
#[derive(Clone, Debug)]
struct Row {
    tokens: u32,
    roles: PromptTimes,
    alike: PromptTimes,
}

fn rows(found: &[(Layout, Vec<(u32, PromptTimes)>)]) -> Vec<Row> {
    let (roles, alike) = (&found[0].1, &found[1].1);
    let pairs = roles.iter().zip(alike);
    pairs
        .map(|((tokens, roles), (_, alike))| Row { tokens: *tokens, roles: roles.clone(), alike: alike.clone() })
        .collect()
}

impl Row {
    /// Whether roles are worth it for this prompt length. Differences below a tenth are ignored.
    fn verdict(&self) -> &'static str {
        let first = ratio(self.roles.ttft, self.alike.ttft);
        // Without background requests there is no difference.
        let answers = if self.alike.beside > 0.0 { ratio(self.roles.beside, self.alike.beside) } else { 1.0 };
        match (first <= 0.9, first <= 1.1, answers <= 0.9, answers <= 1.1) {
            (true, _, true, _) => "yes: for the first token and for running answers",
            (_, true, true, _) => "yes: for running answers",
            (true, _, _, true) => "yes: for the first token",
            (_, _, true, _) => "only where running answers matter more than the first token",
            (true, ..) => "only where the first token matters more than running answers",
            _ => "no",
        }
    }

    fn object(&self) -> Value {
        let part = |found: &PromptTimes| json!({"ttft_ms": found.ttft, "tpot_ms": found.tpot, "quiet_p95_ms": found.quiet, "beside_p95_ms": found.beside, "transfer": found.transfer});
        json!({"prompt_tokens": self.tokens, "roles": part(&self.roles), "alike": part(&self.alike), "worth_it": self.verdict()})
    }
}

fn table(roles: &Layout, alike: &Layout, rows: &[Row]) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{roles} against {alike}, in ms: TTFT with its prefill and visible transfer, TPOT; \
             p95 time between tokens of running answers during prefill (before it)"
        ),
        format!(
            "{:>7}  {:>9} {:>9} {:>9} {:>7} {:>18}   {:>9} {:>7} {:>18}   worth it",
            "prompt", "roles", "prefill", "transfer", "decode", "answers", "alike", "decode", "answers"
        ),
    ];
    let answers = |found: &PromptTimes| format!("{:.1} ({:.1})", found.beside, found.quiet);
    lines.extend(rows.iter().map(|row| {
        let Row { tokens, roles, alike } = row;
        let (one, two) = (answers(roles), answers(alike));
        let part = |name: &str| roles.transfer[name].as_f64().map_or("-".into(), |time| format!("{time:.0}"));
        let (prefill, visible) = (part("compute_ms"), part("visible_ms"));
        let first = format!("{tokens:>7}  {:>9.0} {prefill:>9} {visible:>9} {:>7.1} {one:>18}", roles.ttft, roles.tpot);
        format!("{first}   {:>9.0} {:>7.1} {two:>18}   {}", alike.ttft, alike.tpot, row.verdict())
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_must_gain_a_tenth_somewhere_and_lose_it_nowhere() {
        let found = |ttft, beside| PromptTimes { ttft, beside, ..PromptTimes::default() };
        let verdict = |roles, alike| Row { tokens: 1, roles, alike }.verdict();
        assert_eq!(verdict(found(100.0, 10.0), found(100.0, 10.0)), "no");
        assert_eq!(verdict(found(105.0, 5.0), found(100.0, 10.0)), "yes: for running answers");
        assert_eq!(verdict(found(80.0, 10.5), found(100.0, 10.0)), "yes: for the first token");
        assert_eq!(verdict(found(80.0, 5.0), found(100.0, 10.0)), "yes: for the first token and for running answers");
        assert!(verdict(found(180.0, 5.0), found(100.0, 10.0)).starts_with("only where running answers"));
        assert!(verdict(found(80.0, 15.0), found(100.0, 10.0)).starts_with("only where the first token"));
        assert_eq!(verdict(found(180.0, 15.0), found(100.0, 10.0)), "no");
    }

    #[test]
    fn prompts_are_random_ids_of_every_vocabulary() {
        let (one, two) = (prompt(500), prompt(500));
        assert!(one.len() == 500 && one.iter().all(|id| (3..253).contains(id)) && one != two);
    }
}
