//! What the steps found. Plain values with their units in their names; nothing is judged here. Optional values were not
//! measured.
use serde::{Deserialize, Serialize};

use super::ids::IdsDiffer;

/// A machine, as its node reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Name of the node.
    pub node: String,
    /// Number of the machine: equal for two nodes on one machine.
    pub machine: usize,
    /// For example `Raspberry Pi 5 Model B Rev 1.0`.
    pub model: Option<String>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Build of the daemon.
    pub build: String,
    /// Kernel table.
    pub kernels: String,
    /// Cores that the daemon may use.
    pub cores: usize,
    /// Page size.
    pub page_bytes: Option<u64>,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// Memory that is free for a shard.
    pub free_bytes: Option<u64>,
    /// Rate of the Ethernet interface in Mb/s.
    pub link_mbit: Option<u32>,
    /// Throttle bits of the firmware.
    pub throttle_bits: Option<u32>,
    /// Warnings in words.
    pub warnings: Vec<String>,
}

/// A link in one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkFacts {
    /// The sender.
    pub from: String,
    /// The receiver, which measured it.
    pub to: String,
    /// Median round trip of a small message in microseconds.
    pub round_trip_us: f64,
    /// 99th percentile.
    pub round_trip_p99_us: f64,
    /// Payload in Mb/s.
    pub mbit_per_second: f64,
    /// The round trip that the planner assumes without measurements.
    pub predicted_us: Option<f64>,
}

/// Speeds in tokens per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// Of a prompt.
    pub prefill: f64,
    /// Of an answer.
    pub decode: f64,
}

/// A node alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Its name.
    pub node: String,
    /// Compute threads.
    pub threads: u16,
    /// Bytes of weights that a token reads.
    pub weight_bytes: u64,
    /// Read bandwidth of all threads.
    pub read_bytes_per_second: f64,
    /// That of the built-in profile of its machine.
    pub predicted_read: Option<f64>,
    /// Its longest prompt in tokens.
    pub prompt_tokens: u32,
    /// Measured.
    pub speeds: Speeds,
    /// Those that the planner predicts from the built-in profile.
    pub predicted: Option<Speeds>,
    /// Bytes read while decoding, relative to the read bandwidth of the same run.
    pub decode_share: f64,
}

/// A reading during the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReading {
    /// Seconds since the load began; 0 before it.
    pub second: f64,
    /// Temperature.
    pub celsius: Option<f32>,
    /// Clock in MHz.
    pub mhz: Option<u32>,
    /// The highest clock that the settings allow.
    pub limit_mhz: Option<u32>,
    /// Throttle bits of the firmware.
    pub throttle_bits: Option<u32>,
    /// Power of the rails that the PMIC measures.
    pub watts: Option<f32>,
}

/// A node under load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadFacts {
    /// Its name.
    pub node: String,
    /// Length of the load in seconds.
    pub seconds: f64,
    /// Idle, before the load.
    pub before: LoadReading,
    /// During the load.
    pub during: Vec<LoadReading>,
    /// After a pause.
    pub after: LoadReading,
    /// Speeds of each run.
    pub runs: Vec<Speeds>,
}

/// An all-reduce on the links.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllReduceFacts {
    /// Tokens of the tensor.
    pub tokens: u32,
    /// The algorithm that the topology uses for them.
    pub algorithm: String,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// What the planner computes from the measured links.
    pub predicted_us: Option<f64>,
}

/// An answer to one of the two prompts, at temperature 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnswerFacts {
    /// Name of the prompt.
    pub prompt: String,
    /// Tokens of the prompt that were computed.
    pub prompt_tokens: u32,
    /// Time to first token in milliseconds.
    pub ttft_ms: f64,
    /// Measured; 0 where there were too few tokens.
    pub speeds: Speeds,
    /// Tokens of the answer.
    pub ids: Vec<u32>,
    /// Where it first differs from the answer of one node.
    pub differs: Option<IdsDiffer>,
}

/// Answers of a topology.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayoutFacts {
    /// The layout.
    pub topology: String,
    /// Its nodes by rank.
    pub nodes: Vec<String>,
    /// One for each prompt.
    pub answers: Vec<AnswerFacts>,
    /// What the planner predicts.
    pub predicted: Option<Speeds>,
    /// Why there is no prediction.
    pub unpredicted: Option<String>,
    /// All-reduces, if the topology has a stage of several ranks and they were timed.
    pub all_reduces: Vec<AllReduceFacts>,
}

/// Answers of llama.cpp to the same tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LlamaFacts {
    /// The node that it ran on; `None`: the machine of the console.
    pub node: Option<String>,
    /// One for each prompt; `differs` compares with the answer of one node.
    pub answers: Vec<AnswerFacts>,
}

/// A node that was lost during an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecoveryFacts {
    /// The node.
    pub node: String,
    /// `killed` or `restarted`.
    pub how: String,
    /// Longest pause between two tokens in milliseconds, from the loss on.
    pub pause_ms: f64,
    /// How often another head continued the answer.
    pub resumed: u32,
    /// Tokens before the loss.
    pub tokens_before: u32,
    /// Tokens in all.
    pub tokens: u32,
    /// Where the answer first differs from that without a loss.
    pub differs: Option<IdsDiffer>,
    /// Until all nodes served the topology again, in milliseconds.
    pub back_ms: Option<f64>,
}
