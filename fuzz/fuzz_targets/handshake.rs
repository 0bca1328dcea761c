//! What a peer may send before it has proved anything: preamble, lengths, the first message by key, its Hello, pairing
//! elements, announcements in the local network. With a flag, the message is made with the right key.
#![no_main]
use bramble_fuzz::{cut::Input, memory::bounded};
use common::version::speaking;
use libfuzzer_sys::fuzz_target;
use protocol::{
    discovery::Announcement,
    handshake::{Hello, PREAMBLE_BYTES, Preamble, body_length, decode},
    noise::{self, Initiator, key, pake},
    pairing::WrappedKey,
    seal::{Cipher, Protection, Seals},
};

/// Two keys of a node; peers have the second one.
const KEYS: [[u8; 32]; 2] = [[7; 32], [9; 32]];

/// The accepting end: a message before its key is known.
fn respond(prologue: &[u8], message: &[u8], payload: &[u8], cipher: Cipher, is_right: bool) {
    let (initiator, made) = Initiator::begin(&KEYS[1], prologue, payload).expect("random numbers");
    let sent = if is_right { &made } else { message };
    let room = 64 * sent.len() + (1 << 16);
    let Ok(accepted) = bounded(room, || noise::respond(&KEYS, prologue, sent, cipher)) else { return };
    assert!(is_right, "a Hello with a wrong key must be refused");
    assert_eq!((accepted.payload.as_slice(), accepted.index), (payload, 1));
    let mut seals = accepted.seals;
    let Ok(mut theirs) = initiator.finish(&accepted.reply, cipher) else { panic!("the reply is right") };
    // The first sealed messages of both ends, then what an attacker sends.
    let mut sealed = b"\x01\0\0\0x".to_vec();
    theirs.out.seal(&mut sealed, 4);
    assert_eq!(seals.input.open(&mut sealed, 4), Ok(5));
    let mut forged = message.to_vec();
    assert!(seals.input.open(&mut forged, 4.min(message.len())).is_err(), "a forged message must not open");
}

/// Everything that is read from an open link, damaged or not.
fn link(seed: u8, bytes: &[u8]) {
    let cipher = if seed & 1 == 0 { Cipher::ChaChaPoly } else { Cipher::AesGcm };
    let protection = [Protection::Plain, Protection::Authenticated, Protection::Encrypted][usize::from(seed >> 1) % 3];
    let (mut one, mut two) = Seals::pair(cipher, &KEYS[0], protection);
    if seed & 16 != 0 {
        (one, two) = (Seals::without_key(5), Seals::without_key(5));
    }
    let clear = usize::from(seed >> 5).min(bytes.len());
    let mut message = bytes.to_vec();
    one.out.seal(&mut message, clear);
    assert_eq!(message.len(), bytes.len() + one.out.overhead());
    let mut damaged = message.clone();
    assert_eq!(two.input.open(&mut message, clear), Ok(bytes.len()));
    assert_eq!(&message[..bytes.len()], bytes);
    if one.out.protection() != Protection::Plain {
        assert!(two.input.open(&mut damaged, clear).is_err(), "a message arrives once");
    }
    let mut wild = bytes.to_vec();
    let _ = two.input.open(&mut wild, clear);
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (which, flags) = (input.byte(), input.byte());
    let rest = input.0;
    match which % 6 {
        0 => {
            let Some((bytes, behind)) = rest.split_first_chunk::<PREAMBLE_BYTES>() else { return };
            let Some(preamble) = Preamble::decode(*bytes) else { return };
            let again = Preamble::decode(preamble.encode()).expect("a preamble is read back");
            assert_eq!(again, preamble);
            let cipher = preamble.cipher(preamble);
            let Ok(version) = preamble.agree() else { return };
            let prologue = [preamble.encode(), Preamble::OWN.encode()].concat();
            respond(&prologue, behind, behind, cipher, flags & 1 != 0);
            let hello: Result<Hello, _> = speaking(version, || decode(behind));
            let _ = hello.map(|hello| hello.identity.check());
        }
        1 => {
            let Some((length, body)) = rest.split_first_chunk::<4>() else { return };
            let Ok(length) = body_length(*length) else { return };
            assert!(length <= protocol::handshake::HELLO_BYTES_MAX);
            let _: Result<Hello, _> = decode(&body[..length.min(body.len())]);
        }
        2 => link(flags, rest),
        3 => {
            let code: Result<pake::Code, _> = input.text().parse();
            let code = code.unwrap_or_else(|_| "1234-5678".parse().expect("a code"));
            let (node, _) = pake::Pake::node(&code);
            let _ = node.finish(input.0);
            let _ = key::of_hexadecimal(&input.text());
        }
        4 => {
            let texts = input.texts();
            let found = Announcement::read(|name| {
                let place = name.bytes().map(usize::from).sum::<usize>() % texts.len().max(1);
                texts.get(place).map(String::as_str)
            });
            let read: std::collections::BTreeMap<_, _> = found.properties().into_iter().collect();
            let again = Announcement::read(|name| read.get(name).map(String::as_str));
            assert_eq!((again.properties(), again.instance()), (found.properties(), found.instance()));
        }
        _ => {
            let Ok(wrapped) = decode::<WrappedKey>(rest) else { return };
            let secret = key::Key::named("secret", KEYS[0]);
            assert!(
                secret.is_none_or(|secret| wrapped.open(&secret).is_none()),
                "a key wrapped for another secret must not open"
            );
        }
    }
});
