//! The topology that an operator asks for: what commands, dashboard and client speak of.
use std::ops::Range;

use serde::{Deserialize, Serialize};

use shared::{
    ids::MemberIndex,
    protocol::message::ModelCard,
    schedule::Choice,
    topology::{Exchange, KvFormat, Layout, SpecError, Topology, planner::Goal, split_layers},
};

/// What an operator wants the nodes to hold; identity, epoch and members are found out while it is assigned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Replicas, stages, ranks.
    pub layout: Layout,
    /// Relative shares: one for each rank of a stage, or one for each node; empty = equal.
    pub weights: Vec<u32>,
    /// Layers of each stage; empty = balanced by what they cost.
    pub layers: Vec<u32>,
    /// File name of the model.
    pub model: String,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Format of the partial sums on the wire.
    pub exchange: Exchange,
    /// How all-reduces go.
    pub collective: Choice,
    /// Longest sequence; `None` = what the model was trained for.
    pub context_length: Option<u32>,
    /// Sequences at the same time.
    pub slots: u16,
}

impl Wanted {
    /// What a topology held, on so many nodes: the same where they are as many, else the nearest layout with equal shares.
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
        }
    }

    /// The same on so many nodes: what does not fit these is left to be chosen anew.
    pub fn on(&self, nodes: usize) -> Self {
        if self.layout.node_count() == nodes {
            return self.clone();
        }
        Self { layout: self.layout.on(nodes), weights: Vec::new(), layers: Vec::new(), ..self.clone() }
    }

    /// The relative share of each member.
    ///
    /// # Errors
    /// Neither one for each rank of a stage nor one for each node.
    pub fn shares(&self) -> Result<Vec<u32>, SpecError> {
        let (layout, given, nodes) = (self.layout, self.weights.len(), self.layout.node_count());
        if given == 0 {
            return Ok(vec![1; nodes]);
        }
        // Ranks of groups that differ cannot be given once for all.
        let is_for_stage = given == usize::from(layout.ranks) && layout.groups.is_empty();
        if given != nodes && !is_for_stage {
            return Err(SpecError::Weights { given, layout, ranks: layout.ranks, nodes });
        }
        Ok(self.weights.iter().copied().cycle().take(nodes).collect())
    }

    /// The layers of each stage.
    ///
    /// # Errors
    /// More stages than layers, or other layers than the model has.
    pub fn stages(&self, card: &ModelCard) -> Result<Vec<Range<u32>>, SpecError> {
        let (layout, block_count) = (self.layout, card.block_count);
        if !self.layers.is_empty() {
            let sum = self.layers.iter().try_fold(0_u32, |sum, layers| sum.checked_add(*layers));
            if self.layers.len() != usize::from(layout.stages) || sum != Some(block_count) {
                let given = self.layers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                return Err(SpecError::LayerCounts { given, layout, stages: layout.stages, block_count });
            }
            let mut end = 0;
            let stage = |layers: &u32| {
                end += layers;
                end - layers..end
            };
            return Ok(self.layers.iter().map(stage).collect());
        }
        // Shares compare the ranks of one stage; stages of unlike nodes are given their layers.
        let speeds = vec![1; usize::from(layout.stages)];
        let layers: Vec<u64> = card.layer_bytes.iter().map(|bytes| bytes.0).collect();
        let suggestion = Layout { stages: block_count.min(u32::from(layout.stages)).max(1) as u16, ..layout };
        split_layers(&layers, card.output_bytes.0, &speeds).ok_or(SpecError::Stages { layout, block_count, suggestion })
    }
}

/// What was asked of a topology. What was left open is free: a running topology of the model that agrees with the rest is as good as a
/// new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// File name of the model.
    pub model: String,
    /// Replicas, stages, ranks.
    pub layout: Option<Layout>,
    /// As in [`Wanted`]; empty = open.
    pub weights: Vec<u32>,
    /// As in [`Wanted`]; empty = open.
    pub layers: Vec<u32>,
    /// Format of the KV cache.
    pub kv: Option<KvFormat>,
    /// Format of the partial sums on the wire.
    pub exchange: Option<Exchange>,
    /// How all-reduces go.
    pub collective: Option<Choice>,
    /// Longest sequence.
    pub context_length: Option<u32>,
    /// Sequences at the same time, of a new one.
    pub slots: u16,
    /// What to optimise an open layout for.
    #[serde(default)]
    pub goal: Goal,
}

impl From<&Wanted> for Asked {
    /// Exactly this: nothing but an unset context length is left open.
    fn from(wanted: &Wanted) -> Self {
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
            goal: Goal::default(),
        }
    }
}

impl Asked {
    /// Whether the planner may choose the layout. Explicit shares or layers imply one.
    pub fn leaves_layout_open(&self) -> bool {
        self.layout.is_none() && self.weights.is_empty() && self.layers.is_empty()
    }

