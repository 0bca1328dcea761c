//! The names of requests.
use super::message::RequestBody;

impl RequestBody {
    /// Its name in the audit log and in rejections.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Watch { .. } => "watch",
            Self::Identify { .. } => "identify",
            Self::Prepare(_) => "prepare",
            Self::Commit { .. } => "commit",
            Self::Abort { .. } => "abort",
            Self::Generate(_) => "generate",
            Self::Cancel => "cancel",
            Self::Restart => "restart",
            Self::Exclude(_) => "exclude",
            Self::Bench(_) => "bench",
            Self::Records => "records",
            Self::BenchLinks(_) => "bench-links",
            Self::Rekey(_) | Self::RekeyWrapped(_) => "rekey",
            Self::Recovery(_) => "recovery",
            Self::Inspect(_) => "inspect",
            Self::CancelRunning { .. } => "cancel-running",
            Self::Text(_) => "text",
            Self::Neighbours(_) => "neighbours",
            Self::Unload(_) => "unload",
            Self::Kv(_) => "kv",
            Self::ClearStore => "kv-clear",
            Self::Models(request) => request.name(),
        }
    }
}
