//! `console topology`: shows the running topology, assigns topology files, plans and simulates layouts.
mod assign;
pub(crate) mod choose_layout;
pub(crate) mod ensure;
mod file;
mod plan;
mod preview;
mod show;
mod simulate;
mod take_over;
mod unload;

use clap::Subcommand;

use crate::cli::{
    Failure,
    shared::{
        interrupts::Interrupts,
        need::{Need, Reach},
    },
};

/// Subcommands of `console topology`.
#[derive(Debug, Subcommand)]
pub(crate) enum TopologyCommand {
    /// Assign a topology file; with --dry-run, show the shard and the memory of each node
    Assign(assign::AssignFile),
    /// Rank the layouts of a model on nodes by predicted speed, with the reason for each layout that does not fit
    Plan(plan::PlanOptions),
    /// Print the running topology as a file that `assign` takes
    Show(show::ShowTopology),
    /// Simulate a model on hypothetical nodes
    Simulate(simulate::Simulate),
    /// Let the reachable members continue without the lost ones, even if they are no majority
    TakeOver(take_over::TakeOver),
    /// Unload a topology and free its nodes for another model
    Unload(unload::UnloadTopology),
}

impl TopologyCommand {
    /// The nodes that the command contacts.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        match self {
            Self::Show(show) => Reach::Nodes(&mut show.nodes.nodes, Need::Looks),
            Self::Assign(_) => Reach::Otherwise("speaks to the nodes that its file names"),
            Self::Plan(plan) => Reach::Nodes(&mut plan.typed, Need::Typed),
            Self::Simulate(_) => Reach::Counts,
            Self::Unload(options) => Reach::Nodes(&mut options.nodes.nodes, Need::Acts),
            Self::TakeOver(options) => Reach::Nodes(&mut options.nodes.nodes, Need::Acts),
        }
    }

    /// Whether the command contacts no node, so that it needs no key.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Simulate(_))
    }
}

/// Runs the command.
pub(crate) async fn run(command: TopologyCommand) -> Result<u8, Failure> {
    match command {
        TopologyCommand::Assign(options) => Interrupts::listen()?.end(assign::run(&options)).await,
        TopologyCommand::Plan(plan) => plan::run(plan).await,
        TopologyCommand::Show(show) => show::run(&show).await,
        TopologyCommand::Simulate(simulate) => simulate::run(&simulate),
        TopologyCommand::Unload(options) => Interrupts::listen()?.end(unload::run(&options)).await,
        TopologyCommand::TakeOver(options) => Interrupts::listen()?.end(take_over::run(&options)).await,
    }
}
