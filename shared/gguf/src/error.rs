//! Errors of GGUF files. Every message names the key, tensor or offset and the next step.

use std::path::PathBuf;

/// Longest part of a name from a file that a message shows, in characters.
const SHOWN_MAX: usize = 80;

/// Why a file was rejected.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system could not open it.
    #[error("cannot open {}: {source}; check the path and its permissions", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A directory, socket, pipe or device.
    #[error("{} is not a regular file; name a .gguf file", path.display())]
    NotAFile {
        /// The path given.
        path: PathBuf,
    },
    /// The bytes of a file on disk are invalid.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: Box<GgufError>,
    },
    /// The file has no bytes.
    #[error("the file is empty; download it again")]
    Empty,
    /// The first four bytes are not `GGUF`.
    #[error("this is not a GGUF file but {found}; {next}")]
    NotGguf {
        /// What the bytes look like.
        found: &'static str,
        /// The next step.
        next: &'static str,
    },
    /// The numbers are stored in big-endian order.
    #[error(
        "this is a big-endian GGUF file, but only little-endian files are supported; convert the model again on a little-endian machine"
    )]
    BigEndian,
    /// The version is neither 2 nor 3.
    #[error(
        "GGUF version {version} is not supported, only 2 and 3 are; convert the model again with a current converter"
    )]
    Version {
        /// The version in the file.
        version: u32,
    },
    /// The bytes end before the announced length.
    #[error(
        "the file ends at byte {length} within {what}, which starts at byte {at}; it is truncated or damaged, download it again"
    )]
    Truncated {
        /// The item that was being read.
        what: &'static str,
        /// Offset where it starts.
        at: usize,
        /// Offset at which it ends, according to the file.
        end: usize,
        /// Number of bytes in the file.
        length: usize,
    },
    /// The disk could not be read, or the file became shorter meanwhile.
    #[error("cannot read at byte {at}: {source}; check the disk, and whether another program changes the file")]
    Read {
        /// Offset of the first byte that was to be read.
        at: usize,
        /// The cause.
        source: std::io::Error,
    },
    /// A number outside its bounds.
    #[error(
        "{what} is {value} at byte {at}, but must be {min} to {max}; the file is damaged or not supported, download it again"
    )]
    Bound {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
        /// Its offset.
        at: usize,
    },
    /// A key or tensor name that is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8 text; the file is damaged, download it again")]
    Name {
        /// Key or tensor name.
        what: &'static str,
        /// Where.
        at: usize,
    },
    /// A type number that GGUF does not define.
    #[error("metadata key {key} has value type {number}, GGUF defines 0 to 12; the file is damaged, download it again")]
    ValueType {
        /// The key.
        key: String,
        /// The number.
        number: u32,
    },
    /// A key whose value has the wrong type.
    #[error("metadata key {key} is {found}, expected {expected}; convert the model again")]
    WrongType {
        /// The key.
        key: String,
        /// The required type.
        expected: &'static str,
        /// The type found.
        found: &'static str,
    },
    /// A text that is not UTF-8, or a flag that is neither 0 nor 1.
    #[error("metadata key {key} does not hold valid {what}; the file is damaged, download it again")]
    Value {
        /// The key.
        key: String,
        /// Text or flag.
        what: &'static str,
    },
    /// A required key is missing.
    #[error("metadata key {key} is missing; convert the model again")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A hyper-parameter with an impossible value.
    #[error("metadata key {key} is {value}, {reason}; the file is damaged or not supported")]
    Parameter {
        /// The key.
        key: String,
        /// Its value as text.
        value: String,
        /// The violated rule.
        reason: String,
    },
    /// The same key occurs twice.
    #[error("metadata key {key} appears twice; the file is damaged, convert the model again")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// The same tensor occurs twice, in one split or in two.
    #[error("tensor {tensor} appears twice; the file is damaged, convert the model again")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A weight format that Bramble cannot compute with.
    #[error(
        "tensor {tensor} is of type {number} ({name}), which is not supported; use a file in F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS or MXFP4"
    )]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type.
        number: u32,
        /// The name of that type, `unknown` where neither ggml nor ik_llama.cpp has one.
        name: &'static str,
    },
    /// A row length that is not a multiple of the block.
    #[error(
        "tensor {tensor} has rows of {columns} elements, not a multiple of the {format} block ({block}); the file is damaged, download it again"
    )]
    RowBlocks {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        columns: u64,
        /// The format.
        format: &'static str,
        /// Elements of a block.
        block: usize,
    },
    /// Dimensions that are zero, too many, or whose product overflows.
    #[error("tensor {tensor} has {reason}; the file is damaged, download it again")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// The violated rule.
        reason: &'static str,
    },
    /// An offset that is not a multiple of the alignment.
    #[error(
        "tensor {tensor} starts at offset {offset}, not a multiple of the alignment {alignment}; the file is damaged, download it again"
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Offset within the tensor data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Bytes beyond the end of the file.
    #[error(
        "tensor {tensor} needs {bytes} bytes at byte {start}, but the file has {length}; it is truncated or damaged, download it again"
    )]
    OutsideFile {
        /// The tensor.
        tensor: String,
        /// Its size.
        bytes: u64,
        /// Where it starts in the file (saturated).
        start: u64,
        /// Size of the file.
        length: u64,
    },
    /// Tensors that share bytes.
    #[error(
        "tensor {tensor} overlaps others: up to it, the tensors have more bytes than the file; it is damaged, download it again"
    )]
    Overlapping {
        /// The first tensor beyond the bytes of the file.
        tensor: String,
    },
    /// A tensor that the architecture needs is missing.
    #[error(
        "tensor {tensor} is missing; the file is not a complete {architecture} model, download or convert it again"
    )]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// Which architecture.
        architecture: &'static str,
    },
    /// A tensor that current converters write in another form.
    #[error(
        "tensor {tensor} comes from an earlier converter, which did not write {wanted}; convert the model again with a current converter"
    )]
    FormerTensor {
        /// The tensor.
        tensor: String,
        /// What current converters write in its place.
        wanted: &'static str,
    },
    /// A tensor that Bramble would ignore although it changes the output.
    #[error(
        "tensor {tensor} is not part of the {architecture} architecture as Bramble implements it; this variant of the model is not supported"
    )]
    UnexpectedTensor {
        /// The tensor.
        tensor: String,
        /// Which architecture.
        architecture: &'static str,
    },
    /// A tensor whose size contradicts the hyper-parameters.
    #[error(
        "tensor {tensor} has dimensions {found:?}, but the metadata require {expected:?}; the file is damaged, convert the model again"
    )]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Its dimensions, at most 4, in ggml's order.
        found: Vec<u64>,
        /// As `found`.
        expected: Vec<u64>,
    },
    /// A norm, bias or factor tensor that is not F32.
    #[error("tensor {tensor} is {found} but must be F32; convert the model again")]
    TensorFormat {
        /// The tensor.
        tensor: String,
        /// Its format.
        found: &'static str,
    },
    /// An architecture that is not supported.
    #[error("architecture {name} is not supported; supported are {supported}")]
    Architecture {
        /// As in `general.architecture`.
        name: String,
        /// The supported architectures.
        supported: String,
    },
    /// A model feature that is not implemented.
    #[error("metadata key {key} is {value}: {feature} is not supported; use another model")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The feature that it requires.
        feature: &'static str,
    },
    /// The path of a later part of a split model was given.
    #[error("this is part {part} of a model in {count} parts; open the first one{}", first.as_ref().map(|p| format!(", {}", p.display())).unwrap_or_default())]
    LaterSplit {
        /// Counted from 1.
        part: u64,
        /// Parts of the model.
        count: u64,
        /// Path of the first part, if it follows from the name.
        first: Option<PathBuf>,
    },
    /// A first part whose name does not determine the names of the others.
    #[error(
        "this is the first of {count} parts but is not named NAME-00001-of-{count:05}.gguf; restore the names of the parts"
    )]
    SplitName {
        /// Parts of the model.
        count: u64,
    },
    /// A part that is not in the same folder as the first.
    #[error("part {part} of {count} is missing: {}; put all parts into one folder", path.display())]
    MissingSplit {
        /// Counted from 1.
        part: u64,
        /// Parts of the model.
        count: u64,
        /// Its expected path.
        path: PathBuf,
    },
    /// Parts of different models.
    #[error("{key} is {found}, expected {expected}; the parts belong to different models, download them again")]
    SplitMismatch {
        /// Which number.
        key: &'static str,
        /// Value in this part.
        found: u64,
        /// Required value.
        expected: u64,
    },
}

/// A name from a file for messages: lossy, printable, of bounded length.
pub fn shown(name: &[u8]) -> String {
    // Cut before converting, so that converting a huge name stays cheap.
    let cut = &name[..name.len().min(SHOWN_MAX)];
    let mut text: String = String::from_utf8_lossy(cut).chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if cut.len() < name.len() {
        text.push_str("...");
    }
    text
}
