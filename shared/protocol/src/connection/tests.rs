//! Handshakes over loopback: accepted and rejected keys, and rejection of every truncated, changed or replayed opening.
use std::sync::Arc;

use common::{
    fault::SealError,
    ids::{Epoch, MemberIndex, RequestId, TopologyHash},
    version::WIRE_HIGHEST,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::*;
use crate::messages::{MessageReader, split};
use crate::{
    handshake::{Between, Purpose},
    message::{Request, RequestBody},
    noise::{key::Key, keyring::Held},
};

fn identity(name: &str) -> Identity {
    Identity { name: name.into(), build: "0".into(), numeric: 1, machine: "m".into(), cores: vec![0] }
}

fn hello() -> Hello {
    let between = Between { epoch: Epoch(7), hash: TopologyHash(9), from: MemberIndex(0), to: MemberIndex(3) };
    Hello { identity: identity("pi1"), purpose: Purpose::Data(between) }
}

fn held(byte: u8) -> Held {
    Held { key: Key::Secret([byte; 32]), until: None }
}

fn keyring(role: Role, bytes: &[u8]) -> Keyring {
    Keyring::with(role, bytes.iter().map(|byte| held(*byte)).collect())
}

type Seen = Result<(Option<Role>, Hello, Option<Request>), FaultKind>;

/// A node that accepts connections one after another, welcomes each and reads one message.
async fn node(keyring: Keyring, connections: usize) -> (String, JoinHandle<Vec<Seen>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    let task = tokio::spawn(async move {
        let mut seen = Vec::new();
        for _ in 0..connections {
            let (stream, _) = listener.accept().await.expect("the test dials");
            seen.push(take(stream, &keyring).await);
        }
        seen
    });
    (address, task)
}

async fn take(stream: TcpStream, keyring: &Keyring) -> Seen {
    let door = Door { name: "pi4", keyring, is_pairing: &|| false };
    let Arrived::Hello(mut connection, hello) = receive_hello(stream, door).await? else {
        return Err(FaultKind::NotPairing);
    };
    let role = connection.role();
    send_welcome(&mut connection, &Welcome::Accepted(identity("pi4"))).await?;
    let (mut reader, _writer) = split(connection);
    Ok((role, hello, reader.receive().await?))
}

fn request() -> Request {
    Request { id: RequestId(5), body: RequestBody::Restart }
}

#[tokio::test]
async fn ends_with_equal_secrets_connect_in_every_role() {
    for (own, theirs, role) in [
        (keyring(Role::Node, &[1]), keyring(Role::Node, &[1]), Some(Role::Node)),
        (keyring(Role::Operator, &[1]), keyring(Role::Node, &[1]), Some(Role::Operator)),
        (keyring(Role::Operator, &[2, 1]), keyring(Role::Node, &[1]), Some(Role::Operator)),
        (keyring(Role::Node, &[1]), keyring(Role::Node, &[2, 1]), Some(Role::Node)),
        (keyring(Role::Owner, &[1]), keyring(Role::Node, &[1]), Some(Role::Owner)),
        (Keyring::empty(Role::Operator), Keyring::empty(Role::Node), None),
        (keyring(Role::Owner, &[1]).allowing_plain(true), Keyring::empty(Role::Node), None),
    ] {
        let attempts = if own.current() == Some(&Key::Secret([2; 32])) { 2 } else { 1 };
        let (address, node) = node(theirs, attempts).await;
        let (connection, identity) = dial_with(&address, &hello(), &own).await.expect("the keys fit");
        assert_eq!((identity.name.as_str(), connection.role()), ("pi4", role));
        let (_reader, mut writer) = split(connection);
        writer.send(&request()).await.expect("the node reads");
        drop((writer, _reader));
        let seen = node.await.expect("the node ends").pop().expect("it saw one").expect("it was good");
        assert_eq!(seen, (role, hello(), Some(request())));
    }
}

#[tokio::test]
async fn data_link_may_stay_unread_for_longer_than_a_session() {
    let (own, theirs) = (Keyring::empty(Role::Node), Keyring::empty(Role::Node));
    let (address, node) = node(theirs, 1).await;
    let (connection, _) = dial_with(&address, &hello(), &own).await.expect("no key is needed");
    assert_eq!(SockRef::from(&connection.stream).tcp_user_timeout().ok(), Some(Some(GONE_AFTER)));
    let (stream, _) = connection.into_data_link();
    assert_eq!(SockRef::from(&stream).tcp_user_timeout().ok(), Some(None));
    drop(stream);
    node.await.expect("the node ends");
}

#[tokio::test]
async fn wrong_and_missing_keys_are_rejected_on_both_sides() {
    let viewer = Key::Secret([1; 32]).for_role(Role::Viewer).expect("a secret has all roles");
    let forged =
        Keyring::with(Role::Operator, vec![Held { key: Key::Role(Role::Operator, *viewer.bytes()), until: None }]);
    for (own, kind) in [
        (keyring(Role::Operator, &[2]), FaultKind::KeyDiffers),
        (Keyring::empty(Role::Operator), FaultKind::KeyNeeded),
        // A viewer cannot become an operator by claiming the role.
        (forged, FaultKind::KeyDiffers),
    ] {
        let (address, node) = node(keyring(Role::Node, &[1]), 1).await;
        let fault = dial_with(&address, &hello(), &own).await.expect_err("the keys differ");
        assert_eq!(fault.kind, kind);
        let seen = node.await.expect("the node ends").pop().expect("it saw one");
        assert_eq!(seen.expect_err("it was refused"), kind);
    }
}

#[tokio::test]
async fn holder_of_key_sends_nothing_to_keyless_listener() {
    for own in [keyring(Role::Owner, &[1]), keyring(Role::Node, &[1])] {
        let (address, node) = node(Keyring::empty(Role::Node), 1).await;
        let fault = dial_with(&address, &hello(), &own).await.expect_err("the listener has no key");
        assert_eq!(fault.kind, FaultKind::Unclaimed);
        let seen = node.await.expect("the node ends").pop().expect("it saw one");
        assert!(matches!(seen, Err(FaultKind::SessionLost { .. })), "{seen:?}");
    }
}

#[tokio::test]
async fn operators_key_does_not_pass_for_node_to_owner() {
    let key = Key::Secret([1; 32]).for_role(Role::Operator).expect("a secret has all roles");
    let operator = Keyring::with(Role::Node, vec![Held { key, until: None }]);
    let (address, node) = node(operator.clone(), 1).await;
    let fault = dial_with(&address, &hello(), &keyring(Role::Owner, &[1])).await.expect_err("it is no node");
    assert_eq!(fault.kind, FaultKind::KeyDiffers);
    let seen = node.await.expect("the listener ends").pop().expect("it saw one");
    assert!(seen.is_err(), "{seen:?}");
}

/// A node of release 0.1: its highest version is 4, and it does not read an owner from the preamble.
async fn old_node(keyring: Keyring) -> (String, JoinHandle<Result<Hello, FaultKind>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("the test dials");
        let mut bytes = [0; PREAMBLE_BYTES];
        stream.read_exact(&mut bytes).await.expect("a preamble");
        let theirs = Preamble::decode(bytes).expect("a preamble");
        let theirs = Preamble { role: Role::of_byte(bytes[14]), ..theirs };
        let own = Preamble { highest: WIRE_LOWEST, ..offer(None, &keyring) };
        stream.write_all(&own.encode()).await.expect("it reads");
        let role = theirs.role.expect("it has a key");
        let (psks, said) = (keyring.accepting(role, 0), prologue(theirs, own));
        let (mut seals, payload, _) = answer(&mut stream, &psks, &said, own.cipher(theirs)).await?;
        let () = read(&mut stream, &mut seals.input, WIRE_LOWEST).await?;
        write(&mut stream, &mut seals.out, WIRE_LOWEST, &Welcome::Accepted(identity("pi4"))).await?;
        speaking(WIRE_LOWEST, || message::decode(&payload))
    });
    (address, task)
}

