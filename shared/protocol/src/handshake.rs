//! The first bytes of a connection: a fixed preamble of 16 bytes in each direction, then Hello and Welcome. Reads
//! exactly its own bytes.
use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, MemberIndex, TopologyHash},
    text::is_unsafe,
    version::{WIRE_HIGHEST, WIRE_LOWEST},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    noise::key::Role,
    seal::{Cipher, Protection},
};

/// Bytes of the preamble.
pub const PREAMBLE_BYTES: usize = 16;
/// First bytes of every Bramble connection.
pub const MAGIC: [u8; 8] = *b"BRAMBLE\n";
/// Longest Hello or Welcome.
pub const HELLO_BYTES_MAX: usize = 16 * 1024;
/// No authentication and no encryption: neither end has a key.
pub const SECURITY_NONE: u8 = 0;
/// Followed by a handshake with the cluster's key (`noise/`).
pub const SECURITY_KEY: u8 = 1;
/// Followed by a handshake with a pairing code, to give a node its key.
pub const SECURITY_PAIRING: u8 = 2;
/// Preamble bit: the processor has AES-GCM instructions.
const FEATURE_AES: u8 = 1;
/// Preamble bit: the dialling operator holds the cluster's secret. Version 4 ignores it.
const FEATURE_OWNER: u8 = 2;

/// The first bytes of each side, little-endian: magic, wire versions, security mode, features, role of the dialling
/// side, requested protection of data links. They are bound into the handshake that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// Lowest wire version spoken.
    pub lowest: u16,
    /// Highest wire version spoken.
    pub highest: u16,
    /// Protection of the bytes after the preamble.
    pub security: u8,
    /// Whether the processor has instructions for AES-GCM.
    pub has_aes: bool,
    /// The role of the dialling side; `None` without a key, and from the accepting side.
    pub role: Option<Role>,
    /// The protection that this side requests for data links.
    pub data_links: Protection,
}

impl Preamble {
    /// The preamble of this build without a key.
    pub const OWN: Self = Self {
        lowest: WIRE_LOWEST,
        highest: WIRE_HIGHEST,
        security: SECURITY_NONE,
        has_aes: false,
        role: None,
        data_links: Protection::Plain,
    };

    /// The 16 bytes.
    pub fn encode(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.lowest.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.highest.to_le_bytes());
        bytes[12] = self.security;
        bytes[13] = if self.has_aes { FEATURE_AES } else { 0 };
        bytes[13] |= if self.role == Some(Role::Owner) { FEATURE_OWNER } else { 0 };
        bytes[14] = self.role.map_or(0, Role::byte);
        bytes[15] = self.data_links.byte();
        bytes
    }

    /// Decodes the 16 bytes; `None` if they are not a Bramble preamble.
    pub fn decode(bytes: [u8; PREAMBLE_BYTES]) -> Option<Self> {
        if bytes[..8] != MAGIC {
            return None;
        }
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let role = match bytes[14] {
            0 => None,
            byte if byte == Role::Owner.byte() && bytes[13] & FEATURE_OWNER != 0 => Some(Role::Owner),
            byte => Some(Role::of_byte(byte)?),
        };
        Some(Self {
            lowest: number(8),
            highest: number(10),
            security: bytes[12],
            // Unknown bits are ignored: a later build may set them.
            has_aes: bytes[13] & FEATURE_AES != 0,
            role,
            data_links: Protection::of_byte(bytes[15])?,
        })
    }

    /// The agreed wire version: the highest that both sides support.
    ///
    /// # Errors
    /// No common version, or a security mode that this build does not support.
    pub fn agree(self) -> Result<u16, FaultKind> {
        let (own_lowest, own_highest) = (WIRE_LOWEST, WIRE_HIGHEST);
        let version = self.highest.min(own_highest);
        if version < self.lowest.max(own_lowest) {
            let (lowest, highest) = (self.lowest, self.highest);
            return Err(FaultKind::WireVersion { lowest, highest, own_lowest, own_highest });
        }
        if self.security > SECURITY_PAIRING {
            return Err(FaultKind::SecurityMode { mode: self.security });
        }
        Ok(version)
    }

    /// The faster cipher for both ends.
    pub fn cipher(self, other: Self) -> Cipher {
        if self.has_aes && other.has_aes { Cipher::AesGcm } else { Cipher::ChaChaPoly }
    }
}

/// The purpose of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Requests of a console.
    Console,
    /// Data frames of a rank; the socket goes to the engine after the handshake.
    Data(Between),
    /// Heartbeats of a rank.
    Control(Between),
    /// Round trips and streams to measure the link between two nodes. Since wire version 5.
    Probe,
}

/// The two ranks of a link and its assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Between {
    /// The assignment.
    pub epoch: Epoch,
    /// Its topology.
    pub hash: TopologyHash,
    /// The member of the topology that dialled.
    pub from: MemberIndex,
    /// The member that was dialled.
    pub to: MemberIndex,
}

