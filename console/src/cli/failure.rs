//! What a command ends with when it fails: the message, the next step and the exit code.
use std::process::ExitCode;

use serde_json::json;
use shared::protocol::error::{Fault, FaultClass};

use super::output;
use crate::http::HttpError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A node said so.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A server of the HTTP API said so, or said nothing.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// What was asked for cannot be.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// What to do.
        next: &'static str,
    },
    /// The command is right, but not for the state in which the cluster, a server or a file is.
    #[error("{message}")]
    State {
        /// What is so.
        message: String,
        /// What to do.
        next: &'static str,
    },
    /// A signal came.
    #[error("interrupted")]
    Interrupted {
        /// 128 and the signal's number.
        code: u8,
    },
    /// The answer was no.
    #[error("nothing was done")]
    Declined,
    /// A restart did not come to its end.
    #[error("{}not restarted: {}", fault.as_ref().map_or(String::new(), |fault| format!("{fault}; ")), remaining.join(", "))]
    Unfinished {
        /// Why; `None`: it was asked to.
        fault: Option<Box<Fault>>,
        /// Names of the nodes that were not restarted.
        remaining: Vec<String>,
        /// Exit code where there is no fault.
        code: u8,
    },
    /// Something on this machine.
    #[error("{}", chain(.0))]
    Other(#[from] anyhow::Error),
}

impl Failure {
    /// The exit code (table in the README).
    pub fn code(&self) -> u8 {
        match self {
            Self::Fault(fault) => code_of(fault),
            Self::Http(error) => code_of_http(error),
            Self::Unfinished { fault: Some(fault), .. } => code_of(fault),
            Self::Unfinished { code, .. } => *code,
            Self::Declined => 1,
            Self::Usage { .. } => 2,
            Self::State { .. } => 8,
            Self::Interrupted { code } => *code,
            Self::Other(_) => 1,
        }
    }

    /// The object that --json prints.
    pub(super) fn json(&self) -> serde_json::Value {
        let (code, node, next) = match self {
            Self::Fault(fault) => (fault.kind.code(), Some(fault.node.as_str()), fault.kind.next()),
            Self::Unfinished { fault: Some(fault), .. } => {
                (fault.kind.code(), Some(fault.node.as_str()), fault.kind.next())
            }
            Self::Unfinished { fault: None, .. } => {
                ("interrupted", None, "console restart NODE.. with those that remain")
            }
            Self::Http(error) => (error.code(), error.at(), error.next()),
            Self::Declined => ("declined", None, "answer y, or add --yes"),
            Self::Usage { next, .. } => ("usage", None, *next),
            Self::State { next, .. } => ("state", None, *next),
            Self::Interrupted { .. } => ("interrupted", None, "run it again"),
            Self::Other(_) => ("failed", None, "correct the cause and try again"),
        };
        let mut object = json!({"error": {"code": code, "message": self.to_string(), "node": node, "next": next}});
        if let Self::Unfinished { remaining, .. } = self {
            object["error"]["remaining"] = json!(remaining);
        }
        object
    }

    /// Prints the message and the next step on standard error, and the object on standard output with --json.
    pub(super) fn report(&self, json: bool) -> ExitCode {
        let object = self.json();
        output::note(&format!("console: {}", output::clean(&self.to_string())));
        if let Some(next) = object["error"]["next"].as_str() {
            output::note(&format!("next: {next}"));
        }
        if json {
            output::line(&object.to_string());
        }
        ExitCode::from(self.code())
    }
}

fn code_of(fault: &Fault) -> u8 {
    match fault.kind.class() {
        FaultClass::Failed => 1,
        FaultClass::Unreachable => 3,
        FaultClass::Refused => 4,
        FaultClass::Lost => 5,
    }
}

fn code_of_http(error: &HttpError) -> u8 {
    match error {
        HttpError::Url { .. } => 2,
        HttpError::Unreachable { .. } | HttpError::Refused { status: 502, .. } => 3,
        HttpError::Refused { status: 400..500 | 503, .. } => 4,
        HttpError::Lost { .. } | HttpError::Diverged { .. } => 5,
        HttpError::Timeout { .. } | HttpError::Malformed { .. } | HttpError::Refused { .. } => 1,
    }
}

/// An error and its causes; a cause that the message before it quotes already is not said twice.
fn chain(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use shared::protocol::error::{FaultKind, Loss};

    use super::*;

    #[test]
    fn exit_codes_follow_the_readme() {
        let code = |kind| Failure::from(Fault::new("pi2", kind)).code();
        assert_eq!(code(FaultKind::Unreachable { address: "a".into(), reason: "r".into() }), 3);
        assert_eq!(code(FaultKind::Draining), 4);
        assert_eq!(code(FaultKind::NodeLost { how: Loss::Reset }), 5);
        assert_eq!(code(FaultKind::Internal { reason: "r".into() }), 1);
        assert_eq!(Failure::Interrupted { code: 130 }.code(), 130);
        let refused = |status| {
            let (at, code, message) = ("a:1".into(), "c".into(), "m".into());
            Failure::from(HttpError::Refused { at, status, code, message, retry_after_seconds: None }).code()
        };
        assert_eq!([400, 401, 429, 503, 500, 502].map(refused), [4, 4, 4, 4, 1, 3]);
        assert_eq!(Failure::from(HttpError::Lost { at: "a:1".into(), reason: "r".into() }).code(), 5);
        assert_eq!(Failure::Usage { message: "m".into(), next: "n" }.code(), 2);
        assert_eq!(Failure::State { message: "m".into(), next: "n" }.code(), 8);
    }

    #[test]
    fn the_object_names_code_message_node_and_next_step() {
        let object = Failure::from(Fault::new("pi2", FaultKind::NodeLost { how: Loss::Reset })).json();
        assert_eq!(object["error"]["code"], "node_lost");
        assert_eq!(object["error"]["node"], "pi2");
        assert!(object["error"]["message"].as_str().is_some_and(|message| message.contains("pi2")));
        assert!(object["error"]["next"].as_str().is_some_and(|next| !next.is_empty()));
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = anyhow::anyhow!("no such file").context("cannot open m.gguf: no such file").context("no tokenizer");
        assert_eq!(Failure::from(error).to_string(), "no tokenizer: cannot open m.gguf: no such file");
    }
}
