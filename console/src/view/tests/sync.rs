//! Snapshot tests of the Sync page.
use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, LayerIndex, MemberIndex, Rank},
    units::{Bytes, Celsius, Nanoseconds},
};
use telemetry::{HopSync, Lateness, LayerSync, NodeReport, NodeState, SyncKind, health::ThrottleBits};
use topology::{Layout, Member, Topology};

use super::snapshot::check_all;
use crate::{
    fixtures::{Story, defaults, running, topology},
    keymap::KeyCode,
    state::{Focus, Page, State, sync::SyncPicture},
    update::event::ClientEvent,
};

fn on_sync(mut story: Story) -> Story {
    story.state.screen.focus = Focus::first_of(Page::Sync);
    story
}

/// A stage with this many ranks and layers; rank `late` has been a straggler for half a minute, on a throttled machine.
fn large(ranks: u16, layers: u32, late: u16) -> Story {
    let mut known = topology();
    let first = known.members[0].clone();
    known.layout = Layout::tensor_parallel(ranks);
    let member = |rank: u16| {
        let (name, address) = (format!("pi{rank}"), format!("10.0.0.{}:9999", rank + 1));
        Member { name, address, layers: 0..layers, ..first.clone() }
    };
    known.members = (0..ranks).map(member).collect();
    let addresses: Vec<String> = known.members.iter().map(|member| member.address.clone()).collect();
    let mut story = Story::with(State::new(&addresses, None, "", defaults()));
    for rank in 0..usize::from(ranks) {
        story.connected(rank);
    }
    for second in 1..40 {
        story.at(1000 * second);
        for rank in 0..ranks {
            story.report(usize::from(rank), report(&known, rank, layers, (second > 10).then_some(late)));
        }
    }
    on_sync(story)
}

fn report(known: &Topology, rank: u16, layers: u32, late: Option<u16>) -> NodeReport {
    let sync = |index: u32| {
        let (own, wire) = (60_000 + u64::from(index % 5) * 7_000, 90_000 + u64::from(rank) * 11_000);
        let waits = late.is_some_and(|late| late != rank);
        let wait = if waits { 200_000 + u64::from(index * 7 % 11) * 60_000 } else { 4_000 };
        LayerSync {
            layer: LayerIndex(index / 2),
            kind: if index.is_multiple_of(2) { SyncKind::Attention } else { SyncKind::FeedForward },
            count: 4,
            p50: Nanoseconds(wait + wire),
            p95: Nanoseconds((wait + wire) * 2),
            p99: Nanoseconds((wait + wire) * if index % 9 == 4 { 40 } else { 5 }),
            compute: Nanoseconds(own),
            wait: Nanoseconds(wait),
            wire: Nanoseconds(wire),
            slowest: Rank(late.unwrap_or(rank)),
        }
    };
    let syncs: Vec<LayerSync> = (0..2 * layers).map(sync).collect();
    let time = Nanoseconds(syncs.iter().map(|sync| sync.wait.0 * 4).sum());
    // The straggler starts late; the transmission of each rank's parts takes as long as its transfer.
    let heard = 8 * layers;
    let all = u64::from(heard);
    let lateness = (0..known.members.len() as u16).filter(|peer| *peer != rank).map(|peer| {
        let is_late = late == Some(peer);
        let (count, time) = if is_late { (heard, time) } else { (0, Nanoseconds(0)) };
        let first = Nanoseconds(time.0 + 60_000 * all);
        Lateness {
            rank: Rank(peer),
            count,
            time,
            heard,
            first,
            way: Nanoseconds((5_000 + u64::from(peer) * 1_000) * all),
        }
    });
    let mut report = NodeReport {
        name: known.members[usize::from(rank)].name.clone(),
        epoch: Epoch(3),
        topology: Some((known.clone(), known.hash(), MemberIndex(rank))),
        layers: syncs,
        lateness: lateness.collect(),
        ..running(0, NodeState::Serving, false)
    };
    if late == Some(rank) {
        report.health.firmware = Some(ThrottleBits(0x5_0005));
        report.health.temperature = Some(Celsius(84.6));
    }
    report
}

