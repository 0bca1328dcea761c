//! Compares split sampling with straightforward sampling over all logits; checks the messages.
use common::sampling::SamplingParameters;

use super::{random::Noise, *};

/// A seeded random number generator for tests.
struct TestRandom(u64);

impl TestRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Roughly normally distributed, scaled by `width`.
    fn logit(&mut self, width: f32) -> f32 {
        let sum: f32 = (0..6).map(|_| self.next() as f32 / (1_u64 << 31) as f32 - 0.5).sum();
        sum * width
    }
}

/// Samples over ranks with the given slice lengths, through encoded messages, with a chooser that was used before.
fn draw(
    chooser: &mut Chooser,
    p: &SamplingParameters,
    position: u32,
    history: &[u32],
    logits: &[f32],
    lengths: &[usize],
) -> Chosen {
    let mut begin = 0;
    let mut slices = Vec::new();
    let mut summaries = Vec::new();
    for length in lengths {
        let mut slice = Slice::new(begin as u32);
        let part = &logits[begin..begin + length];
        let summary = slice.summary(p, position, history, part, None);
        let mut bytes = Vec::new();
        summary.encode(&mut bytes);
        assert!(bytes.len() <= Summary::BYTES_MAX && Summary::BYTES_MAX <= 1024, "{}", bytes.len());
        let (decoded, rest) = Summary::decode(&bytes).expect("it was encoded");
        assert!(rest.is_empty() && decoded == summary);
        summaries.push(decoded);
        slices.push(slice);
        begin += length;
    }
    assert_eq!(begin, logits.len());
    let mut step = chooser.begin(3, p, position, summaries.iter()).expect("there is a token");
    loop {
        let query = match step {
            Step::Done(chosen) => return chosen,
            Step::Ask(query) => query,
        };
        let mut bytes = Vec::new();
        query.encode(&mut bytes);
        let query = Query::decode(&bytes).expect("it was encoded");
        assert_eq!(query.place(), 3);
        let answer = |slice: &mut Slice| {
            let mut bytes = Vec::new();
            slice.answer(&query).expect("it can be answered").encode(&mut bytes);
            Answer::decode(&bytes).expect("it was encoded")
        };
        let answers: Vec<Answer> = slices.iter_mut().map(answer).collect();
        step = chooser.answer(&answers).expect("the answers fit");
    }
}

/// The same sample over all logits at once, written like the definition.
fn reference(p: &SamplingParameters, position: u32, history: &[u32], logits: &[f32]) -> u32 {
    let mut adjusted = logits.to_vec();
    p.logit_bias.iter().for_each(|(id, bias)| adjusted[*id as usize] += bias);
    let recent: Vec<u32> = history.iter().rev().take(p.penalty_last_n as usize).copied().collect();
    for (id, logit) in adjusted.iter_mut().enumerate() {
        let count = recent.iter().filter(|seen| **seen as usize == id).count();
        if count > 0 {
            *logit = if *logit > 0.0 { *logit / p.repeat_penalty } else { *logit * p.repeat_penalty };
            *logit -= p.presence_penalty + p.frequency_penalty * count as f32;
        }
    }
    let mut order: Vec<usize> = (0..adjusted.len()).collect();
    order.sort_by(|a, b| adjusted[*b].total_cmp(&adjusted[*a]).then(a.cmp(b)));
    if p.temperature == 0.0 {
        return order[0] as u32;
    }
    let scaled: Vec<f64> = adjusted.iter().map(|logit| f64::from(logit * (1.0 / p.temperature))).collect();
    if p.top_k > 0 {
        order.truncate(p.top_k as usize);
    }
    let largest = scaled[order[0]];
    let total: f64 = order.iter().map(|id| (scaled[*id] - largest).exp()).sum();
    let mut kept = Vec::new();
    let mut mass = 0.0;
    for id in order {
        let probability = (scaled[id] - largest).exp() / total;
        if !kept.is_empty() && mass >= f64::from(p.top_p) {
            break;
        }
        mass += probability;
        kept.push(id);
    }
    kept.retain(|id| (scaled[*id] - largest).exp() >= f64::from(p.min_p));
    let noise = Noise::new(p.seed, position);
    let score = |id: usize| scaled[id] + noise.of(id as u32);
    kept.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
    kept[0] as u32
}

fn parameters(change: impl FnOnce(&mut SamplingParameters)) -> SamplingParameters {
    let mut parameters = SamplingParameters { temperature: 1.0, ..SamplingParameters::default() };
    change(&mut parameters);
    assert_eq!(parameters.check(), Ok(()));
    parameters
}

