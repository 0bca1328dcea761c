//! Reduces the desired topology to the members that are present, if the model fits there, and predicts the effect of
//! stopping a node. Pure.
use std::ops::Range;

use common::{ids::MemberIndex, units::Bytes};
use topology::{
    layout::{
        Layout,
        groups::{Group, Role},
    },
    shard::cut,
    sizes::ModelSizes,
    spec::{Member, Topology},
    split_model,
};

use super::{holding::Holding, memory, working::RankMemory};

/// Memory of a rank relative to its even part of a replica: cuts are uneven, and every rank holds the norms.
const UNEVEN: f64 = 1.1;
/// Working memory of a rank if the model's shape is unknown: that of an 8B model on four ranks.
const WORKING_ASSUMED: u64 = 64 << 20;

/// A member that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stays {
    /// Its index in the desired topology.
    pub member: MemberIndex,
    /// Its current address.
    pub address: String,
    /// Memory available for a shard; 0 if unknown.
    pub free: Bytes,
}

/// Memory requirements of a model: from its file, or estimated.
pub(super) trait Needs {
    /// The layers of `count` stages of equal cost; `None` if the model has fewer layers.
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>>;
    /// Memory that each member of a replica needs, in order.
    ///
    /// # Errors
    /// The model cannot be cut like this.
    fn of_replica(&self, topology: &Topology, replica: u16) -> Result<Vec<Bytes>, String>;
}

/// Checks that the members of a replica have room for their shards; `free` is their free memory, 0 if unknown.
fn fits(needs: &dyn Needs, topology: &Topology, replica: u16, free: &[Bytes]) -> Result<(), String> {
    let members = topology.members[topology.layout.members(replica)].iter();
    for ((needed, member), free) in needs.of_replica(topology, replica)?.into_iter().zip(members).zip(free) {
        if free.0 > 0 && needed > *free {
            let (layout, name) = (topology.layout, &member.name);
            return Err(format!("the shard of {layout} on node {name} needs {needed}, but {free} is free"));
        }
    }
    Ok(())
}

/// Reduces the desired topology to the members that are present. Complete replicas stay unchanged. Each of the others
/// continues with its remaining ranks if the model fits, otherwise it stops. If no replica remains, all members
/// together form one.
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
        moved.check().map_err(|error| error.to_string())?;
        let mut free = vec![Bytes(0); stay.len()];
        stay.iter().for_each(|one| free[one.member.index()] = one.free);
        (0..moved.layout.replicas).try_for_each(|one| fits(needs, &moved, one, &free[moved.layout.members(one)]))?;
        return Ok(moved);
    }
    let parts = if desired.layout.replicas > 1 { by_replica(desired, stay, needs) } else { None };
    match parts {
        Some(topology) => Ok(topology),
        None => as_one(desired, stay, needs),
    }
}

/// A replica that continues.
struct Kept {
    group: Group,
    members: Vec<Member>,
    is_complete: bool,
}

/// The complete replicas, and those that fit on their remaining members.
fn by_replica(desired: &Topology, stay: &[Stays], needs: &dyn Needs) -> Option<Topology> {
    let layout = desired.layout;
    let mut kept: Vec<Kept> = Vec::new();
    for replica in 0..layout.replicas {
        let there: Vec<&Stays> = stay.iter().filter(|one| layout.replica_of(one.member) == replica).collect();
        let before = &desired.members[layout.members(replica)];
        let is_complete = there.len() == before.len();
        let ranks = (there.len() / usize::from(layout.stages)) as u16;
        let group = Group { role: layout.role(replica), ranks };
        let part = Layout::alike(1, layout.stages, ranks.max(1));
        let chosen = most_memory(&there, usize::from(layout.stages) * usize::from(ranks));
        let members = chosen.iter().enumerate().map(|(rank, one)| {
            let stage = usize::from(part.place(MemberIndex(rank as u16)).stage);
            placed(desired, one, &before[stage * usize::from(layout.ranks_of(replica))].layers)
        });
        let (members, free): (Vec<Member>, Vec<Bytes>) = members.unzip();
        if is_complete {
            kept.push(Kept { group, members, is_complete });
        } else if ranks > 0
            && let Ok(topology) = fits_alone(desired, part, members, &free, needs)
        {
            kept.push(Kept { group, members: topology.members, is_complete });
        }
    }
    let has = |role| kept.iter().any(|one| one.group.role == role);
    if !(has(Role::Prefill) && has(Role::Decode)) {
        kept.iter_mut().for_each(|one| one.group.role = Role::Both);
    }
    together(desired, &kept).or_else(|| {
        // More replicas than can differ: complete ones are alike.
        kept.retain(|one| one.is_complete);
        together(desired, &kept)
    })
}

