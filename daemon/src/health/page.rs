//! The kernel's page size, from the auxiliary vector of the process (getauxval(3)).
use common::units::Bytes;

use super::root::Root;

/// Type of the entry with the page size.
const AT_PAGESZ: u64 = 6;

pub(super) fn read(root: &Root) -> Option<Bytes> {
    let vector = root.bytes("proc/self/auxv")?;
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    let mut entries = vector.as_chunks::<8>().0.as_chunks::<2>().0.iter();
    let size = entries.find(|[kind, _]| word(kind) == AT_PAGESZ).map(|[_, value]| word(value))?;
    size.is_power_of_two().then_some(Bytes(size))
}
