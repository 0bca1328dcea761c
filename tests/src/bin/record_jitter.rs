//! Records the jitter of compute times in a real run, for `console topology simulate --jitter-file`. Two single-threaded ranks
//! decode with a synthetic model; the times of one layer's feed-forward on rank 1 are written to a file: `record_jitter
//! OUT`.
use std::{fs, path::PathBuf, sync::Arc};

use anyhow::{Context, bail};
use gguf::{BlockFormat, GgufFile};
use harness::tiny_model::Architecture;
use harness::{
    ranks::{Run, run},
    tiny_model::TinyModel,
};
use telemetry::SyncKind;

/// Tokens of the run. With two layers, the log of records holds the all-reduces of 2048 tokens.
const TOKENS: u32 = 2048;

fn main() -> anyhow::Result<()> {
    let Some(out) = std::env::args_os().nth(1).map(PathBuf::from) else { bail!("usage: record_jitter OUT") };
    let model = TinyModel {
        embedding_length: 1024,
        feed_forward_length: 8192,
        context_length: TOKENS as usize,
        ..TinyModel::new(Architecture::Llama).with_format(BlockFormat::Q8_0)
    };
    let file = Arc::new(GgufFile::from_bytes(vec![model.bytes()])?);
    let tokens: Vec<u32> = (0..TOKENS).map(|token| 3 + token % 256).collect();
    let outcome = run(&file, &tokens, &Run { chunks: vec![1], ..Run::exact(2) });
    // The feed-forward's work does not grow with the context.
    let records = outcome.records[1].iter().filter(|record| record.kind == SyncKind::FeedForward);
    let times: Vec<u64> = records.filter(|record| record.layer.0 == 1).map(|record| record.compute.0).collect();
    let lines: Vec<String> = times.iter().map(u64::to_string).collect();
    fs::write(&out, lines.join("\n") + "\n").with_context(|| format!("cannot write {}", out.display()))?;
    let mut sorted = times.clone();
    sorted.sort_unstable();
    let at = |share: f64| sorted.get((sorted.len() as f64 * share) as usize).map_or(0, |time| time / 1000);
    println!("{} times: median {} us, p90 {}, p99 {}", times.len(), at(0.5), at(0.9), at(0.99));
    Ok(())
}
