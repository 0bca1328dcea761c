//! A finished generation, kept for comparison with the next one: its text and its figures. Pure.
use common::latency::ratio;
use protocol::message::Finished;
use telemetry::PhaseTotals;

use crate::state::{
    State,
    clean::clean_line,
    request::{Phase, Request},
};

/// A stage of a generation, with times in milliseconds since the request was received.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultStage {
    /// Its name.
    pub title: &'static str,
    /// Its start.
    pub from: f64,
    /// Its end, or the current time.
    pub to: f64,
    /// Shares of compute, peer wait and transfer (the remaining time counts as transfer); `None` = unknown.
    pub shares: Option<[f64; 3]>,
    /// Number of tokens processed in it.
    pub tokens: u32,
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationResult {
    /// The prompt as sent.
    pub prompt: String,
    /// The generated text, sanitised for display.
    pub text: String,
    /// Whether the start of the text was dropped.
    pub is_cut: bool,
    /// The topology that it ran on.
    pub on: String,
    /// Its sampling parameters, in one line.
    pub terms: String,
    /// Its seed.
    pub seed: u64,
    /// Number of tokens of the answer.
    pub tokens: u32,
    /// Time to first token in milliseconds.
    pub ttft_ms: f64,
    /// Time per output token in milliseconds; 0 for a single token.
    pub tpot_ms: f64,
    /// (peer wait + transfer) / total time.
    pub network: Option<f64>,
}

impl GenerationResult {
    /// The dashboard's request, if it is finished and has an answer.
    pub fn of(request: &Request) -> Option<Self> {
        let (Phase::Finished(finished), Some(sent)) = (&request.phase, &request.sent_with) else { return None };
        Some(Self {
            prompt: request.prompt.clone(),
            text: request.text.clone(),
            is_cut: request.is_cut,
            on: sent.on.clone(),
            terms: sent.terms.clone(),
            seed: sent.seed,
            tokens: finished.times.sampled_tokens,
            ttft_ms: finished.times.ttft_ms(),
            tpot_ms: finished.times.tpot_ms(),
            network: request.network_fraction(),
        })
    }

    /// Tokens per second after the first token.
    pub fn tokens_per_second(&self) -> f64 {
        ratio(1e3, self.tpot_ms)
    }
}

/// The difference between two texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The texts are equal.
    Same,
    /// The texts cannot be compared from their start.
    Unknown,
    /// The texts differ from this character.
    From {
        /// Number of equal characters.
        at: usize,
        /// The continuation of the first text, on one line.
        first: String,
        /// The continuation of the second text, on one line.
        second: String,
    },
}

/// Number of characters shown after a difference.
const FOLLOWS: usize = 12;

/// Finds the first difference between two texts.
pub fn difference(first: &GenerationResult, second: &GenerationResult) -> Difference {
    if first.is_cut || second.is_cut {
        return if first.text == second.text { Difference::Same } else { Difference::Unknown };
    }
    if first.text == second.text {
        return Difference::Same;
    }
    let at = first.text.chars().zip(second.text.chars()).take_while(|(one, two)| one == two).count();
    let follows = |text: &str| clean_line(&text.chars().skip(at).take(FOLLOWS).collect::<String>());
    Difference::From { at, first: follows(&first.text), second: follows(&second.text) }
}

/// The stages of a request so far: timed by the head's clock once it is finished, before that by this console's.
pub fn stages(state: &State) -> Vec<ResultStage> {
    let request = &state.generation.request;
    match &request.phase {
        Phase::Nothing | Phase::Held | Phase::Withdrawn => Vec::new(),
        Phase::Finished(finished) => finished_stages(finished),
        phase => {
            let (sent, taken, first, last) = request.moments();
            let is_open = request.is_sent();
            let now = if is_open { state.now } else { last.max(taken.unwrap_or(sent)) };
            let ms = |at: std::time::Duration| at.saturating_sub(sent).as_secs_f64() * 1e3;
            let stage =
                |title, from, to, tokens| ResultStage { title, from: ms(from), to: ms(to), shares: None, tokens };
            let mut stages = vec![stage("queue", sent, taken.unwrap_or(now), 0)];
            if let Some(taken) = taken {
                stages.push(stage("prefill", taken, first.unwrap_or(now), request.prompt_tokens as u32));
            }
            if let Some(first) = first {
                let end = if matches!(phase, Phase::Decoding) { now } else { last };
                stages.push(stage("decode", first, end, request.tokens.saturating_sub(1)));
            }
            stages
        }
    }
}

