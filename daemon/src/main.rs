//! brambled
fn main() {}