    /// A new topology on `nodes` nodes; without a requested layout, tensor-parallel on all of them.
    pub fn wanted(&self, nodes: usize) -> Wanted {
        let all = Layout::tensor_parallel(u16::try_from(nodes).unwrap_or(u16::MAX));
        Wanted {
            layout: self.layout.unwrap_or(all),
            weights: self.weights.clone(),
            layers: self.layers.clone(),
            model: self.model.clone(),
            kv: self.kv.unwrap_or(KvFormat::F16),
            exchange: self.exchange.unwrap_or(Exchange::F32),
            collective: self.collective.unwrap_or(Choice::Auto),
            context_length: self.context_length,
            slots: self.slots,
        }
    }

    /// Whether a topology is what was asked for.
    pub fn is_met_by(&self, topology: &Topology) -> bool {
        fn is_open_or<T: PartialEq>(asked: Option<T>, found: &T) -> bool {
            asked.is_none_or(|asked| asked == *found)
        }
        let held = Wanted::again(topology, topology.members.len());
        let shares = Self { layout: Some(topology.layout), ..self.clone() }.wanted(topology.members.len()).shares();
        self.model == topology.model
            && is_open_or(self.layout, &topology.layout)
            && (self.weights.is_empty() || shares.is_ok_and(|shares| shares == held.weights))
            && (self.layers.is_empty() || self.layers == held.layers)
            && is_open_or(self.kv, &topology.kv)
            && is_open_or(self.exchange, &topology.exchange)
            && is_open_or(self.collective, &topology.collective)
            && is_open_or(self.context_length, &topology.context_length)
    }
}

/// The head of a topology that has the least to do, by its place among the members: `requests` of each member.
pub fn least_loaded(topology: &Topology, requests: impl Fn(MemberIndex) -> Option<u32>) -> Option<MemberIndex> {
    let loads = topology.layout.heads().filter_map(|head| requests(head).map(|requests| (requests, head)));
    loads.min().map(|(_, head)| head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{card, wanted};

    fn of(layout: &str, weights: &[u32], layers: &[u32]) -> Wanted {
        let layout = layout.parse().expect("a layout");
        Wanted { layout, weights: weights.to_vec(), layers: layers.to_vec(), ..wanted() }
    }

    #[test]
    fn layers_are_balanced_by_bytes_unless_they_are_given() {
        let stages = |wanted: Wanted| wanted.stages(&card()).map_err(|error| error.to_string());
        assert_eq!(stages(of("pp2-tp2", &[], &[])), Ok(vec![0..3, 3..6]));
        assert_eq!(stages(of("pp2-tp2", &[2, 2, 1, 1], &[])), Ok(vec![0..3, 3..6]));
        assert_eq!(stages(of("pp2-tp2", &[], &[1, 5])), Ok(vec![0..1, 1..6]));
        assert!(stages(of("pp2-tp2", &[], &[1, 4])).is_err_and(|error| error.contains("2 numbers that make 6")));
        assert!(stages(of("pp8", &[], &[])).is_err_and(|error| error.contains("use pp6-tp1")));
    }

    #[test]
    fn running_topology_of_the_model_meets_what_was_left_open() {
        let topology = crate::fixtures::topology();
        let model = topology.model.clone();
        let (weights, layers) = (Vec::new(), Vec::new());
        let (layout, kv, exchange, collective, context_length) = (None, None, None, None, None);
        let open = Asked {
            model,
            layout,
            weights,
            layers,
            kv,
            exchange,
            collective,
            context_length,
            slots: 4,
            goal: Goal::Balanced,
        };
        assert!(open.is_met_by(&topology), "whatever its layout");
        assert!(Asked { layout: Some(topology.layout), kv: Some(topology.kv), ..open.clone() }.is_met_by(&topology));
        let other = "pp2-tp2".parse().expect("a layout");
        for asked in [
            Asked { model: "other.gguf".into(), ..open.clone() },
            Asked { layout: Some(other), ..open.clone() },
            Asked { weights: vec![1, 2, 3, 4], ..open.clone() },
            Asked { kv: Some(KvFormat::F32), ..open.clone() },
            Asked { exchange: Some(Exchange::Q80), ..open.clone() },
            Asked { context_length: Some(topology.context_length + 1), ..open.clone() },
        ] {
            assert!(!asked.is_met_by(&topology), "{asked:?}");
        }
    }

    #[test]
    fn weights_are_for_the_ranks_of_each_stage_or_for_each_node() {
        let shares = |wanted: Wanted| wanted.shares().map_err(|_| ());
        assert_eq!(shares(of("dp2-tp2", &[], &[])), Ok(vec![1; 4]));
        assert_eq!(shares(of("dp2-tp2", &[3, 1], &[])), Ok(vec![3, 1, 3, 1]));
        assert_eq!(shares(of("dp2-tp2", &[4, 3, 2, 1], &[])), Ok(vec![4, 3, 2, 1]));
        assert_eq!(shares(of("dp2-tp2", &[1, 2, 3], &[])), Err(()));
    }
}
