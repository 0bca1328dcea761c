//! Writes GGUF files for tests: every metadata type, both versions, single files and splits. It validates nothing, so
//! that it can also write files that the reader must refuse.

use std::{
    fmt,
    io::{self, Write},
    sync::Arc,
};

use gguf::BlockFormat;

/// Alignment unless `alignment` is called.
const ALIGNMENT_DEFAULT: usize = 32;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the types of the GGUF specification")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Flag(bool),
    Text(Vec<u8>),
    /// Declared type number of the elements, and the elements, whose types may differ from it.
    Array(u32, Vec<Value>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The GGUF type number.
    pub fn type_number(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Flag(_) => 7,
            Self::Text(_) => 8,
            Self::Array(..) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(value) => out.extend(value.to_le_bytes()),
            Self::I8(value) => out.extend(value.to_le_bytes()),
            Self::U16(value) => out.extend(value.to_le_bytes()),
            Self::I16(value) => out.extend(value.to_le_bytes()),
            Self::U32(value) => out.extend(value.to_le_bytes()),
            Self::I32(value) => out.extend(value.to_le_bytes()),
            Self::F32(value) => out.extend(value.to_le_bytes()),
            Self::Flag(value) => out.push(u8::from(*value)),
            Self::Text(value) => write_text(out, value),
            Self::Array(kind, values) => {
                out.extend(kind.to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| value.write(out));
            }
            Self::U64(value) => out.extend(value.to_le_bytes()),
            Self::I64(value) => out.extend(value.to_le_bytes()),
            Self::F64(value) => out.extend(value.to_le_bytes()),
        }
    }
}

/// Collects metadata and tensors, then writes one file or several splits.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    metadata: Vec<(String, Value)>,
    tensors: Vec<WrittenTensor>,
}

#[derive(Clone, Debug)]
struct WrittenTensor {
    name: String,
    dimensions: Vec<u64>,
    type_number: u32,
    contents: Contents,
    /// Overrides the offset in the tensor table.
    offset: Option<u64>,
}

/// Writes the bytes of a tensor.
type Make = dyn Fn(&mut dyn Write) -> io::Result<()>;

/// The bytes of a tensor, or a function that writes them.
#[derive(Clone)]
enum Contents {
    Bytes(Vec<u8>),
    Made { length: usize, write: Arc<Make> },
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Contents {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Made { length, .. } => *length,
        }
    }
}

impl GgufWriter {
    /// An empty file of a GGUF version.
    pub fn new(version: u32) -> Self {
        Self { version, alignment: ALIGNMENT_DEFAULT, metadata: Vec::new(), tensors: Vec::new() }
    }

    /// Adds a metadata entry; the same key may be added twice.
    pub fn value(mut self, key: &str, value: Value) -> Self {
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// Replaces the value of a key, or adds it.
    pub fn replace(mut self, key: &str, value: Value) -> Self {
        self = self.without(key);
        self.value(key, value)
    }

    /// Removes a metadata entry.
    pub fn without(mut self, key: &str) -> Self {
        self.metadata.retain(|(known, _)| known != key);
        self
    }

    /// Adds a string.
    pub fn text(self, key: &str, text: &str) -> Self {
        self.value(key, Value::Text(text.into()))
    }

    /// Adds a u32.
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.value(key, Value::U32(value))
    }

