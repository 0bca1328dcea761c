//! What goes wrong between console and nodes, as a closed enum: every fault names its node, a code and the next step.
use serde::{Deserialize, Serialize};

use crate::{
    ids::{ContentRoot, Epoch, ModelIdentity, ModelRoots},
    protocol::seal::SealError,
    units::Bytes,
};

/// A fault on a node, as it travels to the console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("node {node}: {kind}")]
pub struct Fault {
    /// The node that it happened on, or that was lost.
    pub node: String,
    /// What happened.
    #[serde(serialize_with = "crate::protocol::older::tell")]
    pub kind: FaultKind,
}

/// How a console treats a fault: the exit codes of the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultClass {
    /// Something failed.
    Failed,
    /// A node does not answer.
    Unreachable,
    /// A node said no.
    Refused,
    /// A running request was lost.
    Lost,
}

/// How a node was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// Its connection was closed or reset.
    Reset,
    /// No heartbeat in time.
    Silent,
    /// Heartbeats, but no progress of its engine.
    Stalled,
    /// It said that it leaves.
    Left,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reset => "its connection was closed",
            Self::Silent => "it sent no heartbeat in time",
            Self::Stalled => "its engine makes no progress",
            Self::Left => "it was shut down",
        })
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the values that the message of each variant prints")]
pub enum FaultKind {
    /// No connection.
    #[error("cannot be reached at {address}: {reason}")]
    Unreachable { address: String, reason: String },
    /// Something else listens there.
    #[error("{address} does not speak the Bramble protocol")]
    NotBramble { address: String },
    /// No common wire version.
    #[error("speaks wire versions {lowest} to {highest}, this program {own_lowest} to {own_highest}")]
    WireVersion { lowest: u16, highest: u16, own_lowest: u16, own_highest: u16 },
    /// A security mode that this build does not know.
    #[error("asks for security mode {mode}, this build knows modes 0 to 2")]
    SecurityMode { mode: u8 },
    /// Kernels whose results differ.
    #[error("computes with numeric version {theirs}, this node with {own}")]
    NumericVersion { theirs: u32, own: u32 },
    /// Bytes that are no message.
    #[error("sent a broken message: {reason}")]
    Malformed { reason: String },
    /// The session broke.
    #[error("the connection broke: {reason}")]
    SessionLost { reason: String },
    /// Something took too long.
    #[error("{what} took longer than {seconds} s")]
    Timeout { what: String, seconds: u32 },
    /// A bound was reached.
    #[error("has {limit} {what} already")]
    Full { what: String, limit: u32 },
    /// Another assignment came in between.
    #[error("is at epoch {actual}, the assignment was made for {expected}")]
    EpochMoved { expected: Epoch, actual: Epoch },
    /// Another prepare is open.
    #[error("another assignment (epoch {epoch}) is being prepared by {by}, for {seconds} s at most")]
    PrepareOpen { epoch: Epoch, by: String, seconds: u32 },
    /// A newer assignment won.
    #[error("superseded by epoch {epoch} from {by}")]
    Superseded { epoch: Epoch, by: String },
    /// A commit or abort of what was not prepared.
    #[error("holds no prepared assignment of epoch {epoch}")]
    NotPrepared { epoch: Epoch },
    /// No such file in the model folders.
    #[error("has no model {model} in its model folders ({folders})")]
    ModelMissing { model: String, folders: String },
    /// The file is broken or unsupported.
    #[error("model {model} cannot be used: {reason}")]
    ModelInvalid { model: String, reason: String },
    /// Different files under one name.
    #[error("has another file under the name {model}: identity {actual}, the topology has {expected}")]
    ModelDiffers { model: String, expected: ModelIdentity, actual: ModelIdentity },
    /// A topology that cannot be.
    #[error("topology refused: {reason}")]
    TopologyInvalid { reason: String },
    /// The shard does not fit.
    #[error("its shard needs {needed}, {available} are free")]
    MemoryShort { needed: Bytes, available: Bytes },
    /// The state directory cannot be written.
    #[error("cannot write its state: {reason}")]
    StateUnwritable { reason: String },
    /// Links between ranks could not be opened.
    #[error("could not open its links: {reason}")]
    LinksFailed { reason: String },
    /// No running topology here.
    #[error("is {state} and serves no topology")]
    NotServing { state: String },
    /// Not the head of the topology.
    #[error("is not the head of its topology")]
    NotHead,
    /// Draining.
    #[error("is draining and takes no new requests")]
    Draining,
    /// The queue is full.
    #[error("its queue of {limit} requests is full")]
    QueueFull { limit: u32 },
    /// More tokens than the context.
    #[error("the prompt has {tokens} tokens, the context holds {context}")]
    PromptTooLong { tokens: u32, context: u32 },
    /// Nothing to generate from.
    #[error("the prompt is empty")]
    PromptEmpty,
    /// The model's file has no template for conversations.
    #[error("holds a model without a chat template")]
    NoTemplate,
    /// A parameter out of bounds.
    #[error("parameter refused: {reason}")]
    ParameterInvalid { reason: String },
    /// A node of the topology is gone.
    #[error("was lost: {how}")]
    NodeLost { how: Loss },
    /// The reader of the stream was too slow.
    #[error("the request was cancelled because its reader was too slow")]
    SlowReader,
    /// A wait for requests to finish ended before they did.
    #[error("was shut down before the request finished")]
    DrainEnded,
    /// Our own bug, reported.
    #[error("internal fault: {reason}")]
    Internal { reason: String },
    /// An operator took a member out.
    #[error("knows that {by} took {member} out: {reason}")]
    Excluded { member: String, reason: String, by: String },
    /// Nothing would start the daemon again.
    #[error("has nothing that would start it again")]
    Unsupervised,
    /// A restarted node did not come back.
    #[error("did not come back within {seconds} s")]
    NotBack { seconds: u32 },
    /// A bench is for nodes that do nothing else.
    #[error("is {state}: only an idle node is measured")]
    NotIdle { state: String },
    /// Another bench runs.
    #[error("is being measured for {by} already")]
    BenchRuns { by: String },
    /// Whoever asked for the bench ended it.
    #[error("ended the bench, as {by} asked")]
    BenchCancelled { by: String },
    /// An assignment goes before a bench.
    #[error("ended the bench: {by} needs the node")]
    BenchSuperseded { by: String },
    /// The bench could not be done.
    #[error("cannot be measured: {reason}")]
    BenchFailed { reason: String },
    /// Links are timed while nobody else uses them.
    #[error("runs {count} requests: links are measured only while none runs")]
    RequestsRun { count: u32 },
    /// The head of a prefill group.
    #[error("computes prompts for other groups and takes no requests itself")]
    OnlyPrefills,
    /// A stage of one rank has no all-reduces.
    #[error("is the only rank of its stage: it sums with nobody")]
    NoLinks,
    /// A file that others are not to lose.
    #[error("holds a shard of {model}")]
    ModelInUse { model: String },
    /// A file of this name is there.
    #[error("has a model {model} already")]
    ModelExists { model: String },
    /// Not enough room.
    #[error("its disk has {available} free, {needed} are needed")]
    DiskShort { needed: Bytes, available: Bytes },
    /// Somebody else writes the same file.
    #[error("is getting {model} already")]
    StoreBusy { model: String },
    /// The disk refuses.
    #[error("{reason}")]
    StoreFailed { reason: String },
    /// The operator changed his mind.
    #[error("aborted the assignment of epoch {epoch}; what ran before runs")]
    AssignmentAborted { epoch: Epoch },
    /// Whoever asked for it ended it, or left.
    #[error("stopped, as it was asked to; what is there is kept")]
    StoreCancelled,
    /// A download that cannot be done.
    #[error("cannot get it: {reason}")]
    DownloadFailed { reason: String },
    /// Bytes that are not those that were promised.
    #[error("{model} has SHA-256 {actual}, expected was {expected}; it is deleted")]
    HashDiffers { model: String, expected: String, actual: String },
    /// The node has a key, the program has none.
    #[error("belongs to a cluster with a key, and this program has none")]
    KeyNeeded,
    /// The ends have different keys.
    #[error("has another cluster key than this program")]
    KeyDiffers,
    /// The node has no key and is not asked from its own machine.
    #[error("has no cluster key yet and only waits to be adopted")]
    Unclaimed,
    /// The node has a key already.
    #[error("belongs to a cluster already")]
    Claimed,
    /// No code was shown there, or its time is over.
    #[error("shows no code: nobody can adopt it now")]
    NotPairing,
    /// Another code than the node shows.
    #[error("shows another code; {left} more attempts are left")]
    CodeWrong { left: u32 },
    /// A key that does not allow what was asked for.
    #[error("does not allow {what} with a {role} key")]
    RoleRefused { role: String, what: String },
    /// A message that is not the next one of its connection.
    #[error("refused a message: {error}")]
    Seal { error: SealError },
    /// A new key was refused or could not be kept.
    #[error("did not take the key: {reason}")]
    KeyRefused { reason: String },
    /// Files of one name and header with other weights.
    #[error("has other weights in {model}: content {actual}, expected {expected}{holders}")]
    ContentDiffers { model: String, expected: Box<ContentRoot>, actual: ContentRoot, holders: String },
    /// A message that an older peer does not know.
    #[error("speaks wire version {version}, which has no {what}")]
    PeerOlder { version: u16, what: String },
    /// Ranks of one group of different wire versions.
    #[error(
        "links to {peer} need one wire version: it speaks {version} (build {build}), this node {own} (build {own_build})"
    )]
    RanksDiffer { peer: String, version: u16, build: String, own: u16, own_build: String },
    /// An answer of another model than the one that is served now.
    #[error("serves {model} ({actual}), the answer belongs to {expected}")]
    ModelReplaced { model: String, expected: Box<ModelRoots>, actual: Box<ModelRoots> },
    /// A request that may be what ends the heads that get it.
    #[error("was the last of {heads} heads that were lost while they began the request; it is not tried again")]
    EndsHeads { heads: u32 },
}

