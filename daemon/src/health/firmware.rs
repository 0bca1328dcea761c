//! Throttle bits of a Raspberry Pi's firmware: from /sys if the kernel has them, otherwise from the mailbox
//! (raspberrypi/linux drivers/char/broadcom/vcio.c). Other machines have neither.
#![expect(unsafe_code, reason = "the mailbox is an ioctl on a buffer")]

use std::{fs::File, os::fd::AsRawFd};

use telemetry::health::ThrottleBits;

use super::root::Root;

/// Tag of a firmware command in text (`vcgencmd`).
const GENCMD: u32 = 0x0003_0080;
/// Bytes of the command, and of its answer.
const TEXT_BYTES: usize = 1024;
/// Words of the message: length, code, tag, text length, tag code, error, text, end.
const WORDS: usize = 6 + TEXT_BYTES / 4 + 1;
/// Devices for the command; the first is open to group video, the second to root.
const DEVICES: [&str; 2] = ["/dev/vcio_gencmd", "/dev/vcio"];

nix::ioctl_readwrite!(mailbox_property, 100, 0, *mut u8);

/// Source of the bits on this machine.
#[derive(Debug)]
pub(super) enum Firmware {
    /// A file of /sys.
    File(String),
    /// The mailbox.
    Mailbox(Mailbox),
    /// Not available: not a Raspberry Pi, no permission, or no answer.
    Nowhere,
}

impl Firmware {
    /// Detects the source.
    pub(super) fn find(root: &Root) -> Self {
        let platform = root.entries("sys/devices/platform", "soc");
        let below: Vec<String> = platform.iter().flat_map(|folder| root.entries(folder, "soc")).collect();
        let deeper: Vec<String> = below.iter().flat_map(|folder| root.entries(folder, "soc")).collect();
        let files = below.into_iter().chain(deeper).map(|folder| format!("{folder}/get_throttled"));
        if let Some(file) = files.into_iter().find(|file| root.has(file)) {
            return Self::File(file);
        }
        let mailbox = root.is_machine().then(|| Mailbox::open(|mailbox| bits(mailbox).is_some())).flatten();
        mailbox.map_or(Self::Nowhere, Self::Mailbox)
    }

    pub(super) fn read(&self, root: &Root) -> Option<ThrottleBits> {
        match self {
            Self::File(path) => hexadecimal(root.text(path)?.trim()),
            Self::Mailbox(mailbox) => bits(mailbox),
            Self::Nowhere => None,
        }
    }
}

fn bits(mailbox: &Mailbox) -> Option<ThrottleBits> {
    throttled(&mailbox.ask("get_throttled")?)
}

/// The firmware's mailbox for commands in text.
#[derive(Debug)]
pub(super) struct Mailbox(File);

impl Mailbox {
    /// The first device that opens and answers. One that opens may still refuse a command; trying that every second
    /// would waste 3 ms.
    pub(super) fn open(answers: impl Fn(&Self) -> bool) -> Option<Self> {
        DEVICES.iter().find_map(|path| File::open(path).ok().map(Self).filter(&answers))
    }

    /// Sends a command to the firmware; about 3 ms.
    pub(super) fn ask(&self, command: &str) -> Option<String> {
        let mut message = request(command);
        // SAFETY: the driver reads the length in the first word and writes no more than that back; the buffer has
        // exactly that length, is aligned for words and lives through the call.
        let done = unsafe { mailbox_property(self.0.as_raw_fd(), message.as_mut_ptr().cast()) };
        done.ok()?;
        response(&message)
    }
}

/// The mailbox message of a command; its text is padded with zeros.
fn request(command: &str) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    (words[0], words[2], words[3]) = ((WORDS * 4) as u32, GENCMD, TEXT_BYTES as u32);
    let mut text = [0; TEXT_BYTES];
    let length = command.len().min(TEXT_BYTES - 1);
    text[..length].copy_from_slice(&command.as_bytes()[..length]);
    for (word, bytes) in words[6..].iter_mut().zip(text.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// The text of an answer; `None` if the firmware reports an error.
fn response(words: &[u32; WORDS]) -> Option<String> {
    let text: Vec<u8> = words[6..WORDS - 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text).ok()?;
    (words[5] == 0).then(|| text.to_owned())
}

/// `throttled=0x50005`
fn throttled(answer: &str) -> Option<ThrottleBits> {
    hexadecimal(answer.trim().strip_prefix("throttled=")?)
}

/// With or without `0x`: the kernel omits it.
fn hexadecimal(text: &str) -> Option<ThrottleBits> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).ok().map(ThrottleBits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_and_answer_have_the_mailbox_layout() {
        assert_eq!(nix::request_code_readwrite!(100, 0, 8), 0xC008_6400, "the number of raspberrypi/linux");
        let asked = request("get_throttled");
        assert_eq!(asked[..6], [(7 + 256) * 4, 0, 0x30080, 1024, 0, 0]);
        assert_eq!(asked[6].to_le_bytes(), *b"get_");
        assert_eq!((asked[9].to_le_bytes(), asked[WORDS - 1]), (*b"d\0\0\0", 0));
        let mut answer = request("throttled=0x50005");
        assert_eq!(response(&answer).as_deref().and_then(throttled), Some(ThrottleBits(0x5_0005)));
        answer[5] = 1;
        assert_eq!(response(&answer), None);
        answer[5] = 0;
        answer[6..].fill(u32::MAX);
        assert_eq!(response(&answer), None);
        assert_eq!(response(&request(&"x".repeat(5000))).map(|text| text.len()), Some(TEXT_BYTES - 1));
    }

    #[test]
    fn only_hexadecimal_numbers_are_throttle_bits() {
        assert_eq!(hexadecimal("50005"), Some(ThrottleBits(0x5_0005)));
        assert_eq!(hexadecimal("0x0"), Some(ThrottleBits(0)));
        for odd in ["", "0x", "zz", "123456789", "-1"] {
            assert_eq!(hexadecimal(odd), None, "{odd}");
        }
        assert_eq!(throttled("error=1 error_msg=\"Command not registered\""), None);
    }
}
