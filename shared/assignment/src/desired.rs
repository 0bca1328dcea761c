//! The topology that an operator requests, shared by the commands, the dashboard and the client.
use std::ops::Range;

use collectives::Choice;
use common::{
    ids::MemberIndex,
    precision::{Exchange, KvFormat},
};
use planner::search::Goal;
use protocol::message::ModelCard;
use serde::{Deserialize, Serialize};
use topology::{Layout, SpecError, Topology, split_layers, split_model};

/// Default number of concurrent sequences. All share the memory of the context: each additional slot takes 32
/// positions of it, and requests beyond the slots wait even if there is memory for them.
pub const SLOTS_DEFAULT: u16 = 16;

/// A requested topology. Identity, epoch and members are determined by the assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredTopology {
    /// Replicas, stages and ranks.
    pub layout: Layout,
    /// Relative shares: one per rank of a stage, or one per node; empty = equal shares.
    pub weights: Vec<u32>,
    /// Layers of each stage; empty = balanced by cost.
    pub layers: Vec<u32>,
    /// File name of the model.
    pub model: String,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Format of the partial sums on the wire.
    pub exchange: Exchange,
    /// All-reduce algorithm, or automatic choice.
    pub collective: Choice,
    /// Maximum sequence length in tokens; `None` = the model's training context.
    pub context_length: Option<u32>,
    /// Maximum number of concurrent sequences.
    pub slots: u16,
    /// Seconds without a request after which it is unloaded; `None`: never.
    #[serde(default)]
    pub unload_after: Option<u32>,
    /// File name of the draft model.
    #[serde(default)]
    pub draft: Option<String>,
}

impl DesiredTopology {
    /// Rebuilds the request for `topology` on `nodes` nodes: identical if the node count matches, otherwise the nearest
    /// layout with equal shares.
    pub fn again(topology: &Topology, nodes: usize) -> Self {
        let is_same = nodes == topology.members.len();
        let weights = topology.members.iter().map(|member| member.weight);
        let layers = topology.stages(0).into_iter().map(|(layers, _)| layers.len() as u32);
        Self {
            layout: if is_same { topology.layout } else { topology.layout.on(nodes) },
            weights: if is_same { weights.collect() } else { Vec::new() },
            layers: if is_same { layers.collect() } else { Vec::new() },
            model: topology.model.clone(),
            kv: topology.kv,
            exchange: topology.exchange,
            collective: topology.collective,
            context_length: Some(topology.context_length),
            slots: topology.slots,
            unload_after: topology.unload_after,
            draft: topology.draft.as_ref().map(|draft| draft.model.clone()),
        }
    }

    /// The same request on `nodes` nodes. If the node count differs, layers and weights are left open.
    pub fn on(&self, nodes: usize) -> Self {
        if self.layout.node_count() == nodes {
            return self.clone();
        }
        Self { layout: self.layout.on(nodes), weights: Vec::new(), layers: Vec::new(), ..self.clone() }
    }

    /// The relative share of each member.
    ///
    /// # Errors
    /// The number of shares is neither the ranks of a stage nor the number of nodes.
    pub fn shares(&self) -> Result<Vec<u32>, SpecError> {
        let (layout, given, nodes) = (self.layout, self.weights.len(), self.layout.node_count());
        if given == 0 {
            return Ok(vec![1; nodes]);
        }
        // Groups of different sizes cannot share one list of weights per rank.
        let is_for_stage = given == usize::from(layout.ranks) && layout.groups.is_empty();
        if given != nodes && !is_for_stage {
            return Err(SpecError::Weights { given, layout, ranks: layout.ranks, nodes });
        }
        Ok(self.weights.iter().copied().cycle().take(nodes).collect())
    }

