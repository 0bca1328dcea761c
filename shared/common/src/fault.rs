//! Faults between consoles and nodes, as a closed enum: each names its node and has a stable code, a class and a next
//! step.
use serde::{Deserialize, Serialize};

use crate::{
    ids::{ContentRoot, Epoch, ModelIdentity, ModelRoots},
    units::Bytes,
};

/// Why a sealed message is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SealError {
    /// Sealed with this link's key, but received before.
    #[error("message {number} was replayed: expected number {expected}")]
    Replayed {
        /// Its number.
        number: u64,
        /// The next one.
        expected: u64,
    },
    /// Sealed with this link's key, but earlier messages are missing.
    #[error("message {number} arrived before number {expected}: messages are missing")]
    Missing {
        /// Its number.
        number: u64,
        /// The next one.
        expected: u64,
    },
    /// Modified in transit, truncated, or sealed with another key.
    #[error("a message was modified in transit or sealed with another key")]
    Forged,
    /// Damaged in transit between ends without a key.
    #[error("a message was damaged in transit: checksum mismatch")]
    Damaged,
}

/// A fault on a node, as it travels to the console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("node {node}: {kind}")]
pub struct Fault {
    /// The node where the fault occurred, or the node that was lost.
    pub node: String,
    /// The cause.
    #[serde(serialize_with = "crate::older::tell")]
    pub kind: FaultKind,
}

/// Severity class of a fault; the console derives its exit code from it (table in the README).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultClass {
    /// The operation failed.
    Failed,
    /// A node does not answer.
    Unreachable,
    /// The node rejected the request.
    Refused,
    /// A running request was lost.
    Lost,
}

/// How a node was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// Its connection was closed or reset.
    Reset,
    /// No heartbeat arrived in time.
    Silent,
    /// Heartbeats arrive, but its engine makes no progress.
    Stalled,
    /// It announced that it was leaving.
    Left,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reset => "connection closed",
            Self::Silent => "no heartbeat arrived in time",
            Self::Stalled => "its engine makes no progress",
            Self::Left => "it shut down",
        })
    }
}

