//! A head whose model says or calls as the user asks, for gateways under test: prints its `ADDRESS:PORT` and runs
//! until its standard input ends. Used by `tests/clients`.
use std::io::{Read, Write};

use harness::fake_heads::{FakeHeads, Script};

fn main() -> std::io::Result<()> {
    let heads = FakeHeads::start(&[Script::Obeys]);
    let mut out = std::io::stdout();
    writeln!(out, "{}", heads.addresses[0])?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
