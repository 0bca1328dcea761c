//! Where the parts of a checked file lie.

/// Offsets within a file that [`parse`] has checked.
#[derive(Debug)]
pub struct Index {
    /// Offset of each metadata entry, sorted by key.
    pub(super) metadata: Vec<u32>,
    /// Offset of each tensor entry, in file order.
    pub(super) tensors: Vec<u32>,
    /// Bytes of metadata and tensor table from the start of the file.
    pub(super) header_length: usize,
    /// Offset of the tensor data: `header_length` rounded up to the alignment.
    pub(super) data_start: usize,
}

impl Index {
    /// Bytes of metadata and tensor table from the start of the file.
    pub fn header_length(&self) -> usize {
        self.header_length
    }

    /// Number of tensors.
    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }
}
