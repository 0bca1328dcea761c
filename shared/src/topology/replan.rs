//! What is left of a topology when members go: the same model on the rest, if it fits, and what an operator may expect before a node
//! is stopped. Pure.
use super::{
    layout::Layout,
    memory::{self, Holding, PANEL_ROWS, WORKING_BYTES},
    shard::{cut, cut_stages},
    sizes::ModelSizes,
    spec::{Member, Topology},
    split_layers,
};
use crate::{ids::MemberIndex, units::Bytes};

/// What a rank needs beyond its even part of a replica: uneven cuts, norms on every rank.
const UNEVEN: f64 = 1.1;

/// A member that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stays {
    /// Its place before.
    pub member: MemberIndex,
    /// Where it answers.
    pub address: String,
    /// Memory that a shard could take; 0 if unknown.
    pub free: Bytes,
}

/// The topology on the members that stay: the nearest layout that can be cut and fits, on fewer of them where it must be.
///
/// # Errors
/// None fits; the reason of the nearest.
pub fn replan(before: &Topology, stay: &[Stays], sizes: &ModelSizes) -> Result<Topology, String> {
    if stay.len() == before.members.len() {
        let mut moved = before.clone();
        for one in stay {
            moved.members[one.member.index()].address.clone_from(&one.address);
        }
        return moved.check().map(|()| moved).map_err(|error| error.to_string());
    }
    let mut first = None;
    // Where fewer nodes are used, those with the most memory stay, in their order.
    let mut by_memory: Vec<usize> = (0..stay.len()).collect();
    by_memory.sort_by_key(|index| std::cmp::Reverse(stay[*index].free));
    for count in (1..=stay.len()).rev() {
        let mut chosen = by_memory[..count].to_vec();
        chosen.sort_unstable();
        let chosen: Vec<&Stays> = chosen.into_iter().map(|index| &stay[index]).collect();
        let mut layouts = vec![before.layout.on(count), Layout::tensor_parallel(count as u16)];
        layouts.push(Layout::alike(1, count as u16, 1));
        for layout in layouts {
            match on(before, &chosen, layout, sizes) {
                Ok(topology) => return Ok(topology),
                Err(reason) => drop(first.get_or_insert(reason)),
            }
        }
    }
    Err(first.unwrap_or_else(|| "no member is left".into()))
}

fn on(before: &Topology, stay: &[&Stays], layout: Layout, sizes: &ModelSizes) -> Result<Topology, String> {
    let whole = cut(&sizes.shape, &[1]).map_err(|error| error.to_string())?;
    let holding = Holding { sizes, plan: &whole[0] };
    let cost = |layer: usize| holding.attention(layer).bytes + holding.feed_forward(layer, 1).bytes;
    let costs: Vec<u64> = (0..sizes.shape.block_count).map(cost).collect();
    let stages = split_layers(&costs, holding.output().bytes, &vec![1; usize::from(layout.stages)]);
    let stages = stages.ok_or_else(|| format!("{layout} has more stages than the model has layers"))?;
    let member = |(index, one): (usize, &&Stays)| {
        let place = layout.place(MemberIndex(index as u16));
        let layers = stages[usize::from(place.stage)].clone();
        Member { address: one.address.clone(), weight: 1, layers, ..before.members[one.member.index()].clone() }
    };
    layout.check_nodes(stay.len()).map_err(|error| error.to_string())?;
    let members = stay.iter().enumerate().map(member).collect();
    let topology = Topology { layout, members, ..before.clone() };
    topology.check().map_err(|error| error.to_string())?;
    for replica in 0..layout.replicas {
        let plans = cut_stages(&sizes.shape, &topology.stages(replica)).map_err(|error| error.to_string())?;
        for (plan, index) in plans.iter().zip(layout.members(replica)) {
            let (heads, length) = (plan.heads_kv.len(), sizes.shape.head_length);
            let kv = memory::kv_bytes(topology.kv, plan.layers.len(), topology.kv_block_count(), heads, length);
            let needed = Bytes(Holding { sizes, plan }.shard_bytes(PANEL_ROWS) + kv + WORKING_BYTES);
            let Stays { free, .. } = stay[index];
            if free.0 > 0 && needed > *free {
                let name = &topology.members[index].name;
                return Err(format!("its shard of {layout} needs {needed}, node {name} has {free} free"));
            }
        }
    }
    Ok(topology)
}

