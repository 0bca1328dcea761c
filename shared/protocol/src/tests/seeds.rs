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

use super::{Enums, Sampler, hex};
use crate::{
    handshake::{Hello, Welcome},
    kv::{KvRequest, KvResponse},
    message::{Beat, ModelCard, Request, Response, ResponseBody, decode, encode},
    pairing::{Adopt, Adopted},
};

/// Messages of a type. Each variant of the outermost enum comes this many times, with other variants inside.
const ROUNDS: u32 = 4;

/// A message for the fuzz target, checked here as far as this version wrote it.
fn seed<T: Serialize + DeserializeOwned>(name: &str, version: u16, value: &T) -> String {
    let bytes = speaking(version, || encode(value));
    let again = speaking(version, || decode::<T>(&bytes).map(|again| encode(&again)));
    if version == WIRE_HIGHEST {
        assert_eq!(again.as_ref(), Ok(&bytes), "{name}");
    }
    format!("{name} {version} {}\n", hex(&bytes))
}

fn seeds_of<T: Serialize + DeserializeOwned>(name: &str) -> String {
    let mut seeds = String::new();
    for version in [WIRE_LOWEST, WIRE_LOWEST + 6, WIRE_HIGHEST] {
        let rounds = if version == WIRE_HIGHEST { ROUNDS } else { 1 };
        let (mut number, mut count) = (0, 1);
        while number < count {
            let mut enums = Enums::new();
            let mut sampler = Sampler { known: &|_| None, number, outermost: None, count: 0, enums: &mut enums };
            let value = speaking(version, || T::deserialize(&mut sampler)).expect("every message type can be made");
            count = rounds * sampler.outermost.unwrap_or(1);
            seeds += &seed(name, version, &value);
            number += 1;
        }
    }
    seeds
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
        seeds += &seed("Response", WIRE_LOWEST, &card);
        seeds += &seed("Response", WIRE_HIGHEST, &card);
    }
    if let Some(path) = std::env::var_os("BRAMBLE_SEEDS") {
        std::fs::write(path, seeds).expect("the file can be written");
    }
}
