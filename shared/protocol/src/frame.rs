//! The header of a data frame between ranks: fixed size, little-endian, with a checksum, validated field by field.
use common::{
    fault::SealError,
    ids::{Epoch, Rank, TopologyHash},
    limits::FRAME_HEADER_BYTES,
    planted::{Planted, is_planted},
};

use crate::checksum::checksum;

/// Bytes of the header.
pub const HEADER_BYTES: usize = FRAME_HEADER_BYTES;
/// Offset of the header's own checksum.
const CHECKED_BYTES: usize = HEADER_BYTES - 8;
/// Longest payload of a frame: partial sums of the largest step.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 20;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The head's plan of a step.
    Plan = 1,
    /// A part of an all-reduce.
    Partial = 2,
    /// A rank's best candidates and its sums.
    Candidates = 3,
    /// The sampler's request for a further round.
    Query = 4,
    /// The response to a `Query`.
    Answer = 5,
    /// Hidden states for the next stage.
    HandOver = 6,
    /// The sampled tokens of a step, for the head.
    Drawn = 7,
    /// Rank 0 of a stage announces which all-reduces are timed, or which are used.
    Tune = 8,
    /// Control of KV transfers between groups: from the head of a group to its ranks, and their responses.
    Transfer = 9,
    /// Keys and values, from a rank of a prefill group to a rank of a decode group: `from` is the member, `step` the
    /// transfer.
    KeysValues = 10,
    /// The head's plan of a step of the draft model. Since wire version 14, to ranks of a topology with a draft model.
    Draft = 11,
}

/// Header of a data frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the payload is.
    pub kind: FrameKind,
    /// The sender.
    pub from: Rank,
    /// Bytes of the payload.
    pub length: u32,
    /// The assignment.
    pub epoch: Epoch,
    /// Its topology.
    pub hash: TopologyHash,
    /// Number of the step.
    pub step: u64,
    /// Number of the collective (or round) within the step.
    pub sequence: u32,
    /// Place within an all-reduce; zeros for other frames.
    pub place: FramePlace,
    /// The rank whose compute time `compute_ns` is.
    pub slowest: Rank,
    /// Time from leaving the previous collective to sending: the longest that the sender has seen in this collective,
    /// at least its own. For a hand-over: the send time by the sender's clock.
    pub compute_ns: u64,
    /// Checksum of the payload on a link without a key; 0 on a link whose frames are sealed.
    pub payload_sum: u64,
}

/// Position of a frame within an all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramePlace {
    /// Number of the algorithm; 0 outside of all-reduces.
    pub algorithm: u8,
    /// Number of messages that the sender sent to the receiver earlier in this all-reduce.
    pub round: u8,
}

