//! The draft model of an assignment: which one it is, and that all nodes can run it and have the same file. A topology
//! whose draft model is its own model uses the predictor in that file.
use std::sync::Arc;

use common::{
    fault::{Fault, FaultKind},
    units::Bytes,
};
use planner::{
    holding::{Holding, PANEL_ROWS, kv_bytes},
    working::{BASE_BYTES, Seat, working_bytes},
};
use protocol::{message::ModelCard, session::Session};
use topology::{CutError, Draft, KvBlocks, Topology, cut, sizes::ModelSizes};

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
    let [weights, block] = bytes(&own, wanted).map_err(|error| refused(error.to_string()))?;
    Ok(Some(Draft { model: model.clone(), identity: found.identity, content: None, weights, block }))
}

/// Bytes of a draft model on all ranks of a replica together: those of its weights and working memory, and of a KV
/// block. Every rank counts like the one with most: neighbouring ranks hold the same KV heads, and each has all norms
/// and buffers of its own. After a loss fewer ranks divide these bytes, so they are the most for any number of ranks.
fn bytes(sizes: &ModelSizes, wanted: &DesiredTopology) -> Result<[Bytes; 2], CutError> {
    let layout = wanted.layout;
    let most = (0..layout.replicas).map(|replica| layout.ranks_of(replica)).max().unwrap_or(1);
    let (mut weights, mut block) = (0, 0);
    for ranks in 1..=usize::from(most) {
        let plans = match cut(&sizes.spec, &vec![1; ranks]) {
            Ok(plans) => plans,
            Err(error) if ranks == 1 => return Err(error),
            // Nodes refuse a draft model that is too small for all ranks.
            Err(_) => break,
        };
        for (rank, plan) in plans.iter().enumerate() {
            let holding = Holding { sizes, plan };
            let slots = usize::from(wanted.slots);
            let seat = Seat { stages: 1, ranks, is_head: rank == 0, slots, exchange: wanted.exchange };
            // The target model's working memory contains that of the daemon.
            let working = working_bytes(&holding, &seat).saturating_sub(BASE_BYTES);
            let own = holding.shard_bytes(PANEL_ROWS).saturating_add(working);
            weights = own.saturating_mul(ranks as u64).max(weights);
            let own = kv_bytes(wanted.kv, &sizes.spec, plan, KvBlocks::alike(1));
            block = own.saturating_mul(ranks as u64).max(block);
        }
    }
    Ok([Bytes(weights), Bytes(block)])
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

#[cfg(test)]
mod tests {
    use common::ids::MemberIndex;
    use planner::memory;
    use topology::{Layout, Member, sizes::Quantisation};

    use super::*;
    use crate::fixtures;

    /// A topology of equal ranks with a draft model that was chosen for `desired` ranks.
    fn with_draft(sizes: &ModelSizes, desired: u16, ranks: u16) -> Topology {
        let wanted = DesiredTopology { layout: Layout::tensor_parallel(desired), slots: 4, ..fixtures::wanted() };
        let [weights, block] = bytes(sizes, &wanted).expect("it can be cut");
        let (model, identity) = ("draft.gguf".into(), Default::default());
        let draft = Draft { model, identity, content: None, weights, block };
        let member = fixtures::topology().members.swap_remove(0);
        let members = (0..ranks).map(|rank| Member { name: format!("pi{rank}"), ..member.clone() });
        Topology {
            layout: Layout::tensor_parallel(ranks),
            members: members.collect(),
            context_length: 4096,
            slots: 4,
            draft: Some(Box::new(draft)),
            ..fixtures::topology()
        }
    }

    /// The bytes that each node counts when it opens the draft model (`OpenDraft` in the daemon).
    fn counted(sizes: &ModelSizes, topology: &Topology) -> Vec<u64> {
        let plans = cut(&sizes.spec, &vec![1; topology.members.len()]).expect("it can be cut");
        let blocks = KvBlocks::alike(topology.kv_blocks(None).whole);
        let counts = plans.iter().enumerate().map(|(rank, plan)| {
            let seat = Seat::of(topology, &topology.place(MemberIndex(rank as u16)));
            Holding { sizes, plan }.memory(PANEL_ROWS, topology.kv, blocks, &seat).total().0 - BASE_BYTES
        });
        counts.collect()
    }

    #[test]
    fn predicted_memory_of_a_draft_covers_what_nodes_count() {
        for name in ["llama-3.2-1b", "qwen3-0.6b", "qwen2.5-0.5b", "gemma-3-1b"] {
            let sizes = ModelSizes::known(name, Quantisation::Q8_0).expect("it is known");
            for desired in [1, 3, 8] {
                for ranks in 1..=desired {
                    let topology = with_draft(&sizes, desired, ranks);
                    let predicted = |rank: usize| memory::of_draft(&topology, MemberIndex(rank as u16)).total().0;
                    let counted = counted(&sizes, &topology);
                    for (rank, counted) in counted.iter().enumerate() {
                        // A byte is lost where the ranks' parts are rounded down.
                        let predicted = predicted(rank) + 2;
                        assert!(predicted >= *counted, "{name} on {ranks} of {desired} ranks: {predicted} < {counted}");
                    }
                    let most = counted.into_iter().max().unwrap_or(0);
                    if ranks == desired {
                        assert!(predicted(0) < 2 * most, "{name} on {ranks} ranks: {} for {most}", predicted(0));
                    }
                }
            }
        }
    }
}
