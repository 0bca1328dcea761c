//! GGUF headers as lists of keys and tensors, so that a mutation keeps lengths and counts right: of random bytes, hardly
//! any get past the first key.

/// Limit of padding for all files of an input, in bytes. The largest model of `family make` needs 23 MB.
pub const PADDING_MAX: usize = 32 << 20;

/// A key with its type and the bytes of its value.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Vec<u8>,
    pub kind: u32,
    pub value: Vec<u8>,
}

/// An entry of the tensor table.
#[derive(Clone, Debug)]
pub struct TensorEntry {
    pub name: Vec<u8>,
    pub dimensions: Vec<u64>,
    pub kind: u32,
    pub offset: u64,
}

/// A header.
#[derive(Clone, Debug, Default)]
pub struct Header {
    pub entries: Vec<Entry>,
    pub tensors: Vec<TensorEntry>,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
    }

    fn long(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.long()?;
        self.take(usize::try_from(length).ok()?)
    }

    fn skip(&mut self, kind: u32, depth: usize) -> Option<()> {
        match kind {
            0 | 1 | 7 => self.take(1).map(drop),
            2 | 3 => self.take(2).map(drop),
            4..=6 => self.take(4).map(drop),
            10..=12 => self.take(8).map(drop),
            8 => self.text().map(drop),
            9 if depth < 4 => {
                let (of, count) = (self.number()?, self.long()?);
                (0..count.min(1 << 20)).try_for_each(|_| self.skip(of, depth + 1))
            }
            _ => None,
        }
    }
}

impl Header {
    /// Reads as much of a file as is right.
    pub fn read(bytes: &[u8]) -> Self {
        let mut header = Self::default();
        header.fill(bytes);
        header
    }

    fn fill(&mut self, bytes: &[u8]) -> Option<()> {
        let mut reader = Reader(bytes);
        reader.take(8)?;
        let (tensors, keys) = (reader.long()?, reader.long()?);
        for _ in 0..keys.min(4096) {
            let (key, kind) = (reader.text()?.to_vec(), reader.number()?);
            let before = reader.0;
            reader.skip(kind, 0)?;
            let value = before[..before.len() - reader.0.len()].to_vec();
            self.entries.push(Entry { key, kind, value });
        }
        for _ in 0..tensors.min(4096) {
            let name = reader.text()?.to_vec();
            let count = reader.number()?.min(8);
            let dimensions = (0..count).map(|_| reader.long()).collect::<Option<_>>()?;
            let (kind, offset) = (reader.number()?, reader.long()?);
            self.tensors.push(TensorEntry { name, dimensions, kind, offset });
        }
        Some(())
    }

