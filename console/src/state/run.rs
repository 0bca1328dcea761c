//! A generation that is over, kept to be compared with the next one: its text and its figures. Pure.
use shared::{latency::ratio, protocol::message::Finished, telemetry::PhaseTotals};

use crate::state::{
    State,
    clean::clean_line,
    request::{Phase, Request},
};

/// A stage of a generation, in milliseconds since it was received.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// What it is.
    pub title: &'static str,
    /// When it began.
    pub from: f64,
    /// When it ended, or now.
    pub to: f64,
    /// Shares of own computing, waiting and wire (with all that is neither counted as computing); `None`: not known.
    pub shares: Option<[f64; 3]>,
    /// Tokens that went through it.
    pub tokens: u32,
}

/// A generation that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The prompt as it was sent.
    pub prompt: String,
    /// What was generated, safe to draw.
    pub text: String,
    /// Whether the start of the text was left out.
    pub is_cut: bool,
    /// What it ran on.
    pub on: String,
    /// What it asked for, in one line.
    pub terms: String,
    /// Its seed.
    pub seed: u64,
    /// Tokens of the answer.
    pub tokens: u32,
    /// Time to first token in milliseconds.
    pub ttft_ms: f64,
    /// Time per output token in milliseconds; 0 for a single token.
    pub tpot_ms: f64,
    /// Waiting and wire by all of the time.
    pub network: Option<f64>,
}

impl Run {
    /// The request of the dashboard, if it is over and has an answer.
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

    /// Tokens a second after the first.
    pub fn tokens_per_second(&self) -> f64 {
        ratio(1e3, self.tpot_ms)
    }
}

/// How two texts differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Not at all.
    Same,
    /// They cannot be compared from their start.
    Unknown,
    /// From this character on; what the first and the second have there.
    From {
        /// Characters that are the same.
        at: usize,
        /// What follows in the first, on one line.
        first: String,
        /// What follows in the second, on one line.
        second: String,
    },
}

/// Characters of what follows a difference.
const FOLLOWS: usize = 12;

/// Where two texts differ first.
pub fn difference(first: &Run, second: &Run) -> Difference {
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

/// The stages of a request so far: by the head's clock when it is over, else by this console's.
pub fn stages(state: &State) -> Vec<Stage> {
    let request = &state.request;
    match &request.phase {
        Phase::Nothing | Phase::Held | Phase::Withdrawn => Vec::new(),
        Phase::Finished(finished) => finished_stages(finished),
        phase => {
            let (sent, taken, first, last) = request.moments();
            let is_open = request.is_sent();
            let now = if is_open { state.now } else { last.max(taken.unwrap_or(sent)) };
            let ms = |at: std::time::Duration| at.saturating_sub(sent).as_secs_f64() * 1e3;
            let stage = |title, from, to, tokens| Stage { title, from: ms(from), to: ms(to), shares: None, tokens };
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

fn finished_stages(finished: &Finished) -> Vec<Stage> {
    let times = &finished.times;
    let (dispatched, first, last) =
        (times.dispatched.milliseconds(), times.first_token.milliseconds(), times.last_token.milliseconds());
    let mut stages = vec![Stage { title: "queue", from: 0.0, to: dispatched, shares: None, tokens: 0 }];
    if times.sampled_tokens == 0 {
        return stages;
    }
    let sum = |part: fn(&shared::telemetry::RankTotals) -> &PhaseTotals| {
        let mut sum = PhaseTotals::default();
        finished.ranks.iter().for_each(|rank| sum.add(part(rank)));
        shares(&sum)
    };
    let (prefill, decode) = (sum(|rank| &rank.prefill), sum(|rank| &rank.decode));
    stages.push(Stage { title: "prefill", from: dispatched, to: first, shares: prefill, tokens: times.prompt_tokens });
    if times.sampled_tokens > 1 {
        stages.push(Stage { title: "decode", from: first, to: last, shares: decode, tokens: times.sampled_tokens - 1 });
    }
    stages
}

/// Own computing (threads included), waiting (for ranks and stages) and wire.
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

    fn run(text: &str) -> Run {
        let run = Run::of(&Story::finished().state.request).expect("it is over");
        Run { text: text.to_owned(), ..run }
    }

    #[test]
    fn a_run_keeps_what_it_ran_on_and_its_figures() {
        let run = run("x");
        assert_eq!((run.prompt.as_str(), run.seed, run.tokens), ("ROMEO:", 42, 31));
        assert_eq!((run.on.as_str(), run.ttft_ms, run.tpot_ms), ("tp4, epoch 3", 98.0, 20.0));
        assert!((run.tokens_per_second() - 50.0).abs() < 1e-9);
        assert_eq!(Run::of(&Story::generating().state.request), None, "it is not over");
    }

    #[test]
    fn the_first_different_character_is_found_also_where_one_text_is_longer() {
        assert_eq!(difference(&run("the moon"), &run("the moon")), Difference::Same);
        let from = |at, first: &str, second: &str| Difference::From { at, first: first.into(), second: second.into() };
        assert_eq!(difference(&run("the moon"), &run("the sun\nand more")), from(4, "moon", "sun and more"));
        assert_eq!(difference(&run("Würde"), &run("Würde und")), from(5, "", " und"));
        let cut = Run { is_cut: true, ..run("b") };
        assert_eq!(difference(&run("a"), &cut), Difference::Unknown);
    }

    #[test]
    fn stages_follow_one_another_and_their_shares_make_one() {
        let stages = stages(&Story::finished().state);
        let titles: Vec<&str> = stages.iter().map(|stage| stage.title).collect();
        assert_eq!(titles, ["queue", "prefill", "decode"]);
        assert!(stages.windows(2).all(|pair| pair[0].to == pair[1].from));
        let shares = stages[2].shares.expect("decode was measured");
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && shares[0] > shares[1]);
        assert_eq!(stages[1].shares, None, "nothing was measured of the prefill");
        let running = super::stages(&Story::generating().state);
        assert_eq!(running.len(), 3);
        assert!(running[2].to > running[2].from && running[0].from == 0.0);
        assert!(super::stages(&Story::ready().state).is_empty());
    }
}
