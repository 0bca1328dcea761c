//! Reduces the desired topology to the members that are present, if the model fits there, and predicts the effect of stopping a node.
//! Pure.
use std::ops::Range;

use super::{
    groups::{Group, Role},
    layout::Layout,
    memory::{Holding, PANEL_ROWS},
    shard::{cut, cut_stages},
    sizes::ModelSizes,
    spec::{Member, Topology},
    split_layers,
    working::Seat,
};
use crate::{ids::MemberIndex, units::Bytes};

/// What a rank needs beyond its even part of a replica: uneven cuts, norms on every rank.
const UNEVEN: f64 = 1.1;
/// Working memory of a rank where the model's shape is not at hand: that of an 8B model on four ranks.
const WORKING_ASSUMED: u64 = 64 << 20;

/// A member that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stays {
    /// Its place in the desired topology.
    pub member: MemberIndex,
    /// Where it answers.
    pub address: String,
    /// Memory that a shard could take; 0 if unknown.
    pub free: Bytes,
}

/// What a model needs of nodes: by its file, or estimated.
trait Needs {
    /// The layers of so many stages of equal cost; `None`: the model has fewer.
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>>;
    /// Whether the members of a topology of one replica have room for their shards.
    ///
    /// # Errors
    /// The first that has not.
    fn fits(&self, topology: &Topology, free: &[Bytes]) -> Result<(), String>;
}

/// Reduces the desired topology to the members that are present. Complete replicas stay unchanged. Each of the others continues with its
/// remaining ranks if the model fits, otherwise it stops. If no replica remains, all members together form one.
///
/// # Errors
/// Nothing fits; the reason of the nearest layout.
pub fn replan(desired: &Topology, stay: &[Stays], sizes: &ModelSizes) -> Result<Topology, String> {
    shape(desired, stay, &OfFile { sizes })
}

fn shape(desired: &Topology, stay: &[Stays], needs: &dyn Needs) -> Result<Topology, String> {
    if stay.len() == desired.members.len() {
        let mut moved = desired.clone();
        for one in stay {
            moved.members[one.member.index()].address.clone_from(&one.address);
        }
        return moved.check().map(|()| moved).map_err(|error| error.to_string());
    }
    let parts = if desired.layout.replicas > 1 { by_replica(desired, stay, needs) } else { None };
    match parts {
        Some(topology) => Ok(topology),
        None => as_one(desired, stay, needs),
    }
}

/// The replicas that are whole, and those that can do without the members that are away.
fn by_replica(desired: &Topology, stay: &[Stays], needs: &dyn Needs) -> Option<Topology> {
    let layout = desired.layout;
    let mut kept: Vec<(Group, Vec<Member>, bool)> = Vec::new();
    for replica in 0..layout.replicas {
        let of_it = |one: &&Stays| layout.replica_of(one.member) == replica;
        let there: Vec<&Stays> = stay.iter().filter(of_it).collect();
        let is_whole = there.len() == layout.members(replica).len();
        let ranks = (there.len() / usize::from(layout.stages)) as u16;
        let group = Group { role: layout.role(replica), ranks };
        let count = usize::from(layout.stages) * usize::from(ranks);
        let part = Layout::alike(1, layout.stages, ranks.max(1));
        let stage = |rank: usize| {
            let place = part.place(MemberIndex(rank as u16));
            desired.members[usize::from(place.stage) * usize::from(layout.ranks_of(0))].layers.clone()
        };
        let chosen = most_memory(&there, count);
        let members = chosen.iter().enumerate().map(|(rank, one)| placed(desired, one, &stage(rank)));
        let (members, free): (Vec<Member>, Vec<Bytes>) = members.unzip();
        let kept_members = match is_whole {
            true => Some(members),
            false => (ranks > 0)
                .then(|| fits_alone(desired, part, members, &free, needs).ok())
                .flatten()
                .map(|topology| topology.members),
        };
        kept.extend(kept_members.map(|members| (group, members, is_whole)));
    }
    let has = |role| kept.iter().any(|(group, ..)| group.role == role);
    if !(has(Role::Prefill) && has(Role::Decode)) {
        kept.iter_mut().for_each(|(group, ..)| group.role = Role::Both);
    }
    let made = together(desired, &kept);
    // More replicas than can differ: those that are whole are alike.
    made.or_else(|| together(desired, &kept.into_iter().filter(|(.., is_whole)| *is_whole).collect::<Vec<_>>()))
}

