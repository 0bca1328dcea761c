//! The steps of the acceptance test, in the order in which they run.
use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A step of the acceptance test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptanceStep {
    /// The machines as they report themselves.
    Machines,
    /// Round trips and bandwidth of the links.
    Links,
    /// Each node alone: read bandwidth, prefill, decode.
    Nodes,
    /// All nodes under load for minutes: temperature, clock, power.
    Load,
    /// Two prompts on one node.
    Single,
    /// The same prompts on two nodes.
    Pair,
    /// The same prompts on all nodes, and all-reduces on their links.
    All,
    /// The same prompts with llama.cpp.
    Llama,
    /// A node is killed during an answer.
    Recovery,
}

impl AcceptanceStep {
    /// All steps, in order.
    pub const ALL: [Self; 9] = [
        Self::Machines,
        Self::Links,
        Self::Nodes,
        Self::Load,
        Self::Single,
        Self::Pair,
        Self::All,
        Self::Llama,
        Self::Recovery,
    ];

    /// The word for it on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machines => "machines",
            Self::Links => "links",
            Self::Nodes => "nodes",
            Self::Load => "load",
            Self::Single => "single",
            Self::Pair => "pair",
            Self::All => "all",
            Self::Llama => "llama",
            Self::Recovery => "recovery",
        }
    }

    /// What it does, as an imperative without a full stop.
    pub fn deed(self) -> &'static str {
        match self {
            Self::Machines => "read the model, kernel, memory and throttle flags of each machine",
            Self::Links => "measure round trips and bandwidth of all links",
            Self::Nodes => "measure read bandwidth, prefill and decode of each node alone",
            Self::Load => "load all nodes and record temperature, clock and power",
            Self::Single => "answer two prompts on one node",
            Self::Pair => "answer the same prompts on two nodes",
            Self::All => "answer the same prompts on all nodes, and time all-reduces",
            Self::Llama => "answer the same prompts with llama.cpp",
            Self::Recovery => "kill a node during an answer",
        }
    }

    /// Whether it replaces the running topology.
    pub fn replaces_topology(self) -> bool {
        !matches!(self, Self::Machines | Self::Links)
    }
}

impl fmt::Display for AcceptanceStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for AcceptanceStep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|step| step.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown step {text:?}; the steps are {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_found_by_its_name() {
        for step in AcceptanceStep::ALL {
            assert_eq!(step.name().parse(), Ok(step));
            let json = serde_json::to_value(step).expect("a name");
            assert_eq!(json, step.name());
        }
        assert!(AcceptanceStep::from_str("links,load").is_err_and(|error| error.contains("machines, links")));
    }
}
