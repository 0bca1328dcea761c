//! Links with encrypted frames: successful delivery, and the errors that tampering causes.
use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use common::{
    fault::SealError,
    ids::{Epoch, Rank, TopologyHash},
    units::Nanoseconds,
};
use protocol::{
    checksum::checksum,
    frame::{FrameError, FrameHeader, FrameKind, HEADER_BYTES},
    seal::{Cipher, Protection, Seals},
};

use crate::collective::{Abort, CollectiveError, FrameTag, Links, Seat, Socket};

const WHO: (Epoch, TopologyHash) = (Epoch(5), TopologyHash(6));
const KINDS: [(Cipher, Protection); 4] = [
    (Cipher::ChaChaPoly, Protection::Authenticated),
    (Cipher::ChaChaPoly, Protection::Encrypted),
    (Cipher::AesGcm, Protection::Authenticated),
    (Cipher::AesGcm, Protection::Encrypted),
];

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
    let dialled = TcpStream::connect(listener.local_addr().expect("an address")).expect("it accepts");
    (dialled, listener.accept().expect("a peer dialled").0)
}

fn links(own: u16, stream: TcpStream, seals: Seals) -> Links {
    let seat = Seat { own: Rank(own), stage: 0..2, epoch: WHO.0, hash: WHO.1 };
    let mut sockets = vec![None, None];
    sockets[usize::from(1 - own)] = Some(Socket { stream, seals });
    Links::sealed(seat, sockets, Arc::new(Abort::new().expect("a descriptor")), false).expect("good sockets")
}

fn tag() -> FrameTag {
    FrameTag::new(FrameKind::Plan, 1, 0)
}

/// A frame of rank 1 in wire format.
fn sealed(seals: &mut Seals, payload: &[u8]) -> Vec<u8> {
    let FrameTag { kind, step, sequence, place } = tag();
    let (from, length) = (Rank(1), payload.len() as u32);
    let (epoch, hash, slowest) = (WHO.0, WHO.1, from);
    let (compute_ns, payload_sum) = (0, 0);
    let header =
        FrameHeader { kind, from, length, epoch, hash, step, sequence, place, slowest, compute_ns, payload_sum };
    let mut bytes = [header.encode().as_slice(), payload].concat();
    seals.out.seal(&mut bytes, HEADER_BYTES);
    bytes
}

/// The error that rank 0 returns for these bytes, of which the first frame is valid.
fn second(bytes: &[u8], seals: Seals) -> CollectiveError {
    let (own, mut other) = pair();
    let mut links = links(0, own, seals);
    other.write_all(bytes).expect("the rank reads");
    links.wait_for(std::iter::once(Rank(1))).expect("the first frame is good");
    assert_eq!(links.front(Rank(1), tag()).expect("it is what is expected").1, b"first");
    let next = links.consume(Rank(1)).and_then(|()| links.wait_for(std::iter::once(Rank(1))));
    next.expect_err("the second is not")
}

#[test]
fn large_and_small_frames_arrive_in_both_directions() {
    for (cipher, protection) in KINDS {
        let (one, two) = pair();
        let (near, far) = Seals::pair(cipher, &[3; 32], protection);
        let rank = |own: u16, stream, seals| {
            thread::spawn(move || {
                let (mut links, other) = (links(own, stream, seals), Rank(1 - own));
                for (step, length) in [0, 1, 100_000, 17].into_iter().enumerate() {
                    let tag = FrameTag::new(FrameKind::Plan, step as u64, 0);
                    let payload = vec![own as u8 + 1; length];
                    let sent = links.send(other, tag, Nanoseconds(0), |out| out.extend_from_slice(&payload));
                    sent.expect("it goes");
                    links.wait_for(std::iter::once(other)).expect("it comes");
                    let (_, got) = links.front(other, tag).expect("the ranks are in step");
                    assert_eq!(got, vec![other.0 as u8 + 1; length]);
                    links.consume(other).expect("nothing broken follows");
                }
                links
            })
        };
        let threads = [rank(0, one, near), rank(1, two, far)];
        let _links = threads.map(|thread| thread.join().expect("both ranks finish"));
    }
}

#[test]
fn replayed_dropped_or_changed_frame_names_error() {
    for (cipher, protection) in KINDS {
        let error = |make: &dyn Fn(Vec<u8>, Vec<u8>, Vec<u8>) -> Vec<u8>| {
            let (near, mut far) = Seals::pair(cipher, &[3; 32], protection);
            let frames = (sealed(&mut far, b"first"), sealed(&mut far, b"second"), sealed(&mut far, b"third"));
            match second(&make(frames.0, frames.1, frames.2), near) {
                CollectiveError::Frame { rank: Rank(1), error: FrameError::Seal(error) } => error,
                other => panic!("{other}"),
            }
        };
        let replayed = error(&|first, _, _| [first.clone(), first].concat());
        assert_eq!(replayed, SealError::Replayed { number: 0, expected: 1 });
        let missing = error(&|first, _, third| [first, third].concat());
        assert_eq!(missing, SealError::Missing { number: 2, expected: 1 });
        for byte in [1, 20, 47, HEADER_BYTES, HEADER_BYTES + 5] {
            let changed = error(&|first, mut second, _| {
                // The header stays valid: only its tag is wrong.
                second[if byte == 1 { 40 } else { byte }] ^= 4;
                // An attacker would also change the checksum of the header.
                let sum = checksum(&second[..HEADER_BYTES - 8]);
                second[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
                [first, second].concat()
            });
            assert_eq!(changed, SealError::Forged, "byte {byte}");
        }
    }
}

#[test]
fn frame_without_key_is_rejected() {
    let (near, _) = Seals::pair(Cipher::ChaChaPoly, &[3; 32], Protection::Authenticated);
    let (_, mut stranger) = Seals::pair(Cipher::ChaChaPoly, &[4; 32], Protection::Authenticated);
    let (own, mut other) = pair();
    let mut links = links(0, own, near);
    other.write_all(&sealed(&mut stranger, b"first")).expect("the rank reads");
    let refused = links.wait_for(std::iter::once(Rank(1))).expect_err("it has another key");
    assert!(matches!(refused, CollectiveError::Frame { error: FrameError::Seal(SealError::Forged), .. }), "{refused}");
}