#[tokio::test]
async fn owner_comes_to_version_four_as_operator() {
    let (address, node) = old_node(keyring(Role::Node, &[1])).await;
    let dialled = dial_with(&address, &hello(), &keyring(Role::Owner, &[1])).await;
    let (connection, _) = dialled.expect("both have the secret");
    assert_eq!((connection.role(), connection.version), (Some(Role::Operator), WIRE_LOWEST));
    assert_eq!(node.await.expect("the node ends"), Ok(hello()));
}

#[tokio::test]
async fn later_version_of_the_other_end_is_known() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    let later = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("the test dials");
        let mut bytes = [0; PREAMBLE_BYTES];
        stream.read_exact(&mut bytes).await.expect("a preamble");
        let own = Preamble { highest: WIRE_HIGHEST + 1, ..offer(None, &Keyring::empty(Role::Node)) };
        stream.write_all(&own.encode()).await.expect("it reads");
        let mut seals = Seals::without_key(WIRE_HIGHEST);
        let said: Hello = read(&mut stream, &mut seals.input, WIRE_HIGHEST).await?;
        write(&mut stream, &mut seals.out, WIRE_HIGHEST, &Welcome::Accepted(identity("pi4"))).await?;
        Ok::<Hello, FaultKind>(said)
    });
    let dialled = dial_with(&address, &hello(), &Keyring::empty(Role::Operator)).await;
    let (connection, _) = dialled.expect("both have no key");
    assert_eq!((connection.version, connection.highest), (WIRE_HIGHEST, WIRE_HIGHEST + 1));
    assert_eq!(later.await.expect("the node ends"), Ok(hello()));
}

