//! The handshake of ends that share a key: Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s (noiseprotocol.org, revision 34). The
//! key authenticates both ends; the ephemeral keys keep past sessions secret if it is compromised later. Bytes in,
//! bytes out: no sockets.
pub mod key;
pub mod keyring;
pub mod pake;

use common::fault::FaultKind;
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use snow::{Builder, HandshakeState};

use super::seal::{Cipher, Seal, Seals};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Overhead of a handshake message beyond its payload: an ephemeral key and a tag.
pub const OVERHEAD: usize = 32 + 16;

/// A pre-shared key.
pub type Psk = [u8; 32];

/// Unpredictable bytes.
///
/// # Errors
/// The system has no random numbers.
pub fn random_bytes<const COUNT: usize>() -> Result<[u8; COUNT], &'static str> {
    let mut bytes = [0; COUNT];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "the system has no random numbers")?;
    Ok(bytes)
}

/// The dialling end, between its message and the response.
pub struct Initiator(HandshakeState);

/// The accepting end's result of the first message.
pub struct Accepted {
    /// Payload of the dialling end. Not proven fresh before its first sealed message.
    pub payload: Vec<u8>,
    /// The response to send.
    pub reply: Vec<u8>,
    /// Index of the matching key.
    pub index: usize,
    /// Protection of all following messages.
    pub seals: Seals,
}

fn builder<'a>(psk: &'a Psk, prologue: &'a [u8]) -> Builder<'a> {
    let pattern = PATTERN.parse().expect("snow supports the pattern");
    let builder = Builder::new(pattern).psk(0, psk).and_then(|builder| builder.prologue(prologue));
    builder.expect("key and prologue are given once")
}

impl Initiator {
    /// Starts a handshake: `prologue` is everything that both ends have sent in clear, `payload` is encrypted with the
    /// message.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn begin(psk: &Psk, prologue: &[u8], payload: &[u8]) -> Result<(Self, Vec<u8>), FaultKind> {
        let mut state = builder(psk, prologue).build_initiator().map_err(|error| internal(&error))?;
        let mut message = vec![0; payload.len() + OVERHEAD];
        let length = state.write_message(payload, &mut message).map_err(|error| internal(&error))?;
        message.truncate(length);
        Ok((Self(state), message))
    }

    /// Processes the response.
    ///
    /// # Errors
    /// The peer has another key, or saw another prologue.
    pub fn finish(mut self, reply: &[u8], cipher: Cipher) -> Result<Seals, FaultKind> {
        let mut payload = vec![0; reply.len()];
        self.0.read_message(reply, &mut payload).map_err(|_| FaultKind::KeyDiffers)?;
        Ok(seals(self.0, cipher, true))
    }
}

/// Responds to the first message of a handshake, with the first key that fits.
///
/// # Errors
/// No key fits, the message was made for another prologue, or the system has no random numbers.
pub fn respond(psks: &[Psk], prologue: &[u8], message: &[u8], cipher: Cipher) -> Result<Accepted, FaultKind> {
    let mut payload = vec![0; message.len()];
    for (index, psk) in psks.iter().enumerate() {
        let mut state = builder(psk, prologue).build_responder().map_err(|error| internal(&error))?;
        let Ok(length) = state.read_message(message, &mut payload) else { continue };
        payload.truncate(length);
        let mut reply = vec![0; OVERHEAD];
        let length = state.write_message(&[], &mut reply).map_err(|error| internal(&error))?;
        reply.truncate(length);
        return Ok(Accepted { payload, reply, index, seals: seals(state, cipher, false) });
    }
    Err(FaultKind::KeyDiffers)
}

