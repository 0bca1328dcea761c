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

impl SealError {
    /// Stable name for `--json` output.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Replayed { .. } => "message_replayed",
            Self::Missing { .. } => "message_missing",
            Self::Forged => "message_forged",
            Self::Damaged => "message_damaged",
        }
    }
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

/// Severity class of a fault; the console derives its exit code from it (table in docs/operate.md).
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

/// Defines `FaultKind` from a table with a row for each fault: `Variant { fields } => code, class, message, next step`.
/// The message follows the node's name; the next step is an imperative clause without a final period. The order of the
/// rows is part of the wire format: append new ones.
macro_rules! faults {
    ($(
        $(#[$doc:meta])*
        $name:ident $({ $($field:ident: $kind:ty),* })? => $code:expr, $class:ident, $message:tt, $next:tt;
    )*) => {
        /// The cause of a fault. `Display` is written to follow the node's name.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
        #[expect(missing_docs, reason = "the fields are the values that the message of each variant prints")]
        pub enum FaultKind {
            $($(#[$doc])* #[error($message)] $name $({ $($field: $kind),* })?,)*
        }

        impl FaultKind {
            /// Stable name for `--json` output.
            pub fn code(&self) -> &'static str {
                match self {
                    $(Self::$name $({ $($field),* })? => {
                        $($(let _ = $field;)*)?
                        $code
                    })*
                }
            }

            /// The class that determines the console's exit code.
            pub fn class(&self) -> FaultClass {
                match self {
                    $(Self::$name { .. } => FaultClass::$class,)*
                }
            }

            /// The next step for the operator: an imperative clause without a final period.
            pub fn next(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => $next,)*
                }
            }
        }
    };
}

