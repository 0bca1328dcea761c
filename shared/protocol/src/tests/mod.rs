//! Golden bytes of wire version 4, release 0.1: this build must write the committed bytes to such a peer and read them
//! from it.
mod sampler;
mod seeds;

use std::{collections::BTreeMap, fmt::Write, fs, path::PathBuf};

use collectives::{Algorithm, Choice};
use common::{
    changes::TemplateChanges,
    chat::{AnswerForm, FinishReason, Grammar, Thinking, ToolFormat},
    fault::{Fault, FaultKind, Loss, SealError},
    older::{VARIANTS_4, unknown},
    version::{WIRE_HIGHEST, speaking},
};
use common::{
    ids::RequestId,
    precision::{Exchange, KvFormat},
};
use gguf::BlockFormat;
use serde::{Serialize, de::DeserializeOwned};
use telemetry::{BenchFound, BenchProgress, NodeReport, NodeState, SyncKind, health::Storage, request::RequestStage};
use topology::{Role, Topology, rolling::Phase, sizes::older::Architecture};

use self::sampler::{Enums, Sampler};
use super::{
    across::Across,
    bench::Bench,
    handshake::{Hello, Purpose, Welcome},
    inspect::{Inspect, Inspected, LogLevel},
    message::{Beat, Generate, Prompt, Request, RequestBody, Response, ResponseBody, decode, encode},
    models::{FileState, ModelsRequest, ModelsResponse, Step},
    pairing::{Adopt, Adopted},
    recovery::{RecoveryAnswer, RecoveryAsk, VoteReply},
    texts::{TextRequest, TextResponse},
};

/// One message.
struct Sample {
    name: String,
    bytes: Vec<u8>,
    /// Its bytes after decoding and encoding it again.
    again: Vec<u8>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/wire-4")
}

/// A message for each variant of a type's outermost enum, as a peer of this version writes it; in further rounds with other
/// variants inside.
fn samples_of<T: Serialize + DeserializeOwned>(
    version: u16,
    name: &str,
    rounds: u32,
    enums: &mut Enums,
) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut count = 1;
    while samples.len() < count as usize {
        let number = samples.len() as u32;
        let known =
            &|name: &str| VARIANTS_4.iter().find(|(known, _)| version == 4 && *known == name).map(|(_, count)| *count);
        let mut sampler = Sampler { known, number, outermost: None, count: 0, enums };
        let value = speaking(version, || T::deserialize(&mut sampler)).expect("every message type can be made");
        count = rounds * sampler.outermost.unwrap_or(1);
        let bytes = speaking(version, || encode(&value));
        let again: T = speaking(version, || decode(&bytes)).unwrap_or_else(|error| panic!("{name} {number}: {error}"));
        let again = speaking(version, || encode(&again));
        samples.push(Sample { name: format!("{name} {number}"), bytes, again });
    }
    samples
}

fn samples(version: u16) -> (Vec<Sample>, Enums) {
    let (mut samples, mut enums) = (Vec::new(), Enums::new());
    macro_rules! add {
        ($($kind:ident),*) => { $(samples.extend(samples_of::<$kind>(version, stringify!($kind), 1, &mut enums));)* };
    }
    // Every message type after the preambles, and every enum within.
    add!(
        Hello,
        Welcome,
        Request,
        Response,
        Beat,
        Across,
        Adopt,
        Adopted,
        Fault,
        SealError,
        Loss,
        Generate,
        Prompt,
        Grammar,
        RecoveryAsk,
        RecoveryAnswer,
        VoteReply,
        Topology,
        ModelsRequest,
        ModelsResponse,
        FileState,
        Inspect,
        Inspected,
        LogLevel,
        Bench,
        BenchProgress,
        BenchFound,
        NodeReport,
        NodeState,
        RequestStage,
        FaultKind,
        Purpose,
        FinishReason,
        ToolFormat,
        Step,
        Architecture,
        BlockFormat,
        Algorithm,
        Choice,
        Exchange,
        KvFormat,
        Role,
        Phase,
        Storage,
        SyncKind
    );
    (samples, enums)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name)).expect("the bytes of version 4 are committed")
}

#[test]
fn version_4_has_its_golden_bytes_both_ways() {
    let (samples, _) = samples(4);
    let golden = read("messages.txt");
    let golden: BTreeMap<&str, &str> = golden.lines().filter_map(|line| line.rsplit_once(' ')).collect();
    assert_eq!(golden.len(), samples.len(), "a message was added or left out");
    for Sample { name, bytes, again } in &samples {
        let expected = golden.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no golden bytes"));
        assert_eq!(&hex(bytes), expected, "{name} as a peer of version 4 gets it");
        assert_eq!(&hex(again), expected, "{name} as a peer of version 4 sent it");
    }
}

#[test]
fn samples_show_every_variant_of_version_4() {
    let (_, enums) = samples(4);
    let golden = read("enums.txt");
    let golden: BTreeMap<&str, Vec<&str>> = golden
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, variants)| (name, variants.split(' ').collect()))
        .collect();
    let counted: Vec<(&str, u32)> = golden.iter().map(|(name, variants)| (*name, variants.len() as u32)).collect();
    assert_eq!(counted, VARIANTS_4, "the table that protects older peers");
    assert_eq!(golden.keys().copied().collect::<Vec<_>>(), enums.keys().map(String::as_str).collect::<Vec<_>>());
    for (name, met) in &enums {
        let known = &golden[name.as_str()];
        assert_eq!(&met.variants[..known.len()], known, "{name}: later variants come after those of version 4");
        assert_eq!(met.made.len(), known.len(), "{name}: variants {:?} were made", met.made);
    }
}

