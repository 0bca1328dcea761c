//! Sockets of sessions: dialling, the handshake on both sides, and messages of the handshake. Besides `session.rs` and
//! `messages.rs` the only file of `shared` with tokio.
use std::{
    io,
    sync::LazyLock,
    time::{Duration, Instant, SystemTime},
};

use common::{
    fault::{Fault, FaultKind},
    older,
    version::{WIRE_LOWEST, speaking},
};
use serde::{Serialize, de::DeserializeOwned};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    handshake::{
        self, HELLO_BYTES_MAX, Hello, Identity, PREAMBLE_BYTES, Preamble, SECURITY_KEY, SECURITY_NONE,
        SECURITY_PAIRING, Welcome,
    },
    message,
    noise::{
        self, Initiator, Psk,
        key::Role,
        keyring::{self, Credential, Keyring, Pass},
    },
    seal::{Protection, Seal, Seals},
};

/// Deadline for a dial and its handshake.
pub const DIAL_SECONDS: u64 = 5;
/// An idle session is probed after `PROBE_AFTER`, then every `PROBE_EVERY`, and ends after `PROBES_MAX` unanswered
/// probes.
const PROBE_AFTER: Duration = Duration::from_secs(3);
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBES_MAX: u32 = 3;
/// A session ends when sent bytes stay unacknowledged for this long.
const GONE_AFTER: Duration = Duration::from_secs(10);
/// A length that announces a rejection instead of a handshake message.
const REFUSAL: u16 = u16::MAX;

/// A socket after its handshake.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub stream: TcpStream,
    /// Protection of its messages.
    pub seals: Seals,
    /// The key that the dialling side proved; `None` between ends without a key.
    pub pass: Option<Pass>,
    /// Its protection once it becomes a data link.
    pub data_links: Protection,
    /// The agreed wire version.
    pub version: u16,
    /// The highest wire version that the other end speaks; it may be later than this build's.
    pub highest: u16,
}

impl Connection {
    /// The role that the dialling side proved.
    pub fn role(&self) -> Option<Role> {
        self.pass.as_ref().map(|pass| pass.role)
    }

    /// The socket as a data link, protected as both ends agreed.
    pub fn into_data_link(mut self) -> (TcpStream, Seals) {
        self.seals.protect(self.data_links);
        // While a rank computes, it may leave its links unread for longer than the limit of a session. Heartbeats detect
        // a machine that is gone. The call cannot fail on a connected socket.
        let _ = SockRef::from(&self.stream).set_tcp_user_timeout(None);
        (self.stream, self.seals)
    }
}

/// The accepting side of a connection.
#[derive(Clone, Copy)]
pub struct Door<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Its keys.
    pub keyring: &'a Keyring,
    /// Whether the node shows a pairing code.
    pub is_pairing: &'a (dyn Fn() -> bool + Sync),
}

/// An incoming connection.
#[derive(Debug)]
pub enum Arrived {
    /// A session or a link, before its Welcome.
    Hello(Connection, Hello),
    /// A pairing connection that wants to give the node its key, with the preambles exchanged so far.
    Pairing(TcpStream, Vec<u8>),
}

/// Dials `address` with this process's keys, performs the handshake and returns the connection with the identity of the
/// peer.
///
/// # Errors
/// A fault that names the address: unreachable, not Bramble, another version or key, or the fault with which the node
/// rejected the handshake.
pub async fn dial(address: &str, hello: &Hello) -> Result<(Connection, Identity), Fault> {
    dial_with(address, hello, &keyring::own()).await
}

/// As [`dial`], with other keys. Tries every valid key: after a rotation some nodes have the new key, some the previous
/// one.
///
/// # Errors
/// As [`dial`].
pub async fn dial_with(address: &str, hello: &Hello, keyring: &Keyring) -> Result<(Connection, Identity), Fault> {
    let keys = keyring.dialling(steady_seconds());
    let mut attempts = keys.iter().map(Some).collect::<Vec<_>>();
    if attempts.is_empty() {
        attempts.push(None);
    }
    let mut result = Err(Fault::new(address, FaultKind::KeyNeeded));
    for key in attempts {
        let attempt = within(address, async {
            let mut stream = connect(address).await?;
            let own = offer(key.map(|key| key.role), keyring);
            let theirs = greet(&mut stream, own).await.map_err(|kind| named(address, kind))?;
            let terms = Terms { own, theirs, key, allows_plain: keyring.allows_plain };
            introduce(stream, terms, hello).await.map_err(|kind| match kind {
                Refusal::Own(kind) => Fault::new(address, kind),
                Refusal::Theirs(fault) => fault,
            })
        });
        result = attempt.await;
        if !matches!(result, Err(Fault { kind: FaultKind::KeyDiffers, .. })) {
            break;
        }
    }
    result
}

