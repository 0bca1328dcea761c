//! Messages and frames cut at every byte and mutated: no panic, and no allocation of a size that was read from them.
use collectives::Choice;
use common::{
    chat::FinishReason,
    ids::{Epoch, LayerIndex, MemberIndex, ModelIdentity, Rank, RequestId, Slot, TopologyHash},
    latency::RequestTimes,
    precision::{Exchange, KvFormat},
    sampling::SamplingParameters,
    units::{Bytes, Nanoseconds},
};
use engine::{
    model::Batch,
    plan::{Limits, Opened, Plan, PlanEntry, Sequences},
};
use harness::random::Random;
use protocol::{
    frame::{FrameHeader, HEADER_BYTES},
    handshake::{self, Between, Hello, Identity, PREAMBLE_BYTES, Preamble, Purpose, Welcome},
    message::{
        self, Beat, Finished, Generate, ModelCard, Prepare, Previous, Request, RequestBody, Response, ResponseBody,
        TokenEvent, TokenLogprob,
    },
};
use serde::de::DeserializeOwned;
use telemetry::{Arrival, RankTotals, SyncKind, SyncRecord};
use topology::{
    Exclusions, KvBlocks, Layout, Member, StateCount, Topology,
    sizes::{ModelSizes, OlderSizes, Quantisation},
};

use crate::peak_of;

/// A list element of a few bytes on the wire becomes a structure of a hundred bytes in memory: memory must grow with
/// the bytes received, never with a number in them. Error texts add their own length.
const SPREAD: usize = 128;
/// Mutants per message.
const MUTANTS: usize = 10_000;

fn topology() -> Topology {
    Topology {
        layout: Layout::tensor_parallel(4),
        members: (0..4)
            .map(|index| Member {
                name: format!("pi{index}"),
                address: format!("127.0.0.{index}:9999"),
                weight: 1,
                layers: 0..6,
                cores: vec![0, 1],
                threads: 2,
                spin: true,
            })
            .collect(),
        model: "bard-q8_0.gguf".into(),
        identity: ModelIdentity([7; 32]),
        content: None,
        unload_after: None,
        draft: None,
        kv: KvFormat::F16,
        exchange: Exchange::Q80,
        collective: Choice::Auto,
        context_length: 512,
        slots: 4,
    }
}

fn identity() -> Identity {
    let (name, build, machine) = ("pi1".into(), "0.1.0".into(), "m".into());
    Identity { name, build, numeric: 1, machine, cores: vec![0, 1, 2, 3] }
}

/// Decodes every prefix and many mutants, and drops the results.
#[track_caller]
fn check(name: &str, bytes: &[u8], decode: impl Fn(&[u8])) {
    let mut random = Random::named(1, name);
    let try_one = |bytes: &[u8]| {
        let ((), peak) = peak_of(|| decode(bytes));
        let most = SPREAD * bytes.len() + 512;
        assert!(peak <= most, "{name}: {peak} bytes for a message of {}: {bytes:?}", bytes.len());
    };
    (0..=bytes.len()).for_each(|end| try_one(&bytes[..end]));
    for _ in 0..MUTANTS {
        let mut mutant = bytes.to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(mutant.len());
            match random.below(4) {
                0 => mutant[at] = 0xff,
                1 => mutant[at] = random.next_u64() as u8,
                2 => mutant[at] ^= 1 << random.below(8),
                _ => {
                    let end = (at + 5).min(mutant.len());
                    mutant[at..end].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f][..end - at]);
                }
            }
        }
        try_one(&mutant);
    }
}

fn decoded<T: DeserializeOwned>(bytes: &[u8]) {
    drop(message::decode::<T>(bytes));
}

