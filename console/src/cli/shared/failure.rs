//! Failures of commands: the message, the next step and the exit code.
use std::process::ExitCode;

use common::fault::{Fault, FaultClass};
use serde_json::{Value, json};

use crate::cli::shared::{output, paint};
use crate::http::HttpError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A fault reported by a node, or by this console about a node.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A fault with a next step that fits the command better than the fault's own.
    #[error("{fault}")]
    Advised {
        /// The fault.
        fault: Box<Fault>,
        /// The next step.
        next: String,
    },
    /// A request to the HTTP API failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The command line is invalid.
    #[error("{message}")]
    Usage {
        /// The problem.
        message: String,
        /// The next step.
        next: &'static str,
    },
    /// The command line is valid, but not in the current state of the cluster, a server or a file.
    #[error("{message}")]
    State {
        /// The state that prevents the command.
        message: String,
        /// The next step.
        next: &'static str,
    },
    /// A signal interrupted the command.
    #[error("interrupted")]
    Interrupted {
        /// 128 plus the signal number.
        code: u8,
    },
    /// The operator declined the confirmation.
    #[error("cancelled")]
    Declined,
    /// Several nodes failed, or only some of all.
    #[error("{}", partly(fault, others, done))]
    Partial {
        /// The first fault.
        fault: Box<Fault>,
        /// The faults of further nodes.
        others: Vec<Fault>,
        /// Names of the nodes on which the command succeeded.
        done: Vec<String>,
        /// The next step.
        next: String,
    },
    /// A restart of nodes was not completed.
    #[error("{}not restarted: {}", fault.as_ref().map_or(String::new(), |fault| format!("{fault}; ")), remaining.join(", "))]
    Unfinished {
        /// The cause; `None` if the operator interrupted it.
        fault: Option<Box<Fault>>,
        /// Names of the nodes that were not restarted.
        remaining: Vec<String>,
        /// Exit code without a fault.
        code: u8,
    },
    /// An error on this machine.
    #[error("{}", chain(.0))]
    Other(#[from] anyhow::Error),
}

impl Failure {
    /// The failure of a command that succeeded on the nodes named in `done`. `None` without a fault.
    pub(crate) fn of_nodes(faults: impl IntoIterator<Item = Fault>, done: Vec<String>) -> Option<Self> {
        let mut faults = faults.into_iter();
        let fault = faults.next()?;
        let others: Vec<Fault> = faults.collect();
        if others.is_empty() && done.is_empty() {
            return Some(fault.into());
        }
        let next = fault.next();
        Some(Self::Partial { fault: Box::new(fault), others, done, next })
    }

    /// The same failure, with a next step that fits the command better than that of its first fault.
    pub(crate) fn with_next(self, next: String) -> Self {
        match self {
            Self::Fault(fault) => Self::Advised { fault: Box::new(fault), next },
            Self::Advised { fault, .. } => Self::Advised { fault, next },
            Self::Partial { fault, others, done, .. } => Self::Partial { fault, others, done, next },
            other => other,
        }
    }