fn together(desired: &Topology, kept: &[(Group, Vec<Member>, bool)]) -> Option<Topology> {
    let groups: Vec<Group> = kept.iter().map(|(group, ..)| *group).collect();
    let layout = (!groups.is_empty()).then(|| Layout::of_replicas(&groups, desired.layout.stages))?.ok()?;
    let members = kept.iter().flat_map(|(_, members, _)| members.clone()).collect();
    let topology = Topology { layout, members, ..desired.clone() };
    topology.check().is_ok().then_some(topology)
}

/// A member of the desired topology where it is now, with these layers.
fn placed(desired: &Topology, one: &Stays, layers: &Range<u32>) -> (Member, Bytes) {
    let before = desired.members[one.member.index()].clone();
    (Member { address: one.address.clone(), layers: layers.clone(), ..before }, one.free)
}

/// The `count` members with the most free memory, in their original order.
fn most_memory<'a>(there: &[&'a Stays], count: usize) -> Vec<&'a Stays> {
    let mut by_memory: Vec<usize> = (0..there.len()).collect();
    by_memory.sort_by_key(|index| std::cmp::Reverse(there[*index].free));
    by_memory.truncate(count);
    by_memory.sort_unstable();
    by_memory.into_iter().map(|index| there[index]).collect()
}

fn fits_alone(
    desired: &Topology,
    layout: Layout,
    members: Vec<Member>,
    free: &[Bytes],
    needs: &dyn Needs,
) -> Result<Topology, String> {
    layout.check_nodes(members.len()).map_err(|error| error.to_string())?;
    let mut topology = Topology { layout, members, ..desired.clone() };
    let fits = |topology: &Topology| {
        topology.check().map_err(|error| error.to_string())?;
        needs.fits(topology, free)
    };
    let by_speed = fits(&topology);
    if by_speed.is_ok() {
        return Ok(topology);
    }
    // Shares by speed can exceed the memory of a fast node: try equal shares.
    topology.members.iter_mut().for_each(|member| member.weight = 1);
    fits(&topology).map(|()| topology).or(Err(by_speed.err().unwrap_or_default()))
}

/// One replica: the nearest layout that can be cut and fits, on fewer nodes where it must be.
fn as_one(desired: &Topology, stay: &[Stays], needs: &dyn Needs) -> Result<Topology, String> {
    let mut first = None;
    let all: Vec<&Stays> = stay.iter().collect();
    let kind = Layout::alike(1, desired.layout.stages, desired.layout.ranks);
    for count in (1..=stay.len()).rev() {
        let chosen = most_memory(&all, count);
        for layout in [kind.on(count), Layout::tensor_parallel(count as u16), Layout::alike(1, count as u16, 1)] {
            let Some(stages) = needs.stages(layout.stages) else {
                first.get_or_insert(format!("{layout} has more stages than the model has layers"));
                continue;
            };
            let stage = |index: usize| &stages[usize::from(layout.place(MemberIndex(index as u16)).stage)];
            let members = chosen.iter().enumerate().map(|(index, one)| placed(desired, one, stage(index)));
            let (members, free): (Vec<Member>, Vec<Bytes>) = members.unzip();
            match fits_alone(desired, layout, members, &free, needs) {
                Ok(topology) => return Ok(topology),
                Err(reason) => drop(first.get_or_insert(reason)),
            }
        }
    }
    Err(first.unwrap_or_else(|| "no member is left".into()))
}

/// By the sizes in the model's file.
struct OfFile<'a> {
    sizes: &'a ModelSizes,
}

impl Needs for OfFile<'_> {
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>> {
        let whole = cut(&self.sizes.shape, &[1]).ok()?;
        let holding = Holding { sizes: self.sizes, plan: &whole[0] };
        let cost = |layer: usize| holding.attention(layer).bytes + holding.feed_forward(layer, 1).bytes;
        let costs: Vec<u64> = (0..self.sizes.shape.block_count).map(cost).collect();
        split_layers(&costs, holding.output().bytes, &vec![1; usize::from(count)])
    }

    fn fits(&self, topology: &Topology, free: &[Bytes]) -> Result<(), String> {
        let sizes = self.sizes;
        let plans = cut_stages(&sizes.shape, &topology.stages(0)).map_err(|error| error.to_string())?;
        for (index, ((plan, member), free)) in plans.iter().zip(&topology.members).zip(free).enumerate() {
            let seat = Seat::of(topology, &topology.place(MemberIndex(index as u16)));
            let kv = (topology.kv, topology.kv_block_count());
            let needed = Holding { sizes, plan }.memory(PANEL_ROWS, kv, &seat).total();
            if free.0 > 0 && needed > *free {
                let (layout, name) = (topology.layout, &member.name);
                return Err(format!("the shard of {layout} on node {name} needs {needed}, {free} is free"));
            }
        }
        Ok(())
    }
}

