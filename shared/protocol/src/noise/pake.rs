//! Adoption by a code that a person reads from the node: SPAKE2 (RFC 9382 as implemented by the spake2 crate, Ed25519)
//! derives a key from a short code that both ends share. An eavesdropper learns nothing, and an attacker gets one guess
//! per connection.
use spake2::{Ed25519Group, Identity, Password, Spake2};

use super::{Psk, derive, random_bytes};

/// Bytes of the message of each end.
pub const ELEMENT_BYTES: usize = 33;
/// Digits of a code, without the dash in the middle.
const DIGITS: u32 = 8;

/// A pairing code, for example `1234-5678`.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(String);

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Code(..)")
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", &self.0[..4], &self.0[4..])
    }
}

impl std::str::FromStr for Code {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits: String = text.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
        let is_code = digits.len() == DIGITS as usize && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_code { Ok(Self(digits)) } else { Err("a code has 8 digits, for example 1234-5678".into()) }
    }
}

impl Code {
    /// A new code.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> Result<Self, &'static str> {
        // 64 bits modulo 10^8: the probabilities of two codes differ by less than 10^-11.
        Ok(Self(format!("{:08}", u64::from_le_bytes(random_bytes()?) % 10_u64.pow(DIGITS))))
    }
}

/// One end between its own message and the other's.
pub struct Pake(Spake2<Ed25519Group>);

impl Pake {
    /// The dialling end and its message.
    pub fn dialler(code: &Code) -> (Self, Vec<u8>) {
        let (state, element) = Spake2::start_a(&password(code), &dialler(), &node());
        (Self(state), element)
    }

    /// The node's end and its message.
    pub fn node(code: &Code) -> (Self, Vec<u8>) {
        let (state, element) = Spake2::start_b(&password(code), &dialler(), &node());
        (Self(state), element)
    }

    /// The key for the handshake that follows; the keys differ if the codes differ. `None` if the message is not a
    /// valid element.
    pub fn finish(self, element: &[u8]) -> Option<Psk> {
        let key = self.0.finish(element).ok()?;
        Some(derive(&key, &[b"bramble pairing 1"]))
    }
}

fn password(code: &Code) -> Password {
    Password::new(code.0.as_bytes())
}

fn dialler() -> Identity {
    Identity::new(b"bramble console")
}

fn node() -> Identity {
    Identity::new(b"bramble node")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dialled: &str, shown: &str) -> bool {
        let code = |text: &str| text.parse::<Code>().expect("a code");
        let ((dialler, there), (node, back)) = (Pake::dialler(&code(dialled)), Pake::node(&code(shown)));
        assert_eq!((there.len(), back.len()), (ELEMENT_BYTES, ELEMENT_BYTES));
        dialler.finish(&back).expect("an element") == node.finish(&there).expect("an element")
    }

    #[test]
    fn only_the_same_code_gives_the_same_key() {
        assert!(check("1234-5678", "12345678"));
        assert!(!check("1234-5678", "1234-5679"));
    }

    #[test]
    fn what_is_no_element_gives_no_key() {
        let code = Code::random().expect("random numbers");
        for wrong in [&[][..], &[0; ELEMENT_BYTES], &[0xff; ELEMENT_BYTES], &[0x41; ELEMENT_BYTES - 1]] {
            assert!(Pake::node(&code).0.finish(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn codes_are_eight_digits_and_parse_back() {
        let code = Code::random().expect("random numbers");
        assert_eq!(code.to_string().parse(), Ok(code.clone()));
        assert_eq!(format!("{code:?}"), "Code(..)");
        for wrong in ["", "1234567", "123456789", "1234-567a", "１２３４５６７８"] {
            assert!(wrong.parse::<Code>().is_err(), "{wrong}");
        }
    }
}