faults! {
    /// No connection could be opened.
    Unreachable { address: String, reason: String } => "node_unreachable", Unreachable,
        "cannot be reached at {address}: {reason}",
        "check the address, and that brambled runs there (systemctl status brambled)";
    /// Another program listens at the address.
    NotBramble { address: String } => "not_bramble", Unreachable,
        "{address} does not speak the Bramble protocol",
        "give the address and port of a node (default port 9999)";
    /// No common wire version.
    WireVersion { lowest: u16, highest: u16, own_lowest: u16, own_highest: u16 } => "wire_version", Refused,
        "no common wire version: it speaks {lowest} to {highest}, this program {own_lowest} to {own_highest}",
        "install the same release of bramble-daemon and bramble-console on all machines";
    /// A security mode that this build does not support.
    SecurityMode { mode: u8 } => "security_mode", Refused,
        "unknown security mode {mode}; this build supports modes 0 to 2",
        "install the same release on every node";
    /// Kernels whose results differ bit by bit.
    NumericVersion { theirs: u32, own: u32 } => "numeric_version", Refused,
        "its kernels have numeric version {theirs}, those of its peers {own}",
        "install the same release on every node";
    /// The bytes received are not a valid message.
    Malformed { reason: String } => "malformed_message", Refused,
        "sent an invalid message: {reason}",
        "check that both ends run the same release; if they do, report a bug";
    /// The session ended unexpectedly.
    SessionLost { reason: String } => "session_lost", Lost,
        "session lost: {reason}",
        "check the node's log (journalctl -u brambled)";
    /// An operation exceeded its deadline.
    Timeout { what: String, seconds: u32 } => "timeout", Failed,
        "no answer for {seconds} s ({what})",
        "check the load and the log of that node";
    /// A limit was reached.
    Full { what: String, limit: u32 } => "full", Refused,
        "limit reached: {limit} {what}",
        "close other consoles, or try again later";
    /// Another assignment was committed in the meantime.
    EpochMoved { expected: Epoch, actual: Epoch } => "epoch_moved", Refused,
        "its epoch is {actual}, but the assignment was made for {expected}",
        "another console assigned a topology; check it with console status, then try again";
    /// Another assignment is being prepared.
    PrepareOpen { epoch: Epoch, by: String, seconds: u32 } => "prepare_open", Refused,
        "another assignment (epoch {epoch}) is being prepared by {by}; its lease ends within {seconds} s",
        "wait until the other console finishes or its lease ends";
    /// A newer assignment replaced this one.
    Superseded { epoch: Epoch, by: String } => "superseded", Refused,
        "this assignment was superseded by epoch {epoch}, assigned by {by}",
        "another console assigned a topology; check it with console status, then try again";
    /// A commit or abort of an assignment that was not prepared.
    NotPrepared { epoch: Epoch } => "not_prepared", Refused,
        "no assignment of epoch {epoch} is prepared",
        "assign the topology again";
    /// No such file in the model folders.
    ModelMissing { model: String, folders: String } => "model_missing", Refused,
        "model {model} not found in its model folders ({folders})",
        "copy it from a node that has it (console model pull MODEL --from OTHER --node NODE), or download it (console model pull)";
    /// The file is damaged or not supported.
    ModelInvalid { model: String, reason: String } => "model_invalid", Refused,
        "cannot use model {model}: {reason}",
        "delete the file (console model remove MODEL --node NODE) and download it again, or choose a model in a supported format";
    /// Different files with the same name.
    ModelDiffers { model: String, expected: ModelIdentity, actual: ModelIdentity } => "model_differs", Refused,
        "model {model} is a different file: identity {actual}, but the topology expects {expected}",
        "copy the same file to every node";
    /// The topology breaks a rule.
    TopologyInvalid { reason: String } => "topology_invalid", Refused,
        "invalid topology: {reason}",
        "request a different topology";
    /// The shard does not fit.
    MemoryShort { needed: Bytes, available: Bytes } => "memory_short", Refused,
        "not enough memory: its shard needs {needed}, {available} is free",
        "use more nodes, a smaller model, a shorter --context or --kv q8_0";
    /// The state directory cannot be written.
    StateUnwritable { reason: String } => "state_unwritable", Refused,
        "cannot write its state: {reason}",
        "free space on its disk or repair it (RUNBOOK.md, The disk is full or read-only)";
    /// The links between ranks could not be opened.
    LinksFailed { reason: String } => "links_failed", Unreachable,
        "cannot open its links: {reason}",
        "check that the nodes can reach each other at their listen addresses";
    /// No topology is running on the node.
    NotServing { state: String } => "not_serving", Refused,
        "serves no topology (state: {state})",
        "assign a topology; console generate does this automatically";
    /// The node is not the head of its topology.
    NotHead => "not_head", Refused,
        "cannot accept the request: it is not the head of its topology",
        "send the request to the first node of the topology";
    /// The node is draining.
    Draining => "draining", Refused,
        "is draining and accepts no new requests",
        "wait until the node is back and try again";
    /// The admission queue is full.
    QueueFull { limit: u32 } => "queue_full", Refused,
        "the admission queue is full ({limit} requests)",
        "try again when running requests have finished";
    /// The prompt has more tokens than the context.
    PromptTooLong { tokens: u32, context: u32 } => "prompt_too_long", Refused,
        "the prompt has at least {tokens} tokens, but the context holds {context}",
        "shorten the prompt, or assign the topology with a longer --context";
    /// The prompt has no tokens.
    PromptEmpty => "prompt_empty", Refused,
        "the prompt is empty",
        "give a prompt with --prompt";
    /// The model's file has no chat template.
    NoTemplate => "no_template", Refused,
        "its model has no chat template",
        "send a plain text prompt instead of a conversation, or use an instruct model";
    /// A parameter is out of bounds.
    ParameterInvalid { reason: String } => "parameter_invalid", Refused,
        "request rejected: {reason}",
        "correct the parameter";
    /// A node of the topology was lost.
    NodeLost { how: Loss } => "node_lost", Lost,
        "lost: {how}",
        "start that node again, or continue without it: console node exclude NODE --reason TEXT";
    /// The client read the stream too slowly.
    SlowReader => "slow_reader", Lost,
        "request cancelled: the client read the stream too slowly",
        "read the stream faster, or ask for fewer tokens";
    /// The drain deadline passed before the request finished.
    DrainEnded => "drain_ended", Lost,
        "shut down before the request finished",
        "wait until the node is back and try again";
    /// A bug in Bramble.
    Internal { reason: String } => "internal", Failed,
        "internal error: {reason}",
        "report a bug and attach the node's log";
    /// An operator excluded a member of the topology.
    Excluded { member: String, reason: String, by: String } => "excluded", Refused,
        "{member} is excluded (by {by}: {reason})",
        "include it again (console node include NODE), or assign a topology without it";
    /// No supervisor would start the daemon again.
    Unsupervised => "unsupervised", Refused,
        "cannot be restarted remotely: it does not run under a supervisor",
        "run brambled under systemd, or with --supervised under another supervisor";
    /// A restarted node did not return in time.
    NotBack { seconds: u32 } => "not_back", Failed,
        "did not come back within {seconds} s of its restart",
        "check its log (journalctl -u brambled), start it, then resume the restart";
    /// Benchmarks run only on idle nodes.
    NotIdle { state: String } => "not_idle", Refused,
        "cannot run the benchmark: its state is {state}, but benchmarks need an idle node",
        "exclude it first (console node exclude NODE --reason bench), or unload its model (console topology unload)";
    /// Another benchmark is running.
    BenchRuns { by: String } => "bench_runs", Refused,
        "is already running a benchmark for {by}",
        "wait until it has finished";
    /// The requester cancelled the benchmark.
    BenchCancelled { by: String } => "bench_cancelled", Lost,
        "benchmark cancelled by {by}",
        "run the benchmark again";
    /// An assignment takes precedence over a benchmark.
    BenchSuperseded { by: String } => "bench_superseded", Lost,
        "benchmark stopped: {by} needs the node",
        "run the benchmark again when the node is idle";
    /// The benchmark could not run.
    BenchFailed { reason: String } => "bench_failed", Failed,
        "cannot run the benchmark: {reason}",
        "check the log of that node (console logs NODE)";
    /// Links are benchmarked only while the head serves no requests.
    RequestsRun { count: u32 } => "requests_run", Refused,
        "is serving {count} requests; link benchmarks need an idle head",
        "wait until it has finished";
    /// The node is the head of a prefill group, which takes no requests from clients.
    OnlyPrefills => "only_prefills", Refused,
        "cannot accept the request: it is the head of a prefill group",
        "send the request to the first node of a decode group";
    /// A stage with a single rank has no all-reduce.
    NoLinks => "no_links", Refused,
        "its stage has a single rank, so there is no all-reduce to measure",
        "request a topology with several nodes in a stage, for example --topology tp2";
    /// The file belongs to the model of a topology.
    ModelInUse { model: String } => "model_in_use", Refused,
        "model {model} is in use: the node holds a shard of it",
        "assign a topology with another model first, or exclude the node (console node exclude)";
    /// A file with this name already exists.
    ModelExists { model: String } => "model_exists", Refused,
        "model {model} already exists",
        "compare it with console model verify, or remove it with console model remove";
    /// Not enough free space for the file.
    DiskShort { needed: Bytes, available: Bytes } => "disk_short", Refused,
        "not enough disk space: {available} is free, {needed} is needed",
        "remove a model (console model remove), or set models to a folder on a larger disk";
    /// Another request is writing the same file.
    StoreBusy { model: String } => "store_busy", Refused,
        "is already writing {model}",
        "wait until it has finished";
    /// The file system reported an error.
    StoreFailed { reason: String } => "store_failed", Failed,
        "{reason}",
        "check the disk of that node: console doctor";
    /// The operator aborted the assignment.
    AssignmentAborted { epoch: Epoch } => "assignment_aborted", Lost,
        "the assignment of epoch {epoch} was aborted; the previous topology keeps running",
        "assign the topology again";
    /// The requester cancelled the operation or disconnected.
    StoreCancelled => "store_cancelled", Lost,
        "cancelled; the bytes received so far are kept",
        "run the same command again to resume";
    /// The download failed.
    DownloadFailed { reason: String } => "download_failed", Failed,
        "download failed: {reason}",
        "run the same command again to resume";
    /// The checksum of the received file is not the expected one.
    HashDiffers { model: String, expected: String, actual: String } => "hash_differs", Failed,
        "checksum mismatch for {model}: expected {expected}, got {actual}; the file was deleted",
        "check the address and the expected hash; if it happens again, check the disk";
    /// The node has a key and this program has none.
    KeyNeeded => "key_needed", Refused,
        "requires the key of its cluster, but this program has no key",
        "pass the cluster's key file with --key FILE or BRAMBLE_KEY_FILE";
    /// The two ends have different keys.
    KeyDiffers => "key_differs", Refused,
        "its cluster key differs from this program's key",
        "compare the output of console key show --fingerprint here and on a machine that can connect; for a lost key see RUNBOOK.md, Keys";
    /// The node has no key and the connection comes from another machine.
    Unclaimed => "unclaimed", Refused,
        "has no cluster key yet: it must be adopted first",
        "run sudo brambled pair on it, then console key adopt ADDRESS --code CODE; on the node's own machine, --insecure connects without a key";
    /// The node already has a key.
    Claimed => "claimed", Refused,
        "already belongs to a cluster",
        "use its cluster's key; to change the key see RUNBOOK.md, Keys";
    /// The node shows no pairing code, or the code has expired.
    NotPairing => "not_pairing", Refused,
        "cannot be adopted now: it shows no pairing code",
        "run sudo brambled pair on it and enter the code that it shows";
    /// The pairing code is not the one that the node shows.
    CodeWrong { left: u32 } => "code_wrong", Refused,
        "wrong pairing code; {left} more attempts are allowed",
        "check the code; sudo brambled pair on the node shows a new one";
    /// The role of the key does not allow the request.
    RoleRefused { role: String, what: String } => "role_refused", Refused,
        "a {role} key does not allow {what}",
        "use the key of a role that allows it (console key show --role operator)";
    /// A message failed its integrity check or is not the next one of its connection, which cannot be trusted any more.
    Seal { error: SealError } => error.code(), Lost,
        "rejected a message: {error}",
        "an attacker or a faulty switch may be altering traffic; try again, then check the network between the nodes";
    /// A new key was rejected or could not be stored.
    KeyRefused { reason: String } => "key_refused", Refused,
        "cannot install the new key: {reason}",
        "check the log of that node (console logs NODE)";
    /// Files with the same name and header but different weights.
    ContentDiffers { model: String, expected: Box<ContentRoot>, actual: ContentRoot, holders: String } =>
        "content_differs", Refused,
        "{model} has different weights: content {actual}, expected {expected}{holders}",
        "replace the wrong file: console model remove MODEL --node NODE --yes, then console model pull MODEL --from OTHER --node NODE; console model verify checks a file again";
    /// A message that an older peer does not support.
    PeerOlder { version: u16, what: String } => "peer_older", Refused,
        "speaks wire version {version}, which does not support {what}",
        "upgrade the node to this release";
    /// Ranks of one group with different wire versions.
    RanksDiffer { peer: String, version: u16, build: String, own: u16, own_build: String } => "ranks_differ", Refused,
        "links to {peer} need the same wire version: it speaks {version} (build {build}), this node {own} (build {own_build})",
        "install the same release on every node of the topology";
    /// The answer belongs to a different model than the one that is served now.
    ModelReplaced { model: String, expected: Box<ModelRoots>, actual: Box<ModelRoots> } => "model_replaced", Refused,
        "serves {model} ({actual}), but the answer belongs to {expected}",
        "send the request again";
    /// A request that may crash every head that runs it.
    EndsHeads { heads: u32 } => "request_ends_heads", Failed,
        "was the last of {heads} heads lost while starting this request; it is not retried",
        "change the request (its schema, tools or length) before you send it again, and check the logs of those nodes";
    /// The shard does not fit, but would with its experts on the disk.
    ExpertsFitOnDisk { needed: Bytes, available: Bytes, speed: String } => "memory_short", Refused,
        "not enough memory: its shard needs {needed}, {available} is free; with its experts on its disk it would decode {speed}",
        "use more nodes or a smaller model; or set experts_on_disk = true in /etc/bramble/bramble.toml on that node, and restart it";
}