fn finished_stages(finished: &Finished) -> Vec<ResultStage> {
    let times = &finished.times;
    let (dispatched, first, last) =
        (times.dispatched.milliseconds(), times.first_token.milliseconds(), times.last_token.milliseconds());
    let mut stages = vec![ResultStage { title: "queue", from: 0.0, to: dispatched, shares: None, tokens: 0 }];
    if times.sampled_tokens == 0 {
        return stages;
    }
    let sum = |part: fn(&telemetry::RankTotals) -> &PhaseTotals| {
        let mut sum = PhaseTotals::default();
        finished.ranks.iter().for_each(|rank| sum.add(part(rank)));
        shares(&sum)
    };
    let (prefill, decode) = (sum(|rank| &rank.prefill), sum(|rank| &rank.decode));
    stages.push(ResultStage {
        title: "prefill",
        from: dispatched,
        to: first,
        shares: prefill,
        tokens: times.prompt_tokens,
    });
    if times.sampled_tokens > 1 {
        stages.push(ResultStage {
            title: "decode",
            from: first,
            to: last,
            shares: decode,
            tokens: times.sampled_tokens - 1,
        });
    }
    stages
}

/// Shares of compute (including threads), peer wait (ranks and stages) and transfer.
fn shares(totals: &PhaseTotals) -> Option<[f64; 3]> {
    let all = totals.total().0 as f64;
    let share = |time: u64| ratio(time as f64, all);
    let (own, wait) = (totals.compute.0 + totals.threads.0, totals.wait.0 + totals.bubble.0);
    (all > 0.0).then(|| [share(own), share(wait), share(totals.wire.0)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::Story;

    fn run(text: &str) -> GenerationResult {
        let run = GenerationResult::of(&Story::finished().state.generation.request).expect("generation is finished");
        GenerationResult { text: text.to_owned(), ..run }
    }

    #[test]
    fn run_keeps_its_topology_and_figures() {
        let run = run("x");
        assert_eq!((run.prompt.as_str(), run.seed, run.tokens), ("ROMEO:", 42, 31));
        assert_eq!((run.on.as_str(), run.ttft_ms, run.tpot_ms), ("tp4, epoch 3", 98.0, 20.0));
        assert!((run.tokens_per_second() - 50.0).abs() < 1e-9);
        assert_eq!(
            GenerationResult::of(&Story::generating().state.generation.request),
            None,
            "generation is not finished"
        );
    }

    #[test]
    fn difference_is_found_even_if_one_text_is_longer() {
        assert_eq!(difference(&run("the moon"), &run("the moon")), Difference::Same);
        let from = |at, first: &str, second: &str| Difference::From { at, first: first.into(), second: second.into() };
        assert_eq!(difference(&run("the moon"), &run("the sun\nand more")), from(4, "moon", "sun and more"));
        assert_eq!(difference(&run("Würde"), &run("Würde und")), from(5, "", " und"));
        let cut = GenerationResult { is_cut: true, ..run("b") };
        assert_eq!(difference(&run("a"), &cut), Difference::Unknown);
    }

    #[test]
    fn stages_are_consecutive_and_their_shares_sum_to_one() {
        let stages = stages(&Story::finished().state);
        let titles: Vec<&str> = stages.iter().map(|stage| stage.title).collect();
        assert_eq!(titles, ["queue", "prefill", "decode"]);
        assert!(stages.windows(2).all(|pair| pair[0].to == pair[1].from));
        let shares = stages[2].shares.expect("decode was measured");
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && shares[0] > shares[1]);
        assert_eq!(stages[1].shares, None, "the prefill was not measured");
        let running = super::stages(&Story::generating().state);
        assert_eq!(running.len(), 3);
        assert!(running[2].to > running[2].from && running[0].from == 0.0);
        assert!(super::stages(&Story::ready().state).is_empty());
    }
}
