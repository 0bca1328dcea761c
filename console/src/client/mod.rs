//! Sessions with nodes: one task each.
pub mod event;
