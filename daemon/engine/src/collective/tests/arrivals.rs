//! Arrival times of peers' parts in records, with scripted peers and with real ones.
use std::os::fd::AsRawFd;
use std::time::Instant;

use collectives::{Step, schedule};
use common::units::Nanoseconds;
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv},
};
use telemetry::{Arrival, SyncRecord};

use super::*;

/// Delay of a slow peer.
const PAUSE: Duration = Duration::from_millis(100);

fn records(ring: &SyncLog) -> Vec<SyncRecord> {
    let mut records = Vec::new();
    ring.read_since(&mut 0, |record| records.push(record.clone()));
    records
}

/// Records of `rounds` all-reduces of rank 0 of two against a scripted peer, which also gets the rank's own end of the
/// link.
fn seen_of(rounds: u32, peer: impl FnOnce(TcpStream, TcpStream) + Send + 'static) -> Vec<SyncRecord> {
    let (own, other) = pair();
    let watched = own.try_clone().expect("a descriptor");
    let (mut group, _abort, ring) = recorded(0, vec![None, Some(own)], by_hand());
    let peer = thread::spawn(move || peer(other, watched));
    for _ in 0..rounds {
        let mut hidden = vec![0.0; 64];
        group.all_reduce(AT.0, AT.1, &by_hand().part(0), &mut hidden).expect("the peer does all it should");
        assert_eq!(hidden, by_hand().sum());
    }
    peer.join().expect("the peer's script runs");
    records(&ring)
}

/// Waits until the rank has entered, which is when its part arrives.
fn wait_for_its_part(stream: &mut TcpStream) {
    stream.set_nodelay(true).expect("an option");
    stream.read_exact(&mut [0; HEADER_BYTES + 256]).expect("the rank sends its part");
}

fn wait(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        thread::park_timeout(time - begin.elapsed().min(time));
    }
}

/// Waits until the rank has read everything sent to it.
fn wait_until_read(watched: &TcpStream) {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    while recv(watched.as_raw_fd(), &mut [0; 1], flags) != Err(Errno::EAGAIN) {
        thread::park_timeout(Duration::from_millis(1));
    }
}

#[track_caller]
fn only_arrival(record: &SyncRecord) -> Arrival {
    let [arrival] = record.arrivals[..] else { panic!("one peer: {record:?}") };
    assert_eq!(arrival.rank, Rank(1));
    assert_eq!(record.exit.0 - record.enter.0, record.wait.0 + record.wire.0);
    assert!(arrival.whole.0 <= record.exit.0 - record.enter.0, "{record:?}");
    arrival
}

#[test]
fn slow_message_has_early_first_byte_and_late_last_byte() {
    let seen = seen_of(1, |mut stream, watched| {
        wait_for_its_part(&mut stream);
        let frame = frame(|_| {});
        // Not even a whole header: its first byte counts.
        stream.write_all(&frame[..HEADER_BYTES / 2]).expect("the rank reads");
        wait_until_read(&watched);
        wait(PAUSE);
        stream.write_all(&frame[HEADER_BYTES / 2..]).expect("the rank reads");
    });
    let arrival = only_arrival(&seen[0]);
    assert!(arrival.way() >= Nanoseconds(PAUSE.as_nanos() as u64 / 2), "{arrival:?}");
}

#[test]
fn late_peer_has_late_first_byte_and_no_transfer_time() {
    let seen = seen_of(1, |mut stream, _| {
        wait_for_its_part(&mut stream);
        wait(PAUSE);
        stream.write_all(&frame(|_| {})).expect("the rank reads");
    });
    let arrival = only_arrival(&seen[0]);
    assert!(arrival.first >= Nanoseconds(PAUSE.as_nanos() as u64), "{arrival:?}");
    assert_eq!(arrival.way(), Nanoseconds(0), "one read brought all of it");
}

#[test]
fn part_sent_with_previous_message_was_there_at_enter() {
    let seen = seen_of(2, |mut stream, _| {
        wait_for_its_part(&mut stream);
        wait(PAUSE);
        let two = [frame(|_| {}), frame(|header| header.sequence = 1)].concat();
        stream.write_all(&two).expect("the rank reads");
        wait_for_its_part(&mut stream);
    });
    assert!(only_arrival(&seen[0]).first >= Nanoseconds(PAUSE.as_nanos() as u64));
    let second = only_arrival(&seen[1]);
    assert_eq!((second.first, second.whole), (Nanoseconds(0), Nanoseconds(0)));
}