impl Fault {
    /// A fault of the node with this name.
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
    /// The stable name in `--json` output.
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

    /// How a console treats it.
    pub fn class(&self) -> FaultClass {
        match self {
            Self::Unreachable { .. } | Self::NotBramble { .. } | Self::LinksFailed { .. } => FaultClass::Unreachable,
            Self::SessionLost { .. } | Self::NodeLost { .. } | Self::SlowReader | Self::DrainEnded => FaultClass::Lost,
            Self::BenchCancelled { .. } | Self::BenchSuperseded { .. } => FaultClass::Lost,
            Self::Internal { .. } | Self::Timeout { .. } | Self::NotBack { .. } => FaultClass::Failed,
            Self::BenchFailed { .. } => FaultClass::Failed,
            Self::StoreFailed { .. } | Self::DownloadFailed { .. } | Self::HashDiffers { .. } => FaultClass::Failed,
            Self::StoreCancelled | Self::AssignmentAborted { .. } => FaultClass::Lost,
            // A connection that carries broken messages is of no use any more.
            Self::Seal { .. } => FaultClass::Lost,
            Self::EndsHeads { .. } => FaultClass::Failed,
            _ => FaultClass::Refused,
        }
    }

    /// What to do next.
    #[expect(clippy::too_many_lines, reason = "a table: a row for each fault")]
    pub fn next(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "check that brambled runs there: systemctl status brambled; and the address",
            Self::NotBramble { .. } => "name the address and port of a brambled (default port 9999)",
            Self::WireVersion { .. } => "install the same release of bramble-daemon and bramble-console everywhere",
            Self::SecurityMode { .. } | Self::NumericVersion { .. } => "install the same release on every node",
            Self::Malformed { .. } => "check that both ends run the same release; report it if they do",
            Self::SessionLost { .. } => "look at the node's log (journalctl -u brambled) and try again",
            Self::Timeout { .. } => "look at the load and the log of that node and try again",
            Self::Full { .. } => "close other consoles or try again later",
            Self::EpochMoved { .. } | Self::Superseded { .. } => {
                "another console assigned a topology; look at it first"
            }
            Self::PrepareOpen { .. } => "wait for the other console to finish, or for its lease to end",
            Self::NotPrepared { .. } | Self::AssignmentAborted { .. } => "assign the topology again",
            Self::ModelMissing { .. } => "copy the file into one of those folders, or start brambled with --models DIR",
            Self::ModelInvalid { .. } => "download the file again, or use a model in a supported format",
            Self::ModelDiffers { .. } => "copy the same file to every node",
            Self::ContentDiffers { .. } => {
                "on the node with the wrong file: console model remove MODEL --node NODE --yes, then console model fetch MODEL --from OTHER --node NODE; console model verify reads a file again"
            }
            Self::TopologyInvalid { .. } => "ask for another topology",
            Self::MemoryShort { .. } => "use more nodes, a smaller model, a shorter --context or --kv f16",
            Self::StateUnwritable { .. } => "give brambled a writable directory with --state DIR",
            Self::LinksFailed { .. } => "check that the nodes reach each other on their listen addresses",
            Self::NotServing { .. } => "assign a topology: console generate does it by itself",
            Self::NotHead => "send the request to the first node of the topology",
            Self::Draining | Self::DrainEnded => "wait until the node is back and try again",
            Self::QueueFull { .. } => "try again when running requests are done",
            Self::PromptTooLong { .. } => "shorten the prompt or assign with a longer --context",
            Self::PromptEmpty => "give a prompt with --prompt",
            Self::NoTemplate => "complete a text instead of a conversation, or use a file of an instruct model",
            Self::ParameterInvalid { .. } => "correct the parameter",
            Self::NodeLost { .. } => "restart the node, then send the request again: the topology is assigned anew",
            Self::SlowReader => "read the stream faster, or ask for fewer tokens",
            Self::Internal { .. } => "report it with the node's log",
            Self::Excluded { .. } => "take it in again with console include NODE, or assign without it",
            Self::Unsupervised => "run brambled under systemd, or with --supervised under whatever restarts it",
            Self::NotBack { .. } => "look at its log (journalctl -u brambled), start it, then go on with the restart",
            Self::NotIdle { .. } => {
                "take it out first (console exclude NODE --reason bench), or restart it (systemctl restart brambled)"
            }
            Self::BenchCancelled { .. } => "run it again",
            Self::BenchSuperseded { .. } => "run it again when the node is idle",
            Self::BenchFailed { .. } | Self::KeyRefused { .. } => "correct the cause on that node and try again",
            Self::BenchRuns { .. } | Self::StoreBusy { .. } | Self::RequestsRun { .. } => "wait until that is done",
            Self::OnlyPrefills => "send the request to the first node of a decode group",
            Self::KeyNeeded => "name the cluster's key file with --key FILE or BRAMBLE_KEY_FILE",
            Self::KeyDiffers => {
                "compare console key fingerprint here and on a machine that reaches it; a lost key: RUNBOOK.md, Keys"
            }
            Self::Unclaimed => {
                "run sudo brambled pair on it, then console adopt ADDRESS --code CODE; on its own machine --insecure does without a key"
            }
            Self::Claimed => "use it with its cluster's key; to give it another: RUNBOOK.md, Keys",
            Self::NotPairing => "run sudo brambled pair on it and use the code that it shows",
            Self::CodeWrong { .. } => "read the code again; sudo brambled pair on the node shows a new one",
            Self::RoleRefused { .. } => "use a key file that allows it: console key show --role operator",
            Self::Seal { .. } => "somebody may be interfering with the network between; try again, then look there",
            Self::NoLinks => "ask for a topology with several nodes in a stage, for example --topology tp2",
            Self::ModelInUse { .. } => {
                "assign a topology with another model first, or take the node out (console exclude)"
            }
            Self::ModelExists { .. } => "console model verify compares it; console model remove makes room for another",
            Self::DiskShort { .. } => {
                "remove a model (console model remove), or name a folder on a larger disk in models"
            }
            Self::StoreFailed { .. } => "correct the cause (console doctor looks at the disk) and try again",
            Self::StoreCancelled | Self::DownloadFailed { .. } => "the same command again goes on where it stopped",
            Self::HashDiffers { .. } => "check the address and the hash; look at the disk if it happens again",
            Self::PeerOlder { .. } => "upgrade it to this release",
            Self::RanksDiffer { .. } => "install the same release on every node of the topology",
            Self::ModelReplaced { .. } => "send the request again",
            Self::EndsHeads { .. } => {
                "change the request (its schema, tools or length) before it is sent again; look at the logs of those nodes"
            }
        }
    }
}