/// The cause of a fault. `Display` is written to follow the node's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the values that the message of each variant prints")]
pub enum FaultKind {
    /// No connection could be opened.
    #[error("cannot be reached at {address}: {reason}")]
    Unreachable { address: String, reason: String },
    /// Another program listens at the address.
    #[error("{address} does not speak the Bramble protocol")]
    NotBramble { address: String },
    /// No common wire version.
    #[error("no common wire version: it speaks {lowest} to {highest}, this program {own_lowest} to {own_highest}")]
    WireVersion { lowest: u16, highest: u16, own_lowest: u16, own_highest: u16 },
    /// A security mode that this build does not support.
    #[error("unknown security mode {mode}; this build supports modes 0 to 2")]
    SecurityMode { mode: u8 },
    /// Kernels whose results differ bit by bit.
    #[error("its kernels have numeric version {theirs}, this node's have {own}")]
    NumericVersion { theirs: u32, own: u32 },
    /// The bytes received are not a valid message.
    #[error("sent an invalid message: {reason}")]
    Malformed { reason: String },
    /// The session ended unexpectedly.
    #[error("session lost: {reason}")]
    SessionLost { reason: String },
    /// An operation exceeded its deadline.
    #[error("{what} took longer than {seconds} s")]
    Timeout { what: String, seconds: u32 },
    /// A limit was reached.
    #[error("limit reached: {limit} {what}")]
    Full { what: String, limit: u32 },
    /// Another assignment was committed in the meantime.
    #[error("its epoch is {actual}, but the assignment was made for {expected}")]
    EpochMoved { expected: Epoch, actual: Epoch },
    /// Another assignment is being prepared.
    #[error("another assignment (epoch {epoch}) is being prepared by {by}; its lease ends within {seconds} s")]
    PrepareOpen { epoch: Epoch, by: String, seconds: u32 },
    /// A newer assignment replaced this one.
    #[error("this assignment was superseded by epoch {epoch}, assigned by {by}")]
    Superseded { epoch: Epoch, by: String },
    /// A commit or abort of an assignment that was not prepared.
    #[error("no assignment of epoch {epoch} is prepared")]
    NotPrepared { epoch: Epoch },
    /// No such file in the model folders.
    #[error("model {model} not found in its model folders ({folders})")]
    ModelMissing { model: String, folders: String },
    /// The file is damaged or not supported.
    #[error("cannot use model {model}: {reason}")]
    ModelInvalid { model: String, reason: String },
    /// Different files with the same name.
    #[error("model {model} is a different file: identity {actual}, but the topology expects {expected}")]
    ModelDiffers { model: String, expected: ModelIdentity, actual: ModelIdentity },
    /// The topology breaks a rule.
    #[error("invalid topology: {reason}")]
    TopologyInvalid { reason: String },
    /// The shard does not fit.
    #[error("not enough memory: its shard needs {needed}, {available} is free")]
    MemoryShort { needed: Bytes, available: Bytes },
    /// The state directory cannot be written.
    #[error("cannot write its state: {reason}")]
    StateUnwritable { reason: String },
    /// The links between ranks could not be opened.
    #[error("cannot open its links: {reason}")]
    LinksFailed { reason: String },
    /// No topology is running on the node.
    #[error("serves no topology (state: {state})")]
    NotServing { state: String },
    /// The node is not the head of its topology.
    #[error("cannot accept the request: it is not the head of its topology")]
    NotHead,
    /// The node is draining.
    #[error("is draining and accepts no new requests")]
    Draining,
    /// The admission queue is full.
    #[error("the admission queue is full ({limit} requests)")]
    QueueFull { limit: u32 },
    /// The prompt has more tokens than the context.
    #[error("the prompt has {tokens} tokens, but the context holds {context}")]
    PromptTooLong { tokens: u32, context: u32 },
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    PromptEmpty,
    /// The model's file has no chat template.
    #[error("its model has no chat template")]
    NoTemplate,
    /// A parameter is out of bounds.
    #[error("request rejected: {reason}")]
    ParameterInvalid { reason: String },
    /// A node of the topology was lost.
    #[error("lost: {how}")]
    NodeLost { how: Loss },
    /// The client read the stream too slowly.
    #[error("request cancelled: the client read the stream too slowly")]
    SlowReader,
    /// The drain deadline passed before the request finished.
    #[error("shut down before the request finished")]
    DrainEnded,
    /// A bug in Bramble.
    #[error("internal error: {reason}")]
    Internal { reason: String },
    /// An operator excluded a member of the topology.
    #[error("{member} is excluded (by {by}: {reason})")]
    Excluded { member: String, reason: String, by: String },
    /// No supervisor would start the daemon again.
    #[error("cannot be restarted remotely: it does not run under a supervisor")]
    Unsupervised,
    /// A restarted node did not return in time.
    #[error("did not come back within {seconds} s of its restart")]
    NotBack { seconds: u32 },
    /// Benchmarks run only on idle nodes.
    #[error("cannot run the benchmark: its state is {state}, but benchmarks need an idle node")]
    NotIdle { state: String },
    /// Another benchmark is running.
    #[error("is already running a benchmark for {by}")]
    BenchRuns { by: String },
    /// The requester cancelled the benchmark.
    #[error("benchmark cancelled by {by}")]
    BenchCancelled { by: String },
    /// An assignment takes precedence over a benchmark.
    #[error("benchmark stopped: {by} needs the node")]
    BenchSuperseded { by: String },
    /// The benchmark could not run.
    #[error("cannot run the benchmark: {reason}")]
    BenchFailed { reason: String },
    /// Links are benchmarked only while the head serves no requests.
    #[error("is serving {count} requests; link benchmarks need an idle head")]
    RequestsRun { count: u32 },
    /// The node is the head of a prefill group, which takes no requests from clients.
    #[error("cannot accept the request: it is the head of a prefill group")]
    OnlyPrefills,
    /// A stage with a single rank has no all-reduce.
    #[error("its stage has a single rank, so there is no all-reduce to measure")]
    NoLinks,
    /// The file belongs to the model of a topology.
    #[error("model {model} is in use: the node holds a shard of it")]
    ModelInUse { model: String },
    /// A file with this name already exists.
    #[error("model {model} already exists")]
    ModelExists { model: String },
    /// Not enough free space for the file.
    #[error("not enough disk space: {available} is free, {needed} is needed")]
    DiskShort { needed: Bytes, available: Bytes },
    /// Another request is writing the same file.
    #[error("is already writing {model}")]
    StoreBusy { model: String },
    /// The file system reported an error.
    #[error("{reason}")]
    StoreFailed { reason: String },
    /// The operator aborted the assignment.
    #[error("the assignment of epoch {epoch} was aborted; the previous topology keeps running")]
    AssignmentAborted { epoch: Epoch },
    /// The requester cancelled the operation or disconnected.
    #[error("cancelled; the bytes received so far are kept")]
    StoreCancelled,
    /// The download failed.
    #[error("download failed: {reason}")]
    DownloadFailed { reason: String },
    /// The checksum of the received file is not the expected one.
    #[error("checksum mismatch for {model}: expected {expected}, got {actual}; the file was deleted")]
    HashDiffers { model: String, expected: String, actual: String },
    /// The node has a key and this program has none.
    #[error("requires the key of its cluster, but this program has no key")]
    KeyNeeded,
    /// The two ends have different keys.
    #[error("its cluster key differs from this program's key")]
    KeyDiffers,
    /// The node has no key and the connection comes from another machine.
    #[error("has no cluster key yet: it must be adopted first")]
    Unclaimed,
    /// The node already has a key.
    #[error("already belongs to a cluster")]
    Claimed,
    /// The node shows no pairing code, or the code has expired.
    #[error("cannot be adopted now: it shows no pairing code")]
    NotPairing,
    /// The pairing code is not the one that the node shows.
    #[error("wrong pairing code; {left} more attempts are allowed")]
    CodeWrong { left: u32 },
    /// The role of the key does not allow the request.
    #[error("a {role} key does not allow {what}")]
    RoleRefused { role: String, what: String },
    /// A message failed its integrity check or is not the next one of its connection.
    #[error("rejected a message: {error}")]
    Seal { error: SealError },
    /// A new key was rejected or could not be stored.
    #[error("cannot install the new key: {reason}")]
    KeyRefused { reason: String },
    /// Files with the same name and header but different weights.
    #[error("{model} has different weights: content {actual}, expected {expected}{holders}")]
    ContentDiffers { model: String, expected: Box<ContentRoot>, actual: ContentRoot, holders: String },
    /// A message that an older peer does not support.
    #[error("speaks wire version {version}, which does not support {what}")]
    PeerOlder { version: u16, what: String },
    /// Ranks of one group with different wire versions.
    #[error(
        "links to {peer} need the same wire version: it speaks {version} (build {build}), this node {own} (build {own_build})"
    )]
    RanksDiffer { peer: String, version: u16, build: String, own: u16, own_build: String },
    /// The answer belongs to a different model than the one that is served now.
    #[error("serves {model} ({actual}), but the answer belongs to {expected}")]
    ModelReplaced { model: String, expected: Box<ModelRoots>, actual: Box<ModelRoots> },
    /// A request that may crash every head that runs it.
    #[error("was the last of {heads} heads lost while starting this request; it is not retried")]
    EndsHeads { heads: u32 },
}

