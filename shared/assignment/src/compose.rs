//! Composes the topology that an operator wants from the nodes that shall run it.
use common::ids::MemberIndex;
use protocol::{handshake::Identity, message::ModelCard};
use topology::{Member, SpecError, Topology};

use super::shares::{Share, shares};
use crate::{context::CONTEXT_LEAST, desired::DesiredTopology};

/// Composes a topology from nodes (identity and dialled address) in the order replica, stage, rank.
pub(super) fn compose(
    nodes: &[(&Identity, &str)],
    wanted: &DesiredTopology,
    card: &ModelCard,
) -> Result<Topology, SpecError> {
    wanted.layout.check_nodes(nodes.len())?;
    let (weights, stages) = (wanted.shares()?, wanted.stages(card)?);
    let machines: Vec<(&str, &[u16])> =
        nodes.iter().map(|(identity, _)| (identity.machine.as_str(), identity.cores.as_slice())).collect();
    Ok(Topology {
        layout: wanted.layout,
        members: nodes
            .iter()
            .zip(shares(&machines))
            .enumerate()
            .map(|(index, ((identity, address), share)): (usize, (&(&Identity, &str), Share))| Member {
                name: identity.name.clone(),
                address: (*address).into(),
                weight: weights[index],
                layers: stages[usize::from(wanted.layout.place(MemberIndex(index as u16)).stage)].clone(),
                cores: share.cores,
                threads: share.threads,
                spin: share.spin,
            })
            .collect(),
        model: wanted.model.clone(),
        identity: card.identity,
        content: None,
        kv: wanted.kv,
        exchange: wanted.exchange,
        collective: wanted.collective,
        context_length: wanted.context_length.unwrap_or(card.context_length.min(CONTEXT_LEAST)),
        slots: wanted.slots,
        unload_after: wanted.unload_after,
        draft: None,
    })
}
