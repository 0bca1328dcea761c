//! Text, stop strings, continuation and statistics of answers, against the text of all tokens at once.
use std::sync::LazyLock;

use common::{fault::FaultKind, sampling::SamplingParameters, units::Nanoseconds};
use gguf::GgufFile;
use tokenizer::Vocabulary;

use super::*;
use crate::text::prepare::tests::model;

const KEY: RequestKey = RequestKey(7);

static MODEL: LazyLock<Arc<ModelText>> = LazyLock::new(|| Arc::new(model()));

/// The tokens of a text with characters that span several tokens, without a BOS token.
fn tokens() -> Vec<u32> {
    MODEL.tokenizer.encode("But soft! é 中 🦙 what light through yonder window breaks?", false, false)
}

fn generate(resumed: &[u32], stop: &[&str]) -> Generate {
    let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
    let generate = Generate::new("a", 1000, SamplingParameters::default(), stop);
    Generate { resumed: resumed.to_vec(), ..generate }
}

fn times(sampled_tokens: u32) -> RequestTimes {
    let last_token = Nanoseconds(1000 * u64::from(sampled_tokens));
    RequestTimes { sampled_tokens, last_token, ..RequestTimes::default() }
}

fn ranks(steps: u64) -> Vec<RankTotals> {
    let mut totals = RankTotals::default();
    totals.decode.steps = steps;
    vec![totals]
}

fn end(reason: FinishReason, sampled: u32) -> RequestEvent {
    let finished = Finished { reason, times: times(sampled), ranks: ranks(9), sampling_rounds: sampled };
    RequestEvent::Finished(Box::new(finished))
}

/// What a client receives.
#[derive(Debug, Default, PartialEq)]
struct ReceivedText {
    ids: Vec<u32>,
    text: String,
    /// Bytes of text up to and including each token.
    lengths: Vec<usize>,
    /// Whether text without a token was the last one.
    has_rest: bool,
    finished: Option<Finished>,
}

impl ReceivedText {
    /// Receives events; returns whether the engine must cancel.
    fn add(&mut self, translated: Translated) -> bool {
        for event in translated.events {
            assert!(self.finished.is_none(), "{event:?} follows the end");
            match event {
                AnswerEvent::Started { prompt, .. } => assert_eq!(prompt, [1, 2]),
                AnswerEvent::Token(token) => {
                    self.text.push_str(&token.text);
                    self.has_rest = token.id.is_none();
                    self.ids.extend(token.id);
                    self.lengths.extend(token.id.map(|_| self.text.len()));
                }
                AnswerEvent::Finished(finished) => self.finished = Some(*finished),
                other => panic!("{other:?}"),
            }
        }
        translated.is_stopped
    }
}

/// Plays an engine that samples `ids` after those that are resumed, the last one because of a limit, and takes a
/// cancellation `delay` tokens late.
fn play(resumed: &[u32], ids: &[u32], stop: &[&str], delay: usize) -> ReceivedText {
    let answers = Answers::new(&MODEL);
    let prepared = answers.begin(KEY, Instant::now(), &generate(resumed, stop), vec![1, 2]);
    let mut received = ReceivedText::default();
    received.add(answers.translate(KEY, RequestEvent::Started));
    if prepared.is_stopped {
        received.add(answers.translate(KEY, end(FinishReason::Stop, 0)));
        return received;
    }
    let (mut left, mut reason) = (usize::MAX, FinishReason::Length);
    let mut sampled = 0;
    for (index, id) in ids.iter().enumerate() {
        if left == 0 {
            reason = FinishReason::Cancelled;
            break;
        }
        left -= 1;
        sampled += 1;
        let (is_last, top_logprobs) = (index + 1 == ids.len(), Vec::new());
        let token = SampledToken { id: *id, is_last, top_logprobs, times: times(sampled), sampling_rounds: sampled };
        if received.add(answers.translate(KEY, RequestEvent::Token(token))) {
            left = delay;
        }
    }
    received.add(answers.translate(KEY, end(reason, sampled)));
    assert!(answers.lock().is_empty());
    received
}