    /// The bytes of the header.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.entries.len() as u64).to_le_bytes());
        for Entry { key, kind, value } in &self.entries {
            bytes.extend((key.len() as u64).to_le_bytes());
            bytes.extend(key);
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        for TensorEntry { name, dimensions, kind, offset } in &self.tensors {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend(name);
            bytes.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|dimension| bytes.extend(dimension.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        bytes
    }

    /// The text of a key that has one.
    pub fn text(&self, key: &str) -> Option<String> {
        let entry = self.entries.iter().find(|entry| entry.key == key.as_bytes() && entry.kind == 8)?;
        Some(String::from_utf8_lossy(entry.value.get(8..)?).into_owned())
    }
}

/// A key with a text.
pub fn text(key: &str, text: &[u8]) -> Entry {
    Entry { key: key.into(), kind: 8, value: [&(text.len() as u64).to_le_bytes()[..], text].concat() }
}

/// A key with a number.
pub fn number(key: &str, number: u32) -> Entry {
    Entry { key: key.into(), kind: 4, value: number.to_le_bytes().to_vec() }
}

/// A key with a list, whose elements are already encoded.
pub fn list(key: &str, of: u32, elements: &[Vec<u8>]) -> Entry {
    let begin = [&of.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes()].concat();
    Entry { key: key.into(), kind: 9, value: [begin, elements.concat()].concat() }
}

/// The file with zeros behind its header, so that its tensors lie inside. Seeds are headers only: a model's weights say
/// nothing about its parser. At most `left` bytes are added, and subtracted from it.
pub fn padded(bytes: &[u8], left: &mut usize) -> Vec<u8> {
    let header = Header::read(bytes);
    let ends = header.tensors.iter().map(|tensor| {
        let elements = tensor.dimensions.iter().fold(1u64, |all, length| all.saturating_mul(*length));
        // No block format has more than four bytes an element, but F64 and I64.
        tensor.offset.saturating_add(elements.saturating_mul(8))
    });
    let most = ends.max().unwrap_or(0).saturating_add(64);
    let padding = most.min(*left as u64) as usize;
    *left -= padding;
    // Not `resize`: new pages are zero already, and writing 32 MB for each input would be slow.
    let mut file = vec![0; bytes.len() + padding];
    file[..bytes.len()].copy_from_slice(bytes);
    file
}

/// Numbers at limits.
const NUMBERS: [u64; 24] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    15,
    16,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    256,
    1024,
    65_536,
    1 << 20,
    u32::MAX as u64,
    u64::MAX,
];

/// Random numbers of a mutation.
struct Random(u32);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 as usize % end.max(1)
    }

    fn value(&mut self, old: &Entry) -> (u32, Vec<u8>) {
        let number = NUMBERS[self.below(NUMBERS.len())];
        match self.below(8) {
            0 => (4, (number as u32).to_le_bytes().to_vec()),
            1 => (10, number.to_le_bytes().to_vec()),
            2 => (6, f32::from_bits(number as u32).to_le_bytes().to_vec()),
            3 => (6, (number as f32 / 3.0).to_le_bytes().to_vec()),
            4 => (7, vec![(number & 1) as u8]),
            5 => {
                let of = [4, 5, 6, 7][self.below(4)];
                let element = if of == 7 { vec![(number & 1) as u8] } else { (number as u32).to_le_bytes().to_vec() };
                let entry = list("", of, &vec![element; self.below(9)]);
                (9, entry.value)
            }
            6 => (5, (-(number as i32)).to_le_bytes().to_vec()),
            _ => (old.kind, old.value.iter().rev().copied().collect()),
        }
    }
}

/// Changes one key or tensor, or copies it from another file. `fallback` changes bytes at random.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    most: usize,
    seed: u32,
    fallback: fn(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9) | 1);
    let mut header = Header::read(&data[..size]);
    if random.below(4) == 0 || header.entries.is_empty() {
        return fallback(data, size, most);
    }
    for _ in 0..1 + random.below(3) {
        let (key, tensor) = (random.below(header.entries.len()), random.below(header.tensors.len()));
        match random.below(12) {
            0..=4 => {
                let (kind, value) = random.value(&header.entries[key]);
                (header.entries[key].kind, header.entries[key].value) = (kind, value);
            }
            5 => {
                header.entries.remove(key);
            }
            6 => {
                // A text or a list, mutated with its length right.
                let entry = &mut header.entries[key];
                if entry.kind == 8 {
                    let mut value = entry.value[8..].to_vec();
                    let length = value.len();
                    value.resize(length + 32, 0);
                    let length = fallback(&mut value, length, length + 32);
                    value.truncate(length);
                    *entry = text(&String::from_utf8_lossy(&entry.key), &value);
                }
            }
            7 if !header.tensors.is_empty() => {
                header.tensors.remove(tensor);
            }
            8 | 9 if !header.tensors.is_empty() => {
                let count = header.tensors[tensor].dimensions.len();
                let place = random.below(count);
                let number = NUMBERS[random.below(NUMBERS.len())];
                if let Some(length) = header.tensors[tensor].dimensions.get_mut(place) {
                    *length = number;
                }
            }
            10 if !header.tensors.is_empty() => header.tensors[tensor].kind = random.below(42) as u32,
            11 if !header.tensors.is_empty() => {
                let other = header.tensors[random.below(header.tensors.len())].dimensions.clone();
                header.tensors[tensor].dimensions = other;
            }
            _ => {
                let other = random.below(header.entries.len());
                header.entries.swap(key, other);
            }
        }
        if header.entries.is_empty() {
            break;
        }
    }
    let bytes = header.bytes();
    if bytes.len() > most {
        return fallback(data, size, most);
    }
    data[..bytes.len()].copy_from_slice(&bytes);
    bytes.len()
}
