//! The format of a file: a header with the tokens and two checksums, then keys and values or a state in the layout of the
//! rank's memory. Little-endian.
use std::sync::Arc;

use common::limits::KV_BLOCK_LENGTH;
use protocol::checksum::checksum;

use super::name::{NAME_BYTES, Name, PartHash, Space};

/// First bytes of every file; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"BRKVST\0\x02";
/// Offsets of the fields behind the magic.
const SPACE: usize = 8;
const BEFORE: usize = SPACE + 32;
const PART: usize = BEFORE + NAME_BYTES;
const KIND: usize = PART + size_of::<PartHash>();
const TOKENS: usize = KIND + 8;
const LENGTH: usize = TOKENS + 4 * KV_BLOCK_LENGTH;
const PAYLOAD_SUM: usize = LENGTH + 8;
const HEADER_SUM: usize = PAYLOAD_SUM + 8;
/// Bytes of the header.
pub const HEADER_BYTES: usize = HEADER_SUM + 8;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keys and values of a block.
    Block = 0,
    /// The state of all recurrent layers behind a block.
    State = 1,
}

/// What all labels of a rank have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct LabelBase {
    pub(super) space: Space,
    pub(super) part: PartHash,
}

impl LabelBase {
    /// The label of keys and values of a block.
    pub(super) fn block(&self, before: Name, tokens: &[u32; KV_BLOCK_LENGTH]) -> Label {
        Label { space: self.space, before, part: self.part, kind: Kind::Block, tokens: *tokens }
    }
}

/// The description of a file, all of which is compared with the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// What it was computed with.
    pub space: Space,
    /// Name of the block before the tokens.
    pub before: Name,
    /// Which part of the model's layers and heads it has.
    pub part: PartHash,
    /// What it holds.
    pub kind: Kind,
    /// The tokens of the block.
    pub tokens: [u32; KV_BLOCK_LENGTH],
}

impl Label {
    /// Name of the file.
    pub fn name(&self) -> Name {
        let block = self.before.then(&self.tokens);
        match self.kind {
            Kind::Block => block,
            Kind::State => block.state(),
        }
    }

    /// Name of the file without which this one is of no use.
    pub fn needs(&self) -> Name {
        match self.kind {
            Kind::Block => self.before,
            Kind::State => self.before.then(&self.tokens),
        }
    }

    /// The header of a file with this payload.
    pub fn header(&self, payload: &[u8]) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..SPACE].copy_from_slice(&MAGIC);
        header[SPACE..BEFORE].copy_from_slice(&self.space.0);
        header[BEFORE..PART].copy_from_slice(&self.before.0);
        header[PART..KIND].copy_from_slice(&self.part);
        header[KIND] = self.kind as u8;
        for (place, token) in header[TOKENS..LENGTH].as_chunks_mut::<4>().0.iter_mut().zip(&self.tokens) {
            *place = token.to_le_bytes();
        }
        header[LENGTH..PAYLOAD_SUM].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        header[PAYLOAD_SUM..HEADER_SUM].copy_from_slice(&checksum(payload).to_le_bytes());
        let sum = checksum(&header[..HEADER_SUM]);
        header[HEADER_SUM..].copy_from_slice(&sum.to_le_bytes());
        header
    }

    /// The payload of a file that matches this exactly and is undamaged.
    pub fn payload_of<'a>(&self, file: &'a [u8]) -> Option<&'a [u8]> {
        let (_, payload) = file.split_first_chunk::<HEADER_BYTES>()?;
        // With equal headers, the checksum of the payload is the one that was written.
        file.starts_with(&self.header(payload)).then_some(payload)
    }

    /// The label of a file that is undamaged.
    pub fn read(file: &[u8]) -> Option<Self> {
        let header = file.first_chunk::<HEADER_BYTES>()?;
        let kind = match header[KIND] {
            0 => Kind::Block,
            1 => Kind::State,
            _ => return None,
        };
        let mut label = Self {
            space: Space(*header[SPACE..].first_chunk()?),
            before: Name(*header[BEFORE..].first_chunk()?),
            part: *header[PART..].first_chunk()?,
            kind,
            tokens: [0; KV_BLOCK_LENGTH],
        };
        for (token, bytes) in label.tokens.iter_mut().zip(header[TOKENS..LENGTH].as_chunks().0) {
            *token = u32::from_le_bytes(*bytes);
        }
        label.payload_of(file).is_some().then_some(label)
    }
}

/// A file with the wanted content.
#[derive(Debug)]
pub struct Stored(Arc<Vec<u8>>);

impl Stored {
    /// The content of a file, if it matches the label exactly and is undamaged.
    pub fn check(file: Arc<Vec<u8>>, label: &Label) -> Option<Self> {
        label.payload_of(&file).is_some().then_some(Self(file))
    }

    /// Keys and values, or a state.
    pub fn payload(&self) -> &[u8] {
        &self.0[HEADER_BYTES..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        let space = Space::of(&["a model"]);
        let tokens = std::array::from_fn(|index| index as u32 * 1000);
        Label { space, before: space.beginning(), part: [7; 8], kind: Kind::Block, tokens }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let (label, payload): (Label, Vec<u8>) = (label(), (0..100).collect());
        let file = [&label.header(&payload)[..], &payload].concat();
        assert_eq!(label.payload_of(&file), Some(&payload[..]));
        for bit in 0..8 * file.len() {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!((label.payload_of(&damaged), Label::read(&damaged)), (None, None), "bit {bit}");
        }
        assert!((0..file.len()).all(|end| label.payload_of(&file[..end]).is_none()));
        assert_eq!(Label::read(&file), Some(label));
        assert_eq!(label.payload_of(&[&file[..], &[0]].concat()), None);
    }

    #[test]
    fn files_of_other_models_texts_and_kinds_are_refused() {
        let (label, payload) = (label(), [7; 100]);
        let file = [&label.header(&payload)[..], &payload].concat();
        let mut tokens = label.tokens;
        tokens[31] += 1;
        let others = [
            Label { space: Space::of(&["another"]), ..label },
            Label { before: label.name(), ..label },
            Label { kind: Kind::State, ..label },
            Label { tokens, ..label },
            Label { part: [8; 8], ..label },
        ];
        others.iter().for_each(|other| assert_eq!(other.payload_of(&file), None, "{other:?}"));
        assert_eq!(Label { kind: Kind::State, ..label }.needs(), label.name());
    }
}