#[test]
fn text_is_that_of_all_tokens() {
    let ids = tokens();
    let whole = play(&[], &ids, &[], 0);
    let bytes: Vec<u8> = ids.iter().flat_map(|id| MODEL.tokenizer.piece(*id, false)).collect();
    assert_eq!((whole.text.as_str(), &whole.ids), (&*String::from_utf8_lossy(&bytes), &ids));
    assert!(whole.lengths.windows(2).any(|pair| pair[0] == pair[1]), "some tokens complete no character");
    assert_eq!(whole.finished.expect("it ended").reason, FinishReason::Length);
    for cut in 1..ids.len() {
        // An incomplete character becomes a replacement with the last token.
        let bytes: Vec<u8> = ids[..cut].iter().flat_map(|id| MODEL.tokenizer.piece(*id, false)).collect();
        let cut = play(&[], &ids[..cut], &[], 0);
        assert_eq!((cut.text.as_str(), cut.has_rest), (&*String::from_utf8_lossy(&bytes), false));
    }
}

#[test]
fn stop_string_ends_the_answer_wherever_it_begins() {
    let ids = tokens();
    let whole = play(&[], &ids, &[], 0);
    let text = whole.text.as_str();
    let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
    for (from, to) in places
        .iter()
        .enumerate()
        .flat_map(|(index, from)| places[index + 1..].iter().take(9).map(move |to| (*from, *to)))
    {
        let stop = &text[from..to];
        let found = text.find(stop).expect("it is a part");
        let last = whole.lengths.iter().position(|length| *length >= found + stop.len()).expect("a token ends it");
        for delay in [0, 1, 3] {
            let stopped = play(&[], &ids, &["never", stop], delay);
            assert_eq!((stopped.text.as_str(), stopped.ids.as_slice()), (&text[..found], &ids[..=last]), "{stop:?}");
            let finished = stopped.finished.expect("it ended");
            let expected = (FinishReason::Stop, times(last as u32 + 1), last as u32 + 1);
            assert_eq!((finished.reason, finished.times, finished.sampling_rounds), expected, "{stop:?}");
            assert_eq!(finished.ranks, ranks(9));
        }
    }
}

#[test]
fn resumed_answer_continues_with_the_same_text() {
    let ids = tokens();
    for stop in [&[][..], &["light thr"], &["🦙 what"], &["never"]] {
        let whole = play(&[], &ids, stop, 2);
        let all = whole.finished.as_ref().expect("it ended");
        for cut in 1..whole.ids.len() {
            let rest = play(&whole.ids[..cut], &ids[cut..], stop, 2);
            assert_eq!(rest.text, whole.text[whole.lengths[cut - 1]..], "{stop:?} after {cut}");
            assert_eq!((&*rest.ids, rest.has_rest), (&whole.ids[cut..], false));
            assert_eq!(rest.finished.expect("it ended").reason, all.reason);
        }
        if all.reason == FinishReason::Stop {
            let over = play(&whole.ids, &ids, stop, 0);
            assert_eq!((over.text.as_str(), over.ids.len()), ("", 0), "it was complete");
        }
    }
}

#[test]
fn tokens_that_the_model_must_not_generate_are_biased() {
    let file = GgufFile::open(&MODEL.path).expect("the demo model is there");
    let vocabulary = Vocabulary::from_metadata(file.metadata()).expect("it has a vocabulary");
    let vocabulary = Vocabulary { suppressed: vec![5, 9], ..vocabulary };
    let tokenizer = Arc::new(Tokenizer::new(vocabulary).expect("it is good"));
    let mut text = model();
    text.tokenizer = tokenizer;
    let answers = Answers::new(&Arc::new(text));
    let sampling = SamplingParameters { logit_bias: vec![(5, 1000.0)], ..SamplingParameters::default() };
    let generate = Generate::new("a", 10, sampling, Vec::new());
    let prepared = answers.begin(KEY, Instant::now(), &generate, vec![1, 2]);
    assert_eq!(prepared.sampling.logit_bias, [(5, 1000.0), (5, SUPPRESSION), (9, SUPPRESSION)]);
    let answers = Answers::new(&MODEL);
    assert_eq!(answers.begin(KEY, Instant::now(), &generate, vec![1, 2]).sampling, generate.sampling);
}