/// By what the shards of a whole replica take now.
struct Estimated {
    whole: u64,
    layers: u32,
}

impl Estimated {
    fn needed(&self, ranks: usize) -> Bytes {
        Bytes((self.whole as f64 * UNEVEN / ranks.max(1) as f64) as u64 + WORKING_ASSUMED)
    }
}

impl Needs for Estimated {
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>> {
        split_layers(&vec![1; self.layers as usize], 0, &vec![1; usize::from(count)])
    }

    fn fits(&self, topology: &Topology, free: &[Bytes]) -> Result<(), String> {
        let needed = self.needed(topology.members.len());
        match free.iter().all(|free| free.0 == 0 || *free >= needed) {
            true => Ok(()),
            false => Err(format!("a shard of {} needs about {needed}", topology.layout)),
        }
    }
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
    /// Replicas that continue to serve without a pause.
    pub replicas: usize,
    /// Whether the remaining members have the majority to continue without the node.
    pub has_majority: bool,
    /// What the rest would serve, if it fits.
    pub topology: Option<Topology>,
    /// What each node of the replica that changes needs.
    pub needed: Bytes,
}

impl Outlook {
    /// Whether something serves after the node stops, immediately or after the remaining members are reassigned.
    pub fn is_ok(&self) -> bool {
        self.replicas > 0 || (self.topology.is_some() && self.has_majority)
    }

    /// The layout that the rest would serve.
    pub fn layout(&self) -> Option<Layout> {
        self.topology.as_ref().map(|topology| topology.layout)
    }
}