    /// The exit code (table in docs/operate.md).
    pub fn code(&self) -> u8 {
        match self {
            Self::Fault(fault) => code_of(fault),
            Self::Advised { fault, .. } | Self::Partial { fault, .. } => code_of(fault),
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

    /// The error object of a fault, for an object that reports on several nodes.
    pub(crate) fn error_object(fault: &Fault) -> Value {
        Self::from(fault.clone()).json()["error"].take()
    }

    /// What happened at a node, with the next step, as a line for output that reports on several nodes.
    pub(crate) fn line(name: &str, fault: &Fault) -> String {
        output::clean(&format!("{name}: {}; {}", fault.kind, fault.next()))
    }

    /// The object that `--json` prints.
    pub fn json(&self) -> Value {
        let (code, node, next) = match self {
            Self::Fault(fault) => (fault.kind.code(), Some(fault.node.as_str()), Some(fault.next())),
            Self::Advised { fault, next } | Self::Partial { fault, next, .. } => {
                (fault.kind.code(), Some(fault.node.as_str()), Some(next.clone()))
            }
            Self::Unfinished { fault: Some(fault), .. } => {
                (fault.kind.code(), Some(fault.node.as_str()), Some(fault.next()))
            }
            Self::Unfinished { fault: None, .. } => {
                ("interrupted", None, Some("run console restart NODE.. with the remaining nodes".to_owned()))
            }
            Self::Http(error) => (error.code(), error.at(), Some(error.next().to_owned())),
            Self::Declined => ("declined", None, None),
            Self::Usage { next, .. } => ("usage", None, Some((*next).to_owned())),
            Self::State { next, .. } => ("state", None, Some((*next).to_owned())),
            Self::Interrupted { .. } => ("interrupted", None, Some("run the command again".to_owned())),
            Self::Other(_) => ("failed", None, None),
        };
        let mut object = json!({"error": {"code": code, "message": self.to_string(), "node": node, "next": next}});
        if let Self::Unfinished { remaining, .. } = self {
            object["error"]["remaining"] = json!(remaining);
        }
        if let Self::Partial { others, done, .. } = self {
            object["error"]["others"] = others.iter().map(Self::error_object).collect();
            object["error"]["done"] = json!(done);
        }
        object
    }

    /// Prints the message and the next step on standard error, and with `json` the object on standard output.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        let object = self.json();
        let (name, message) = (paint::error("console:"), output::clean(&self.to_string()));
        output::note(&format!("{name} {message}"));
        if let Some(next) = object["error"]["next"].as_str() {
            output::note(&format!("{} {}", paint::advice("next:"), output::clean(next)));
        }
        if json {
            output::line(&object.to_string());
        }
        ExitCode::from(self.code())
    }

    /// Like [`Self::report`] with `json`, for a command whose result contains more than its failure: the result is the
    /// object, with the failure as its `error`. Returns the exit code.
    pub(crate) fn report_in(&self, result: Value) -> u8 {
        output::line(&self.added_to(result).to_string());
        self.report(false);
        self.code()
    }

    /// An object with this failure as its `error`.
    fn added_to(&self, mut result: Value) -> Value {
        result["error"] = self.json()["error"].take();
        result
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

/// All faults, and the nodes on which the command succeeded.
fn partly(fault: &Fault, others: &[Fault], done: &[String]) -> String {
    let mut parts: Vec<String> = std::iter::once(fault).chain(others).map(ToString::to_string).collect();
    if !done.is_empty() {
        parts.push(format!("done on {}", done.join(", ")));
    }
    parts.join("; ")
}

/// An error and its causes, without causes that the text already contains.
fn chain(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use common::fault::{FaultKind, Loss};

    use super::*;

    #[test]
    fn exit_codes_follow_the_documents() {
        let code = |kind| Failure::from(Fault::new("pi2", kind)).code();
        assert_eq!(code(FaultKind::Unreachable { address: "a".into(), reason: "r".into() }), 3);
        assert_eq!(code(FaultKind::Draining), 4);
        assert_eq!(code(FaultKind::NodeLost { how: Loss::Reset }), 5);
        assert_eq!(code(FaultKind::Internal { reason: "r".into() }), 1);
        assert_eq!(Failure::Interrupted { code: 130 }.code(), 130);
        for (status, expected) in [(400, 4), (401, 4), (429, 4), (503, 4), (500, 1), (502, 3)] {
            let (at, code, message) = ("a:1".into(), "c".into(), "m".into());
            let refused = HttpError::Refused { at, status, code, message, retry_after_seconds: None };
            assert_eq!(Failure::from(refused).code(), expected, "HTTP {status}");
        }
        assert_eq!(Failure::from(HttpError::Lost { at: "a:1".into(), reason: "r".into() }).code(), 5);
        assert_eq!(Failure::Usage { message: "m".into(), next: "n" }.code(), 2);
        assert_eq!(Failure::State { message: "m".into(), next: "n" }.code(), 8);
    }

    #[test]
    fn object_has_code_message_node_and_next_step() {
        let object = Failure::from(Fault::new("pi2", FaultKind::NodeLost { how: Loss::Reset })).json();
        assert_eq!(object["error"]["code"], "node_lost");
        assert_eq!(object["error"]["node"], "pi2");
        assert!(object["error"]["message"].as_str().is_some_and(|message| message.contains("pi2")));
        assert!(object["error"]["next"].as_str().is_some_and(|next| !next.is_empty()));
    }

    #[test]
    fn failure_of_some_nodes_names_each_and_those_that_succeeded() {
        let fault = |node: &str| Fault::new(node, FaultKind::Draining);
        assert!(Failure::of_nodes([], vec!["pi1".into()]).is_none());
        let one = Failure::of_nodes([fault("pi2")], Vec::new()).expect("a node failed");
        assert!(matches!(&one, Failure::Fault(only) if *only == fault("pi2")), "{one:?}");
        let some = Failure::of_nodes([fault("pi2"), fault("pi3")], vec!["pi1".into()]).expect("nodes failed");
        let (text, error) = (some.to_string(), some.json()["error"].take());
        assert_eq!((some.code(), &error["code"], &error["node"]), (4, &json!("draining"), &json!("pi2")));
        assert!(
            text.contains("node pi2: ") && text.contains("node pi3: ") && text.ends_with("; done on pi1"),
            "{text}"
        );
        assert_eq!((&error["others"][0]["node"], &error["done"]), (&json!("pi3"), &json!(["pi1"])));
        assert!(error["next"].as_str().is_some_and(|next| !next.is_empty()), "{error}");
    }

    #[test]
    fn next_step_is_left_out_if_there_is_none() {
        for failure in [Failure::Declined, anyhow::anyhow!("broken").into()] {
            assert!(failure.json()["error"]["next"].is_null(), "{failure}");
        }
        let fault = Box::new(Fault::new("pi2", FaultKind::Draining));
        let advised = Failure::Advised { fault, next: "wait for pi2".into() };
        assert_eq!((advised.code(), &advised.json()["error"]["next"]), (4, &"wait for pi2".into()));
        assert_eq!(advised.json()["error"]["code"], "draining");
    }

    #[test]
    fn other_next_step_keeps_all_faults() {
        let faults = ["pi1", "pi2"].map(|node| Fault::new(node, FaultKind::Draining));
        for count in 1..=2 {
            let failure = Failure::of_nodes(faults[..count].to_vec(), Vec::new()).expect("a node failed");
            let error = failure.with_next("wait".into()).json()["error"].take();
            assert_eq!((&error["next"], &error["node"]), (&json!("wait"), &json!("pi1")), "{error}");
            assert_eq!(error["others"].as_array().map_or(0, Vec::len), count - 1, "{error}");
        }
        assert!(Failure::Declined.with_next("wait".into()).json()["error"]["next"].is_null());
    }

    #[test]
    fn failure_is_a_field_of_a_result_that_is_printed_with_it() {
        let failure = Failure::State { message: "no layout fits".into(), next: "use more nodes" };
        let object = failure.added_to(json!({"ranked": []}));
        assert_eq!((&object["ranked"], &object["error"]), (&json!([]), &failure.json()["error"]));
    }

    #[test]
    fn cause_is_printed_once() {
        let error = anyhow::anyhow!("no such file").context("cannot open m.gguf: no such file").context("no tokenizer");
        assert_eq!(Failure::from(error).to_string(), "no tokenizer: cannot open m.gguf: no such file");
    }
}
