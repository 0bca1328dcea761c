//! Widgets shared by several panels.
pub(crate) mod bar;
pub(crate) mod graph;
pub(crate) mod panel;
pub(crate) mod paragraph;
pub(crate) mod table;