impl Fault {
    /// Creates a fault of the node with this name.
    pub fn new(node: impl Into<String>, kind: FaultKind) -> Self {
        Self { node: node.into(), kind }
    }
}

impl From<SealError> for FaultKind {
    fn from(error: SealError) -> Self {
        Self::Seal { error }
    }
}

impl FaultKind {
    /// Stable name for `--json` output.
    #[expect(clippy::too_many_lines, reason = "a table: a row for each fault")]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "node_unreachable",
            Self::NotBramble { .. } => "not_bramble",
            Self::WireVersion { .. } => "wire_version",
            Self::SecurityMode { .. } => "security_mode",
            Self::NumericVersion { .. } => "numeric_version",
            Self::Malformed { .. } => "malformed_message",
            Self::SessionLost { .. } => "session_lost",
            Self::Timeout { .. } => "timeout",
            Self::Full { .. } => "full",
            Self::EpochMoved { .. } => "epoch_moved",
            Self::PrepareOpen { .. } => "prepare_open",
            Self::Superseded { .. } => "superseded",
            Self::NotPrepared { .. } => "not_prepared",
            Self::ModelMissing { .. } => "model_missing",
            Self::ModelInvalid { .. } => "model_invalid",
            Self::ModelDiffers { .. } => "model_differs",
            Self::TopologyInvalid { .. } => "topology_invalid",
            Self::MemoryShort { .. } => "memory_short",
            Self::StateUnwritable { .. } => "state_unwritable",
            Self::LinksFailed { .. } => "links_failed",
            Self::NotServing { .. } => "not_serving",
            Self::NotHead => "not_head",
            Self::Draining => "draining",
            Self::QueueFull { .. } => "queue_full",
            Self::PromptTooLong { .. } => "prompt_too_long",
            Self::PromptEmpty => "prompt_empty",
            Self::NoTemplate => "no_template",
            Self::ParameterInvalid { .. } => "parameter_invalid",
            Self::NodeLost { .. } => "node_lost",
            Self::SlowReader => "slow_reader",
            Self::DrainEnded => "drain_ended",
            Self::Internal { .. } => "internal",
            Self::Excluded { .. } => "excluded",
            Self::Unsupervised => "unsupervised",
            Self::NotBack { .. } => "not_back",
            Self::NotIdle { .. } => "not_idle",
            Self::BenchRuns { .. } => "bench_runs",
            Self::BenchCancelled { .. } => "bench_cancelled",
            Self::BenchSuperseded { .. } => "bench_superseded",
            Self::BenchFailed { .. } => "bench_failed",
            Self::RequestsRun { .. } => "requests_run",
            Self::OnlyPrefills => "only_prefills",
            Self::NoLinks => "no_links",
            Self::ModelInUse { .. } => "model_in_use",
            Self::ModelExists { .. } => "model_exists",
            Self::DiskShort { .. } => "disk_short",
            Self::StoreBusy { .. } => "store_busy",
            Self::StoreFailed { .. } => "store_failed",
            Self::AssignmentAborted { .. } => "assignment_aborted",
            Self::StoreCancelled => "store_cancelled",
            Self::DownloadFailed { .. } => "download_failed",
            Self::HashDiffers { .. } => "hash_differs",
            Self::KeyNeeded => "key_needed",
            Self::KeyDiffers => "key_differs",
            Self::Unclaimed => "unclaimed",
            Self::Claimed => "claimed",
            Self::NotPairing => "not_pairing",
            Self::CodeWrong { .. } => "code_wrong",
            Self::RoleRefused { .. } => "role_refused",
            Self::Seal { error: SealError::Replayed { .. } } => "message_replayed",
            Self::Seal { error: SealError::Missing { .. } } => "message_missing",
            Self::Seal { error: SealError::Forged } => "message_forged",
            Self::Seal { error: SealError::Damaged } => "message_damaged",
            Self::KeyRefused { .. } => "key_refused",
            Self::ContentDiffers { .. } => "content_differs",
            Self::PeerOlder { .. } => "peer_older",
            Self::RanksDiffer { .. } => "ranks_differ",
            Self::ModelReplaced { .. } => "model_replaced",
            Self::EndsHeads { .. } => "request_ends_heads",
        }
    }

    /// The class that determines the console's exit code.
    pub fn class(&self) -> FaultClass {
        match self {
            Self::Unreachable { .. } | Self::NotBramble { .. } | Self::LinksFailed { .. } => FaultClass::Unreachable,
            Self::SessionLost { .. } | Self::NodeLost { .. } | Self::SlowReader | Self::DrainEnded => FaultClass::Lost,
            Self::BenchCancelled { .. } | Self::BenchSuperseded { .. } => FaultClass::Lost,
            Self::Internal { .. } | Self::Timeout { .. } | Self::NotBack { .. } => FaultClass::Failed,
            Self::BenchFailed { .. } => FaultClass::Failed,
            Self::StoreFailed { .. } | Self::DownloadFailed { .. } | Self::HashDiffers { .. } => FaultClass::Failed,
            Self::StoreCancelled | Self::AssignmentAborted { .. } => FaultClass::Lost,
            // After a rejected message the connection cannot be trusted any more.
            Self::Seal { .. } => FaultClass::Lost,
            Self::EndsHeads { .. } => FaultClass::Failed,
            _ => FaultClass::Refused,
        }
    }

    /// The next step for the operator: an imperative clause without a final period.
    #[expect(clippy::too_many_lines, reason = "a table: a row for each fault")]
    pub fn next(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "check the address, and that brambled runs there (systemctl status brambled)",
            Self::NotBramble { .. } => "give the address and port of a node (default port 9999)",
            Self::WireVersion { .. } => {
                "install the same release of bramble-daemon and bramble-console on all machines"
            }
            Self::SecurityMode { .. } | Self::NumericVersion { .. } => "install the same release on every node",
            Self::Malformed { .. } => "check that both ends run the same release; if they do, report a bug",
            Self::SessionLost { .. } => "check the node's log (journalctl -u brambled) and try again",
            Self::Timeout { .. } => "check the load and the log of that node and try again",
            Self::Full { .. } => "close other consoles, or try again later",
            Self::EpochMoved { .. } | Self::Superseded { .. } => {
                "another console assigned a topology; check it with console status, then try again"
            }
            Self::PrepareOpen { .. } => "wait until the other console finishes or its lease ends",
            Self::NotPrepared { .. } | Self::AssignmentAborted { .. } => "assign the topology again",
            Self::ModelMissing { .. } => "copy the file into one of these folders, or start brambled with --models DIR",
            Self::ModelInvalid { .. } => "download the file again, or choose a model in a supported format",
            Self::ModelDiffers { .. } => "copy the same file to every node",
            Self::ContentDiffers { .. } => {
                "replace the wrong file: console model remove MODEL --node NODE --yes, then console model fetch MODEL --from OTHER --node NODE; console model verify checks a file again"
            }
            Self::TopologyInvalid { .. } => "request a different topology",
            Self::MemoryShort { .. } => "use more nodes, a smaller model, a shorter --context or --kv q8_0",
            Self::StateUnwritable { .. } => "give brambled a writable directory with --state DIR",
            Self::LinksFailed { .. } => "check that the nodes can reach each other at their listen addresses",
            Self::NotServing { .. } => "assign a topology; console generate does this automatically",
            Self::NotHead => "send the request to the first node of the topology",
            Self::Draining | Self::DrainEnded => "wait until the node is back and try again",
            Self::QueueFull { .. } => "try again when running requests have finished",
            Self::PromptTooLong { .. } => "shorten the prompt, or assign the topology with a longer --context",
            Self::PromptEmpty => "give a prompt with --prompt",
            Self::NoTemplate => "send a plain text prompt instead of a conversation, or use an instruct model",
            Self::ParameterInvalid { .. } => "correct the parameter",
            Self::NodeLost { .. } => "restart the node, then send the request again; this assigns the topology again",
            Self::SlowReader => "read the stream faster, or ask for fewer tokens",
            Self::Internal { .. } => "report a bug and attach the node's log",
            Self::Excluded { .. } => "include it again (console include NODE), or assign a topology without it",
            Self::Unsupervised => "run brambled under systemd, or with --supervised under another supervisor",
            Self::NotBack { .. } => "check its log (journalctl -u brambled), start it, then resume the restart",
            Self::NotIdle { .. } => {
                "exclude it first (console exclude NODE --reason bench), or restart it (systemctl restart brambled)"
            }
            Self::BenchCancelled { .. } => "run the benchmark again",
            Self::BenchSuperseded { .. } => "run the benchmark again when the node is idle",
            Self::BenchFailed { .. } | Self::KeyRefused { .. } => "fix the cause on that node and try again",
            Self::BenchRuns { .. } | Self::StoreBusy { .. } | Self::RequestsRun { .. } => "wait until it has finished",
            Self::OnlyPrefills => "send the request to the first node of a decode group",
            Self::KeyNeeded => "pass the cluster's key file with --key FILE or BRAMBLE_KEY_FILE",
            Self::KeyDiffers => {
                "compare the output of console key fingerprint here and on a machine that can connect; for a lost key see RUNBOOK.md, Keys"
            }
            Self::Unclaimed => {
                "run sudo brambled pair on it, then console adopt ADDRESS --code CODE; on the node's own machine, --insecure connects without a key"
            }
            Self::Claimed => "use its cluster's key; to change the key see RUNBOOK.md, Keys",
            Self::NotPairing => "run sudo brambled pair on it and enter the code that it shows",
            Self::CodeWrong { .. } => "check the code; sudo brambled pair on the node shows a new one",
            Self::RoleRefused { .. } => "use the key of a role that allows it (console key show --role operator)",
            Self::Seal { .. } => {
                "an attacker or a faulty switch may be altering traffic; try again, then check the network between the nodes"
            }
            Self::NoLinks => "request a topology with several nodes in a stage, for example --topology tp2",
            Self::ModelInUse { .. } => {
                "assign a topology with another model first, or exclude the node (console exclude)"
            }
            Self::ModelExists { .. } => "compare it with console model verify, or remove it with console model remove",
            Self::DiskShort { .. } => {
                "remove a model (console model remove), or set models to a folder on a larger disk"
            }
            Self::StoreFailed { .. } => "fix the cause (console doctor checks the disk) and try again",
            Self::StoreCancelled | Self::DownloadFailed { .. } => "run the same command again to resume",
            Self::HashDiffers { .. } => "check the address and the expected hash; if it happens again, check the disk",
            Self::PeerOlder { .. } => "upgrade the node to this release",
            Self::RanksDiffer { .. } => "install the same release on every node of the topology",
            Self::ModelReplaced { .. } => "send the request again",
            Self::EndsHeads { .. } => {
                "change the request (its schema, tools or length) before you send it again, and check the logs of those nodes"
            }
        }
    }
}