    /// The layers of each stage.
    ///
    /// # Errors
    /// There are more stages than the model can have, or the layer counts do not add up to the model's.
    pub fn stages(&self, card: &ModelCard) -> Result<Vec<Range<u32>>, SpecError> {
        let (layout, block_count) = (self.layout, card.block_count);
        if !self.layers.is_empty() {
            let sum = self.layers.iter().try_fold(0_u32, |sum, layers| sum.checked_add(*layers));
            if self.layers.len() != usize::from(layout.stages) || sum != Some(block_count) {
                let given = self.layers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                return Err(SpecError::LayerCounts { given, layout, stages: layout.stages, block_count });
            }
            let mut end = 0;
            return Ok(self
                .layers
                .iter()
                .map(|layers: &u32| {
                    end += layers;
                    end - layers..end
                })
                .collect());
        }
        // Shares compare ranks within a stage; stages on unequal nodes need explicit layers instead.
        let speeds = vec![1; usize::from(layout.stages)];
        let layers: Vec<u64> = card.layer_bytes.iter().map(|bytes| bytes.0).collect();
        let (output, sizes) = (card.output_bytes.0, card.sizes());
        let (split, most) = match &sizes {
            Ok(sizes) => (split_model(&sizes.spec, &layers, output, &speeds), sizes.spec.stages_max() as u32),
            Err(_) => (split_layers(&layers, output, &speeds), block_count),
        };
        let suggestion = Layout { stages: most.min(u32::from(layout.stages)).max(1) as u16, ..layout };
        split.ok_or(SpecError::Stages { layout, most, suggestion })
    }
}

/// A topology request in which open fields match anything: a running topology of the same model that agrees on the
/// other fields is as good as a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyRequest {
    /// File name of the model.
    pub model: String,
    /// Replicas, stages and ranks; `None` = open.
    pub layout: Option<Layout>,
    /// As in [`DesiredTopology`]; empty = open.
    pub weights: Vec<u32>,
    /// As in [`DesiredTopology`]; empty = open.
    pub layers: Vec<u32>,
    /// Format of the KV cache.
    pub kv: Option<KvFormat>,
    /// Format of the partial sums on the wire.
    pub exchange: Option<Exchange>,
    /// All-reduce algorithm; `None` = open.
    pub collective: Option<Choice>,
    /// Maximum sequence length in tokens; `None` = open.
    pub context_length: Option<u32>,
    /// Maximum number of concurrent sequences of a new topology; not compared with a running one.
    pub slots: u16,
    /// File name of the draft model; `None` = open.
    #[serde(default)]
    pub draft: Option<String>,
    /// Optimisation goal for an open layout.
    #[serde(default)]
    pub goal: Goal,
}

impl From<&DesiredTopology> for TopologyRequest {
    /// Leaves nothing open except an unset context length.
    fn from(wanted: &DesiredTopology) -> Self {
        Self {
            model: wanted.model.clone(),
            layout: Some(wanted.layout),
            weights: wanted.weights.clone(),
            layers: wanted.layers.clone(),
            kv: Some(wanted.kv),
            exchange: Some(wanted.exchange),
            collective: Some(wanted.collective),
            context_length: wanted.context_length,
            slots: wanted.slots,
            draft: wanted.draft.clone(),
            goal: Goal::default(),
        }
    }
}

impl TopologyRequest {
    /// A request that leaves everything open but the model.
    pub fn open(model: &str, slots: u16) -> Self {
        Self {
            model: model.to_owned(),
            layout: None,
            weights: Vec::new(),
            layers: Vec::new(),
            kv: None,
            exchange: None,
            collective: None,
            context_length: None,
            slots,
            draft: None,
            goal: Goal::default(),
        }
    }

    /// Whether the planner may choose the layout. Explicit shares or layers imply one.
    pub fn leaves_layout_open(&self) -> bool {
        self.layout.is_none() && self.weights.is_empty() && self.layers.is_empty()
    }

    /// Builds a new topology request for `nodes` nodes; without a requested layout, tensor-parallel on all of them.
    pub fn wanted(&self, nodes: usize) -> DesiredTopology {
        let all = Layout::tensor_parallel(u16::try_from(nodes).unwrap_or(u16::MAX));
        DesiredTopology {
            layout: self.layout.unwrap_or(all),
            weights: self.weights.clone(),
            layers: self.layers.clone(),
            model: self.model.clone(),
            kv: self.kv.unwrap_or(KvFormat::F16),
            exchange: self.exchange.unwrap_or(Exchange::F32),
            collective: self.collective.unwrap_or(Choice::Auto),
            context_length: self.context_length,
            slots: self.slots,
            unload_after: None,
            draft: self.draft.clone(),
        }
    }