/// Dials a node to adopt it. Returns the socket and the preambles exchanged so far.
///
/// # Errors
/// It is unreachable, is not Bramble, already has a key, or shows no code.
pub async fn dial_pairing(address: &str) -> Result<(TcpStream, Vec<u8>), Fault> {
    within(address, async {
        let mut stream = connect(address).await?;
        let own = Preamble { security: SECURITY_PAIRING, ..offer(None, &Keyring::empty(Role::Operator)) };
        let theirs = greet(&mut stream, own).await.map_err(|kind| named(address, kind))?;
        match theirs.security {
            SECURITY_PAIRING => Ok((stream, prologue(own, theirs))),
            SECURITY_KEY => Err(Fault::new(address, FaultKind::Claimed)),
            _ => Err(Fault::new(address, FaultKind::NotPairing)),
        }
    })
    .await
}

async fn within<T>(address: &str, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let reason = format!("no answer within {DIAL_SECONDS} s");
    timeout(Duration::from_secs(DIAL_SECONDS), work)
        .await
        .unwrap_or_else(|_| Err(Fault::new(address, FaultKind::Unreachable { address: address.into(), reason })))
}

async fn connect(address: &str) -> Result<TcpStream, Fault> {
    let unreachable = |error: io::Error| {
        let kind = FaultKind::Unreachable { address: address.into(), reason: error.to_string() };
        Fault::new(address, kind)
    };
    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
    tune(&stream).map_err(unreachable)?;
    Ok(stream)
}

/// Sets the options of a session's socket: small messages are sent at once. A machine that vanishes (power, cable) ends
/// its sessions within 10 s, a machine that has rebooted since within 3 s. Otherwise a waiting peer would wait for the
/// longest answer.
///
/// # Errors
/// The kernel rejects an option.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES_MAX);
    socket.set_tcp_keepalive(&probes)?;
    // Keepalive probes are not sent while bytes are in flight: those have their own deadline.
    socket.set_tcp_user_timeout(Some(GONE_AFTER))
}

/// A fault of the first bytes, under the address that was dialled.
fn named(address: &str, kind: FaultKind) -> Fault {
    match kind {
        FaultKind::NotBramble { .. } => Fault::new(address, FaultKind::NotBramble { address: address.into() }),
        kind => Fault::new(address, kind),
    }
}

/// The preamble of this end.
fn offer(role: Option<Role>, keyring: &Keyring) -> Preamble {
    let security = if keyring.has_key() { SECURITY_KEY } else { SECURITY_NONE };
    Preamble { security, has_aes: noise::has_aes(), role, data_links: keyring.data_links, ..Preamble::OWN }
}

/// Everything that both ends have sent in clear; bound into the handshake.
fn prologue(dialler: Preamble, acceptor: Preamble) -> Vec<u8> {
    [dialler.encode(), acceptor.encode()].concat()
}

async fn greet(stream: &mut TcpStream, own: Preamble) -> Result<Preamble, FaultKind> {
    let not_bramble = || FaultKind::NotBramble { address: "the peer".into() };
    stream.write_all(&own.encode()).await.map_err(|error| broke(&error))?;
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut preamble).await.map_err(|_| not_bramble())?;
    let theirs = Preamble::decode(preamble).ok_or_else(not_bramble)?;
    theirs.agree()?;
    Ok(theirs)
}

/// The origin of a rejection.
enum Refusal {
    Own(FaultKind),
    Theirs(Fault),
}

impl From<FaultKind> for Refusal {
    fn from(kind: FaultKind) -> Self {
        Self::Own(kind)
    }
}

/// What a dialling side offers and accepts.
struct Terms<'a> {
    own: Preamble,
    theirs: Preamble,
    key: Option<&'a Credential>,
    allows_plain: bool,
}

