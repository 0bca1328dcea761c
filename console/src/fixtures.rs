//! A cluster for tests, built by sending events to the state, as a real cluster does.
use std::time::Duration;

use assignment::fixtures::idle_report;
pub(crate) use assignment::fixtures::{card, sizes, topology, wanted};
use common::{
    chat::FinishReason,
    fault::{Fault, FaultKind, Loss},
    ids::{Epoch, LayerIndex, MemberIndex, Rank},
    latency::RequestTimes,
    sampling::SamplingParameters,
    units::{Bytes, Celsius, Megahertz, Nanoseconds},
};
use protocol::{
    handshake::Identity,
    message::{Finished, TokenEvent},
};
use telemetry::{
    Health, Lateness, LayerSync, LoadProgress, NodeReport, NodeState, PhaseTotals, RankTotals, RequestReport,
    RequestStage, SyncKind,
    health::{Clock, LoadByOthers, MemoryUse, NetworkLink, RunQueue, ThrottleBits},
};
use topology::Exclusions;

use crate::{
    keymap::{Key, KeyCode},
    state::{Extent, GenerateDefaults, State},
    update::effect::Effect,
    update::event::{AssignEvent, ClientEvent, Event, GenerateEvent},
    update::update,
};

/// Number of nodes.
pub(crate) const NODES: usize = 4;
/// Number of layers of the model.
pub(crate) const LAYERS: u32 = 6;

/// A state with four nodes and a requested topology.
pub(crate) struct Story {
    /// The state.
    pub(crate) state: State,
    /// Effects of all events so far, without rendered frames.
    pub(crate) effects: Vec<Effect>,
}

impl Story {
    /// The start: `tp4` is requested, and the prompt box has a text.
    pub(crate) fn begin() -> Self {
        let addresses: Vec<String> = (0..NODES).map(address).collect();
        Self::with(State::new(&addresses, Some(wanted()), "ROMEO:", defaults()))
    }

    /// Starts from this state.
    pub(crate) fn with(mut state: State) -> Self {
        state.screen.extent = Extent {
            text_lines: 9,
            text_height: 3,
            layers_height: 2,
            sync_rows: 12,
            sync_height: 5,
            help_lines: 9,
            help_height: 3,
            table_height: 3,
            ..Extent::default()
        };
        Self { state, effects: Vec::new() }
    }

    /// Sends an event.
    pub(crate) fn on(&mut self, event: Event) -> &mut Self {
        let effects = update(&mut self.state, event);
        self.effects.extend(effects.into_iter().filter(|effect| *effect != Effect::Draw));
        self
    }

    pub(crate) fn key(&mut self, code: KeyCode) -> &mut Self {
        self.on(Event::Key(Key::plain(code)))
    }

    pub(crate) fn arrives(&mut self, event: ClientEvent) -> &mut Self {
        self.on(Event::Client(event))
    }

    pub(crate) fn generate(&mut self, event: GenerateEvent) -> &mut Self {
        self.arrives(ClientEvent::Generate(event))
    }

    /// Advances the time to this many milliseconds after the start.
    pub(crate) fn at(&mut self, milliseconds: u64) -> &mut Self {
        self.on(Event::Tick { now: Duration::from_millis(milliseconds) })
    }

    pub(crate) fn connected(&mut self, node: usize) -> &mut Self {
        self.arrives(ClientEvent::Connected { node, identity: identity(node) })
    }

    pub(crate) fn report(&mut self, node: usize, report: NodeReport) -> &mut Self {
        self.arrives(ClientEvent::Report { node, report: Box::new(report) })
    }

    /// All nodes connect and are idle.
    pub(crate) fn all_connected(&mut self) -> &mut Self {
        for node in 0..NODES {
            self.connected(node).report(node, idle(node));
        }
        self
    }

    /// All nodes load, the first ones fastest.
    pub(crate) fn all_loading(&mut self) -> &mut Self {
        for node in 0..NODES {
            let progress = LoadProgress { done: Bytes((NODES - node) as u64 * (2 << 20)), total: Bytes(10 << 20) };
            self.arrives(ClientEvent::Assign(AssignEvent::Loading { node, progress }));
        }
        self
    }

    /// The topology runs.
    pub(crate) fn running(&mut self) -> &mut Self {
        let topology = Box::new(topology());
        self.arrives(ClientEvent::Assign(AssignEvent::Running { epoch: Epoch(3), topology, reused: false }));
        self.all_report(NodeState::Ready, false)
    }

    pub(crate) fn all_report(&mut self, state: NodeState, with_layers: bool) -> &mut Self {
        for node in 0..NODES {
            self.report(node, running(node, state, with_layers));
        }
        self
    }

    /// The cluster is ready for a prompt.
    pub(crate) fn ready() -> Self {
        let mut story = Self::begin();
        story.at(10).all_connected().all_loading().running();
        story
    }