impl Fault {
    /// Creates a fault of the node with this name.
    pub fn new(node: impl Into<String>, kind: FaultKind) -> Self {
        Self { node: node.into(), kind }
    }

    /// The next step for the operator, with the name of the node that its commands concern.
    pub fn next(&self) -> String {
        let name = match &self.kind {
            FaultKind::Excluded { member, .. } => member,
            _ => &self.node,
        };
        self.kind.next().replace("NODE", if name.is_empty() { "NODE" } else { name })
    }
}

impl From<SealError> for FaultKind {
    fn from(error: SealError) -> Self {
        Self::Seal { error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_step_names_the_node() {
        let lost = Fault::new("pi3", FaultKind::NodeLost { how: Loss::Reset });
        let step = "start that node again, or continue without it: console node exclude pi3 --reason TEXT";
        assert_eq!(lost.next(), step);
        let (member, reason, by) = ("pi2".into(), String::new(), String::new());
        let out = Fault::new("pi1", FaultKind::Excluded { member, reason, by });
        assert!(out.next().contains("include pi2"), "{}", out.next());
        // After a restart, a member holds its shard again.
        let busy = Fault::new("pi1", FaultKind::NotIdle { state: "ready".into() });
        assert!(busy.next().contains("console node exclude pi1 ") && busy.next().contains("console topology unload"));
    }
}
