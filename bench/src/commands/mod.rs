//! The commands, one file each.
pub(crate) mod ab;
pub(crate) mod collectives;
pub(crate) mod disaggregation;
pub(crate) mod drafts;
pub(crate) mod matrix;
pub(crate) mod pages;
mod rig;
pub(crate) mod serve;