/// Checks that all samples agree for 1 to 8 ranks with unequal slices, one of them empty. Returns the total number of
/// further rounds.
#[track_caller]
fn check(p: &SamplingParameters, vocabulary: usize, draws: u32, width: f32) -> u32 {
    let mut random = TestRandom(u64::from(draws) + vocabulary as u64);
    let mut rounds = 0;
    let mut chooser = Chooser::default();
    for position in 0..draws {
        let logits: Vec<f32> = (0..vocabulary).map(|_| random.logit(width)).collect();
        let history: Vec<u32> = (0..80).map(|_| (random.next() % vocabulary as u64) as u32).collect();
        let p = SamplingParameters { seed: u64::from(position) * 77, ..p.clone() };
        let expected = reference(&p, position, &history, &logits);
        for world in 1..=8_usize {
            let mut lengths = vec![vocabulary / (world + 1); world];
            lengths[world / 2] = if world > 2 { 0 } else { lengths[world / 2] };
            lengths[0] += vocabulary - lengths.iter().sum::<usize>();
            let chosen = draw(&mut chooser, &p, position, &history, &logits, &lengths);
            assert_eq!(chosen.id, expected, "{world} ranks, position {position}");
            rounds += chosen.rounds;
        }
    }
    rounds
}

#[test]
fn split_sampling_equals_sampling_over_all_logits() {
    assert_eq!(check(&parameters(|p| p.temperature = 0.0), 2048, 50, 4.0), 0, "greedy needs no further round");
    assert_eq!(check(&parameters(|p| p.temperature = 0.8), 2048, 200, 4.0), 0, "neither does plain sampling");
    assert_eq!(check(&parameters(|p| p.top_k = 40), 2048, 100, 4.0), 0);
    let wide = parameters(|p| (p.temperature, p.top_p) = (1.5, 0.99));
    assert!(check(&wide, 2048, 200, 4.0) > 0, "a wide nucleus needs a further round");
    assert!(check(&wide, 32_000, 10, 0.5) > 0);
    check(&parameters(|p| p.top_p = 0.3), 2048, 100, 8.0);
    check(&parameters(|p| p.top_p = 0.02), 2048, 50, 0.3);
    check(&parameters(|p| p.top_p = 0.0), 300, 20, 4.0);
    assert!(check(&parameters(|p| (p.top_k, p.top_p) = (500, 0.9)), 2048, 50, 4.0) > 0);
    check(&parameters(|p| (p.top_k, p.top_p) = (40, 0.8)), 2048, 100, 4.0);
    check(&parameters(|p| p.min_p = 0.05), 2048, 100, 4.0);
    check(&parameters(|p| (p.min_p, p.top_p) = (0.3, 0.5)), 2048, 50, 4.0);
    check(&parameters(|p| (p.min_p, p.temperature) = (1.0, 5.0)), 2048, 20, 0.5);
    let penalised = parameters(|p| {
        (p.repeat_penalty, p.presence_penalty, p.frequency_penalty) = (1.3, 0.4, 0.2);
        (p.penalty_last_n, p.top_p) = (32, 0.95);
        p.logit_bias = vec![(7, 5.0), (200, -50.0)];
    });
    check(&penalised, 300, 100, 6.0);
}

/// The few tokens that may be sampled have scores like those of all others: each round rules out most of the rest.
#[test]
fn narrow_choices_among_flat_logits_take_few_rounds() {
    let (draws, worlds) = (20, 8);
    let narrow = [
        parameters(|p| (p.temperature, p.top_p) = (50.0, 1e-4)),
        parameters(|p| (p.temperature, p.min_p) = (50.0, 0.995)),
        parameters(|p| (p.temperature, p.min_p, p.top_p) = (50.0, 0.97, 0.001)),
    ];
    for p in narrow {
        let rounds = check(&p, 32_000, draws, 4.0);
        assert!(rounds <= 12 * draws * worlds, "{rounds} rounds for {} tokens", draws * worlds);
    }
}

/// Each rank's first message has its whole slice, and does not say so.
#[test]
fn ranks_without_further_tokens_end_the_choice() {
    let p = parameters(|p| (p.temperature, p.top_p) = (5.0, 0.01));
    let mut random = TestRandom(9);
    for position in 0..200 {
        let logits: Vec<f32> = (0..2 * CANDIDATES_FIRST).map(|_| random.logit(4.0)).collect();
        let chosen = draw(&mut Chooser::default(), &p, position, &[], &logits, &[CANDIDATES_FIRST, CANDIDATES_FIRST]);
        assert_eq!(chosen.id, reference(&p, position, &[], &logits));
    }
}

