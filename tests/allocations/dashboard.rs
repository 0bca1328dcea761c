//! Size of the dashboard's state after an hour with sixteen nodes that report four times a second: all its histories
//! must be bounded.
use std::time::Duration;

use assignment::fixtures::idle_report;
use collectives::Choice;
use common::{
    ids::{Epoch, LayerIndex, MemberIndex, ModelIdentity, Rank},
    precision::{Exchange, KvFormat},
    sampling::SamplingParameters,
    units::{Bytes, Celsius, Nanoseconds},
};
use console::{
    state::{GenerateDefaults, State},
    update::{
        event::{ClientEvent, Event},
        update,
    },
};
use protocol::handshake::Identity;
use telemetry::{
    Health, Lateness, LayerSync, NodeReport, NodeState, RequestReport, RequestStage, SyncKind, health::ThrottleBits,
};
use topology::{Layout, Member, Topology};

const NODES: usize = 16;
const LAYERS: u32 = 32;
const REPORTS_PER_SECOND: u64 = 4;

fn topology() -> Topology {
    Topology {
        layout: Layout::tensor_parallel(NODES as u16),
        members: (0..NODES)
            .map(|node| Member {
                name: format!("pi{node}"),
                address: address(node),
                weight: 1,
                layers: 0..LAYERS,
                cores: Vec::new(),
                threads: 1,
                spin: false,
            })
            .collect(),
        model: "m.gguf".into(),
        identity: ModelIdentity::default(),
        content: None,
        unload_after: None,
        draft: None,
        kv: KvFormat::F16,
        exchange: Exchange::F32,
        collective: Choice::Auto,
        context_length: 512,
        slots: 4,
    }
}

fn address(node: usize) -> String {
    format!("10.0.0.{}:9999", node + 1)
}

fn layer(number: u64, layer: u32) -> LayerSync {
    let time = |scale: u64| Nanoseconds(scale * (1000 + number % 700));
    LayerSync {
        layer: LayerIndex(layer),
        kind: SyncKind::Attention,
        count: 12,
        p50: time(1),
        p95: time(2),
        p99: time(3),
        compute: time(4),
        wait: time(2),
        wire: time(1),
        slowest: Rank((number % NODES as u64) as u16),
    }
}

/// The `number`-th report of a node. Everything keeps changing: figures, findings that come and go, requests that end.
fn report(topology: &Topology, node: usize, number: u64) -> NodeReport {
    let health = Health {
        temperature: Some(Celsius(50.0 + (number % 40) as f32)),
        firmware: Some(ThrottleBits(if number / 40 % 2 == node as u64 % 2 { 0 } else { 0x5_0005 })),
        ..Health::default()
    };
    NodeReport {
        instance: 1 + number / 5000,
        recovers: true,
        unix_ms: 250 * number,
        build: "0.1.0".into(),
        kernels: "neon".into(),
        state: if (number / 100).is_multiple_of(2) { NodeState::Ready } else { NodeState::Serving },
        epoch: Epoch(3),
        topology: Some((topology.clone(), topology.hash(), MemberIndex(node as u16))),
        shard: Bytes(1 << 30),
        memory_resident: Bytes(1 << 30),
        health,
        requests: 1,
        traces: if node == 0 {
            (0..3)
                .map(|back| RequestReport {
                    number: number / 2 + 2 - back,
                    by: "ann@desk".into(),
                    stage: if back == 0 { RequestStage::Decoding } else { RequestStage::Abandoned },
                    age_ms: 250 * back,
                    prompt_tokens: 7,
                    tokens: 3,
                    max_tokens: 64,
                })
                .collect()
        } else {
            Vec::new()
        },
        tokens: 5 * number,
        layers: (0..LAYERS).map(|index| layer(number, index)).collect(),
        lateness: vec![Lateness {
            rank: Rank(3),
            count: 5,
            time: Nanoseconds(1000 * (number % 50)),
            heard: 7,
            first: Nanoseconds(900 * (number % 50)),
            way: Nanoseconds(700),
        }],
        ..idle_report(&format!("pi{node}"))
    }
}

fn defaults() -> GenerateDefaults {
    GenerateDefaults { max_tokens: 64, sampling: SamplingParameters::default(), stop: Vec::new() }
}

fn held() -> isize {
    crate::HELD.with(|held| held.get()[0])
}

#[test]
fn dashboard_is_as_large_after_an_hour_as_after_ten_minutes() {
    let addresses: Vec<String> = (0..NODES).map(address).collect();
    let before = held();
    let (topology, mut state) = (topology(), State::new(&addresses, None, "", defaults()));
    for node in 0..NODES {
        let (name, build, machine) = (format!("pi{node}"), "0.1.0".into(), "one".into());
        let identity = Identity { name, build, numeric: 1, machine, cores: Vec::new() };
        update(&mut state, Event::Client(ClientEvent::Connected { node, identity }));
    }
    let play = |state: &mut State, minutes: std::ops::Range<u64>| {
        for number in minutes.start * 60 * REPORTS_PER_SECOND..minutes.end * 60 * REPORTS_PER_SECOND {
            update(state, Event::Tick { now: Duration::from_millis(1000 / REPORTS_PER_SECOND * number) });
            for node in 0..NODES {
                let report = Box::new(report(&topology, node, number));
                update(state, Event::Client(ClientEvent::Report { node, report }));
            }
        }
        held() - before
    };
    let early = play(&mut state, 0..10);
    let late = play(&mut state, 10..60);
    println!("{} kB after ten minutes, {} kB after an hour", early / 1000, late / 1000);
    assert!(late <= early + early / 20, "{early} bytes became {late}");
    assert!(late < 64 << 20, "{late} bytes");
}