async fn introduce(mut stream: TcpStream, terms: Terms<'_>, hello: &Hello) -> Result<(Connection, Identity), Refusal> {
    let (theirs, version) = (terms.theirs, terms.theirs.agree()?);
    if let Some(what) = older::unknown(version, hello) {
        return Err(FaultKind::PeerOlder { version, what }.into());
    }
    let mut seals = Seals::without_key(version);
    let pass = terms.key.and_then(|key| key.pass(version));
    // Both ends are bound to the preamble as an older peer reads it.
    let own = Preamble { role: pass.as_ref().map(|pass| pass.role), ..terms.own };
    match (&pass, theirs.security) {
        (Some(pass), SECURITY_KEY) => {
            let payload = speaking(version, || message::encode(hello));
            let (initiator, message) = Initiator::begin(pass.psk(), &prologue(own, theirs), &payload)?;
            write_short(&mut stream, &message).await?;
            let reply = match read_short(&mut stream).await? {
                Ok(reply) => reply,
                Err(fault) => return Err(Refusal::Theirs(fault)),
            };
            seals = initiator.finish(&reply, own.cipher(theirs))?;
            // Proves that this handshake is not a replay: only this end has the keys.
            write(&mut stream, &mut seals.out, version, &()).await?;
        }
        (None, SECURITY_KEY) => return Err(FaultKind::KeyNeeded.into()),
        // An end with a key must not be talked out of using it: even on this machine, any user can listen where a node
        // should.
        (Some(_), _) if !terms.allows_plain => return Err(FaultKind::Unclaimed.into()),
        _ => write(&mut stream, &mut seals.out, version, hello).await?,
    }
    match read(&mut stream, &mut seals.input, version).await? {
        Welcome::Accepted(identity) => {
            let pass = pass.filter(|_| theirs.security == SECURITY_KEY);
            let data_links = own.data_links.max(theirs.data_links);
            Ok((Connection { stream, seals, pass, data_links, version, highest: theirs.highest }, identity))
        }
        Welcome::Refused(refusal) => Err(Refusal::Theirs(refusal)),
    }
}

/// The accepting side up to the Welcome: preambles, the handshake by key if there is one, the Hello.
///
/// # Errors
/// The violation by the peer; the caller closes the connection.
pub async fn receive_hello(mut stream: TcpStream, door: Door<'_>) -> Result<Arrived, FaultKind> {
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut preamble).await.map_err(|error| broke(&error))?;
    let Some(theirs) = Preamble::decode(preamble) else {
        return Err(FaultKind::NotBramble { address: "the peer".into() });
    };
    let mut own = offer(None, door.keyring);
    if theirs.security == SECURITY_PAIRING && !door.keyring.has_key() && (door.is_pairing)() {
        own.security = SECURITY_PAIRING;
    }
    stream.write_all(&own.encode()).await.map_err(|error| broke(&error))?;
    let version = theirs.agree()?;
    let (data_links, highest) = (own.data_links.max(theirs.data_links), theirs.highest);
    match (theirs.security, own.security) {
        (SECURITY_PAIRING, SECURITY_PAIRING) => Ok(Arrived::Pairing(stream, prologue(theirs, own))),
        (SECURITY_PAIRING, SECURITY_KEY) => Err(FaultKind::Claimed),
        (SECURITY_PAIRING, _) => Err(FaultKind::NotPairing),
        (SECURITY_NONE, SECURITY_KEY) => Err(FaultKind::KeyNeeded),
        (_, SECURITY_KEY) => {
            let role = theirs.role.ok_or_else(|| FaultKind::Malformed { reason: "a key without a role".into() })?;
            let psks = door.keyring.accepting(role, steady_seconds());
            let said = prologue(theirs, own);
            let (mut seals, payload, psk) = match answer(&mut stream, &psks, &said, own.cipher(theirs)).await {
                Ok(answered) => answered,
                Err(kind) => {
                    refuse(&mut stream, &Fault::new(door.name, kind.clone())).await;
                    return Err(kind);
                }
            };
            let hello = speaking(version, || message::decode(&payload))?;
            let () = read(&mut stream, &mut seals.input, version).await?;
            let pass = Some(Pass::new(role, psk));
            Ok(Arrived::Hello(Connection { stream, seals, pass, data_links, version, highest }, hello))
        }
        _ => {
            let mut seals = Seals::without_key(version);
            let hello = read(&mut stream, &mut seals.input, version).await?;
            Ok(Arrived::Hello(Connection { stream, seals, pass: None, data_links, version, highest }, hello))
        }
    }
}

/// Answers a handshake with one of these keys. Returns the protection of the remaining messages, the payload of the
/// first message, and the matching key.
///
/// # Errors
/// None of the keys fits, or the connection failed.
pub async fn answer(
    stream: &mut TcpStream,
    psks: &[Psk],
    prologue: &[u8],
    cipher: crate::seal::Cipher,
) -> Result<(Seals, Vec<u8>, Psk), FaultKind> {
    let Ok(first) = read_short(stream).await? else {
        return Err(FaultKind::Malformed { reason: "a refusal instead of a handshake".into() });
    };
    let accepted = noise::respond(psks, prologue, &first, cipher)?;
    write_short(stream, &accepted.reply).await?;
    let psk = psks.get(accepted.index).copied().ok_or(FaultKind::KeyDiffers)?;
    Ok((accepted.seals, accepted.payload, psk))
}