/// Longest name of a node or a console in a Hello, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Identity of a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Name of the node or of the console (`user@host`).
    pub name: String,
    /// Build, for display.
    pub build: String,
    /// Numeric version of its kernels.
    pub numeric: u32,
    /// Identifier of its machine: equal for two daemons on one machine.
    pub machine: String,
    /// Cores that it may use on that machine.
    pub cores: Vec<u16>,
}

impl Identity {
    /// Checks an identity from an unauthenticated peer: its name is written to logs and recordings.
    ///
    /// # Errors
    /// The name is empty, too long or not a single line of plain text.
    pub fn check(&self) -> Result<(), FaultKind> {
        if (1..=NAME_BYTES_MAX).contains(&self.name.len()) && !self.name.chars().any(is_unsafe) {
            return Ok(());
        }
        let reason = format!(
            "its Hello has a name of {} bytes; names must have 1 to {NAME_BYTES_MAX} bytes without control characters",
            self.name.len()
        );
        Err(FaultKind::Malformed { reason })
    }

    /// Checks that the frames of this process can be sent to another node as a rank of the same topology. `highest` is
    /// the highest wire version that the other node speaks: the agreed one does not show that it speaks a later one.
    ///
    /// # Errors
    /// [`FaultKind::RanksDiffer`], with the builds of both.
    pub fn check_ranks(&self, peer: &Self, highest: u16) -> Result<(), FaultKind> {
        RankBuild::own(self).check_frames(RankBuild { identity: peer, highest })
    }
}

/// The properties of a node on which its links as a rank depend.
#[derive(Clone, Copy, Debug)]
pub struct RankBuild<'a> {
    /// The node.
    pub identity: &'a Identity,
    /// The highest wire version that it speaks.
    pub highest: u16,
}

impl<'a> RankBuild<'a> {
    /// This process.
    pub fn own(identity: &'a Identity) -> Self {
        Self { identity, highest: WIRE_HIGHEST }
    }

    /// Checks that two nodes can be linked as ranks of one topology: they send the same frames and compute the same
    /// sums.
    ///
    /// # Errors
    /// [`FaultKind::RanksDiffer`] or [`FaultKind::NumericVersion`], at the node that it concerns.
    pub fn check_link(self, peer: Self) -> Result<(), Fault> {
        self.check_frames(peer).map_err(|kind| Fault::new(&self.identity.name, kind))?;
        let (theirs, own) = (peer.identity.numeric, self.identity.numeric);
        if theirs == own {
            return Ok(());
        }
        Err(Fault::new(&peer.identity.name, FaultKind::NumericVersion { theirs, own }))
    }

    /// Frames between ranks exist only in the highest version of a build.
    fn check_frames(self, peer: Self) -> Result<(), FaultKind> {
        if self.highest == peer.highest {
            return Ok(());
        }
        let (build, own_build) = (peer.identity.build.clone(), self.identity.build.clone());
        let (peer, version, own) = (peer.identity.name.clone(), peer.highest, self.highest);
        Err(FaultKind::RanksDiffer { peer, version, build, own, own_build })
    }
}

/// The first message of the dialling side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Identity of the dialling side.
    pub identity: Identity,
    /// Purpose of the connection.
    pub purpose: Purpose,
}

/// The response to a Hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// Accepted; the identity of the accepting side.
    Accepted(Identity),
    /// Rejected for this reason; the connection ends.
    Refused(Fault),
}

/// Encodes a handshake message: length (u32), then postcard.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let body = postcard::to_stdvec(message).expect("handshake messages hold only types that postcard encodes");
    let mut bytes = Vec::with_capacity(4 + body.len());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Decodes the length prefix of a handshake message.
///
/// # Errors
/// A length of zero or beyond [`HELLO_BYTES_MAX`].
pub fn body_length(bytes: [u8; 4]) -> Result<usize, FaultKind> {
    let length = u32::from_le_bytes(bytes) as usize;
    if (1..=HELLO_BYTES_MAX).contains(&length) {
        Ok(length)
    } else {
        Err(FaultKind::Malformed { reason: format!("invalid handshake length {length}") })
    }
}

