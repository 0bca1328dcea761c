//! All-reduces over loopback sockets compared with a plain sum, and over links that close, stall, dribble or send wrong
//! frames.
mod arrivals;
mod room;
mod sealed;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use collectives::{Algorithm, Choice, payload_bytes};
use common::{
    ids::{Epoch, LayerIndex, Rank, TopologyHash},
    precision::Exchange,
};
use kernels::Kernels;
use nix::sys::socket::{getsockopt, sockopt::RcvBuf};
use protocol::{
    bench::BenchLinks,
    checksum::checksum,
    frame::{FrameHeader, FrameKind, FramePlace, HEADER_BYTES},
};
use telemetry::SyncKind;

use super::*;

const WHO: (Epoch, TopologyHash) = (Epoch(7), TopologyHash(9));
const AT: (LayerIndex, SyncKind) = (LayerIndex(0), SyncKind::Attention);
const EXCHANGES: [Exchange; 3] = [Exchange::F32, Exchange::F16, Exchange::Q80];

/// Parameters of a tested all-reduce.
#[derive(Clone, Copy, Debug)]
struct Case {
    algorithm: Algorithm,
    world: usize,
    exchange: Exchange,
    tokens: usize,
    columns: usize,
    rounds: usize,
}

impl Case {
    fn new(algorithm: Algorithm, world: usize, exchange: Exchange) -> Self {
        Self { algorithm, world, exchange, tokens: 3, columns: 160, rounds: 2 }
    }

    /// The part of a rank.
    fn part(self, rank: usize) -> Vec<f32> {
        let values = 0..self.tokens * self.columns;
        values.map(|index| ((index * 7 + rank * 13) % 101) as f32 * 0.37 - 11.0).collect()
    }

    /// The values after a round trip through the wire format.
    fn rounded(self, values: &[f32]) -> Vec<f32> {
        let mut rounded = vec![f32::NAN; values.len()];
        for (row, rounded) in values.chunks(self.columns).zip(rounded.chunks_mut(self.columns)) {
            let mut bytes = vec![0; payload_bytes(self.exchange, 1, row.len())];
            (Kernels::SCALAR.payload.encode)(self.exchange, row, &mut bytes);
            (Kernels::SCALAR.payload.load)(self.exchange, &bytes, rounded);
        }
        rounded
    }

    fn sum(self) -> Vec<f32> {
        let parts: Vec<Vec<f32>> = (0..self.world).map(|rank| self.part(rank)).collect();
        (0..self.tokens * self.columns).map(|index| parts.iter().map(|part| part[index]).sum()).collect()
    }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
    let dialled = TcpStream::connect(listener.local_addr().expect("an address")).expect("it accepts");
    (dialled, listener.accept().expect("a peer dialled").0)
}

fn group(rank: usize, streams: Vec<Option<TcpStream>>, case: Case) -> (Group, Arc<Abort>) {
    let (group, abort, _) = recorded(rank, streams, case);
    (group, abort)
}

/// A rank of a group, and the ring of its records.
fn recorded(rank: usize, streams: Vec<Option<TcpStream>>, case: Case) -> (Group, Arc<Abort>, Arc<SyncLog>) {
    let abort = Arc::new(Abort::new().expect("a descriptor"));
    let seat = Seat { own: Rank(rank as u16), stage: 0..streams.len() as u16, epoch: WHO.0, hash: WHO.1 };
    // Spinning ranks take the cores from the others: with more than two ranks that would only slow the test down.
    let spins = case.world == 2 && rank == 0;
    let ring = Arc::new(SyncLog::new(seat.own, seat.stage.clone()));
    let links = Links::new(seat, streams, Arc::clone(&abort), spins).expect("good sockets");
    let timing = StepTiming::new(Rank(rank as u16), Arc::clone(&ring));
    let choice = Choice::Forced(case.algorithm);
    let kernels = Kernels::choose(None).expect("a table");
    let settings = Settings { exchange: case.exchange, columns: case.columns, choice, kernels };
    let mut group = Group::new(Some(links), settings, timing);
    group.begin_step(1);
    (group, abort, ring)
}

