//! The draft model of an assignment: which one it is, and that all nodes can run it and have the same file. A topology
//! whose draft model is its own model uses the predictor in that file.
use std::sync::Arc;

use common::{
    fault::{Fault, FaultKind},
    units::Bytes,
};
use planner::holding::{Holding, PANEL_ROWS, kv_bytes};
use protocol::{message::ModelCard, session::Session};
use topology::{Draft, KvBlocks, Topology, cut};

use super::content;
use crate::{
    desired::DesiredTopology,
    event::AssignEvent,
    identify::{all_speak, error_node, identify},
};

/// Stands for the predictor in the model's own file (multi-token prediction) in place of a draft model.
const OWN: &str = "mtp";

/// The file of a draft model by the name that a user gives: the model's own for the predictor in it.
pub fn draft_file(given: &str, model: &str) -> String {
    if given == OWN { model.into() } else { given.into() }
}

/// The name by which a user gives the file of a draft model.
pub fn draft_name<'a>(file: &'a str, model: &str) -> &'a str {
    if file == model { OWN } else { file }
}

/// The first wire version in which ranks run draft models.
const VERSION: u16 = 14;

/// The draft model that is wanted, as the first node has it.
///
/// # Errors
/// A node is older or lacks the file, or its vocabulary differs from the model's.
pub(super) async fn draft(
    sessions: &[Arc<Session>],
    wanted: &DesiredTopology,
    card: &ModelCard,
) -> Result<Option<Draft>, Fault> {
    let Some(model) = &wanted.draft else { return Ok(None) };
    all_speak(sessions, VERSION, "draft models")?;
    let is_predictor = *model == wanted.model;
    let found = if is_predictor { card.clone() } else { identify(&sessions[0], model).await? };
    let refused = |reason: String| {
        let reason = format!("{model} cannot draft for {}: {reason}", wanted.model);
        Fault::new(error_node(&sessions[0]), FaultKind::TopologyInvalid { reason })
    };
    let sizes = |card: &ModelCard| card.sizes().map_err(|kind| Fault::new(error_node(&sessions[0]), kind));
    let (own, target) = (sizes(&found)?, sizes(card)?.spec.vocabulary_length);
    let own = match is_predictor {
        true => own.predictor().ok_or_else(|| refused("no layer attends".into()))?,
        false => own,
    };
    let rows = own.spec.vocabulary_length;
    // The nodes compare the tokens themselves; files pad their vocabularies to different lengths.
    if rows.abs_diff(target) > target / 16 {
        return Err(refused(format!("it has {rows} tokens, the model has {target}; choose one of the same family")));
    }
    let plans = cut(&own.spec, &[1]).map_err(|error| refused(error.to_string()))?;
    let weights = Holding { sizes: &own, plan: &plans[0] }.shard_bytes(PANEL_ROWS);
    let block = kv_bytes(wanted.kv, &own.spec, &plans[0], KvBlocks::alike(1));
    let (weights, block) = (Bytes(weights), Bytes(block));
    Ok(Some(Draft { model: model.clone(), identity: found.identity, content: None, weights, block }))
}

/// The topology with the contents of its files, which must be the same on all nodes.
///
/// # Errors
/// See [`content::agree`].
pub(super) async fn agree(
    sessions: &[Arc<Session>],
    mut topology: Topology,
    tell: &(dyn Fn(AssignEvent) + Sync),
) -> Result<Topology, Fault> {
    topology.content = content::agree(sessions, &topology.model, tell).await?;
    if let Some(draft) = &mut topology.draft {
        draft.content = content::agree(sessions, &draft.model, tell).await?;
    }
    Ok(topology)
}