/// Predicts what remains without a member: with `sizes`, by the same plan that the nodes would make, otherwise estimated from the size of
/// the present shards. `now` holds all members of `topology` in order. `has_witness` matters only with two nodes.
pub fn ok_to_stop(
    (topology, desired): (&Topology, &Topology),
    leaving: MemberIndex,
    now: &[Now],
    has_witness: bool,
    sizes: Option<&ModelSizes>,
) -> Outlook {
    let layout = topology.layout;
    let own = layout.replica_of(leaving);
    let serves = |replica: &u16| now.get(layout.members(*replica)).is_some_and(|all| all.iter().all(|one| one.serves));
    let takes = |replica: &u16| layout.role(*replica).takes_requests() && !layout.has_roles();
    let replicas = (0..layout.replicas).filter(|replica| *replica != own).filter(takes).filter(serves).count();
    let is_left = |index: usize| index != leaving.index() && now.get(index).is_some_and(|one| one.answers);
    let rest: Vec<usize> = (0..topology.members.len()).filter(|index| is_left(*index)).collect();
    let (mut votes, mut voters) = (rest.len(), now.len());
    if now.len() == 2 && has_witness {
        (votes, voters) = (votes + 1, voters + 1);
    }
    let stays = |index: &usize| {
        let member = &topology.members[*index];
        let place = desired.members.iter().position(|one| one.name == member.name)?;
        let (address, free) = (member.address.clone(), now[*index].free);
        Some(Stays { member: MemberIndex(place as u16), address, free })
    };
    let mut stay: Vec<Stays> = rest.iter().filter_map(stays).collect();
    stay.sort_by_key(|one| one.member);
    let bytes = |replica: u16| now.get(layout.members(replica)).unwrap_or_default().iter().map(|one| one.shard.0).sum();
    let whole: u64 = (0..layout.replicas).map(bytes).max().unwrap_or(0);
    let estimated = Estimated { whole, layers: desired.members.iter().map(|one| one.layers.end).max().unwrap_or(1) };
    let found = match sizes {
        Some(sizes) => replan(desired, &stay, sizes),
        None => shape(desired, &stay, &estimated),
    };
    // What its replica becomes; where it goes, what one of its size needs.
    let ranks = found.as_ref().ok().and_then(|found| {
        let beside = |member: &&Member| {
            let place = topology.members.iter().position(|one| one.name == member.name);
            place.is_some_and(|place| layout.replica_of(MemberIndex(place as u16)) == own)
        };
        let member = found.members.iter().position(|member| beside(&member))?;
        Some(found.layout.members(found.layout.replica_of(MemberIndex(member as u16))).len())
    });
    let needed = estimated.needed(ranks.unwrap_or(layout.members(own).len().saturating_sub(1)));
    Outlook { replicas, has_majority: votes > voters / 2, topology: found.ok(), needed }
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
    }

    #[test]
    fn complete_replicas_stay_and_a_broken_one_continues_with_fewer_ranks() {
        let on = |layout: &str, count: usize, left: &[(u16, u64)]| {
            let (topology, sizes) = before(layout, count);
            let left = replan(&topology, &stays(left), &sizes).expect("something is left");
            assert_eq!(left.check(), Ok(()));
            let names: Vec<&str> = left.members.iter().map(|one| &one.name[2..]).collect();
            format!("{} {}", left.layout, names.join(","))
        };
        assert_eq!(on("dp2-tp2", 4, &[(1, 0), (2, 0), (3, 0)]), "tp1+tp2 1,2,3");
        assert_eq!(on("dp2-tp2", 4, &[(1, 0), (2, 0)]), "dp2-tp1 1,2");
        assert_eq!(on("dp2-tp2", 4, &[(0, 0), (1, 0)]), "tp2 0,1");
        assert_eq!(on("dp3-tp2", 6, &[(0, 0), (1, 0), (3, 0), (4, 0), (5, 0)]), "tp2+tp1+tp2 0,1,3,4,5");
        assert_eq!(on("prefill:tp2+decode:tp2", 4, &[(1, 0), (2, 0), (3, 0)]), "prefill:tp1+decode:tp2 1,2,3");
        assert_eq!(on("prefill:tp1+decode:tp2", 3, &[(1, 0), (2, 0)]), "tp2 1,2");
        // One node alone has no room for the model: its replica pauses, and two such nodes form one.
        assert_eq!(on("dp2-tp2", 4, &[(1, 90), (2, 900), (3, 900)]), "tp2 2,3");
        assert_eq!(on("dp2-tp2", 4, &[(1, 600), (2, 600)]), "tp2 1,2");
        let nine: Vec<(u16, u64)> = (0..19).filter(|member| *member != 4).map(|member| (member, 0)).collect();
        assert_eq!(on("dp9-tp2", 18, &nine[..17]).split(' ').next(), Some("dp8-tp2"), "no more than eight may differ");
    }

    #[test]
    fn returning_members_restore_the_desired_topology_and_its_shares() {
        let (mut topology, sizes) = before("dp2-tp2", 4);
        topology.members[2].weight = 3;
        let left = replan(&topology, &stays(&[(0, 0), (2, 0), (3, 0)]), &sizes).expect("something is left");
        assert_eq!(left.members.iter().map(|one| one.weight).collect::<Vec<_>>(), [1, 3, 1]);
        assert_eq!(replan(&topology, &stays(&[(0, 0), (1, 0), (2, 0), (3, 0)]), &sizes), Ok(topology));
    }

    #[test]
    fn pipelines_of_single_nodes_stay_pipelines() {
        let (mut topology, sizes) = before("tp4", 4);
        topology.layout = "pp4".parse().expect("a layout");
        let layers: Vec<Range<u32>> = OfFile { sizes: &sizes }.stages(4).expect("it has layers");
        topology.members.iter_mut().zip(layers).for_each(|(member, layers)| member.layers = layers);
        let left = replan(&topology, &stays(&[(0, 0), (2, 0), (3, 0)]), &sizes).expect("something is left");
        assert_eq!(left.layout.to_string(), "pp3-tp1");
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
        let stop = |topology: &Topology, member, now: &[Now], witness| {
            ok_to_stop((topology, topology), MemberIndex(member), now, witness, None)
        };
        let roomy = stop(&topology, 1, &[now(2000); 4], false);
        assert_eq!((roomy.replicas, roomy.layout().map(|layout| layout.to_string())), (0, Some("tp3".into())));
        assert!(roomy.is_ok());
        let tight = stop(&topology, 1, &[now(240); 4], false);
        assert!(!tight.is_ok() && tight.topology.is_none(), "{tight:?}");
        let mut half = [now(2000); 4];
        half[0] = Now { answers: false, serves: false, ..half[0] };
        assert!(!stop(&topology, 1, &half, false).is_ok(), "two of four decide nothing");
        let (two, _) = before("dp2-tp1", 2);
        assert_eq!(stop(&two, 0, &[now(240); 2], false).replicas, 1);
        let (four, _) = before("dp2-tp2", 4);
        let smaller = stop(&four, 0, &[now(2000); 4], false);
        assert_eq!((smaller.replicas, smaller.layout().map(|layout| layout.to_string())), (1, Some("tp1+tp2".into())));
        let gone = stop(&four, 0, &[now(300); 4], false);
        assert_eq!(
            gone.layout().map(|layout| layout.to_string()),
            Some("tp2".into()),
            "half of it has no room for all"
        );
        let (pair, _) = before("tp2", 2);
        assert!(!stop(&pair, 0, &[now(2000); 2], false).is_ok());
        assert!(stop(&pair, 0, &[now(2000); 2], true).is_ok());
    }
}