#[test]
fn samples_follow_the_softmax() {
    let logits: Vec<f32> = (0..24).map(|id| (id as f32 * 0.37).sin() * 2.0).collect();
    let p = parameters(|p| p.temperature = 0.9);
    let mut counts = vec![0_f64; logits.len()];
    let draws = 20_000;
    let mut chooser = Chooser::default();
    for position in 0..draws {
        counts[draw(&mut chooser, &p, position, &[], &logits, &[10, 14]).id as usize] += 1.0;
    }
    let total: f64 = logits.iter().map(|logit| (f64::from(*logit) / 0.9).exp()).sum();
    let chi_square: f64 = logits
        .iter()
        .zip(counts)
        .map(|(logit, count)| {
            let expected = f64::from(draws) * (f64::from(*logit) / 0.9).exp() / total;
            (count - expected).powi(2) / expected
        })
        .sum();
    // 23 degrees of freedom: 49.7 is exceeded once in a thousand.
    assert!(chi_square < 49.7, "{chi_square}");
}

#[test]
fn logprobs_cover_vocabulary_before_temperature_and_bias() {
    let mut random = TestRandom(5);
    let logits: Vec<f32> = (0..500).map(|_| random.logit(6.0)).collect();
    let p = parameters(|p| {
        (p.logprobs, p.temperature) = (5, 2.0);
        p.logit_bias = vec![(3, 100.0)];
    });
    let chosen = draw(&mut Chooser::default(), &p, 0, &[], &logits, &[100, 0, 400]);
    assert_eq!(chosen.id, 3);
    let normaliser: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
    assert_eq!(chosen.top_logprobs.len(), 6, "the sampled token is appended: it is not among the most probable");
    assert!(chosen.top_logprobs[..5].windows(2).all(|pair| pair[0].1 >= pair[1].1));
    for (id, logprob) in chosen.top_logprobs {
        let exact = f64::from(logits[id as usize]) - normaliser;
        assert!((f64::from(logprob) - exact).abs() < 1e-5, "{logprob} for {exact}");
    }
}

#[test]
fn nan_logits_are_errors_and_minus_infinity_is_never_sampled() {
    let p = parameters(|_| {});
    let mut slice = Slice::new(10);
    let good = slice.summary(&p, 0, &[], &[0.0, 1.0], None);
    for wrong in [f32::NAN, f32::INFINITY] {
        let broken = slice.summary(&p, 0, &[], &[0.0, wrong], None);
        let mut bytes = Vec::new();
        broken.encode(&mut bytes);
        let (broken, _) = Summary::decode(&bytes).expect("it crosses the network");
        let begun = Chooser::default().begin(0, &p, 0, [good.clone(), broken].iter());
        assert!(matches!(begun, Err(SampleError::NotANumber)), "{begun:?} of {wrong}");
    }
    for temperature in [1e-38, 1e-45] {
        let p = SamplingParameters { temperature, top_p: 0.9, ..parameters(|_| {}) };
        let mut bytes = Vec::new();
        slice.summary(&p, 0, &[], &[0.0, 30.0], None).encode(&mut bytes);
        let decoded = Summary::decode(&bytes).expect("no parameter may end an engine").0;
        assert!(matches!(Chooser::default().begin(0, &p, 0, [decoded].iter()), Err(SampleError::NotANumber)));
    }
    let none = slice.summary(&p, 0, &[], &[f32::NEG_INFINITY; 4], None);
    assert!(matches!(Chooser::default().begin(0, &p, 0, [none].iter()), Err(SampleError::NoToken)));
    let mut logits = vec![f32::NEG_INFINITY; 64];
    logits[17] = -3.0;
    for position in 0..50 {
        assert_eq!(draw(&mut Chooser::default(), &p, position, &[], &logits, &[16, 16, 32]).id, 17);
    }
}

#[test]
fn messages_cut_anywhere_are_errors() {
    let p = parameters(|p| (p.logprobs, p.top_k) = (20, 64));
    let logits: Vec<f32> = (0..100).map(|id| id as f32 * 0.1).collect();
    let mut slice = Slice::new(0);
    let mut summary = Vec::new();
    slice.summary(&p, 0, &[], &logits, None).encode(&mut summary);
    (0..summary.len()).for_each(|end| assert!(Summary::decode(&summary[..end]).is_err(), "cut at {end}"));
    let candidates = [(1.0, 2), (3.0, 4)].into_iter().collect();
    let queries = [
        Query::Ahead { place: 1, reference: 2.0, candidates },
        Query::More { place: 1, floor: -2.5 },
        Query::Best { place: 1, count: 9 },
    ];
    for query in queries {
        let mut bytes = Vec::new();
        query.encode(&mut bytes);
        assert_eq!(Query::decode(&bytes), Ok(query.clone()));
        (0..bytes.len()).for_each(|end| assert!(Query::decode(&bytes[..end]).is_err(), "{query:?} cut at {end}"));
        bytes.push(0);
        assert!(Query::decode(&bytes).is_err());
        let mut answer = Vec::new();
        slice.answer(&query).expect("it can be answered").encode(&mut answer);
        assert!(Answer::decode(&answer).is_ok());
        (0..answer.len()).for_each(|end| assert!(Answer::decode(&answer[..end]).is_err()));
    }
}