fn together(desired: &Topology, kept: &[Kept]) -> Option<Topology> {
    let groups: Vec<Group> = kept.iter().map(|one| one.group).collect();
    let layout = (!groups.is_empty()).then(|| Layout::of_replicas(&groups, desired.layout.stages))?.ok()?;
    let members = kept.iter().flat_map(|one| one.members.clone()).collect();
    let topology = Topology { layout, members, ..desired.clone() };
    topology.check().is_ok().then_some(topology)
}

/// A member of the desired topology at its current address, with these layers.
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
    let mut topology = Topology { layout, members, ..desired.clone() };
    let check = |topology: &Topology| {
        topology.check().map_err(|error| error.to_string())?;
        fits(needs, topology, 0, free)
    };
    let Err(reason) = check(&topology) else { return Ok(topology) };
    // Shares by speed can exceed the memory of a fast node: try equal shares.
    topology.members.iter_mut().for_each(|member| member.weight = 1);
    check(&topology).map(|()| topology).map_err(|_| reason)
}

/// A single replica: the nearest layout that can be cut and fits, on fewer nodes if necessary.
fn as_one(desired: &Topology, stay: &[Stays], needs: &dyn Needs) -> Result<Topology, String> {
    let mut first = None;
    let all: Vec<&Stays> = stay.iter().collect();
    let kind = Layout::alike(1, desired.layout.stages, desired.layout.ranks);
    for count in (1..=stay.len()).rev() {
        let chosen = most_memory(&all, count);
        for layout in [kind.on(count), Layout::tensor_parallel(count as u16), Layout::alike(1, count as u16, 1)] {
            let Some(stages) = needs.stages(layout.stages) else {
                first.get_or_insert(format!("{layout} has more stages than the model can have"));
                continue;
            };
            let members = chosen.iter().enumerate().map(|(index, one)| {
                placed(desired, one, &stages[usize::from(layout.place(MemberIndex(index as u16)).stage)])
            });
            let (members, free): (Vec<Member>, Vec<Bytes>) = members.unzip();
            match fits_alone(desired, layout, members, &free, needs) {
                Ok(topology) => return Ok(topology),
                Err(reason) => drop(first.get_or_insert(reason)),
            }
        }
    }
    Err(first.unwrap_or_else(|| "no member is left".into()))
}

/// Requirements from the sizes in the model's file.
pub(super) struct OfFile<'a> {
    pub(super) sizes: &'a ModelSizes,
}

impl Needs for OfFile<'_> {
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>> {
        let whole = cut(&self.sizes.spec, &[1]).ok()?;
        let holding = Holding { sizes: self.sizes, plan: &whole[0] };
        let costs: Vec<u64> = (0..self.sizes.spec.block_count())
            .map(|layer| holding.attention(layer).bytes + holding.feed_forward(layer, 1).bytes)
            .collect();
        split_model(&self.sizes.spec, &costs, holding.output().bytes, &vec![1; usize::from(count)])
    }

    fn of_replica(&self, topology: &Topology, replica: u16) -> Result<Vec<Bytes>, String> {
        let memory = memory::of_replica(self.sizes, topology, replica).map_err(|error| error.to_string())?;
        Ok(memory.iter().map(RankMemory::total).collect())
    }
}

/// Requirements estimated from the shards of a whole replica.
pub(super) struct Estimated {
    pub(super) whole: u64,
    pub(super) layers: u32,
}

impl Estimated {
    fn needed(&self, ranks: usize) -> Bytes {
        Bytes((self.whole as f64 * UNEVEN / ranks.max(1) as f64) as u64 + WORKING_ASSUMED)
    }
}

impl Needs for Estimated {
    /// Equal costs need no search; `layers` comes from a node's report.
    fn stages(&self, count: u16) -> Option<Vec<Range<u32>>> {
        let (layers, count) = (u64::from(self.layers), u64::from(count));
        let cut = |stage: u64| (stage * layers / count) as u32;
        (1..=layers).contains(&count).then(|| (0..count).map(|stage| cut(stage)..cut(stage + 1)).collect())
    }

    fn of_replica(&self, topology: &Topology, replica: u16) -> Result<Vec<Bytes>, String> {
        let ranks = topology.layout.members(replica).len();
        Ok(vec![self.needed(ranks); ranks])
    }
}

/// The current state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Whether it responds.
    pub answers: bool,
    /// Whether it serves.
    pub serves: bool,
    /// Memory available for a shard; 0 if unknown.
    pub free: Bytes,
    /// Size of its shard.
    pub shard: Bytes,
}