/// Sockets between all pairs of ranks, each created by `join`.
fn sockets(world: usize, join: &dyn Fn() -> (TcpStream, TcpStream)) -> Vec<Vec<Option<TcpStream>>> {
    let mut streams: Vec<Vec<Option<TcpStream>>> = (0..world).map(|_| (0..world).map(|_| None).collect()).collect();
    for (low, high) in (0..world).flat_map(|low| (low + 1..world).map(move |high| (low, high))) {
        let (a, b) = join();
        streams[low][high] = Some(a);
        streams[high][low] = Some(b);
    }
    streams
}

/// Runs the all-reduce on all ranks and returns each result. The first rank that fails aborts the others' waits.
fn run(case: Case, join: &dyn Fn() -> (TcpStream, TcpStream)) -> Vec<Result<Vec<f32>, CollectiveError>> {
    let ranks: Vec<_> =
        sockets(case.world, join).into_iter().enumerate().map(|(rank, streams)| group(rank, streams, case)).collect();
    let aborts: Vec<Arc<Abort>> = ranks.iter().map(|(_, abort)| Arc::clone(abort)).collect();
    let threads = ranks.into_iter().enumerate().map(|(rank, (mut group, _))| {
        let aborts = aborts.clone();
        thread::spawn(move || {
            let mut hidden = vec![1.0; case.tokens * case.columns];
            for _ in 0..case.rounds {
                if let Err(error) = group.all_reduce(AT.0, AT.1, &case.part(rank), &mut hidden) {
                    aborts.iter().for_each(|abort| abort.raise());
                    return (Err(error), group);
                }
            }
            (Ok(hidden), group)
        })
    });
    let threads: Vec<_> = threads.collect();
    // Links stay open until all ranks are done.
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("the rank finishes")).collect();
    ended.into_iter().map(|(result, _)| result).collect()
}

/// The result of all ranks, checked to be the same bytes on each and close to the plain sum.
#[track_caller]
fn check(case: Case, join: &dyn Fn() -> (TcpStream, TcpStream)) -> Vec<f32> {
    let results: Vec<_> = run(case, join).into_iter().map(|result| result.expect("all ranks continue")).collect();
    for result in &results {
        let is_same = result.iter().zip(&results[0]).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(is_same, "ranks have different bytes: {case:?}");
    }
    let tolerance = match case.exchange {
        Exchange::F32 => 1e-5,
        Exchange::F16 => 1e-3,
        Exchange::Q80 => 0.02,
    };
    for (value, sum) in results[0].iter().zip(case.sum()) {
        let exact = 1.0 + case.rounds as f32 * sum;
        let error = (value - exact).abs() / (case.rounds * case.world) as f32 / 26.0;
        assert!(error <= tolerance, "{value} for {exact}: {case:?}");
    }
    results.into_iter().next().expect("a rank")
}

#[test]
fn every_rank_holds_the_same_bytes_and_they_are_the_sum() {
    for algorithm in Algorithm::ALL {
        for world in 2..=8 {
            for exchange in EXCHANGES {
                // Some ranks have no slice; the last block is partial; a slice is longer than a chunk.
                for (tokens, columns) in [(1, 96), (3, 80), (2, 2048)] {
                    check(Case { tokens, columns, ..Case::new(algorithm, world, exchange) }, &pair);
                }
            }
        }
    }
}

#[test]
fn default_class_rounds_the_rank_ordered_sum_of_rounded_parts() {
    for world in 2..=8 {
        for exchange in EXCHANGES {
            let case = Case { rounds: 1, ..Case::new(Algorithm::Direct, world, exchange) };
            let mut sum = case.rounded(&case.part(0));
            for rank in 1..world {
                sum.iter_mut().zip(case.rounded(&case.part(rank))).for_each(|(sum, part)| *sum += part);
            }
            let expected: Vec<u32> = case.rounded(&sum).iter().map(|sum| (1.0 + sum).to_bits()).collect();
            for algorithm in Algorithm::candidates() {
                let found = check(Case { algorithm, ..case }, &pair);
                assert_eq!(found.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), expected, "{algorithm}");
            }
        }
    }
}

#[test]
fn a_token_is_summed_alike_alone_and_in_a_batch() {
    for algorithm in Algorithm::ALL {
        for exchange in EXCHANGES {
            let case = Case { tokens: 4, columns: 112, rounds: 1, ..Case::new(algorithm, 5, exchange) };
            let batch = check(case, &pair);
            // The first token's parts are the same regardless of how many follow.
            let alone = check(Case { tokens: 1, ..case }, &pair);
            let is_same = alone.iter().zip(&batch).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(is_same, "{algorithm} {exchange}");
        }
    }
}