/// Decodes the body of a handshake message.
///
/// # Errors
/// Bytes that are not such a message, or trailing bytes.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FaultKind> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(FaultKind::Malformed { reason: format!("{} trailing bytes", rest.len()) }),
        Err(error) => Err(FaultKind::Malformed { reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preamble_has_its_golden_bytes() {
        let golden = *b"BRAMBLE\n\x04\0\x10\0\0\0\0\0";
        assert_eq!(Preamble::OWN.encode(), golden);
        assert_eq!(Preamble::decode(golden), Some(Preamble::OWN));
        for byte in (0..8).chain(14..16) {
            let mut broken = golden;
            broken[byte] ^= 0x40;
            assert_eq!(Preamble::decode(broken), None);
        }
        let (security, role, data_links) = (SECURITY_KEY, Some(Role::Node), Protection::Encrypted);
        let keyed = Preamble { security, has_aes: true, role, data_links, ..Preamble::OWN };
        assert_eq!(keyed.encode(), *b"BRAMBLE\n\x04\0\x10\0\x01\x01\x03\x02");
        assert_eq!(Preamble::decode(keyed.encode()), Some(keyed));
        let owner = Preamble { role: Some(Role::Owner), ..keyed };
        assert_eq!(owner.encode(), *b"BRAMBLE\n\x04\0\x10\0\x01\x03\x02\x02", "version 4 reads an operator");
        assert_eq!(Preamble::decode(owner.encode()), Some(owner));
        assert_eq!((keyed.cipher(keyed), keyed.cipher(Preamble::OWN)), (Cipher::AesGcm, Cipher::ChaChaPoly));
    }

    #[test]
    fn peers_agree_on_the_highest_common_version() {
        let with = |lowest, highest, security| Preamble { lowest, highest, security, ..Preamble::OWN }.agree();
        let [own, next, after] = [WIRE_HIGHEST, WIRE_HIGHEST + 1, WIRE_HIGHEST + 2];
        assert_eq!(with(1, own, 0), Ok(own));
        assert_eq!(with(own, next, 0), Ok(own));
        assert_eq!(with(4, 5, 0), Ok(5));
        assert_eq!(with(0, 4, 0), Ok(4));
        let refused = with(next, after, 0);
        assert!(
            matches!(refused, Err(FaultKind::WireVersion { lowest, highest, .. }) if (lowest, highest) == (next, after))
        );
        assert!(matches!(with(0, 1, 0), Err(FaultKind::WireVersion { .. })));
        assert_eq!(with(4, 4, 9), Err(FaultKind::SecurityMode { mode: 9 }));
    }

    #[test]
    fn names_in_a_hello_are_one_short_line() {
        let named = |name: &str| Identity {
            name: name.into(),
            build: String::new(),
            numeric: 1,
            machine: String::new(),
            cores: Vec::new(),
        };
        assert_eq!(named("ann@desk").check(), Ok(()));
        for name in ["", "a\nb", "a\u{1b}[2J", "a\u{202e}b", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(named(name).check().is_err(), "{name:?}");
        }
    }

    #[test]
    fn ranks_of_another_version_are_rejected_with_both_builds() {
        let identity = |name: &str, build: &str| Identity {
            name: name.into(),
            build: build.into(),
            numeric: 1,
            machine: "m".into(),
            cores: Vec::new(),
        };
        let (own, peer) = (identity("pi1", "0.2.0"), identity("pi2", "0.1.0"));
        assert_eq!(own.check_ranks(&peer, WIRE_HIGHEST), Ok(()));
        let text = own.check_ranks(&peer, 4).expect_err("frames have no older form").to_string();
        let this = format!("this node {WIRE_HIGHEST} (build 0.2.0)");
        for part in ["pi2", "speaks 4 (build 0.1.0)", &this] {
            assert!(text.contains(part), "{text}");
        }
        let text = own.check_ranks(&peer, WIRE_HIGHEST + 1).expect_err("its frames are later ones").to_string();
        assert!(text.contains(&format!("speaks {} (build", WIRE_HIGHEST + 1)), "{text}");
    }

    #[test]
    fn link_needs_equal_frames_and_equal_sums() {
        let identity = |name: &str, numeric: u32| Identity {
            name: name.into(),
            build: "0.2.0".into(),
            numeric,
            machine: String::new(),
            cores: Vec::new(),
        };
        let (one, other) = (identity("pi1", 3), identity("pi2", 4));
        let [first, second] = [&one, &other].map(|identity| RankBuild { identity, highest: 5 });
        assert_eq!(first.check_link(first), Ok(()));
        let fault = first.check_link(second).expect_err("its sums differ");
        assert_eq!((fault.node.as_str(), fault.kind), ("pi2", FaultKind::NumericVersion { theirs: 4, own: 3 }));
        for highest in [4, 6] {
            let fault = first.check_link(RankBuild { highest, ..second }).expect_err("its frames differ");
            let FaultKind::RanksDiffer { peer, version, own, .. } = &fault.kind else { panic!("{fault}") };
            assert_eq!((fault.node.as_str(), peer.as_str(), *version, *own), ("pi1", "pi2", highest, 5));
        }
    }

    #[test]
    fn hello_survives_the_wire_and_every_truncation_is_refused() {
        let identity = Identity {
            name: "pi1".into(),
            build: "0.1.0".into(),
            numeric: 1,
            machine: "m".into(),
            cores: vec![0, 1, 2, 3],
        };
        let between = Between { epoch: Epoch(7), hash: TopologyHash(9), from: MemberIndex(0), to: MemberIndex(3) };
        for purpose in [Purpose::Console, Purpose::Data(between), Purpose::Control(between)] {
            let hello = Hello { identity: identity.clone(), purpose };
            let bytes = encode(&hello);
            assert_eq!(body_length([bytes[0], bytes[1], bytes[2], bytes[3]]), Ok(bytes.len() - 4));
            assert_eq!(decode(&bytes[4..]), Ok(hello));
            for end in 4..bytes.len() {
                assert!(decode::<Hello>(&bytes[4..end]).is_err(), "cut at {end}");
            }
        }
        assert!(body_length([0; 4]).is_err());
        assert!(body_length((HELLO_BYTES_MAX as u32 + 1).to_le_bytes()).is_err());
    }
}