/// Why a header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// An undefined frame kind.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The payload exceeds the limit.
    #[error("frame payload of {0} bytes exceeds the limit of {PAYLOAD_BYTES_MAX}")]
    Length(u32),
    /// Reserved bytes are not zero.
    #[error("reserved bytes of a frame are not zero")]
    Reserved,
    /// The checksum does not match.
    #[error("the {0} of a frame was damaged in transit: checksum mismatch")]
    Damaged(&'static str),
    /// It is not the peer's next frame, or it was modified.
    #[error(transparent)]
    Seal(#[from] SealError),
}

impl FrameHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[2..4].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.hash.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.step.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[36] = self.place.algorithm;
        bytes[37] = self.place.round;
        // Ranks are below NODES_MAX; one byte holds them.
        bytes[38] = self.slowest.0 as u8;
        bytes[40..48].copy_from_slice(&self.compute_ns.to_le_bytes());
        bytes[48..CHECKED_BYTES].copy_from_slice(&self.payload_sum.to_le_bytes());
        let sum = checksum(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a header. Its checksum is checked first: with a damaged length the reader would wait for bytes that
    /// never arrive.
    ///
    /// # Errors
    /// It was damaged; otherwise the first invalid field.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let long = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let short = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let is_damaged = long(CHECKED_BYTES) != checksum(&bytes[..CHECKED_BYTES]);
        if is_damaged && !is_planted(Planted::FrameUnchecked) {
            return Err(FrameError::Damaged("header"));
        }
        let kind = match bytes[0] {
            1 => FrameKind::Plan,
            2 => FrameKind::Partial,
            3 => FrameKind::Candidates,
            4 => FrameKind::Query,
            5 => FrameKind::Answer,
            6 => FrameKind::HandOver,
            7 => FrameKind::Drawn,
            8 => FrameKind::Tune,
            9 => FrameKind::Transfer,
            10 => FrameKind::KeysValues,
            11 => FrameKind::Draft,
            other => return Err(FrameError::Kind(other)),
        };
        if bytes[1] != 0 || bytes[39] != 0 {
            return Err(FrameError::Reserved);
        }
        let length = short(4);
        if length as usize > PAYLOAD_BYTES_MAX {
            return Err(FrameError::Length(length));
        }
        Ok(Self {
            kind,
            from: Rank(u16::from_le_bytes([bytes[2], bytes[3]])),
            length,
            epoch: Epoch(long(8)),
            hash: TopologyHash(long(16)),
            step: long(24),
            sequence: short(32),
            place: FramePlace { algorithm: bytes[36], round: bytes[37] },
            slowest: Rank(u16::from(bytes[38])),
            compute_ns: long(40),
            payload_sum: long(48),
        })
    }

    /// Checks the payload against its checksum, on a link without a key.
    ///
    /// # Errors
    /// It was damaged.
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), FrameError> {
        if checksum(payload) == self.payload_sum { Ok(()) } else { Err(FrameError::Damaged("payload")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FrameHeader = FrameHeader {
        kind: FrameKind::Partial,
        from: Rank(3),
        length: 1024,
        epoch: Epoch(7),
        hash: TopologyHash(0x0123_4567_89ab_cdef),
        step: 42,
        sequence: 11,
        place: FramePlace { algorithm: 2, round: 9 },
        slowest: Rank(63),
        compute_ns: 812_000,
        payload_sum: 0x89ab_cdef_0123_4567,
    };

    /// Writes a valid checksum, so that the other fields are tested.
    fn meant(mut bytes: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
        let sum = checksum(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_header_survives_the_wire() {
        assert_eq!(FrameHeader::decode(&HEADER.encode()), Ok(HEADER));
    }

    #[test]
    fn lengths_are_bounded_and_unknown_kinds_refused() {
        let with_length = |length: usize| FrameHeader { length: length as u32, ..HEADER }.encode();
        assert!(FrameHeader::decode(&with_length(0)).is_ok());
        assert!(FrameHeader::decode(&with_length(PAYLOAD_BYTES_MAX)).is_ok());
        assert!(FrameHeader::decode(&with_length(PAYLOAD_BYTES_MAX + 1)).is_err());
        for kind in [0, 12, 255] {
            let mut bytes = HEADER.encode();
            bytes[0] = kind;
            assert_eq!(FrameHeader::decode(&meant(bytes)), Err(FrameError::Kind(kind)));
        }
        let mut bytes = HEADER.encode();
        bytes[39] = 1;
        assert_eq!(FrameHeader::decode(&meant(bytes)), Err(FrameError::Reserved));
    }

    #[test]
    fn every_flipped_bit_of_header_and_payload_is_detected() {
        let bytes = HEADER.encode();
        for bit in 0..8 * HEADER_BYTES {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::decode(&damaged), Err(FrameError::Damaged("header")), "bit {bit}");
        }
        let payload: Vec<u8> = (0..1024_u32).map(|byte| byte as u8).collect();
        let header = FrameHeader { payload_sum: checksum(&payload), ..HEADER };
        assert_eq!(header.check_payload(&payload), Ok(()));
        for bit in 0..8 * payload.len() {
            let mut damaged = payload.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(header.check_payload(&damaged), Err(FrameError::Damaged("payload")), "bit {bit}");
        }
    }
}
