//! Stored pictures.
