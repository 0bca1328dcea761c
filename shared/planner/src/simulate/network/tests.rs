//! The core compared with formulas that can be checked by hand.
use telemetry::{SyncKind, SyncRecord};

use super::*;

const LINK: Link = Link { alpha_ns: 60_000, bits_per_second: 1_000_000_000, packets: None };
const FREE: NodeSpeed = NodeSpeed { link: LINK, send_ns: 0, receive_ns: 0, slowness: 1000 };

fn send(to: u16, bytes: u64) -> Action {
    Action::Send { to, bytes, work_ns: 0 }
}

fn receive(from: u64) -> Action {
    Action::Receive { from, work_ns: 0, is_sum: true }
}

/// Runs actions on nodes whose cores cost nothing; returns the latest time.
#[track_caller]
fn time(speed: NodeSpeed, actions: &[Vec<Action>]) -> u64 {
    let mut network = Network::new(&vec![speed; actions.len()], &Noise::None, 1);
    network.run(actions, &mut ()).expect("every expected message is sent");
    network.latest()
}

/// Direct exchange of `bytes` between `world` nodes.
fn direct(world: u16, bytes: u64) -> Vec<Vec<Action>> {
    (0..world)
        .map(|own| {
            let peers = (1..world).map(|distance| (own + distance) % world);
            let others = ((1_u64 << world) - 1) & !(1 << own);
            peers.map(|to| send(to, bytes)).chain([receive(others)]).collect()
        })
        .collect()
}

fn star(world: u16, bytes: u64) -> Vec<Vec<Action>> {
    let others = (1_u64 << world) - 2;
    let root = [receive(others)].into_iter().chain((1..world).map(|to| send(to, bytes))).collect();
    std::iter::once(root).chain((1..world).map(|_| vec![send(0, bytes), receive(1)])).collect()
}

#[test]
fn star_and_direct_exchange_match_their_formulas_exactly() {
    for world in [2_u16, 3, 4, 8, 16, 64] {
        let others = u64::from(world) - 1;
        for bytes in [100_u64, 4352, 16384] {
            let wire = bytes * 8;
            if world < 64 {
                assert_eq!(time(FREE, &direct(world, bytes)), 60_000 + others * wire, "direct {world} {bytes}");
                assert_eq!(time(FREE, &star(world, bytes)), 120_000 + 2 * others * wire, "star {world} {bytes}");
            }
        }
    }
}

#[test]
fn small_message_takes_alpha_for_any_core_time() {
    for cost in [0, 5_000, 20_000] {
        let speed = NodeSpeed { send_ns: cost, receive_ns: cost, ..FREE };
        assert_eq!(time(speed, &[vec![send(1, 125)], vec![receive(1)]]), 61_000);
    }
}

#[test]
fn many_small_messages_are_bound_by_the_sending_core() {
    let speed = NodeSpeed { send_ns: 5_000, receive_ns: 5_000, ..FREE };
    // Seven leave the core after 35 us; the last one then travels for 50 us and 1 us of wire, and is read in 5 us.
    assert_eq!(time(speed, &direct(8, 125)), 35_000 + 50_000 + 1_000 + 5_000);
}

#[test]
fn packets_cost_wire_and_a_gigabit_carries_941_megabits() {
    let link = Link { packets: Link::ETHERNET, ..LINK };
    let bytes = 1448 * 1000;
    let megabits = bytes as f64 * 8.0 / link.busy_ns(bytes) as f64 * 1000.0;
    assert!((941.0..942.0).contains(&megabits), "{megabits}");
    assert_eq!((link.busy_ns(0), link.busy_ns(1)), (90 * 8, 91 * 8));
}

#[test]
fn slow_port_delays_only_its_own_messages() {
    let slow = NodeSpeed { link: Link { alpha_ns: 80_000, bits_per_second: 100_000_000, packets: None }, ..FREE };
    let speeds = [FREE, FREE, slow];
    let time = |actions: &[Vec<Action>]| {
        let mut network = Network::new(&speeds, &Noise::None, 1);
        network.run(actions, &mut ()).expect("every expected message is sent");
        network.latest()
    };
    let wire = 10_000 * 8;
    assert_eq!(time(&[vec![send(1, 10_000)], vec![receive(1)], vec![]]), 60_000 + wire, "between fast ports");
    assert_eq!(time(&[vec![send(2, 10_000)], vec![], vec![receive(1)]]), 80_000 + 10 * wire, "to the slow one");
    assert_eq!(time(&[vec![receive(4)], vec![], vec![send(0, 10_000)]]), 80_000 + 10 * wire, "from it");
    // Both messages leave through the same port, the fast one first.
    let both = [vec![send(1, 10_000), send(2, 10_000)], vec![receive(1)], vec![receive(1)]];
    assert_eq!(time(&both), wire + 80_000 + 10 * wire);
}

