//! Tests of what events do.