/// The keys of both directions, bound to the transcript: prologue, Hello (with epoch and topology hash), ephemeral
/// keys.
fn seals(mut state: HandshakeState, cipher: Cipher, is_initiator: bool) -> Seals {
    let transcript = state.get_handshake_hash().to_vec();
    let (there, back) = state.dangerously_get_raw_split();
    let seal = |key: [u8; 32]| Seal::new(cipher, &derive(&key, &[b"bramble traffic 1", &transcript]));
    let (there, back) = (seal(there), seal(back));
    if is_initiator { Seals { out: there, input: back } } else { Seals { out: back, input: there } }
}

/// HMAC-SHA256 of the parts under a key.
fn derive(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    parts.iter().for_each(|part| context.update(part));
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.sign().as_ref());
    bytes
}

fn internal(error: &snow::Error) -> FaultKind {
    FaultKind::Internal { reason: format!("handshake: {error}") }
}

/// Whether this processor has AES-GCM instructions.
pub fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [Psk; 2] = [[1; 32], [2; 32]];

    fn check(dialled: &Psk, prologues: [&[u8]; 2], cipher: Cipher) -> Result<(Accepted, Seals), FaultKind> {
        let (initiator, message) = Initiator::begin(dialled, prologues[0], b"hello")?;
        let accepted = respond(&KEYS, prologues[1], &message, cipher)?;
        let seals = initiator.finish(&accepted.reply, cipher)?;
        Ok((accepted, seals))
    }

    #[test]
    fn ends_with_one_key_exchange_encrypted_messages() {
        for (index, key) in KEYS.iter().enumerate() {
            for cipher in [Cipher::ChaChaPoly, Cipher::AesGcm] {
                let (mut accepted, mut seals) = check(key, [b"p", b"p"], cipher).expect("the keys are the same");
                assert_eq!((accepted.payload.as_slice(), accepted.index), (b"hello".as_slice(), index));
                let mut message = b"there".to_vec();
                seals.out.seal(&mut message, 0);
                assert_eq!(accepted.seals.input.open(&mut message.clone(), 0), Ok(5));
                assert!(seals.input.open(&mut message, 0).is_err(), "a reflected message is rejected");
                let mut message = b"back".to_vec();
                accepted.seals.out.seal(&mut message, 0);
                assert_eq!(seals.input.open(&mut message, 0), Ok(4));
            }
        }
    }

    #[test]
    fn other_key_prologue_or_byte_is_rejected() {
        let refused = |result: Result<(Accepted, Seals), FaultKind>| result.err() == Some(FaultKind::KeyDiffers);
        assert!(refused(check(&[3; 32], [b"p", b"p"], Cipher::ChaChaPoly)));
        assert!(refused(check(&KEYS[0], [b"p", b"q"], Cipher::ChaChaPoly)), "the prologue is bound into the handshake");
        let (_, message) = Initiator::begin(&KEYS[0], b"p", b"hello").expect("random numbers");
        for byte in 0..message.len() {
            let mut changed = message.clone();
            // The curve ignores the highest bit of a point, but the transcript does not.
            changed[byte] ^= 1;
            let answer = |bytes: &[u8]| respond(&KEYS, b"p", bytes, Cipher::ChaChaPoly).err();
            assert_eq!(answer(&changed), Some(FaultKind::KeyDiffers), "byte {byte}");
            assert_eq!(answer(&message[..byte]), Some(FaultKind::KeyDiffers), "cut at {byte}");
        }
    }

    #[test]
    fn replayed_first_message_yields_keys_unknown_to_the_attacker() {
        let (initiator, message) = Initiator::begin(&KEYS[0], b"p", b"hello").expect("random numbers");
        let first = respond(&KEYS, b"p", &message, Cipher::ChaChaPoly).expect("it is good");
        let mut again = respond(&KEYS, b"p", &message, Cipher::ChaChaPoly).expect("it looks good");
        let mut seals = initiator.finish(&first.reply, Cipher::ChaChaPoly).expect("the answer is good");
        let mut confirmation = Vec::new();
        seals.out.seal(&mut confirmation, 0);
        assert!(again.seals.input.open(&mut confirmation, 0).is_err());
    }
}