    /// The prompt has been sent and tokens arrive.
    pub(crate) fn generating() -> Self {
        let mut story = Self::ready();
        story.at(1000).key(KeyCode::Enter);
        story.generate(GenerateEvent::Started { prompt_token_ids: vec![1, 2, 3, 4] }).at(1040);
        for (index, word) in VERSE.split_inclusive(' ').enumerate() {
            story.at(1100 + 20 * index as u64).token(word);
        }
        story.all_report(NodeState::Serving, true);
        story
    }

    pub(crate) fn token(&mut self, text: &str) -> &mut Self {
        self.generate(GenerateEvent::Token(TokenEvent { id: Some(7), text: text.into(), logprobs: Vec::new() }))
    }

    /// The generation has finished.
    pub(crate) fn finished() -> Self {
        let mut story = Self::generating();
        story.generate(GenerateEvent::Finished(Box::new(finished()))).all_report(NodeState::Ready, false);
        story
    }

    /// A node was lost while tokens arrived.
    pub(crate) fn lost() -> Self {
        let mut story = Self::generating();
        let reason = "reset by peer".to_owned();
        let fault = Fault::new("pi2", FaultKind::SessionLost { reason });
        story.arrives(ClientEvent::Disconnected { node: 2, fault });
        story.generate(GenerateEvent::Failed(lost_fault()));
        for node in [0, 1, 3] {
            let fault = Some(lost_fault());
            story.report(node, NodeReport { fault, ..running(node, NodeState::Faulted, false) });
        }
        story
    }
}

impl Story {
    /// A degraded cluster while text is generated: pi1 is throttled, pi2 is the straggler, pi3 is excluded, and pi0 is
    /// silent.
    pub(crate) fn degraded() -> Self {
        let mut story = Self::generating();
        let mut exclusions = Exclusions::default();
        exclusions.say(&name(3), &address(3), Some("fan stuck"), "me@here");
        for second in 2..60 {
            story.at(1000 * second);
            for node in 1..NODES {
                let mut report =
                    NodeReport { exclusions: exclusions.clone(), ..running(node, NodeState::Serving, true) };
                if node == 1 {
                    report.health.firmware = Some(ThrottleBits(0x5_0005));
                    report.health.temperature = Some(Celsius(60.0 + second as f32 * 0.4));
                    if let Some(clock) = &mut report.health.clock {
                        clock.current = Megahertz(600);
                    }
                }
                story.report(node, report);
            }
        }
        story
    }

    /// Requests are running, queued and finished, and nodes have reported for a minute.
    pub(crate) fn busy() -> Self {
        let mut story = Self::finished();
        for second in 1..=60 {
            story.at(2000 + 1000 * second);
            for node in 0..NODES {
                let mut report = running(node, NodeState::Serving, true);
                report.health.temperature = Some(Celsius(50.0 + (second % 20) as f32 / 2.0));
                if let Some(link) = &mut report.health.link {
                    link.bytes = Some(second * (1 << 20));
                }
                if node == 0 {
                    (report.tokens, report.requests, report.traces) = (second * 12, 3, traces());
                }
                story.report(node, report);
            }
        }
        story
    }
}

/// Three requests under way and three finished ones.
fn traces() -> Vec<RequestReport> {
    let trace = |number, stage, age_ms, prompt_tokens, tokens| RequestReport {
        number,
        by: "ann@desk".into(),
        stage,
        age_ms,
        prompt_tokens,
        tokens,
        max_tokens: 256,
    };
    let times = finished().times;
    let lost = Box::new(lost_fault());
    vec![
        trace(4, RequestStage::Decoding, 2500, 120, 31),
        trace(5, RequestStage::Prefill, 700, 2000, 0),
        trace(6, RequestStage::Queued, 100, 12, 0),
        trace(3, RequestStage::Finished(FinishReason::Length, Box::new(times)), 4000, 4, 31),
        trace(2, RequestStage::Abandoned, 9000, 64, 7),
        trace(1, RequestStage::Failed(lost), 61_000, 64, 7),
    ]
}

/// The assignment to all nodes.
pub(crate) fn assign_all() -> Effect {
    Effect::Assign { wanted: wanted(), members: (0..NODES).collect() }
}

/// Sample output of a Shakespeare model.
pub(crate) const VERSE: &str = "\nO, she doth teach the torches to burn bright!\nIt seems she hangs upon the cheek of night\n\
    Like a rich jewel in an Ethiope's ear; beauty too rich for use, for earth too dear.";

pub(crate) fn address(node: usize) -> String {
    format!("127.0.0.{}:9999", node + 2)
}

pub(crate) fn name(node: usize) -> String {
    format!("pi{node}")
}

pub(crate) fn lost_fault() -> Fault {
    Fault::new("pi2", FaultKind::NodeLost { how: Loss::Reset })
}

pub(crate) fn defaults() -> GenerateDefaults {
    let sampling = SamplingParameters {
        temperature: 0.8,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_last_n: 0,
        logit_bias: Vec::new(),
        seed: 42,
        logprobs: 0,
        scores_prompt: false,
        embeds: false,
    };
    GenerateDefaults { max_tokens: 64, sampling, stop: Vec::new() }
}