#[test]
fn every_message_of_the_highest_version_survives_the_wire() {
    let (samples, enums) = samples(WIRE_HIGHEST);
    for Sample { name, bytes, again } in &samples {
        assert_eq!(hex(bytes), hex(again), "{name}");
    }
    assert!(enums.len() >= VARIANTS_4.len());
}

#[test]
fn newer_fault_reaches_version_4_as_a_general_fault() {
    let known = VARIANTS_4.iter().find(|(name, _)| *name == "FaultKind").expect("faults travel").1 as usize;
    let mut enums = Enums::new();
    // Faults as this version has them, one of each kind.
    let faults: Vec<Fault> = samples_of::<Fault>(WIRE_HIGHEST, "Fault", 1, &mut enums)
        .iter()
        .map(|sample| decode(&sample.bytes).expect("it was encoded so"))
        .collect();
    assert!(faults.len() > known, "there are later ones");
    let nested = [Fault::new("pi1", FaultKind::Seal { error: SealError::Damaged })];
    for fault in faults[known..].iter().chain(&nested) {
        let body = ResponseBody::Failed(fault.clone());
        assert_eq!(unknown(4, &body), None, "a fault can always be sent");
        let response = Response { id: RequestId(1), body };
        let bytes = speaking(4, || encode(&response));
        assert!(bytes[3 + fault.node.len()] < known as u8, "{fault}: a kind of version 4");
        let ResponseBody::Failed(told) = speaking(4, || decode::<Response>(&bytes)).expect("it can be read").body
        else {
            panic!("a fault")
        };
        assert_eq!((&told.node, told.kind.class()), (&fault.node, fault.kind.class()), "{fault}");
        assert!(told.to_string().contains(&fault.kind.to_string()), "{told}");
    }
}

#[test]
fn newer_format_of_tool_calls_reaches_version_4_as_none() {
    let form = AnswerForm {
        tool_format: ToolFormat::Xml,
        thinking: Thinking::Open,
        thought_end: vec![1],
        has_own_calls: true,
    };
    let body = ResponseBody::Started { prompt_token_ids: vec![1], form, changes: TemplateChanges::CALLS_AS_TEXT };
    assert_eq!(unknown(4, &body), None);
    let response = Response { id: RequestId(1), body };
    let there: Response = speaking(4, || decode(&encode(&response))).expect("version 4 reads it");
    let ResponseBody::Started { form, .. } = there.body else { panic!("another message") };
    assert_eq!(form, AnswerForm::default());
}

#[test]
fn changes_of_a_conversation_reach_version_16_and_no_older_one() {
    let changes = [TemplateChanges::default(), TemplateChanges::CALLS_AS_TEXT];
    let [none, some] = changes.map(|changes| {
        let started = ResponseBody::Started { prompt_token_ids: vec![1], form: AnswerForm::default(), changes };
        let text = ResponseBody::Text(Box::new(TextResponse::Text { text: "a".into(), changes }));
        [started, text].map(|body| Response { id: RequestId(1), body })
    });
    for (none, some) in none.iter().zip(&some) {
        let [older, newer] = [15, 16].map(|version| speaking(version, || encode(some)));
        assert_eq!((speaking(15, || encode(none)), newer.len()), (older.clone(), older.len() + 1));
        assert_eq!(speaking(15, || decode::<Response>(&older)).as_ref(), Ok(none));
        assert_eq!(speaking(16, || decode::<Response>(&newer)).as_ref(), Ok(some));
    }
    // As before that version.
    let text = TextResponse::Text { text: "a".into(), changes: TemplateChanges::CALLS_AS_TEXT };
    assert_eq!(speaking(15, || encode(&text)), [1, 1, b'a']);
}

#[test]
fn question_about_texts_is_not_sent_to_version_10() {
    let question = RequestBody::Text(Box::new(TextRequest::Describe));
    assert_eq!(unknown(10, &question), Some("RequestBody::Text".into()));
    assert_eq!(unknown(WIRE_HIGHEST, &question), None);
}

#[test]
fn message_unknown_to_version_4_is_named() {
    let reset = RequestStage::Failed(Box::new(Fault::new("pi1", FaultKind::NodeLost { how: Loss::Reset })));
    assert_eq!(unknown(4, &reset), None);
    assert_eq!(unknown(4, &[Some(SealError::Forged), Some(SealError::Damaged)]), Some("SealError::Damaged".into()));
    assert_eq!(unknown(WIRE_HIGHEST, &SealError::Damaged), None);
    // A later field is not sent, so nothing in it is unknown.
    let mut generate = Generate::new("x", 1, common::sampling::SamplingParameters::default(), Vec::new());
    generate.model = Some(Box::default());
    let body = RequestBody::Generate(Box::new(generate));
    assert_eq!(unknown(4, &body), None);
    let request = Request { id: RequestId(1), body };
    let there: Request = speaking(4, || decode(&encode(&request))).expect("version 4 reads it");
    assert!(matches!(there.body, RequestBody::Generate(generate) if generate.model.is_none()));
}