#[test]
fn messages_larger_than_socket_buffers_do_not_deadlock() {
    for algorithm in Algorithm::ALL {
        let case = Case { tokens: 1024, columns: 1024, rounds: 1, ..Case::new(algorithm, 3, Exchange::F32) };
        check(case, &pair);
    }
}

/// How a relay passes bytes on: in pieces with a pause after each.
#[derive(Clone, Copy)]
struct Pieces {
    bytes: usize,
    pause: Duration,
}

/// Relays bytes in one direction; stops after `limit` bytes.
fn relay(mut from: TcpStream, mut to: TcpStream, pieces: Pieces, limit: usize) {
    let mut buffer = vec![0; pieces.bytes];
    let mut moved = 0;
    while moved < limit {
        match from.read(&mut buffer) {
            Ok(count) if count > 0 && to.write_all(&buffer[..count]).is_ok() => moved += count,
            _ => break,
        }
        if !pieces.pause.is_zero() {
            thread::park_timeout(pieces.pause);
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A link with a relay in each direction.
fn relayed(pieces: Pieces, limit: usize) -> (TcpStream, TcpStream) {
    let ((a, left), (right, b)) = (pair(), pair());
    for stream in [&left, &right] {
        stream.set_nodelay(true).expect("an option");
    }
    let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    let (from, to) = (clone(&left), clone(&right));
    thread::spawn(move || relay(from, to, pieces, limit));
    thread::spawn(move || relay(right, left, pieces, limit));
    (a, b)
}

#[test]
fn dribbling_or_stalling_links_do_not_change_results() {
    for algorithm in Algorithm::ALL {
        for exchange in [Exchange::F32, Exchange::Q80] {
            let case = Case { tokens: 1, ..Case::new(algorithm, 4, exchange) };
            let (dribbling, stalling) =
                (Pieces { bytes: 1, pause: Duration::ZERO }, Pieces { bytes: 700, pause: Duration::from_millis(1) });
            check(case, &|| relayed(dribbling, usize::MAX));
            check(Case { tokens: 5, ..case }, &|| relayed(stalling, usize::MAX));
        }
    }
}

#[test]
fn closed_link_fails_collective_on_every_rank() {
    for algorithm in Algorithm::ALL {
        // Never enough for one all-reduce: the cut is within a header or within a payload.
        for limit in [20, 100] {
            let case = Case::new(algorithm, 4, Exchange::F32);
            let pieces = Pieces { bytes: 64, pause: Duration::ZERO };
            for (rank, result) in run(case, &|| relayed(pieces, limit)).into_iter().enumerate() {
                let is_typed = matches!(&result, Err(CollectiveError::Closed(_) | CollectiveError::Aborted));
                assert!(is_typed, "{algorithm}: rank {rank} ended with {result:?}");
            }
        }
    }
}

/// A tensor of two ranks for tests with a scripted peer.
fn by_hand() -> Case {
    Case { tokens: 1, columns: 64, rounds: 1, ..Case::new(Algorithm::Direct, 2, Exchange::F32) }
}

/// The result of rank 0 of two against a scripted peer.
fn against(peer: impl FnOnce(TcpStream) + Send + 'static) -> Result<Vec<f32>, CollectiveError> {
    let (own, other) = pair();
    let (mut group, _abort) = group(0, vec![None, Some(own)], by_hand());
    let peer = thread::spawn(move || peer(other));
    let mut hidden = vec![0.0; 64];
    let result = group.all_reduce(AT.0, AT.1, &by_hand().part(0), &mut hidden);
    drop(group);
    peer.join().expect("the peer's script runs");
    result.map(|()| hidden)
}

fn frame(change: impl FnOnce(&mut FrameHeader)) -> Vec<u8> {
    let payload: Vec<u8> = by_hand().part(1).iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut header = FrameHeader {
        kind: FrameKind::Partial,
        from: Rank(1),
        length: payload.len() as u32,
        epoch: WHO.0,
        hash: WHO.1,
        step: 1,
        sequence: 0,
        place: FramePlace { algorithm: Algorithm::Direct.number(), round: 0 },
        slowest: Rank(1),
        compute_ns: 5,
        payload_sum: checksum(&payload),
    };
    change(&mut header);
    [header.encode().as_slice(), &payload].concat()
}

#[test]
fn frame_sent_byte_by_byte_is_received() {
    let sum = against(|mut stream| {
        stream.set_nodelay(true).expect("an option");
        frame(|_| {}).chunks(1).for_each(|byte| stream.write_all(byte).expect("the rank reads"));
        let mut whole = [0; HEADER_BYTES + 256];
        stream.read_exact(&mut whole).expect("the rank sends its part");
    });
    assert_eq!(sum.expect("the peer behaved correctly"), by_hand().sum());
}

#[test]
fn closed_peer_is_named_at_once() {
    let closed = against(drop);
    assert!(matches!(closed, Err(CollectiveError::Closed(Rank(1)))), "{closed:?}");
    let half = against(|mut stream| stream.write_all(&frame(|_| {})[..100]).expect("the rank reads"));
    assert!(matches!(half, Err(CollectiveError::Closed(Rank(1)))), "{half:?}");
}

#[test]
fn out_of_step_frame_is_an_error_not_a_wrong_token() {
    let wrong: [fn(&mut FrameHeader); 9] = [
        |header| header.epoch = Epoch(6),
        |header| header.hash = TopologyHash(1),
        |header| header.step = 2,
        |header| header.sequence = 1,
        |header| header.from = Rank(0),
        |header| header.kind = FrameKind::Plan,
        |header| header.place.round = 1,
        |header| header.place.algorithm = Algorithm::Ring.number(),
        |header| header.slowest = Rank(2),
    ];
    for change in wrong {
        let result = against(move |mut stream| {
            // The rank may stop reading as soon as it has seen the header.
            let _ = stream.write_all(&frame(change));
            let _ = stream.read(&mut [0; 1024]);
        });
        assert!(matches!(result, Err(CollectiveError::OutOfStep { rank: Rank(1), .. })), "{result:?}");
    }
    let short = against(|mut stream| {
        let sum = checksum(&frame(|_| {})[HEADER_BYTES..HEADER_BYTES + 128]);
        let bytes = frame(|header| (header.length, header.payload_sum) = (128, sum));
        let _ = stream.write_all(&bytes[..HEADER_BYTES + 128]);
        let _ = stream.read(&mut [0; 1024]);
    });
    assert!(matches!(short, Err(CollectiveError::OutOfStep { .. })), "{short:?}");
    let garbage = against(|mut stream| {
        let _ = stream.write_all(&[0xee; 4096]);
        let _ = stream.read(&mut [0; 1024]);
    });
    assert!(matches!(garbage, Err(CollectiveError::Frame { rank: Rank(1), .. })), "{garbage:?}");
}

#[test]
fn a_damaged_frame_ends_the_link_for_both_ends() {
    for byte in [0, 5, 20, 50, 60, HEADER_BYTES, HEADER_BYTES + 3, HEADER_BYTES + 255] {
        let damaged = against(move |mut stream| {
            let mut bytes = frame(|_| {});
            bytes[byte] ^= 0x10;
            stream.write_all(&bytes).expect("the rank reads");
            // Its own part may have arrived before; then there is nothing more.
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
            while stream.read(&mut [0; 1024]).expect("the link ends in time") > 0 {}
        });
        let is_named = matches!(damaged, Err(CollectiveError::Frame { rank: Rank(1), error: FrameError::Damaged(_) }));
        assert!(is_named, "byte {byte}: {damaged:?}");
    }
}

#[test]
fn ranks_with_different_algorithms_are_out_of_step() {
    let mut streams = sockets(2, &pair).into_iter();
    let mut next = |rank: usize, algorithm: Algorithm| {
        let case = Case { algorithm, ..by_hand() };
        let (mut group, _abort) = group(rank, streams.next().expect("two ranks"), case);
        thread::spawn(move || {
            let mut hidden = vec![0.0; 64];
            (group.all_reduce(AT.0, AT.1, &case.part(rank), &mut hidden), group)
        })
    };
    let threads = [next(0, Algorithm::Direct), next(1, Algorithm::TwoLevel)];
    for (rank, thread) in threads.into_iter().enumerate() {
        let (result, _group) = thread.join().expect("the rank returns");
        let is_typed = matches!(result, Err(CollectiveError::OutOfStep { .. } | CollectiveError::Closed(_)));
        assert!(is_typed, "rank {rank}: {result:?}");
    }
}

#[test]
fn announced_length_allocates_nothing_and_abort_ends_wait() {
    let (own, mut other) = pair();
    let (mut group, abort) = group(0, vec![None, Some(own)], by_hand());
    let huge = FrameHeader::decode(frame(|header| header.length = 200 << 20).first_chunk().expect("a header"));
    other.write_all(&huge.expect("a good header").encode()).expect("the rank reads");
    let waiting = thread::spawn(move || {
        let mut hidden = vec![0.0; 64];
        group.all_reduce(AT.0, AT.1, &by_hand().part(0), &mut hidden)
    });
    while !abort.is_waiting() {
        thread::park_timeout(Duration::from_millis(1));
    }
    abort.raise();
    let result = waiting.join().expect("the rank returns");
    assert!(matches!(result, Err(CollectiveError::Aborted)), "{result:?}");
}

#[test]
fn links_are_timed_on_order_and_steps_continue_afterwards() {
    let case = Case::new(Algorithm::Direct, 3, Exchange::F16);
    let mut ranks: Vec<_> =
        sockets(3, &pair).into_iter().enumerate().map(|(rank, streams)| group(rank, streams, case).0).collect();
    let mut leader = ranks.remove(0);
    let followers = ranks.into_iter().map(|mut group| {
        thread::spawn(move || {
            let mut step = 9;
            loop {
                step += 1;
                if let Err(error) = group.follow_order(Rank(0), step) {
                    return (error, step);
                }
            }
        })
    });
    let followers: Vec<_> = followers.collect();
    let wanted = BenchLinks { tokens: vec![2, 1], algorithms: Algorithm::ALL.to_vec(), repeats: 40 };
    let mut step = 9;
    let found = leader.bench(&wanted, &mut step).expect("all ranks follow");
    assert_eq!((found.ranks, found.columns, &found.left_out), (3, 160, &vec![]));
    let kinds: Vec<_> = found.times.iter().map(|time| (time.tokens, time.algorithm)).collect();
    let asked = [2, 1].into_iter().flat_map(|tokens| Algorithm::ALL.map(|algorithm| (tokens, algorithm)));
    assert_eq!(kinds, asked.collect::<Vec<_>>());
    for time in &found.times {
        assert!(time.count == 40 && time.p50.0 > 0 && time.p50 <= time.p99, "{time:?}");
        assert_eq!((time.bytes, time.is_used), (4 * 160 * u64::from(time.tokens), time.algorithm == Algorithm::Direct));
    }
    drop(leader);
    for follower in followers {
        let (error, at) = follower.join().expect("a follower ends");
        assert!(matches!(error, CollectiveError::Closed(_)), "{error}");
        assert_eq!(at, step + 1, "every order was a step, and all ranks agreed on it");
    }
}

#[test]
fn all_reduces_of_a_lone_rank_are_progress() {
    let abort = Arc::new(Abort::new().expect("a descriptor"));
    let Case { algorithm, exchange, columns, .. } = Case::new(Algorithm::Direct, 1, Exchange::F32);
    let (choice, kernels) = (Choice::Forced(algorithm), Kernels::choose(None).expect("a table"));
    let timing = StepTiming::new(Rank(0), Arc::new(SyncLog::alone()));
    let group = Group::new(None, Settings { exchange, columns, choice, kernels }, timing);
    let mut group = group.watched_by(Arc::clone(&abort));
    let mut hidden = vec![0.0; columns];
    for finished in 1..=3 {
        group.all_reduce(AT.0, AT.1, &vec![1.0; columns], &mut hidden).expect("it has no peers");
        assert_eq!(abort.progress(), finished);
    }
    assert!(group.abort().is_some_and(|own| std::ptr::eq(own, &*abort)), "its head reports work there");
}

#[test]
fn several_senders_share_one_receive_window() {
    let buffer = |world: usize| {
        let streams = sockets(world, &pair).swap_remove(0);
        let seat = Seat { own: Rank(0), stage: 0..world as u16, epoch: WHO.0, hash: WHO.1 };
        let links =
            Links::new(seat, streams, Arc::new(Abort::new().expect("a descriptor")), false).expect("good sockets");
        let socket = links.descriptor(Rank(1)).expect("a link");
        // Linux reports twice the size that was set.
        getsockopt(&socket, RcvBuf).expect("an option") / 2
    };
    assert_eq!([5, 16].map(buffer), [64 << 10, (256 << 10) / 15]);
    assert!(buffer(2) >= 64 << 10, "a single sender keeps the default");
}