/// Sends the reason for ending a handshake by key, in clear. A send error is ignored: the peer is gone.
pub async fn refuse(stream: &mut TcpStream, fault: &Fault) {
    let mut bytes = REFUSAL.to_le_bytes().to_vec();
    bytes.extend_from_slice(&speaking(WIRE_LOWEST, || handshake::encode(&Welcome::Refused(fault.clone()))));
    let _ = stream.write_all(&bytes).await;
}

/// Sends the last message of the handshake on the accepting side.
///
/// # Errors
/// The peer is gone.
pub async fn send_welcome(connection: &mut Connection, welcome: &Welcome) -> Result<(), FaultKind> {
    write(&mut connection.stream, &mut connection.seals.out, connection.version, welcome).await
}

/// Sends a message of a handshake by key: its length in 2 bytes, then its bytes.
///
/// # Errors
/// The connection failed.
pub async fn write_short(stream: &mut TcpStream, message: &[u8]) -> Result<(), FaultKind> {
    let length = u16::try_from(message.len()).expect("handshake messages are far shorter than 64 kB");
    let bytes = [&length.to_le_bytes(), message].concat();
    stream.write_all(&bytes).await.map_err(|error| broke(&error))
}

/// Reads a message sent by [`write_short`], or the peer's reason to reject the handshake.
///
/// # Errors
/// The connection failed, or a message is too long.
pub async fn read_short(stream: &mut TcpStream) -> Result<Result<Vec<u8>, Fault>, FaultKind> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).await.map_err(|error| broke(&error))?;
    let length = u16::from_le_bytes(length);
    if length == REFUSAL {
        // A rejection in clear is encoded in the lowest version, which both ends support.
        return match read(stream, &mut Seal::default(), WIRE_LOWEST).await? {
            Welcome::Refused(fault) => Ok(Err(fault)),
            Welcome::Accepted(_) => Err(FaultKind::Malformed { reason: "a welcome in clear".into() }),
        };
    }
    if usize::from(length) > HELLO_BYTES_MAX + noise::OVERHEAD {
        return Err(FaultKind::Malformed { reason: format!("invalid handshake length {length}") });
    }
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await.map_err(|error| broke(&error))?;
    Ok(Ok(message))
}

/// Sends one whole message of a handshake, sealed.
///
/// # Errors
/// The connection failed.
pub async fn write<T: Serialize>(
    stream: &mut TcpStream,
    seal: &mut Seal,
    version: u16,
    message: &T,
) -> Result<(), FaultKind> {
    stream.write_all(&sealed(seal, version, message)).await.map_err(|error| broke(&error))
}

/// Reads exactly one message of a handshake.
///
/// # Errors
/// The connection failed, or the message is too long, not from the peer, or of another type.
pub async fn read<T: DeserializeOwned>(stream: &mut TcpStream, seal: &mut Seal, version: u16) -> Result<T, FaultKind> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.map_err(|error| broke(&error))?;
    let mut bytes = length.to_vec();
    bytes.resize(4 + handshake::body_length(length)?, 0);
    stream.read_exact(&mut bytes[4..]).await.map_err(|error| broke(&error))?;
    let inside = seal.open(&mut bytes, 4)?;
    speaking(version, || handshake::decode(&bytes[4..inside]))
}

/// A message with its length prefix, sealed including the length.
pub(super) fn sealed<T: Serialize>(seal: &mut Seal, version: u16, message: &T) -> Vec<u8> {
    let body = speaking(version, || message::encode(message));
    let mut bytes = Vec::with_capacity(4 + body.len() + Seal::OVERHEAD);
    bytes.extend_from_slice(&((body.len() + seal.overhead()) as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    seal.seal(&mut bytes, 4);
    bytes
}

pub(super) fn broke(error: &io::Error) -> FaultKind {
    FaultKind::SessionLost { reason: error.to_string() }
}

/// Seconds since 1970 by the clock of this process, by which its keys expire. It begins with the machine's clock, but
/// does not jump when that one is set.
pub fn steady_seconds() -> u64 {
    static BEGUN: LazyLock<(Instant, Duration)> =
        LazyLock::new(|| (Instant::now(), SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()));
    let (begun, since_1970) = *BEGUN;
    (since_1970 + begun.elapsed()).as_secs()
}

/// Whether the key that a connection proved is still valid for this process.
pub fn lets_in(pass: Option<&Pass>) -> bool {
    keyring::own().lets_in(pass, steady_seconds())
}

#[cfg(test)]
mod tests;
