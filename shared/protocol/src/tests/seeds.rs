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
    message::{Beat, ModelCard, Request, Response, ResponseBody, encode},
    pairing::{Adopt, Adopted},
};

/// Messages of a type. Each variant of the outermost enum comes this many times, with other variants inside.
const ROUNDS: u32 = 4;

fn print(name: &str, version: u16, value: &impl Serialize) {
    println!("seed {name} {version} {}", hex(&speaking(version, || encode(value))));
}

fn print_type<T: Serialize + DeserializeOwned>(name: &str) {
    for version in [WIRE_LOWEST, WIRE_LOWEST + 6, WIRE_HIGHEST] {
        let rounds = if version == WIRE_HIGHEST { ROUNDS } else { 1 };
        let (mut number, mut count) = (0, 1);
        while number < count {
            let mut enums = Enums::new();
            let known = &|_: &str| None;
            let mut sampler = Sampler { known, number, outermost: None, count: 0, enums: &mut enums };
            let value = speaking(version, || T::deserialize(&mut sampler)).expect("every message type can be made");
            count = rounds * sampler.outermost.unwrap_or(1);
            print(name, version, &value);
            number += 1;
        }
    }
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

#[test]
#[ignore = "prints what fuzz/seeds.py reads"]
fn print_seeds() {
    macro_rules! print_types {
        ($($kind:ident),*) => { $(print_type::<$kind>(stringify!($kind));)* };
    }
    print_types!(Hello, Welcome, Request, Response, Beat, KvRequest, KvResponse, Adopt, Adopted);
    for known in MODELS {
        let card = card(known);
        for version in [WIRE_LOWEST, WIRE_HIGHEST] {
            print("Response", version, &card);
        }
    }
}