fn identity(node: usize) -> Identity {
    let (name, build, machine) = (name(node), "0.1.0".to_owned(), "one".to_owned());
    Identity { name, build, numeric: 1, machine, cores: Vec::new() }
}

pub(crate) fn idle(node: usize) -> NodeReport {
    NodeReport {
        recovers: true,
        build: "0.1.0".to_owned(),
        kernels: "avx2".to_owned(),
        epoch: Epoch(2),
        memory_resident: Bytes(11 << 20),
        health: health(),
        ..idle_report(&name(node))
    }
}

pub(crate) fn running(node: usize, state: NodeState, with_layers: bool) -> NodeReport {
    let topology = topology();
    let hash = topology.hash();
    let layers =
        if with_layers { (0..LAYERS).flat_map(|layer| layer_syncs(node, layer)).collect() } else { Vec::new() };
    NodeReport {
        state,
        epoch: Epoch(3),
        topology: Some((topology, hash, MemberIndex(node as u16))),
        shard: Bytes((7 << 20) + (node as u64 * 100_000)),
        memory_resident: Bytes(24 << 20),
        requests: u32::from(state == NodeState::Serving && node == 0),
        lateness: lateness(node, &layers),
        collectives: None,
        layers,
        ..idle(node)
    }
}

/// A healthy Raspberry Pi 5.
pub(crate) fn health() -> Health {
    let clock = Clock {
        governor: "ondemand".into(),
        driver: "cpufreq-dt".into(),
        current: Megahertz(2400),
        limit: Megahertz(2400),
        hardware: Megahertz(2400),
    };
    let (swap_total, swap_used, swap_rate) = (Bytes(512 << 20), Bytes(0), Bytes(0));
    let memory = MemoryUse { total: Bytes(4 << 30), available: Bytes(3 << 30), swap_total, swap_used, swap_rate };
    Health {
        temperature: Some(Celsius(61.3)),
        clock: Some(clock),
        firmware: Some(ThrottleBits(0)),
        memory: Some(memory),
        link: Some(NetworkLink { interface: "eth0".into(), mbit: Some(1000), ..NetworkLink::default() }),
        load: Some(LoadByOthers { others: 0.1, cores: 4 }),
        run_queue: Some(RunQueue { waited: 0.01, ran: 0.9 }),
        ..Health::default()
    }
}

/// Node 2 arrives last, by the time that the others wait for it; the other parts have arrived when it enters.
fn lateness(node: usize, layers: &[LayerSync]) -> Vec<Lateness> {
    let time = Nanoseconds(layers.iter().map(|sync| sync.wait.0 * u64::from(sync.count)).sum());
    let heard = layers.iter().map(|sync| sync.count).sum();
    let others = (0..NODES as u16).filter(|rank| usize::from(*rank) != node && !layers.is_empty());
    others
        .map(|rank: u16| {
            let (count, time) = if rank == 2 { (heard, time) } else { (0, Nanoseconds(0)) };
            let wire = if node == 2 { 0 } else { 50_000 * u64::from(heard) };
            let way = Nanoseconds(8_000 * u64::from(heard));
            Lateness { rank: Rank(rank), count, time, heard, first: Nanoseconds(time.0 + wire), way }
        })
        .collect()
}

/// Node 2 computes longest; the others wait for it.
fn layer_syncs(node: usize, layer: u32) -> [LayerSync; 2] {
    let sync = |kind, scale: u64| {
        let base = 40_000 * scale + u64::from(layer) * 15_000;
        let wait = if node == 2 { 0 } else { base * 3 / 2 };
        let compute = base * 4 - wait;
        let wire = 60_000 + node as u64 * 9_000;
        LayerSync {
            layer: LayerIndex(layer),
            kind,
            count: 12,
            p50: Nanoseconds(wait + wire),
            p95: Nanoseconds((wait + wire) * 2),
            p99: Nanoseconds((wait + wire) * 3),
            compute: Nanoseconds(compute),
            wait: Nanoseconds(wait),
            wire: Nanoseconds(wire),
            slowest: Rank(2),
        }
    };
    [sync(SyncKind::Attention, 1), sync(SyncKind::FeedForward, 2)]
}

pub(crate) fn finished() -> Finished {
    let decode = PhaseTotals {
        steps: 30,
        tokens: 30,
        compute: Nanoseconds(60_000_000),
        wait: Nanoseconds(25_000_000),
        wire: Nanoseconds(15_000_000),
        bubble: Nanoseconds(0),
        threads: Nanoseconds(0),
        bytes_sent: 1 << 20,
        messages_sent: 1 << 10,
    };
    let times = RequestTimes {
        dispatched: Nanoseconds(1_000_000),
        first_token: Nanoseconds(98_000_000),
        last_token: Nanoseconds(698_000_000),
        prompt_tokens: 4,
        sampled_tokens: 31,
        ..RequestTimes::default()
    };
    let ranks = vec![RankTotals { decode, ..RankTotals::default() }; NODES];
    Finished { reason: FinishReason::Length, times, ranks, sampling_rounds: 0 }
}