#[tokio::test]
async fn no_cut_changed_or_recorded_opening_gets_through() {
    let own = keyring(Role::Node, &[1]);
    // All that can be sent without the answer.
    let recorded = opening(&own).await;
    let keyring = Arc::new(own);
    for end in 0..=recorded.len() {
        let mut bytes = recorded[..end].to_vec();
        assert!(refuses(&keyring, &bytes).await, "cut at {end}");
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
            assert!(refuses(&keyring, &bytes).await, "changed at {end}");
        }
    }
}

/// The bytes of a dialling side up to the answer to its handshake.
async fn opening(keyring: &Keyring) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    let (keyring, mut said) = (keyring.clone(), vec![0; PREAMBLE_BYTES]);
    let dialling = tokio::spawn(async move { dial_with(&address, &hello(), &keyring).await.map(|_| ()) });
    let (mut stream, _) = listener.accept().await.expect("the console dials");
    stream.read_exact(&mut said).await.expect("a preamble");
    let own = offer(None, &self::keyring(Role::Node, &[1]));
    stream.write_all(&own.encode()).await.expect("it reads");
    let mut length = [0; 2];
    stream.read_exact(&mut length).await.expect("a handshake");
    let mut message = vec![0; usize::from(u16::from_le_bytes(length))];
    stream.read_exact(&mut message).await.expect("a handshake");
    dialling.abort();
    [said, length.to_vec(), message].concat()
}

/// Whether a node rejects this opening and ends the connection.
async fn refuses(keyring: &Arc<Keyring>, bytes: &[u8]) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let mut dialler = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("it listens");
    let (stream, _) = listener.accept().await.expect("the test dialled");
    dialler.write_all(bytes).await.expect("there is room");
    dialler.shutdown().await.expect("it is open");
    take(stream, keyring).await.is_err()
}

/// The reading end of a session whose other end sends `bytes` and then nothing.
async fn reader_of(bytes: &[u8]) -> (MessageReader, TcpStream) {
    reader_of_version(WIRE_LOWEST, bytes).await
}

async fn reader_of_version(version: u16, bytes: &[u8]) -> (MessageReader, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let mut far = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("it listens");
    let (stream, _) = listener.accept().await.expect("the test dialled");
    far.write_all(bytes).await.expect("there is room");
    let (seals, data_links) = (Seals::default(), Protection::Plain);
    let connection = Connection { stream, seals, pass: None, data_links, version, highest: version };
    (split(connection).0, far)
}

#[tokio::test]
async fn impossible_length_is_reported_as_damage() {
    // The 30th bit of 18, as a link once flipped it.
    let bytes = (18_u32 | 1 << 30).to_le_bytes();
    let (mut reader, _far) = reader_of_version(WIRE_HIGHEST, &bytes).await;
    let refused = reader.receive::<Request>().await;
    assert_eq!(refused, Err(FaultKind::Seal { error: SealError::Damaged }));
    let (mut reader, _far) = reader_of(&bytes).await;
    let refused = reader.receive::<Request>().await;
    assert!(matches!(refused, Err(FaultKind::Malformed { .. })), "version 4 has no sums: {refused:?}");
}

#[tokio::test]
async fn begun_message_must_end_in_time_and_in_bounds() {
    let rest = Duration::from_millis(50);
    let (reader, _far) = reader_of(&[100, 0, 0, 0, 1, 2]).await;
    let refused = reader.bounded(1000, rest).receive::<Request>().await;
    assert!(matches!(refused, Err(FaultKind::Timeout { .. })), "{refused:?}");
    let (reader, _far) = reader_of(&[0xe9, 3, 0, 0]).await;
    let refused = reader.bounded(1000 - Seal::OVERHEAD, rest).receive::<Request>().await;
    assert!(matches!(refused, Err(FaultKind::Malformed { .. })), "{refused:?}");
    // No such deadline between two messages.
    let (reader, _far) = reader_of(&[]).await;
    let mut reader = reader.bounded(1000, Duration::ZERO);
    assert!(timeout(rest, reader.receive::<Request>()).await.is_err());
}