#[test]
fn part_that_lay_in_the_socket_was_there_at_enter() {
    let (own, mut other) = pair();
    let (mut group, _abort, ring) = recorded(0, vec![None, Some(own)], by_hand());
    let begun = Instant::now();
    // The system sets timestamps only some time after a socket asked for them.
    for sequence in 0.. {
        other.write_all(&frame(|header| header.sequence = sequence)).expect("the socket takes it");
        group.all_reduce(AT.0, AT.1, &by_hand().part(0), &mut [0.0; 64]).expect("the part is there");
        wait_for_its_part(&mut other);
        let seen = records(&ring).pop().expect("it is recorded");
        if (only_arrival(&seen).whole, seen.late, seen.last) == (Nanoseconds(0), Nanoseconds(0), Rank(0)) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{seen:?}");
    }
}

#[test]
fn own_pause_makes_no_peer_late() {
    let (own, mut other) = pair();
    let seat = Seat { own: Rank(0), stage: 0..2, epoch: WHO.0, hash: WHO.1 };
    let abort = Arc::new(Abort::new().expect("a descriptor"));
    let mut links = Links::new(seat, vec![None, Some(own)], abort, false).expect("good sockets");
    let mut receive = |links: &mut Links, sequence| {
        other.write_all(&frame(|header| header.sequence = sequence)).expect("the socket takes it");
        links.wait_for(std::iter::once(Rank(1))).expect("it is there");
        let late = links.last_arrival().1;
        links.consume(Rank(1)).expect("nothing follows");
        late
    };
    links.listen();
    receive(&mut links, 0);
    let first = Instant::now();
    // The peer sends its second message only now, as if it needed one of this rank.
    wait(PAUSE);
    let late = receive(&mut links, 1);
    let heard = links.heard().next().flatten().expect("the peer sent something");
    assert!(heard.1 < first + PAUSE / 2, "{:?} after the first message", heard.1 - first);
    assert!(late < Nanoseconds(PAUSE.as_nanos() as u64 / 2), "{late:?}");
}

#[test]
fn records_list_only_peers_that_send_to_this_rank() {
    for algorithm in Algorithm::ALL {
        let case = Case { tokens: 4, columns: 1024, ..Case::new(algorithm, 5, Exchange::F16) };
        let rank = |(rank, streams): (usize, Vec<Option<TcpStream>>)| {
            let (mut group, _abort, ring) = recorded(rank, streams, case);
            thread::spawn(move || {
                let mut hidden = vec![0.0; case.tokens * case.columns];
                for _ in 0..10 {
                    group.all_reduce(AT.0, AT.1, &case.part(rank), &mut hidden).expect("all ranks continue");
                }
                (records(&ring), group)
            })
        };
        let threads: Vec<_> = sockets(case.world, &pair).into_iter().enumerate().map(rank).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("the rank finishes")).collect();
        for (rank, (records, _)) in ended.iter().enumerate() {
            let steps = schedule(algorithm, Rank(rank as u16), case.world, case.columns);
            let mut heard: Vec<Rank> = steps
                .iter()
                .flat_map(|step| if let Step::Receive { from, .. } = step { from.iter().collect() } else { Vec::new() })
                .collect();
            heard.sort_unstable();
            heard.dedup();
            assert_eq!(records.len(), 10);
            for record in records {
                let peers: Vec<Rank> = record.arrivals.iter().map(|arrival| arrival.rank).collect();
                assert_eq!(peers, heard, "{algorithm}, rank {rank}");
                let exchange = record.exit.0 - record.enter.0;
                assert_eq!(exchange, record.wait.0 + record.wire.0);
                for arrival in &record.arrivals {
                    let is_within = arrival.first <= arrival.whole && arrival.whole.0 <= exchange;
                    assert!(is_within, "{algorithm}, rank {rank}: {record:?}");
                }
            }
            // Exit to enter is compute time, enter to exit is the exchange: together they are all of the time.
            let sum: u64 = records[1..].iter().map(|record| record.compute.0 + record.wait.0 + record.wire.0).sum();
            let wall = records[9].exit.0 - records[0].exit.0;
            assert_eq!(sum, wall, "{algorithm}, rank {rank}");
        }
    }
}