#[test]
fn held_text_follows_at_an_end_without_a_token() {
    for reason in [FinishReason::Stop, FinishReason::Cancelled] {
        let answers = Answers::new(&MODEL);
        answers.begin(KEY, Instant::now(), &generate(&[], &["soft?"]), vec![1, 2]);
        let mut received = ReceivedText::default();
        received.add(answers.translate(KEY, RequestEvent::Started));
        for id in MODEL.tokenizer.encode("But soft", false, false) {
            let token = SampledToken {
                id,
                is_last: false,
                top_logprobs: vec![(id, -0.5)],
                times: times(1),
                sampling_rounds: 0,
            };
            let translated = answers.translate(KEY, RequestEvent::Token(token));
            let [AnswerEvent::Token(event)] = &*translated.events else { panic!("{translated:?}") };
            let piece = String::from_utf8_lossy(&MODEL.tokenizer.piece(id, true)).into_owned();
            assert_eq!(event.logprobs, [TokenLogprob { id, text: piece, logprob: -0.5, bytes: Vec::new() }]);
            received.add(translated);
        }
        assert!(!received.text.ends_with("soft"));
        received.add(answers.translate(KEY, end(reason, 4)));
        assert!(received.text.ends_with("soft") && received.has_rest);
        assert_eq!(received.finished.expect("it ended").reason, reason);
    }
    // A complete answer whose end was lost: the client has its text already.
    for (reason, rest) in [(FinishReason::Length, ""), (FinishReason::Context, ""), (FinishReason::Cancelled, "soft")] {
        let answers = Answers::new(&MODEL);
        let resumed = MODEL.tokenizer.encode("But soft", false, false);
        let prepared = answers.begin(KEY, Instant::now(), &generate(&resumed, &["soft?"]), vec![1, 2]);
        assert!(!prepared.is_stopped);
        let mut received = ReceivedText::default();
        received.add(answers.translate(KEY, RequestEvent::Started));
        received.add(answers.translate(KEY, end(reason, 0)));
        assert_eq!(received.text, rest, "{reason:?}");
    }
}

#[test]
fn request_that_never_started_has_no_text() {
    let answers = Answers::new(&MODEL);
    let resumed = MODEL.tokenizer.encode("But soft", false, false);
    answers.begin(KEY, Instant::now(), &generate(&resumed, &["soft?"]), vec![1, 2]);
    let mut received = ReceivedText::default();
    received.add(answers.translate(KEY, end(FinishReason::Cancelled, 0)));
    assert_eq!((received.text.as_str(), received.finished.is_some()), ("", true));
    answers.begin(KEY, Instant::now(), &generate(&[], &[]), vec![1, 2]);
    answers.forget(KEY);
    assert!(answers.lock().is_empty());
}

#[test]
fn failure_after_a_stop_string_is_the_end_of_the_answer() {
    let fault = Fault::new("pi1", FaultKind::PromptEmpty);
    let answers = Answers::new(&MODEL);
    let mut received = ReceivedText::default();
    answers.begin(KEY, Instant::now(), &generate(&[], &["s"]), vec![1, 2]);
    for id in MODEL.tokenizer.encode("But soft", false, false) {
        let (times, sampling_rounds) = (times(2), 0);
        let token = SampledToken { id, is_last: false, top_logprobs: Vec::new(), times, sampling_rounds };
        received.add(answers.translate(KEY, RequestEvent::Token(token)));
    }
    received.add(answers.translate(KEY, RequestEvent::Refused(fault.clone())));
    let finished = received.finished.expect("it ended");
    assert_eq!((finished.reason, finished.times), (FinishReason::Stop, times(2)));
    // A request that the room does not know, for example a benchmark.
    let refused = answers.translate(KEY, RequestEvent::Refused(fault.clone()));
    assert_eq!(*refused.events, [AnswerEvent::Refused(fault)]);
}

