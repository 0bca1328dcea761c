//! All-reduces over loopback sockets against a plain sum, and over peers that close, stall, dribble or lie.
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use shared::{
    ids::{Epoch, LayerIndex, Rank, TopologyHash},
    protocol::frame::{FrameHeader, FrameKind, HEADER_BYTES},
    telemetry::SyncKind,
    topology::Exchange,
};

use super::*;

const WHO: (Epoch, TopologyHash) = (Epoch(7), TopologyHash(9));
const AT: (LayerIndex, SyncKind) = (LayerIndex(0), SyncKind::Attention);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
    let dialled = TcpStream::connect(listener.local_addr().expect("an address")).expect("it accepts");
    (dialled, listener.accept().expect("somebody dialled").0)
}

fn group(rank: usize, streams: Vec<Option<TcpStream>>, exchange: Exchange) -> (Group, Arc<Abort>) {
    let abort = Arc::new(Abort::new().expect("a descriptor"));
    let seat = Seat { own: Rank(rank as u16), stage: 0..streams.len() as u16, epoch: WHO.0, hash: WHO.1 };
    let links = Links::new(seat, streams, Arc::clone(&abort), rank.is_multiple_of(2)).expect("good sockets");
    let accounting = Accounting::new(Rank(rank as u16), Arc::default());
    let mut group = Group::new(Some(links), exchange, accounting);
    group.begin_step(1);
    (group, abort)
}

fn part(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| ((index * 7 + rank * 13) % 101) as f32 * 0.37 - 11.0).collect()
}

/// All ranks reduce `rounds` times; returns each rank's result.
fn reduce(world: usize, length: usize, exchange: Exchange, rounds: usize) -> Vec<Vec<f32>> {
    let mut streams: Vec<Vec<Option<TcpStream>>> = (0..world).map(|_| (0..world).map(|_| None).collect()).collect();
    for (low, high) in (0..world).flat_map(|low| (low + 1..world).map(move |high| (low, high))) {
        let (a, b) = pair();
        streams[low][high] = Some(a);
        streams[high][low] = Some(b);
    }
    let run = |(rank, streams): (usize, Vec<Option<TcpStream>>)| {
        thread::spawn(move || {
            let (mut group, _abort) = group(rank, streams, exchange);
            let mut hidden = vec![1.0; length];
            for _ in 0..rounds {
                group.all_reduce(AT.0, AT.1, &part(rank, length), &mut hidden).expect("all ranks go on");
            }
            hidden
        })
    };
    let threads: Vec<_> = streams.into_iter().enumerate().map(run).collect();
    threads.into_iter().map(|thread| thread.join().expect("the rank finishes")).collect()
}

#[test]
fn every_rank_holds_the_same_bytes_and_they_are_the_sum() {
    for world in 2..=8 {
        for (length, rounds) in [(32, 5), (256, 3), (30_000, 2)] {
            for (exchange, tolerance) in [(Exchange::F32, 1e-5), (Exchange::Q80, 0.02)] {
                let results = reduce(world, length, exchange, rounds);
                for result in &results {
                    let is_same = result.iter().zip(&results[0]).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(is_same, "{world} ranks hold the same bytes");
                }
                for (index, value) in results[0].iter().enumerate().step_by(97) {
                    let sum: f32 = (0..world).map(|rank| part(rank, length)[index]).sum();
                    let exact = 1.0 + rounds as f32 * sum;
                    let error = (value - exact).abs() / (rounds * world) as f32 / 26.0;
                    assert!(error <= tolerance, "{value} for {exact} on {world} ranks, {exchange}");
                }
            }
        }
    }
}

/// Rank 0 of two against a peer played by hand.
fn against(peer: impl FnOnce(TcpStream) + Send + 'static) -> Result<Vec<f32>, CollectiveError> {
    let (own, other) = pair();
    let (mut group, _abort) = group(0, vec![None, Some(own)], Exchange::F32);
    let peer = thread::spawn(move || peer(other));
    let mut hidden = vec![0.0; 64];
    let result = group.all_reduce(AT.0, AT.1, &part(0, 64), &mut hidden);
    drop(group);
    peer.join().expect("the peer's script runs");
    result.map(|()| hidden)
}

fn frame(change: impl FnOnce(&mut FrameHeader)) -> Vec<u8> {
    let payload: Vec<u8> = part(1, 64).iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut header = FrameHeader {
        kind: FrameKind::Partial,
        from: Rank(1),
        length: payload.len() as u32,
        epoch: WHO.0,
        hash: WHO.1,
        step: 1,
        sequence: 0,
        compute_ns: 5,
    };
    change(&mut header);
    [header.encode().as_slice(), &payload].concat()
}

#[test]
fn a_peer_that_sends_one_byte_at_a_time_is_understood() {
    let sum = against(|mut stream| {
        stream.set_nodelay(true).expect("an option");
        frame(|_| {}).chunks(1).for_each(|byte| stream.write_all(byte).expect("the rank reads"));
        let mut whole = [0; HEADER_BYTES + 256];
        stream.read_exact(&mut whole).expect("the rank sends its part");
    });
    let expected: Vec<f32> = part(0, 64).iter().zip(part(1, 64)).map(|(a, b)| a + b).collect();
    assert_eq!(sum.expect("the peer did all it should"), expected);
}

#[test]
fn a_peer_that_closes_is_named_at_once() {
    let closed = against(drop);
    assert!(matches!(closed, Err(CollectiveError::Closed(Rank(1)))), "{closed:?}");
    let half = against(|mut stream| stream.write_all(&frame(|_| {})[..100]).expect("the rank reads"));
    assert!(matches!(half, Err(CollectiveError::Closed(Rank(1)))), "{half:?}");
}

#[test]
fn a_frame_of_another_place_is_an_error_and_not_a_wrong_token() {
    let with = |change: fn(&mut FrameHeader)| {
        against(move |mut stream| {
            // The rank may stop reading as soon as it has seen the header.
            let _ = stream.write_all(&frame(change));
            let _ = stream.read(&mut [0; 1024]);
        })
    };
    let wrong: [fn(&mut FrameHeader); 6] = [
        |header| header.epoch = Epoch(6),
        |header| header.hash = TopologyHash(1),
        |header| header.step = 2,
        |header| header.sequence = 1,
        |header| header.from = Rank(0),
        |header| header.kind = FrameKind::Plan,
    ];
    for change in wrong {
        let result = with(change);
        assert!(matches!(result, Err(CollectiveError::OutOfStep { rank: Rank(1), .. })), "{result:?}");
    }
    let short = against(|mut stream| {
        let bytes = frame(|header| header.length = 128);
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
fn an_announced_length_alone_makes_no_large_buffer_and_an_abort_ends_the_wait() {
    let (own, mut other) = pair();
    let (mut group, abort) = group(0, vec![None, Some(own)], Exchange::F32);
    let huge = FrameHeader::decode(frame(|header| header.length = 200 << 20).first_chunk().expect("a header"));
    other.write_all(&huge.expect("a good header").encode()).expect("the rank reads");
    let waiting = thread::spawn(move || {
        let mut hidden = vec![0.0; 64];
        group.all_reduce(AT.0, AT.1, &part(0, 64), &mut hidden)
    });
    while !abort.is_waiting() {
        thread::park_timeout(Duration::from_millis(1));
    }
    abort.raise();
    let result = waiting.join().expect("the rank returns");
    assert!(matches!(result, Err(CollectiveError::Aborted)), "{result:?}");
}