    /// Adds an f32.
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.value(key, Value::F32(value))
    }

    /// Adds a bool.
    pub fn flag(self, key: &str, value: bool) -> Self {
        self.value(key, Value::Flag(value))
    }

    /// Adds an array of strings.
    pub fn texts<T: AsRef<[u8]>>(self, key: &str, texts: &[T]) -> Self {
        let texts = texts.iter().map(|text| Value::Text(text.as_ref().to_vec()));
        self.value(key, Value::Array(8, texts.collect()))
    }

    /// Adds an array of f32.
    pub fn floats(self, key: &str, floats: &[f32]) -> Self {
        let floats = floats.iter().map(|&float| Value::F32(float));
        self.value(key, Value::Array(6, floats.collect()))
    }

    /// Adds an array of i32.
    pub fn integers(self, key: &str, integers: &[i32]) -> Self {
        let integers = integers.iter().map(|&integer| Value::I32(integer));
        self.value(key, Value::Array(5, integers.collect()))
    }

    /// Aligns tensors to `alignment` bytes and writes `general.alignment`.
    pub fn alignment(mut self, alignment: usize) -> Self {
        self.alignment = alignment;
        self.u32("general.alignment", alignment as u32)
    }

    /// Adds a tensor; `dimensions[0]` is the length of a row.
    pub fn tensor(self, name: &str, dimensions: &[u64], format: BlockFormat, bytes: Vec<u8>) -> Self {
        self.tensor_of_type(name, dimensions, format.ggml_type(), bytes)
    }

    /// Like `tensor`, with any ggml type number.
    pub fn tensor_of_type(self, name: &str, dimensions: &[u64], type_number: u32, bytes: Vec<u8>) -> Self {
        self.push(name, dimensions, type_number, Contents::Bytes(bytes))
    }

    /// Adds a tensor whose bytes `write` generates when the file is written; it must write as many as `dimensions`
    /// require.
    pub fn made_tensor(
        self,
        name: &str,
        dimensions: &[u64],
        format: BlockFormat,
        write: impl Fn(&mut dyn Write) -> io::Result<()> + 'static,
    ) -> Self {
        let weights = dimensions.iter().product::<u64>() as usize;
        let length = format.row_bytes(weights).expect("rows are whole blocks");
        self.push(name, dimensions, format.ggml_type(), Contents::Made { length, write: Arc::new(write) })
    }

    fn push(mut self, name: &str, dimensions: &[u64], type_number: u32, contents: Contents) -> Self {
        let (name, dimensions) = (name.to_owned(), dimensions.to_vec());
        self.tensors.push(WrittenTensor { name, dimensions, type_number, contents, offset: None });
        self
    }

    /// Overrides the offset of the last added tensor in the tensor table; its bytes stay in place.
    pub fn at_offset(mut self, offset: u64) -> Self {
        let last = self.tensors.last_mut().expect("a tensor was added before");
        last.offset = Some(offset);
        self
    }

    /// Removes a tensor.
    pub fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// The bytes of a single file.
    pub fn finish(&self) -> Vec<u8> {
        in_memory(|out| self.write_to(out))
    }

    /// Writes a single file without holding all of it in memory.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(&self.metadata, &self.tensors, out)
    }

    /// Writes everything before the tensor data and returns the length of the whole file, for a file with a hole in
    /// place of the weights.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_header(&self, out: &mut dyn Write) -> io::Result<u64> {
        let header = self.header(&self.metadata, &self.tensors);
        out.write_all(&header)?;
        Ok(self.tensors.iter().fold(header.len(), |length, tensor| self.end(length, tensor)) as u64)
    }

    /// The bytes of `count` splits: all metadata in the first, the tensors distributed in order.
    pub fn finish_splits(&self, count: usize) -> Vec<Vec<u8>> {
        let total = self.tensors.len();
        (0..count)
            .map(|part| {
                let mut metadata = if part == 0 { self.metadata.clone() } else { Vec::new() };
                if part > 0 && self.alignment != ALIGNMENT_DEFAULT {
                    metadata.push(("general.alignment".into(), Value::U32(self.alignment as u32)));
                }
                metadata.push(("split.no".into(), Value::U16(part as u16)));
                metadata.push(("split.count".into(), Value::U16(count as u16)));
                metadata.push(("split.tensors.count".into(), Value::I32(total as i32)));
                let tensors = &self.tensors[total * part / count..total * (part + 1) / count];
                in_memory(|out| self.write(&metadata, tensors, out))
            })
            .collect()
    }

    fn header(&self, metadata: &[(String, Value)], tensors: &[WrittenTensor]) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            write_text(&mut out, key.as_bytes());
            out.extend(value.type_number().to_le_bytes());
            value.write(&mut out);
        }
        let mut offset = 0;
        for tensor in tensors {
            write_text(&mut out, tensor.name.as_bytes());
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(tensor.type_number.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset += tensor.contents.len().next_multiple_of(self.alignment) as u64;
        }
        out
    }

    fn write(&self, metadata: &[(String, Value)], tensors: &[WrittenTensor], file: &mut dyn Write) -> io::Result<()> {
        let out = self.header(metadata, tensors);
        let mut length = out.len();
        file.write_all(&out)?;
        for tensor in tensors {
            let end = self.end(length, tensor);
            file.write_all(&vec![0; end - tensor.contents.len() - length])?;
            match &tensor.contents {
                Contents::Bytes(bytes) => file.write_all(bytes)?,
                Contents::Made { write, .. } => write(file)?,
            }
            length = end;
        }
        Ok(())
    }

    /// End offset of a tensor's bytes in a file that is `begin` bytes long without it.
    fn end(&self, begin: usize, tensor: &WrittenTensor) -> usize {
        begin.next_multiple_of(self.alignment) + tensor.contents.len()
    }
}

fn in_memory(write: impl Fn(&mut dyn Write) -> io::Result<()>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes).expect("memory takes all bytes");
    bytes
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_returns_length_of_the_whole_file() {
        let writer = GgufWriter::new(3).text("general.architecture", "llama");
        let writer =
            writer.tensor("a", &[3], BlockFormat::F32, vec![1; 12]).tensor("b", &[1], BlockFormat::F32, vec![2; 4]);
        let (mut header, whole) = (Vec::new(), writer.finish());
        let length = writer.write_header(&mut header).expect("memory takes all bytes");
        assert_eq!(length, whole.len() as u64);
        assert!(whole.starts_with(&header) && whole.len() > header.len());
    }
}