#[test]
fn marks_become_text_only_on_request_and_nothing_else_that_is_control() {
    let tokenizer = &MODEL.tokenizer;
    let (mark, other) = (tokenizer.bos().expect("it has BOS"), tokenizer.eos().expect("it has EOS"));
    let name = String::from_utf8(tokenizer.piece(mark, true)).expect("its name is text");
    assert_eq!(tokenizer.control_token(&name), Some(mark));
    assert_eq!(tokenizer.control_token("But"), None);
    let text = |marks: Vec<u32>| {
        let mut output = Output::new(tokenizer, Vec::new()).showing(marks);
        [mark, other].iter().map(|id| output.push(tokenizer, *id).0.into_string()).collect::<String>()
    };
    assert_eq!((text(Vec::new()), text(vec![mark])), (String::new(), name));
}

#[test]
fn token_within_a_character_has_its_bytes() {
    let answers = Answers::new(&MODEL);
    answers.begin(KEY, Instant::now(), &generate(&[], &[]), vec![1, 2]);
    let (mut bytes, mut parts) = (Vec::new(), 0);
    for id in MODEL.tokenizer.encode("a🦙", false, false) {
        let (is_last, top_logprobs) = (false, vec![(id, -0.5)]);
        let token = SampledToken { id, is_last, top_logprobs, times: times(1), sampling_rounds: 0 };
        let translated = answers.translate(KEY, RequestEvent::Token(token));
        let [AnswerEvent::Token(event)] = &*translated.events else { panic!("{translated:?}") };
        let own = &event.logprobs[0];
        parts += usize::from(!own.bytes.is_empty());
        bytes.extend(if own.bytes.is_empty() { own.text.as_bytes() } else { &own.bytes });
    }
    assert!(parts > 1 && String::from_utf8_lossy(&bytes).ends_with("a🦙"), "{parts} parts of {bytes:?}");
}

#[test]
fn changes_of_a_conversation_are_reported_as_its_answer_starts() {
    let answers = Answers::new(&MODEL);
    let (ids, changes) = (vec![1, 2], TemplateChanges::CALLS_AS_TEXT);
    answers.begin(KEY, Instant::now(), &generate(&[], &[]), PromptTokens { ids: ids.clone(), changes });
    let started = AnswerEvent::Started { prompt: ids, form: MODEL.form(&generate(&[], &[]), &[1, 2]), changes };
    assert_eq!(*answers.translate(KEY, RequestEvent::Started).events, [started]);
}

#[test]
fn scored_prompt_begins_with_its_first_token_without_a_probability() {
    let answers = Answers::new(&MODEL);
    let sampling = SamplingParameters { scores_prompt: true, logprobs: 1, ..SamplingParameters::default() };
    let generate = Generate { sampling, ..generate(&[], &[]) };
    answers.begin(KEY, Instant::now(), &generate, vec![40, 41]);
    let started = answers.translate(KEY, RequestEvent::Started).events;
    let [AnswerEvent::Started { .. }, AnswerEvent::Scored(first)] = &started[..] else { panic!("{started:?}") };
    assert_eq!((first.len(), first[0].id, first[0].logprobs.len()), (1, Some(40), 0));
    let scored = vec![ScoredToken { id: 41, top_logprobs: vec![(41, -0.5)] }];
    let scored = answers.translate(KEY, RequestEvent::Scored(scored)).events;
    let [AnswerEvent::Scored(rest)] = &scored[..] else { panic!("{scored:?}") };
    assert_eq!((rest[0].id, rest[0].logprobs[0].logprob), (Some(41), -0.5));
}
