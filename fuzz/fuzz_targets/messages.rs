//! Messages of sessions in every wire version: requests, responses, heartbeats, pairing. What is decoded is checked as a
//! node checks it, and survives the wire once more.
#![no_main]
use bramble_fuzz::{cut::Input, memory::bounded};
use common::version::{WIRE_HIGHEST, WIRE_LOWEST, speaking};
use libfuzzer_sys::fuzz_target;
use protocol::{
    handshake::{Hello, Welcome},
    kv::{KvRequest, KvResponse},
    message::{Beat, Request, RequestBody, Response, ResponseBody, decode, encode, encoded_length},
    pairing::{Adopt, Adopted},
    recovery::{Committed, RecoveryAsk},
};
use serde::{Serialize, de::DeserializeOwned};
use topology::Topology;

/// A message by type and version, and once more.
fn round_trip<T: Serialize + DeserializeOwned>(version: u16, body: &[u8]) -> Option<T> {
    // A list of small structures takes more memory than bytes, and each list of unknown length reserves up to 1 MiB.
    let decoded = bounded(64 * body.len() + (8 << 20), || speaking(version, || decode::<T>(body)));
    let message = decoded.ok()?;
    speaking(version, || {
        // Strings of other bytes than UTF-8 and unknown variants are refused: the rest has one canonical form.
        let bytes = encode(&message);
        assert_eq!(encoded_length(&message), bytes.len());
        let again = decode::<T>(&bytes).expect("an encoded message is decoded");
        assert_eq!(encode(&again), bytes, "a message survives the wire");
    });
    Some(message)
}

fn check_topology(topology: &Topology) {
    let _ = (topology.hash(), topology.roots());
    if topology.check().is_err() {
        return;
    }
    let layout = topology.layout;
    assert_eq!(layout.node_count(), topology.members.len(), "a checked topology has a member for each place");
    for replica in 0..layout.replicas {
        let stages = topology.stages(replica);
        assert_eq!(topology.replica(replica).len(), stages.iter().map(|(_, ranks)| ranks.len()).sum::<usize>());
    }
    for member in 0..topology.members.len() as u16 {
        let place = topology.place(common::ids::MemberIndex(member));
        let _ = (place.leader(), place.before(), place.next(), place.sampler(), place.later_leaders().count());
        let _ = (place.is_head(), place.is_last_stage(), place.step_tokens());
    }
    let _ = (topology.kv_blocks(None), topology.kv_blocks(Some(4096)), topology.block_count());
    let _ = (topology.is_alike(topology), layout.to_string(), layout.heads().count());
    let shown: Result<topology::Layout, _> = layout.to_string().parse();
    let _ = shown.map(|shown| shown.on(topology.members.len()));
}

fn check_committed(committed: &Committed) {
    check_topology(&committed.topology);
    check_topology(committed.desired());
}

fn check_request(request: &Request) {
    let _ = request.body.name();
    match &request.body {
        RequestBody::Prepare(prepare) => {
            check_topology(&prepare.topology);
            prepare.desired.iter().for_each(|desired| check_topology(desired));
        }
        RequestBody::Generate(generate) => {
            let _ = (generate.sampling.check(), generate.prompt.byte_count(), generate.prompt.text().is_some());
        }
        RequestBody::Exclude(list) => {
            if list.check().is_ok() {
                let mut other = list.clone();
                let _ = (list.check_after(list), other.merge(list), list.out().count());
                assert_eq!(&other, list, "a list merged with itself is the same");
            }
        }
        RequestBody::Bench(bench) => drop(bench.check()),
        RequestBody::BenchLinks(bench) => drop(bench.check()),
        RequestBody::Recovery(ask) => match &**ask {
            RecoveryAsk::Learn(committed) | RecoveryAsk::Recall(committed) => check_committed(committed),
            RecoveryAsk::Vote(vote) => {
                check_committed(&vote.base);
                vote.next.iter().for_each(check_committed);
            }
            RecoveryAsk::Rolling(rolling) => {
                if rolling.check().is_ok() {
                    let _ = (rolling.target(), rolling.is_running(), rolling.advanced(), rolling.begun(1));
                }
            }
            _ => {}
        },
        RequestBody::Models(models) => {
            let _ = (models.is_reading(), models.goes_on(), models.name());
        }
        RequestBody::Text(text) => assert!(text.byte_count() < 1 << 40),
        _ => {}
    }
}

fn check_response(response: &Response) {
    match &response.body {
        ResponseBody::Model(card) => {
            if let Ok(sizes) = card.sizes() {
                assert!(sizes.is_sound());
                for ranks in 1..3 {
                    let _ = topology::cut(&sizes.spec, &vec![1; ranks]);
                }
            }
        }
        ResponseBody::Report(report) => {
            report.topology.iter().for_each(|(topology, _, _)| check_topology(topology));
            report.desired.iter().for_each(|desired| check_topology(desired));
        }
        ResponseBody::Failed(fault) => assert!(!fault.to_string().is_empty()),
        _ => {}
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (which, version) = (input.byte(), input.byte());
    let version = WIRE_LOWEST + u16::from(version) % (WIRE_HIGHEST - WIRE_LOWEST + 1);
    let body = input.0;
    match which % 10 {
        0..=2 => drop(round_trip::<Request>(version, body).inspect(check_request)),
        3..=5 => drop(round_trip::<Response>(version, body).inspect(check_response)),
        6 => drop(round_trip::<Hello>(version, body).map(|hello| hello.identity.check())),
        7 => drop(round_trip::<Welcome>(version, body)),
        8 => drop((round_trip::<Beat>(version, body), round_trip::<KvRequest>(version, body))),
        _ => {
            drop((round_trip::<Adopt>(version, body), round_trip::<Adopted>(version, body)));
            drop(round_trip::<KvResponse>(version, body));
        }
    }
});
