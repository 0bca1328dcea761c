//! One answer over the HTTP API: printed as it arrives, cancelled by a signal, timed by this machine's clock.
use std::time::Duration;

use common::{latency::RequestTimes, units::Nanoseconds};
use protocol::message;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::printing;
use crate::cli::{
    Failure,
    shared::{interrupts::Interrupts, output},
};
use crate::http::{Api, Ask, HttpAnswer, HttpProgress, stream};

/// The result of a request.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// For a cancelled request, the thought and the text received so far.
    pub(crate) answer: HttpAnswer,
    /// By this machine's clock, since the request was sent.
    times: RequestTimes,
    /// The exit code of the signal that cancelled the request.
    pub(crate) interrupted: Option<u8>,
}

/// The request fields that text and chat completions share.
pub(crate) fn body(request: &message::Generate, model: &str) -> Value {
    let sampling = &request.sampling;
    let mut body = json!({
        "model": model, "max_tokens": request.max_tokens, "seed": sampling.seed,
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty, "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    });
    if !request.stop.is_empty() {
        body["stop"] = json!(request.stop);
    }
    body
}

/// The parts of an answer as they arrive.
struct ArrivingAnswer {
    begun: Instant,
    /// Whether they are also printed.
    prints: bool,
    thought: String,
    text: String,
    times: RequestTimes,
    pieces: u32,
}

impl ArrivingAnswer {
    fn new(prints: bool) -> Self {
        let (thought, text, times) = (String::new(), String::new(), RequestTimes::default());
        Self { begun: Instant::now(), prints, thought, text, times, pieces: 0 }
    }

    /// Takes a piece. Cancels `unread` if it cannot be printed.
    fn take(&mut self, told: HttpProgress<'_>, unread: &CancellationToken) {
        match told {
            HttpProgress::Again(error) => return output::note(&output::clean(&format!("\n{error}; retrying"))),
            // The tokens of a thought count as those of the text: the server counts them, too.
            HttpProgress::Thought(new) => {
                self.count();
                if self.prints {
                    printing::thought(new);
                }
                self.thought.push_str(new);
            }
            HttpProgress::Text(new) => {
                self.count();
                if self.prints {
                    printing::content(new, self.text.is_empty() && !self.thought.is_empty());
                }
                self.text.push_str(new);
            }
        }
        // Standard output is closed: cancel the rest of the answer.
        if self.prints && output::is_closed() {
            unread.cancel();
        }
    }

    /// Counts a piece that arrives now.
    fn count(&mut self) {
        let now = Nanoseconds(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if self.pieces == 0 {
            self.times.first_token = now;
        }
        self.times.last_token = now;
        self.pieces = self.pieces.saturating_add(1);
    }
}

/// Sends a request; `prints`: also prints the answer as it arrives. A signal closes the connection, which cancels the
/// request.
pub(crate) async fn answer(
    apis: &[Api],
    ask: &Ask,
    patience: Duration,
    prints: bool,
    interrupts: &mut Interrupts,
) -> Result<Outcome, Failure> {
    let unread = CancellationToken::new();
    let mut arriving = ArrivingAnswer::new(prints);
    let ended = tokio::select! {
        result = async { stream(apis, ask, patience, &mut |told| arriving.take(told, &unread)).await } => Some(result),
        () = unread.cancelled() => None,
        code = interrupts.next() => {
            let ArrivingAnswer { thought, text, times, pieces, .. } = arriving;
            let finish_reason = Some("cancelled".into());
            let answer = HttpAnswer { thought, text, finish_reason, ..HttpAnswer::default() };
            return Ok(Outcome { answer, times: counted(times, pieces), interrupted: Some(code) });
        }
    };
    let ArrivingAnswer { thought, text, times, pieces, .. } = arriving;
    match ended {
        Some(Ok(answer)) => {
            let count = answer.usage["completion_tokens"].as_u64().and_then(|count| u32::try_from(count).ok());
            Ok(Outcome { answer, times: counted(times, count.unwrap_or(pieces)), interrupted: None })
        }
        Some(Err(error)) => {
            if prints {
                printing::end_line(&thought, &text);
            }
            Err(error.into())
        }
        None => Ok(Outcome { answer: HttpAnswer { thought, text, ..HttpAnswer::default() }, times, interrupted: None }),
    }
}

fn counted(times: RequestTimes, sampled_tokens: u32) -> RequestTimes {
    RequestTimes { sampled_tokens, ..times }
}

impl Outcome {
    /// Prints the JSON object, or a summary of the times on standard error.
    pub(crate) fn show(&self, as_json: bool, request_id: &str, seed: Option<u64>) {
        if as_json {
            output::line(&self.object(request_id, seed).to_string());
        } else {
            output::line("");
            output::note(&self.summary());
        }
    }

    /// Token count, TTFT, decode rate and finish reason on one line.
    pub(crate) fn summary(&self) -> String {
        let times = &self.times;
        let reason = self.answer.finish_reason.as_deref().unwrap_or("closed output");
        let tokens = times.sampled_tokens;
        // An answer that arrives in one piece has no token times here, so the rate reported by the server comes first.
        let told = self.answer.timings["predicted_per_second"].as_f64().filter(|speed| *speed > 0.0);
        let speed = told.unwrap_or_else(|| times.decode_tokens_per_second());
        let (ttft, ending) = (times.ttft_ms(), super::ending(reason));
        let counts = ["cache_n", "stored_n", "draft_n", "draft_n_accepted"];
        let saved = super::saved(counts.map(|name| self.answer.timings[name].as_u64().unwrap_or_default()));
        output::clean(&format!("{tokens} tokens, TTFT {ttft:.0} ms, {speed:.1} tokens/s{saved}, {ending}"))
    }

    fn object(&self, request_id: &str, seed: Option<u64>) -> Value {
        let HttpAnswer { id, model, thought, text, finish_reason, usage, timings, logprobs, repeats } = &self.answer;
        let mut object = json!({
            "text": text, "finish_reason": finish_reason, "model": model, "id": id, "request_id": request_id,
            "usage": usage, "timings": timings, "repeats": repeats,
            "client": {"ttft_ms": self.times.ttft_ms(), "tpot_ms": self.times.tpot_ms(),
                "decode_tokens_per_second": self.times.decode_tokens_per_second()},
        });
        if !thought.is_empty() {
            object["reasoning"] = json!(thought);
        }
        if let Some(seed) = seed {
            object["seed"] = json!(seed);
        }
        if !logprobs.is_empty() {
            object["logprobs"] = json!(logprobs);
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{
        Kind,
        fake::{FakeServer, FakeStep, chat_completion},
    };

    async fn answered(steps: Vec<FakeStep>) -> Outcome {
        let server = FakeServer::start(move |_, _| steps.clone());
        let apis = [Api::new(server.url().parse().expect("a URL"), None)];
        let ask = Ask { kind: Kind::Chat, body: json!({}), request_id: "r1".into() };
        let outcome = answer(&apis, &ask, Duration::from_secs(10), false, &mut Interrupts::deaf()).await;
        outcome.expect("it answers")
    }

    #[tokio::test]
    async fn first_part_of_a_thought_is_the_first_token() {
        let thought = json!({"reasoning_content": "Hm", "reasoning": "Hm"});
        let mut steps = chat_completion(&[thought, json!({"content": "4"})]);
        steps.insert(2, FakeStep::Pause(600));
        let outcome = answered(steps).await;
        let object = outcome.object("r1", None);
        assert_eq!((&object["reasoning"], &object["text"]), (&json!("Hm"), &json!("4")));
        // Two tokens, with the pause between them; less by any delay of the reader of the first one.
        assert!(outcome.times.tpot_ms() > 200.0, "{:?}", outcome.times);
    }

    #[tokio::test]
    async fn thought_without_a_text_has_times() {
        let mut steps = chat_completion(&[json!({"reasoning": "Hm"})]);
        steps.insert(1, FakeStep::Pause(50));
        let outcome = answered(steps).await;
        assert!(outcome.times.ttft_ms() >= 50.0, "{:?}", outcome.times);
        let object = outcome.object("r1", None);
        assert_eq!((&object["reasoning"], &object["text"]), (&json!("Hm"), &json!("")));
    }

    #[tokio::test]
    async fn object_without_a_thought_has_no_reasoning() {
        let object = answered(chat_completion(&[json!({"content": "4"})])).await.object("r1", None);
        assert_eq!((object.get("reasoning"), &object["text"]), (None, &json!("4")));
    }
}
