//! Pieces that several panels are made of.
pub(crate) mod bar;
pub(crate) mod panel;
pub(crate) mod sparkline;
pub(crate) mod table;