#[test]
fn requests_and_responses_survive_cuts_and_mutants() {
    let id = RequestId(3);
    let prepare = Prepare {
        seen: Epoch(3),
        epoch: Epoch(4),
        topology: topology(),
        member: MemberIndex(1),
        desired: None,
        previous: Previous::Serves,
    };
    let sampling = SamplingParameters { logit_bias: vec![(3, 1.0); 4], ..SamplingParameters::default() };
    let generate = Generate::new("ROMEO:", 5, sampling, vec!["\n".into(); 3]);
    let mut out = Exclusions::default();
    (0..8).for_each(|node| out.say(&format!("n{node}"), "a", Some("x"), "b"));
    let generate = RequestBody::Generate(Box::new(generate));
    for body in [RequestBody::Prepare(Box::new(prepare)), generate, RequestBody::Exclude(out)] {
        check("request", &message::encode(&Request { id, body }), decoded::<Request>);
    }
    let logprob = TokenLogprob { id: 7, text: "x".into(), logprob: -1.0, bytes: Vec::new() };
    let token = TokenEvent { id: Some(7), text: "x".into(), logprobs: vec![logprob; 5] };
    let times = RequestTimes::default();
    let ranks = vec![RankTotals::default(); 4];
    let finished = Finished { reason: FinishReason::Stop, times, ranks, sampling_rounds: 0 };
    let record = SyncRecord {
        step: 300,
        enter: Nanoseconds(1 << 40),
        exit: Nanoseconds((1 << 40) + 600),
        layer: LayerIndex(3),
        kind: SyncKind::FeedForward,
        tokens: 64,
        compute: Nanoseconds(1 << 20),
        wait: Nanoseconds(300),
        wire: Nanoseconds(300),
        slowest: Rank(1),
        last: Rank(1),
        late: Nanoseconds(300),
        arrivals: vec![Arrival { rank: Rank(1), first: Nanoseconds(200), whole: Nanoseconds(600) }; 3],
    };
    let sizes = ModelSizes::known("llama-3.1-8b", Quantisation::Q4KM).expect("a known shape");
    let card = ModelCard {
        model: "m.gguf".into(),
        identity: ModelIdentity([7; 32]),
        size: Bytes(1 << 30),
        context_length: 4096,
        block_count: 22,
        embedding_length: 2048,
        head_count: 32,
        layer_bytes: vec![Bytes(1 << 24); 22],
        output_bytes: Bytes(1 << 25),
        older: OlderSizes::of(&sizes),
        sizes: Some(Box::new(sizes)),
    };
    let records = ResponseBody::Records(vec![record; 20]);
    for body in [ResponseBody::Token(token), ResponseBody::Finished(finished), records, ResponseBody::Model(card)] {
        check("response", &message::encode(&Response { id, body }), decoded::<Response>);
    }
    let (sent, echo) = (Nanoseconds(1 << 40), Some((Nanoseconds(1 << 40), Nanoseconds(1 << 41))));
    let beat =
        Beat { progress: 5, busy: true, waiting: false, draining: false, leaving: false, failed: None, sent, echo };
    check("beat", &message::encode(&beat), decoded::<Beat>);
}

#[test]
fn handshakes_and_frame_headers_survive_cuts_and_mutants() {
    let between = Between { epoch: Epoch(4), hash: TopologyHash(5), from: MemberIndex(0), to: MemberIndex(1) };
    let hello = Hello { identity: identity(), purpose: Purpose::Data(between) };
    check("hello", &handshake::encode(&hello)[4..], |bytes| drop(handshake::decode::<Hello>(bytes)));
    let welcome = handshake::encode(&Welcome::Accepted(identity()));
    check("welcome", &welcome[4..], |bytes| drop(handshake::decode::<Welcome>(bytes)));
    check("preamble", &Preamble::OWN.encode(), |bytes| {
        if let Some(bytes) = bytes.first_chunk::<PREAMBLE_BYTES>() {
            drop(Preamble::decode(*bytes).map(Preamble::agree));
        }
    });
    check("frame header", &[1; HEADER_BYTES], |bytes| {
        if let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() {
            let _ = FrameHeader::decode(bytes);
        }
    });
}

#[test]
fn plans_survive_cuts_and_mutants_and_stay_within_limits() {
    let limits = Limits {
        slots: 4,
        blocks: KvBlocks::alike(16),
        window: Some(40),
        context_length: 512,
        vocabulary_length: 2048,
        states: StateCount::NONE,
    };
    let (slot, sampling) = (Slot(1), SamplingParameters::default());
    let opened = Opened { slot, sampling, cached: 0, prompt: vec![1, 2, 3, 4], grammar: None };
    let plan = Plan {
        continues: false,
        is_prefill: true,
        prepares: false,
        opened: vec![opened],
        closed: Vec::new(),
        blocks: vec![(Slot(1), 0)],
        windowed: vec![(Slot(1), 0, 5)],
        states: Vec::new(),
        copies: vec![(3, 0)],
        entries: (0..4)
            .map(|position| PlanEntry { slot: Slot(1), position, token: position + 1, wants_logits: position == 3 })
            .collect(),
    };
    let mut bytes = Vec::new();
    plan.encode(&mut bytes);
    check("plan", &bytes, |bytes| drop(Plan::default().decode(bytes)));
    let mut random = Random::new(2);
    for _ in 0..MUTANTS {
        let mut mutant = bytes.clone();
        let at = random.below(mutant.len());
        mutant[at] = random.next_u64() as u8;
        let mut sequences = Sequences::new(limits);
        let mut plan = Plan::default();
        if plan.decode(&mutant).is_ok() && sequences.apply(&plan).is_ok() {
            let Batch { tokens, tables } = sequences.batch();
            for token in tokens {
                assert!((token.token as usize) < limits.vocabulary_length);
                assert!((token.position as usize) < limits.context_length);
                for tables in [tables.whole, tables.windowed] {
                    let blocks = &tables[token.slot.index()][..=token.position as usize / 32];
                    assert!(blocks.iter().all(|block| (*block as usize) < limits.blocks.whole));
                }
            }
        }
    }
}
