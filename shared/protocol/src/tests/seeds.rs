//! Messages as seeds of `fuzz/fuzz_targets/messages.rs`: each type in each wire version, and models of every family.
use common::{
    ids::RequestId,
    version::{WIRE_HIGHEST, WIRE_LOWEST, speaking},
};
use gguf::BlockFormat;
use models::{
    TensorSpec,
    known::{KnownModel, MODELS},
};
use serde::{Serialize, de::DeserializeOwned};
use topology::sizes::{ModelSizes, older::OlderSizes};

use super::{Enums, hex, samples_of};
use crate::{
    handshake::{Hello, Welcome},
    kv::{KvRequest, KvResponse},
    message::{Beat, ModelCard, Request, Response, ResponseBody, decode, encode},
    pairing::{Adopt, Adopted},
};

/// Wire versions of the seeds, each with the rounds of samples.
const VERSIONS: [(u16, u32); 3] = [(WIRE_LOWEST, 1), (WIRE_LOWEST + 6, 1), (WIRE_HIGHEST, 4)];

fn seeds_of<T: Serialize + DeserializeOwned>(name: &str) -> String {
    let mut seeds = String::new();
    for (version, rounds) in VERSIONS {
        for sample in samples_of::<T>(version, name, rounds, &mut Enums::new()) {
            seeds += &line(name, version, &sample.bytes);
        }
    }
    seeds
}

fn line(name: &str, version: u16, bytes: &[u8]) -> String {
    format!("{name} {version} {}\n", hex(bytes))
}

/// A response with a model.
fn card(known: &KnownModel) -> Response {
    let spec = known.spec();
    // Each format once, in turns.
    let mut formats = BlockFormat::ALL.into_iter().cycle();
    let mut format = |tensor: TensorSpec| formats.next().filter(|_| !tensor.is_optional);
    let sizes = ModelSizes {
        name: known.name.into(),
        layers: (0..spec.block_count())
            .map(|layer| spec.layer_tensors(layer).into_iter().map(&mut format).collect())
            .collect(),
        outside: spec.tensors().into_iter().map(format).collect(),
        spec,
    };
    let card = ModelCard {
        model: known.name.into(),
        identity: Default::default(),
        size: Default::default(),
        context_length: 512,
        block_count: known.block_count as u32,
        embedding_length: known.embedding_length as u32,
        head_count: known.head_count as u32,
        layer_bytes: Vec::new(),
        output_bytes: Default::default(),
        older: OlderSizes::of(&sizes),
        sizes: Some(Box::new(sizes)),
    };
    Response { id: RequestId(1), body: ResponseBody::Model(card) }
}

/// `fuzz/seeds.py` names a file for them.
#[test]
fn messages_of_every_variant_and_model_survive_the_wire() {
    let mut seeds = String::new();
    macro_rules! add {
        ($($kind:ident),*) => { $(seeds += &seeds_of::<$kind>(stringify!($kind));)* };
    }
    add!(Hello, Welcome, Request, Response, Beat, KvRequest, KvResponse, Adopt, Adopted);
    for known in MODELS {
        let card = card(known);
        for version in [WIRE_LOWEST, WIRE_HIGHEST] {
            let bytes = speaking(version, || encode(&card));
            let again: Response = speaking(version, || decode(&bytes)).expect("a model survives the wire");
            assert_eq!(speaking(version, || encode(&again)), bytes, "{}", known.name);
            seeds += &line("Response", version, &bytes);
        }
    }
    if let Some(path) = std::env::var_os("BRAMBLE_SEEDS") {
        std::fs::write(path, seeds).expect("the file can be written");
    }
}