#[test]
fn straggler_is_first_and_every_layer_and_rank_has_a_cell() {
    check_all("sync", on_sync(Story::generating()));
    check_all("sync-large", large(16, 32, 11));
}

/// A pipeline of four stages with one rank each; stage `slow` computes longer for its layers.
fn pipeline(slow: Option<usize>) -> Story {
    let mut known = topology();
    known.layout = Layout::alike(1, 4, 1);
    for (stage, member) in known.members.iter_mut().enumerate() {
        member.layers = stage as u32..stage as u32 + 1;
    }
    let mut story = Story::ready();
    let begin = story.state.now.as_millis() as u64;
    for quarter in 1..40 {
        story.at(begin + 250 * quarter);
        for stage in 0..4 {
            let compute = if slow == Some(stage) { 10_400_000 } else { 8_000_000 + 90_000 * stage as u64 };
            let bytes = if stage == 0 { 140 } else { 8256 };
            let hop = HopSync {
                from: Rank(if stage == 0 { 3 } else { stage as u16 - 1 }),
                count: 8,
                timed: 8,
                p50: Nanoseconds(140_000),
                p95: Nanoseconds(180_000),
                p99: Nanoseconds(210_000),
                hop: Nanoseconds(150_000),
                blocked: Nanoseconds(25_000_000),
                compute: Nanoseconds(compute),
                sending: Nanoseconds(12_000),
                bytes: Bytes(8 * bytes),
            };
            let report = running(stage, NodeState::Serving, false);
            let topology = Some((known.clone(), known.hash(), MemberIndex(stage as u16)));
            let epoch = report.epoch.next();
            let report = NodeReport { topology, epoch, hops: vec![hop], shard: Bytes(150 << 20), ..report };
            story.report(stage, report);
        }
    }
    on_sync(story)
}

#[test]
fn pipeline_shows_hand_overs_and_names_its_slow_stage() {
    let story = pipeline(Some(2));
    let picture = SyncPicture::take(&story.state);
    let (place, sentence) = picture.straggler.expect("stage 2 is slow");
    assert_eq!(picture.ranks[place].1, "pi2");
    assert!(sentence.starts_with("pi2 is the slow stage: it computes 1.2"), "{sentence}");
    assert_eq!(SyncPicture::take(&pipeline(None).state).straggler, None);
    assert!(story.state.network_fraction().is_some_and(|share| (0.01..0.03).contains(&share)));
    check_all("sync-pipeline", story);
}

#[test]
fn heat_map_changes_its_figure_and_scrolls() {
    let mut story = large(4, 32, 2);
    story.key(KeyCode::Char('v')).key(KeyCode::Tab);
    (story.state.screen.extent.sync_rows, story.state.screen.extent.sync_height) = (64, 8);
    story.key(KeyCode::PageDown).key(KeyCode::Right);
    check_all("sync-p99", story);
}

#[test]
fn history_shows_the_time_before_a_rank_became_slow() {
    let mut story = large(4, 32, 2);
    for _ in 0..3 {
        story.key(KeyCode::Char('{'));
    }
    check_all("sync-past", story);
}

#[test]
fn empty_sync_page_explains_what_is_missing() {
    check_all("sync-empty", on_sync(Story::begin()));
    check_all("sync-ready", on_sync(Story::ready()));
}

#[test]
fn last_figures_stay_when_nodes_are_lost_or_silent() {
    check_all("sync-lost", on_sync(Story::lost()));
    let mut story = large(4, 32, 2);
    let fault = Fault::new("pi1", FaultKind::SessionLost { reason: "reset by peer".into() });
    story.arrives(ClientEvent::Disconnected { node: 1, fault }).at(60_000);
    check_all("sync-stale", story);
}
