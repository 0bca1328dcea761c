//! Whether a link sleeps between frames (Energy-Efficient Ethernet): queried over generic netlink like ethtool(8),
//! because no file has it. Constants: linux/genetlink.h, linux/ethtool_netlink.h.
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
        sockopt::ReceiveTimeout,
    },
    time::{TimeVal, TimeValLike},
};

use super::root::Root;

/// The kernel answers immediately; a missing answer must not delay the reading.
const PATIENCE_MS: i64 = 100;
const MESSAGE_HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const REQUEST: u16 = 1;
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET_EEE: u8 = 23;
const EEE_HEADER: u16 = 1;
const EEE_ACTIVE: u16 = 4;
const DEVICE_NAME: u16 = 2;
const NESTED: u16 = 0x8000;

/// The query method, detected once.
#[derive(Debug)]
pub(super) enum Ethtool {
    /// A socket, and the kernel's number of the family `ethtool`.
    Netlink(OwnedFd, u16),
    /// A fixture: the file `ethtool/INTERFACE/eee` contains `active` or other text.
    File,
    /// Not available.
    Nowhere,
}

impl Ethtool {
    pub(super) fn find(root: &Root) -> Self {
        if !root.is_machine() {
            return Self::File;
        }
        Self::open().unwrap_or(Self::Nowhere)
    }

    /// `None` if the kernel has no netlink family `ethtool`.
    fn open() -> Option<Self> {
        let kind = (SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkGeneric);
        let socket = socket(AddressFamily::Netlink, kind.0, kind.1, kind.2).ok()?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::milliseconds(PATIENCE_MS)).ok()?;
        let answer = ask(&socket, CONTROL, GET_FAMILY, &attribute(FAMILY_NAME, b"ethtool\0"))?;
        let id = find(&answer, FAMILY_ID)?;
        Some(Self::Netlink(socket, u16::from_ne_bytes(*id.first_chunk()?)))
    }

    /// `None` for interfaces without this feature.
    pub(super) fn is_active(&self, root: &Root, interface: &str) -> Option<bool> {
        match self {
            Self::Netlink(socket, family) => {
                let name = attribute(DEVICE_NAME, format!("{interface}\0").as_bytes());
                let answer = ask(socket, *family, GET_EEE, &attribute(EEE_HEADER | NESTED, &name))?;
                find(&answer, EEE_ACTIVE)?.first().map(|active| *active != 0)
            }
            Self::File => Some(root.value::<String>(&format!("ethtool/{interface}/eee"))? == "active"),
            Self::Nowhere => None,
        }
    }
}

/// Length, type and payload, padded to words.
fn attribute(kind: u16, bytes: &[u8]) -> Vec<u8> {
    let mut attribute = Vec::with_capacity(8 + bytes.len());
    attribute.extend_from_slice(&((4 + bytes.len()) as u16).to_ne_bytes());
    attribute.extend_from_slice(&kind.to_ne_bytes());
    attribute.extend_from_slice(bytes);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

fn request(family: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(MESSAGE_HEADER + GENERIC_HEADER + attributes.len());
    message.extend_from_slice(&((MESSAGE_HEADER + GENERIC_HEADER + attributes.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&family.to_ne_bytes());
    message.extend_from_slice(&REQUEST.to_ne_bytes());
    // Sequence number and port id: only one query is open at a time.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&[command, 1, 0, 0]);
    message.extend_from_slice(attributes);
    message
}

/// The attributes of the answer; `None` for an error.
fn ask(socket: &OwnedFd, family: u16, command: u8, attributes: &[u8]) -> Option<Vec<u8>> {
    let message = request(family, command, attributes);
    sendto(socket.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty()).ok()?;
    let mut answer = [0; 8192];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).ok()?;
    attributes_of(answer.get(..length)?, family)
}

/// The part of an answer of this family after both headers; errors have a different type.
fn attributes_of(answer: &[u8], family: u16) -> Option<Vec<u8>> {
    let length = u32::from_ne_bytes(*answer.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let body = answer.get(MESSAGE_HEADER + GENERIC_HEADER..length)?;
    (kind == family).then(|| body.to_vec())
}

/// The payload of the first attribute of a type.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let bytes = attributes.get(4..length)?;
        if kind & !NESTED == wanted {
            return Some(bytes);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_and_answer_have_the_kernel_layout() {
        let name = attribute(DEVICE_NAME, b"eth0\0");
        assert_eq!((name.len(), &name[4..9]), (12, &b"eth0\0"[..]), "padded to a word");
        let asked = request(27, GET_EEE, &attribute(EEE_HEADER | NESTED, &name));
        assert_eq!(asked.len(), 16 + 4 + 4 + 12);
        assert_eq!((u32::from_ne_bytes([asked[0], asked[1], asked[2], asked[3]]), asked[16]), (36, 23));
        let answered = [attribute(EEE_HEADER | NESTED, &name), attribute(2, b"xyz"), attribute(EEE_ACTIVE, &[1])];
        let mut answer = request(27, GET_EEE, &answered.concat());
        assert_eq!(find(&attributes_of(&answer, 27).expect("it is the family's"), EEE_ACTIVE), Some(&[1][..]));
        assert_eq!(attributes_of(&answer, 2), None, "an error is of another kind");
        for end in 0..answer.len() {
            let cut = attributes_of(&answer[..end], 27);
            assert_eq!(cut.and_then(|cut| find(&cut, EEE_ACTIVE).map(<[u8]>::to_vec)), None, "cut at {end}");
        }
        // Invalid lengths end the search.
        for length in [0u16, 3, 9999] {
            answer[20..22].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(find(&answer[20..], EEE_ACTIVE), None, "{length}");
        }
    }

    #[test]
    fn kernel_query_works_or_fails_and_loopback_has_no_eee() {
        let root = Root::new(std::path::Path::new("/"));
        assert_eq!(Ethtool::find(&root).is_active(&root, "lo"), None);
        assert_eq!(Ethtool::find(&root).is_active(&root, "no-such-link"), None);
    }
}
