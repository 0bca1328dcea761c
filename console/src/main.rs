//! console
fn main() {}