/// The effect of stopping a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Replicas that continue to serve without a pause.
    pub replicas: usize,
    /// Whether the remaining members have the majority to continue without the node.
    pub has_majority: bool,
    /// The topology that the rest would serve, or why nothing fits.
    pub topology: Result<Topology, String>,
    /// The largest memory that a node of the changed replica needs.
    pub needed: Bytes,
    /// Whether each node holds its next shard next to the current one, so that answers do not pause while it is loaded.
    pub holds_both: bool,
}

impl Outlook {
    /// Whether something serves after the node stops, immediately or after the remaining members are reassigned.
    pub fn is_ok(&self) -> bool {
        self.replicas > 0 || (self.topology.is_ok() && self.has_majority)
    }

    /// The layout that the rest would serve.
    pub fn layout(&self) -> Option<Layout> {
        self.topology.as_ref().ok().map(|topology| topology.layout)
    }
}

/// Predicts the effect of stopping a member: with `sizes`, by the same plan that the nodes would make, otherwise
/// estimated from the size of the current shards. `now` holds all members of `running` in order. A witness is not
/// counted.
pub fn ok_to_stop(
    running: &Topology,
    desired: &Topology,
    leaving: MemberIndex,
    now: &[Now],
    sizes: Option<&ModelSizes>,
) -> Outlook {
    let layout = running.layout;
    let own = layout.replica_of(leaving);
    let others = (0..layout.replicas).filter(|replica| *replica != own && !layout.has_roles());
    let replicas = others
        .filter(|replica| now.get(layout.members(*replica)).is_some_and(|all| all.iter().all(|one| one.serves)))
        .count();
    let rest: Vec<usize> = (0..running.members.len())
        .filter(|index| *index != leaving.index() && now.get(*index).is_some_and(|one| one.answers))
        .collect();
    let mut stay: Vec<Stays> = rest
        .iter()
        .filter_map(|index| {
            let member = &running.members[*index];
            let place = desired.members.iter().position(|one| one.name == member.name)?;
            let (address, free) = (member.address.clone(), now[*index].free);
            Some(Stays { member: MemberIndex(place as u16), address, free })
        })
        .collect();
    stay.sort_by_key(|one| one.member);
    let whole: u64 = (0..layout.replicas)
        .map(|replica| {
            now.get(layout.members(replica))
                .unwrap_or_default()
                .iter()
                .map(|one| one.shard.0)
                .fold(0, u64::saturating_add)
        })
        .max()
        .unwrap_or(0);
    let estimated = Estimated { whole, layers: desired.members.iter().map(|one| one.layers.end).max().unwrap_or(1) };
    let of_file = sizes.map(|sizes| OfFile { sizes });
    let needs: &dyn Needs = of_file.as_ref().map_or(&estimated, |of_file| of_file);
    let topology = shape(desired, &stay, needs);
    // The replica that its members then form; if it is gone, the one with some of them.
    let needed = topology.as_ref().ok().and_then(|next| {
        let member = next.members.iter().position(|member| {
            let place = running.members.iter().position(|one| one.name == member.name);
            place.is_some_and(|place| layout.replica_of(MemberIndex(place as u16)) == own)
        })?;
        let replica = next.layout.replica_of(MemberIndex(member as u16));
        needs.of_replica(next, replica).ok()?.into_iter().max()
    });
    let needed = needed.unwrap_or_else(|| estimated.needed(layout.members(own).len().saturating_sub(1)));
    let holds_both = topology.as_ref().is_ok_and(|next| holds_both(running, next, now, needs));
    Outlook { replicas, has_majority: rest.len() > now.len() / 2, topology, needed, holds_both }
}

/// Whether the members that get another shard have room for it next to the current one; those that report no memory
/// count as having it.
fn holds_both(running: &Topology, next: &Topology, now: &[Now], needs: &dyn Needs) -> bool {
    (0..next.layout.replicas).all(|replica| {
        let Ok(needed) = needs.of_replica(next, replica) else { return false };
        next.members[next.layout.members(replica)].iter().zip(needed).all(|(member, needed)| {
            let place = running.members.iter().position(|one| one.name == member.name);
            let Some((place, now)) = place.and_then(|place| Some((place, now.get(place)?))) else { return true };
            let is_kept = running.kept_in(MemberIndex(place as u16), next).is_some();
            is_kept || now.free.0 == 0 || needed.0.saturating_add(now.shard.0) <= now.free.0
        })
    })
}

#[cfg(test)]
mod tests;