    /// Whether `topology` satisfies this request.
    pub fn is_met_by(&self, topology: &Topology) -> bool {
        fn is_open_or<T: PartialEq>(asked: Option<T>, found: &T) -> bool {
            asked.is_none_or(|asked| asked == *found)
        }
        let held = DesiredTopology::again(topology, topology.members.len());
        let shares = Self { layout: Some(topology.layout), ..self.clone() }.wanted(topology.members.len()).shares();
        self.model == topology.model
            && is_open_or(self.layout, &topology.layout)
            && (self.weights.is_empty() || shares.is_ok_and(|shares| shares == held.weights))
            && (self.layers.is_empty() || self.layers == held.layers)
            && is_open_or(self.kv, &topology.kv)
            && is_open_or(self.exchange, &topology.exchange)
            && is_open_or(self.collective, &topology.collective)
            && is_open_or(self.context_length, &topology.context_length)
            && (self.draft.is_none() || self.draft == held.draft)
    }
}

/// The member index of the least loaded head. `requests` returns the number of requests of a member, `None` if it is
/// unavailable.
pub fn least_loaded(topology: &Topology, requests: impl Fn(MemberIndex) -> Option<u32>) -> Option<MemberIndex> {
    let loads = topology.layout.heads().filter_map(|head| requests(head).map(|requests| (requests, head)));
    loads.min().map(|(_, head)| head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{card, wanted};

    fn of(layout: &str, weights: &[u32], layers: &[u32]) -> DesiredTopology {
        let layout = layout.parse().expect("a layout");
        DesiredTopology { layout, weights: weights.to_vec(), layers: layers.to_vec(), ..wanted() }
    }

    #[test]
    fn layers_are_balanced_by_bytes_unless_given() {
        let stages = |wanted: DesiredTopology| wanted.stages(&card()).map_err(|error| error.to_string());
        assert_eq!(stages(of("pp2-tp2", &[], &[])), Ok(vec![0..3, 3..6]));
        assert_eq!(stages(of("pp2-tp2", &[2, 2, 1, 1], &[])), Ok(vec![0..3, 3..6]));
        assert_eq!(stages(of("pp2-tp2", &[], &[1, 5])), Ok(vec![0..1, 1..6]));
        assert!(stages(of("pp2-tp2", &[], &[1, 4])).is_err_and(|error| error.contains("2 numbers that add up to 6")));
        assert!(stages(of("pp8", &[], &[])).is_err_and(|error| error.contains("use pp6-tp1")));
    }

    #[test]
    fn running_topology_satisfies_open_fields() {
        let topology = crate::fixtures::topology();
        let model = topology.model.clone();
        let (weights, layers) = (Vec::new(), Vec::new());
        let (layout, kv, exchange, collective, context_length) = (None, None, None, None, None);
        let open = TopologyRequest {
            model,
            layout,
            weights,
            layers,
            kv,
            exchange,
            collective,
            context_length,
            slots: 4,
            draft: None,
            goal: Goal::Balanced,
        };
        assert!(open.is_met_by(&topology), "any layout matches");
        assert!(
            TopologyRequest { layout: Some(topology.layout), kv: Some(topology.kv), ..open.clone() }
                .is_met_by(&topology)
        );
        let other = "pp2-tp2".parse().expect("a layout");
        for asked in [
            TopologyRequest { model: "other.gguf".into(), ..open.clone() },
            TopologyRequest { layout: Some(other), ..open.clone() },
            TopologyRequest { weights: vec![1, 2, 3, 4], ..open.clone() },
            TopologyRequest { kv: Some(KvFormat::F32), ..open.clone() },
            TopologyRequest { exchange: Some(Exchange::Q80), ..open.clone() },
            TopologyRequest { context_length: Some(topology.context_length + 1), ..open.clone() },
            TopologyRequest { draft: Some("small.gguf".into()), ..open.clone() },
        ] {
            assert!(!asked.is_met_by(&topology), "{asked:?}");
        }
    }

    #[test]
    fn weights_are_per_rank_of_a_stage_or_per_node() {
        let shares = |wanted: DesiredTopology| wanted.shares().map_err(|_| ());
        assert_eq!(shares(of("dp2-tp2", &[], &[])), Ok(vec![1; 4]));
        assert_eq!(shares(of("dp2-tp2", &[3, 1], &[])), Ok(vec![3, 1, 3, 1]));
        assert_eq!(shares(of("dp2-tp2", &[4, 3, 2, 1], &[])), Ok(vec![4, 3, 2, 1]));
        assert_eq!(shares(of("dp2-tp2", &[1, 2, 3], &[])), Err(()));
    }
}