#[test]
fn messages_of_one_sender_keep_their_order() {
    let sender = vec![send(1, 1000), send(1, 1000), Action::Compute(1)];
    let reader = vec![Action::Compute(1_000_000), receive(1), Action::Mark(0), receive(1), Action::Mark(1)];
    struct MarkTimes(Vec<(u32, u64)>);
    impl Observer for MarkTimes {
        fn mark(&mut self, _: usize, mark: u32, at: u64) {
            self.0.push((mark, at));
        }
    }
    let mut network = Network::new(&[FREE; 2], &Noise::None, 1);
    let mut marks = MarkTimes(Vec::new());
    network.run(&[sender, reader], &mut marks).expect("both are sent");
    assert_eq!(marks.0, [(0, 1_000_000), (1, 1_000_000)]);
}

#[test]
fn missing_message_is_an_error_that_names_the_nodes() {
    let mut network = Network::new(&[FREE; 3], &Noise::None, 1);
    let stuck = network.run(&[vec![], vec![receive(0b101)], vec![send(1, 1)]], &mut ());
    assert_eq!(stuck, Err(Stuck { node: 1, missing: 0b001 }));
}

/// All records of all-reduces between one rank that computes `slow` and three that compute 1 ms.
fn records(slow: u64, noise: &Noise) -> (Vec<(usize, SyncRecord)>, u64) {
    struct Records(Vec<(usize, SyncRecord)>);
    impl Observer for Records {
        fn sync(&mut self, node: usize, record: &SyncRecord) {
            self.0.push((node, record.clone()));
        }
    }
    let close = Action::Close(Closing::AllReduce(common::ids::LayerIndex(0), SyncKind::Attention));
    let mut actions = direct(4, 4352);
    for (rank, actions) in actions.iter_mut().enumerate() {
        let compute = if rank == 2 { slow } else { 1_000_000 };
        actions.splice(0..0, [Action::Step { is_prefill: false, tokens: 1 }, Action::Compute(compute), Action::Enter]);
        actions.push(close);
    }
    let mut network = Network::new(&[FREE; 4], noise, 3);
    let mut found = Records(Vec::new());
    for _ in 0..10 {
        network.run(&actions, &mut found).expect("all is sent");
    }
    let total = (0..4).map(|node| network.totals(node).decode.total().0).max().unwrap_or(0);
    assert_eq!(total, network.latest(), "computing, waiting and wire are all of the time");
    (found.0, network.latest())
}

#[test]
fn slow_node_arrives_last_and_its_lateness_is_wait() {
    let (found, latest) = records(1_500_000, &Noise::None);
    assert_eq!(found.len(), 40);
    for (node, record) in found.iter().skip(4) {
        assert_eq!(record.exit.0 - record.enter.0, record.wait.0 + record.wire.0);
        let peers: Vec<u16> = record.arrivals.iter().map(|arrival| arrival.rank.0).collect();
        assert_eq!(peers, (0..4).filter(|rank| usize::from(*rank) != *node).collect::<Vec<_>>());
        for arrival in &record.arrivals {
            // A node that computes longer starts late; its bytes take no longer than those of the others.
            let is_late = *node != 2 && arrival.rank.0 == 2;
            assert_eq!(arrival.first.0 > 400_000, is_late, "{record:?}");
            assert!(arrival.way().0 <= 3 * LINK.busy_ns(4352), "{record:?}");
        }
        if *node == 2 {
            assert_eq!(record.wait.0, 0);
            assert_eq!(record.last.0, 2, "no rank was missing alone");
        } else {
            assert_eq!((record.last.0, record.slowest.0), (2, 2), "{record:?}");
            assert!(record.wait.0 > 400_000 && record.late.0 > 250_000, "{record:?}");
            assert!(record.wire.0 < 250_000, "{record:?}");
        }
    }
    assert!(latest > 15_000_000);
}

#[test]
fn the_same_seed_gives_the_same_nanoseconds() {
    let noise = Noise::Random { mean_ppm: 30_000 };
    let (one, two) = (records(1_000_000, &noise), records(1_000_000, &noise));
    assert_eq!(one, two);
    assert_ne!(one.1, records(1_000_000, &Noise::None).1);
}