/// A member as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Whether it answers.
    pub answers: bool,
    /// Whether it serves.
    pub serves: bool,
    /// Memory that a shard could take; 0 if unknown.
    pub free: Bytes,
    /// What its shard takes.
    pub shard: Bytes,
}

/// What is left when a node is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Replicas that go on serving without a pause.
    pub replicas: usize,
    /// Whether the rest may decide by itself to go on without the node.
    pub has_majority: bool,
    /// The layout that the rest would serve, if it fits.
    pub layout: Option<Layout>,
    /// What each node of it needs.
    pub needed: Bytes,
}

impl Outlook {
    /// Whether stopping the node leaves something that serves, now or after the rest is assigned anew.
    pub fn is_ok(&self) -> bool {
        self.replicas > 0 || (self.layout.is_some() && self.has_majority)
    }
}

/// Predicts what remains without a member; `now` are all members in their order, `has_witness` counts for two nodes. Memory is
/// estimated by what the shards take now.
pub fn ok_to_stop(topology: &Topology, leaving: MemberIndex, now: &[Now], has_witness: bool) -> Outlook {
    let layout = topology.layout;
    let own = layout.replica_of(leaving);
    let serves = |replica: &u16| now.get(layout.members(*replica)).is_some_and(|all| all.iter().all(|one| one.serves));
    let takes = |replica: &u16| layout.role(*replica).takes_requests();
    let replicas = (0..layout.replicas).filter(|replica| *replica != own).filter(takes).filter(serves).count();
    let rest: Vec<&Now> = now
        .iter()
        .enumerate()
        .filter(|(index, one)| *index != leaving.index() && one.answers)
        .map(|(_, one)| one)
        .collect();
    let (mut votes, mut voters) = (rest.len(), now.len());
    if now.len() == 2 && has_witness {
        (votes, voters) = (votes + 1, voters + 1);
    }
    let bytes = |replica: u16| now.get(layout.members(replica)).unwrap_or_default().iter().map(|one| one.shard.0).sum();
    let whole: u64 = (0..layout.replicas).map(bytes).max().unwrap_or(0);
    let needed = |layout: Layout| {
        let ranks = usize::from(layout.stages) * usize::from(layout.ranks);
        Bytes((whole as f64 * UNEVEN / ranks as f64) as u64 + WORKING_BYTES)
    };
    let fits = |count: usize| {
        let layout = layout.on(count);
        let mut free: Vec<Bytes> = rest.iter().map(|one| one.free).collect();
        free.sort_by_key(|free| std::cmp::Reverse(*free));
        let is_room = |free: &Bytes| free.0 == 0 || *free >= needed(layout);
        free.iter().take(count).all(is_room).then_some(layout)
    };
    let found = (1..=rest.len()).rev().find_map(fits);
    let size = needed(found.unwrap_or_else(|| layout.on(rest.len())));
    Outlook { replicas, has_majority: votes > voters / 2, layout: found, needed: size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{sizes::Quantisation, spec};

    fn before(layout: &str, count: usize) -> (Topology, ModelSizes) {
        let sizes = ModelSizes::known("llama-3.2-1b", Quantisation::Q4_0).expect("it is known");
        let layout: Layout = layout.parse().expect("a layout");
        let blocks = sizes.shape.block_count as u32;
        let member = |index: usize| Member {
            name: format!("pi{index}"),
            address: format!("pi{index}:9999"),
            weight: 1,
            layers: 0..blocks,
            cores: vec![index as u16],
            threads: 1,
            spin: false,
        };
        let topology = Topology {
            layout,
            members: (0..count).map(member).collect(),
            model: "m.gguf".into(),
            identity: crate::ids::ModelIdentity::default(),
            content: None,
            kv: spec::KvFormat::F16,
            exchange: spec::Exchange::F32,
            collective: crate::schedule::Choice::Auto,
            context_length: 512,
            slots: 2,
        };
        assert_eq!(topology.check(), Ok(()));
        (topology, sizes)
    }

    fn stays(list: &[(u16, u64)]) -> Vec<Stays> {
        let one = |(member, mib): &(u16, u64)| Stays {
            member: MemberIndex(*member),
            address: format!("pi{member}:9999"),
            free: Bytes(mib << 20),
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn the_rest_shares_the_model_in_its_old_order_and_each_keeps_its_cores() {
        let (topology, sizes) = before("tp4", 4);
        let three = replan(&topology, &stays(&[(0, 0), (2, 0), (3, 0)]), &sizes).expect("three can hold it");
        let members: Vec<_> = three.members.iter().map(|one| (one.name.as_str(), one.cores[0])).collect();
        assert_eq!((three.layout.to_string(), members), ("tp3".into(), vec![("pi0", 0), ("pi2", 2), ("pi3", 3)]));
        let (topology, sizes) = before("dp2-tp2", 4);
        let three = replan(&topology, &stays(&[(1, 0), (2, 0), (3, 0)]), &sizes).expect("three can hold it");
        assert_eq!((three.layout.to_string(), three.check()), ("tp3".into(), Ok(())));
    }

    #[test]
    fn what_does_not_fit_is_tried_on_other_nodes_and_then_refused_with_the_figures() {
        let (topology, sizes) = before("tp4", 4);
        let one_is_full = replan(&topology, &stays(&[(0, 900), (2, 900), (3, 40)]), &sizes).expect("two can hold it");
        assert_eq!(one_is_full.layout.to_string(), "tp2");
        let error = replan(&topology, &stays(&[(0, 90), (2, 90)]), &sizes).expect_err("it fits nowhere");
        assert!(error.contains("needs") && error.contains("pi0") && error.contains("90"), "{error}");
    }

    #[test]
    fn members_at_new_addresses_keep_everything_else() {
        let (topology, sizes) = before("tp2", 2);
        let mut swapped = stays(&[(0, 0), (1, 0)]);
        (swapped[0].address, swapped[1].address) = ("pi1:9999".into(), "pi0:9999".into());
        let moved = replan(&topology, &swapped, &sizes).expect("only the addresses change");
        assert_eq!(moved.members[0].address, "pi1:9999");
        assert_eq!(Member { address: "pi0:9999".into(), ..moved.members[0].clone() }, topology.members[0]);
    }

    #[test]
    fn stopping_a_node_is_foretold_by_replicas_memory_and_votes() {
        let now = |free: u64| Now { answers: true, serves: true, free: Bytes(free << 20), shard: Bytes(200 << 20) };
        let (topology, _) = before("tp4", 4);
        let roomy = ok_to_stop(&topology, MemberIndex(1), &[now(2000); 4], false);
        assert_eq!((roomy.replicas, roomy.layout.map(|layout| layout.to_string())), (0, Some("tp3".into())));
        assert!(roomy.is_ok());
        let tight = ok_to_stop(&topology, MemberIndex(1), &[now(240); 4], false);
        assert!(!tight.is_ok() && tight.layout.is_none(), "{tight:?}");
        let mut half = [now(2000); 4];
        half[0] = Now { answers: false, serves: false, ..half[0] };
        assert!(!ok_to_stop(&topology, MemberIndex(1), &half, false).is_ok(), "two of four decide nothing");
        let (two, _) = before("dp2-tp1", 2);
        assert_eq!(ok_to_stop(&two, MemberIndex(0), &[now(240); 2], false).replicas, 1);
        let (pair, _) = before("tp2", 2);
        assert!(!ok_to_stop(&pair, MemberIndex(0), &[now(2000); 2], false).is_ok());
        assert!(ok_to_stop(&pair, MemberIndex(0), &[now(2000); 2], true).is_ok());
    }
}
