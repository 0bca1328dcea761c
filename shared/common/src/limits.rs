//! Limits that files, the wire and the engine share.
/// Most nodes in one topology.
pub const NODES_MAX: usize = 64;
/// Longest name of a node or a model file.
pub const NAME_LENGTH_MAX: usize = 255;
/// Most concurrent sequences in one replica.
pub const SLOTS_MAX: u16 = 32;
/// Positions in a KV block.
pub const KV_BLOCK_LENGTH: usize = 32;
/// Longest context that can be requested.
pub const CONTEXT_LENGTH_MAX: u32 = 1 << 20;
/// Bytes of a data frame's header, without its payload.
pub const FRAME_HEADER_BYTES: usize = 64;
