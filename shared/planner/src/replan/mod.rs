//! Reduces the desired topology to the members that are present, if the model fits there, and predicts the effect of
//! stopping or losing a node. Pure.
mod needs;

use std::{cmp::Reverse, ops::Range};

use common::{ids::MemberIndex, units::Bytes};
use topology::{
    layout::{
        Layout,
        groups::{Group, Role},
    },
    sizes::ModelSizes,
    spec::{Member, Topology},
};

use self::needs::{Estimated, Needs, OfFile, Remembered, WORKING_ASSUMED};

/// Weight of the rank with the most memory of its stage, if shares follow memory.
const WEIGHT_MOST: u64 = 256;
/// Least weight of a rank then: with a smaller share, a node costs the others more time than it saves.
const WEIGHT_LEAST: u64 = 16;

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
/// together form one. The plan depends only on the arguments, so all nodes make the same one.
///
/// # Errors
/// Nothing fits; the reason of the nearest layout.
pub fn replan(desired: &Topology, stay: &[Stays], sizes: &ModelSizes) -> Result<Topology, String> {
    shape(desired, stay, &OfFile { sizes })
}

/// Whether a replica of a topology could continue after the loss of any one of its members: the only one with all of
/// its other members, one of several as [`replan`] reduces it. `free` is the free memory of its members, 0 if unknown.
/// True if it has too few members to continue, however little memory it needs.
pub fn survives_loss(topology: &Topology, replica: u16, free: &[Bytes], sizes: &ModelSizes) -> bool {
    let layout = topology.layout;
    let members = layout.members(replica);
    let least = if layout.replicas > 1 { usize::from(layout.stages) } else { 1 };
    if members.len() <= least {
        return true;
    }
    let all = members.zip(free).map(|(member, free)| {
        let address = topology.members[member].address.clone();
        Stays { member: MemberIndex(member as u16), address, free: *free }
    });
    let mut all: Vec<Stays> = all.collect();
    // Without the node with the most memory it fits least likely, so that one comes first.
    all.sort_by_key(|one| Reverse(one.free));
    let needs = Remembered::new(sizes);
    all.iter().all(|lost| {
        let mut rest: Vec<&Stays> = all.iter().filter(|one| one.member != lost.member).collect();
        rest.sort_by_key(|one| one.member);
        if layout.replicas > 1 {
            return remaining(topology, replica, &rest, &needs).is_some();
        }
        Division::BOTH.iter().any(|division| on_all(topology, &rest, &needs, *division).is_ok())
    })
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
        kept.extend(remaining(desired, replica, &there, needs));
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

/// What remains of a replica on these of its members, with the same stages; `None` if it does not fit.
fn remaining(desired: &Topology, replica: u16, there: &[&Stays], needs: &dyn Needs) -> Option<Kept> {
    let layout = desired.layout;
    let before = &desired.members[layout.members(replica)];
    let is_complete = there.len() == before.len();
    let ranks = (there.len() / usize::from(layout.stages)) as u16;
    if ranks == 0 {
        return None;
    }
    let group = Group { role: layout.role(replica), ranks };
    let part = Layout::alike(1, layout.stages, ranks);
    let chosen = most_memory(there, usize::from(layout.stages) * usize::from(ranks));
    let members = chosen.iter().enumerate().map(|(rank, one)| {
        let stage = usize::from(part.place(MemberIndex(rank as u16)).stage);
        placed(desired, one, &before[stage * usize::from(layout.ranks_of(replica))].layers)
    });
    let members: Vec<Member> = members.collect();
    if is_complete {
        return Some(Kept { group, members, is_complete });
    }
    let free: Vec<Bytes> = chosen.iter().map(|one| one.free).collect();
    let alone = Topology { layout: part, members, ..desired.clone() };
    let Topology { members, .. } = fits_with_any_shares(alone, &free, needs).ok()?;
    Some(Kept { group, members, is_complete })
}

fn together(desired: &Topology, kept: &[Kept]) -> Option<Topology> {
    let groups: Vec<Group> = kept.iter().map(|one| one.group).collect();
    let layout = (!groups.is_empty()).then(|| Layout::of_replicas(&groups, desired.layout.stages))?.ok()?;
    let members = kept.iter().flat_map(|one| one.members.clone()).collect();
    let topology = Topology { layout, members, ..desired.clone() };
    topology.check().is_ok().then_some(topology)
}

/// A member of the desired topology at its current address, with these layers.
fn placed(desired: &Topology, one: &Stays, layers: &Range<u32>) -> Member {
    let before = desired.members[one.member.index()].clone();
    Member { address: one.address.clone(), layers: layers.clone(), ..before }
}

/// The `count` members with the most free memory, in their original order.
fn most_memory<'a>(there: &[&'a Stays], count: usize) -> Vec<&'a Stays> {
    let mut by_memory: Vec<usize> = (0..there.len()).collect();
    by_memory.sort_by_key(|index| Reverse(there[*index].free));
    by_memory.truncate(count);
    by_memory.sort_unstable();
    by_memory.into_iter().map(|index| there[index]).collect()
}

/// Checks a topology of a single replica.
fn check_alone(topology: &Topology, free: &[Bytes], needs: &dyn Needs) -> Result<(), String> {
    topology.check().map_err(|error| error.to_string())?;
    fits(needs, topology, 0, free)
}

/// The topology with its shares, or with equal ones, if that fits.
fn fits_alone(mut topology: Topology, free: &[Bytes], needs: &dyn Needs) -> Result<Topology, String> {
    let Err(reason) = check_alone(&topology, free, needs) else { return Ok(topology) };
    if topology.members.iter().all(|member| member.weight == topology.members[0].weight) {
        return Err(reason);
    }
    // Shares by speed can exceed the memory of a fast node: try equal shares.
    topology.members.iter_mut().for_each(|member| member.weight = 1);
    check_alone(&topology, free, needs).map(|()| topology).map_err(|_| reason)
}

/// Like [`fits_alone`], at last with shares in proportion to the free memory of the nodes.
fn fits_with_any_shares(mut topology: Topology, free: &[Bytes], needs: &dyn Needs) -> Result<Topology, String> {
    let reason = match fits_alone(topology.clone(), free, needs) {
        Ok(topology) => return Ok(topology),
        Err(reason) => reason,
    };
    let Some(weights) = weights_by_memory(topology.layout, free) else { return Err(reason) };
    topology.members.iter_mut().zip(weights).for_each(|(member, weight)| member.weight = weight);
    check_alone(&topology, free, needs).map(|()| topology).map_err(|_| reason)
}

/// Weights of the ranks of a single replica in proportion to the memory that they have free for shards; `None` if its
/// stages have one rank each, or if the memory of a rank is unknown or too little for a share worth having.
fn weights_by_memory(layout: Layout, free: &[Bytes]) -> Option<Vec<u32>> {
    if layout.ranks < 2 {
        return None;
    }
    let room: Vec<u64> = free.iter().map(|free| free.0.saturating_sub(WORKING_ASSUMED)).collect();
    let weights = room.chunks(usize::from(layout.ranks)).flat_map(|stage| {
        let most = stage.iter().copied().max().unwrap_or(0).max(1);
        stage.iter().map(move |room| (u128::from(*room) * u128::from(WEIGHT_MOST) / u128::from(most)) as u64)
    });
    weights.map(|weight| (weight >= WEIGHT_LEAST).then_some(weight as u32)).collect()
}

/// How the layers of a replica are divided among its stages, and each layer among its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// Stages of equal cost, with the given or equal shares.
    Even,
    /// As the free memory of the nodes, which must be known, allows.
    ByMemory,
}

impl Division {
    /// Even stages are faster, so they come first.
    const BOTH: [Self; 2] = [Self::Even, Self::ByMemory];
}

/// A single replica: the nearest layout that can be cut and fits, on fewer nodes if necessary.
fn as_one(desired: &Topology, stay: &[Stays], needs: &dyn Needs) -> Result<Topology, String> {
    let mut first = None;
    let all: Vec<&Stays> = stay.iter().collect();
    for division in Division::BOTH {
        for count in (1..=stay.len()).rev() {
            match on_all(desired, &most_memory(&all, count), needs, division) {
                Ok(topology) => return Ok(topology),
                Err(reason) => drop(first.get_or_insert(reason)),
            }
        }
    }
    Err(first.unwrap_or_else(|| "no member is left".into()))
}

/// A single replica on exactly these members.
fn on_all(desired: &Topology, chosen: &[&Stays], needs: &dyn Needs, division: Division) -> Result<Topology, String> {
    let count = chosen.len() as u16;
    let free: Vec<Bytes> = chosen.iter().map(|one| one.free).collect();
    if division == Division::ByMemory && free.contains(&Bytes(0)) {
        return Err("the free memory of a node is unknown".into());
    }
    let kind = Layout::alike(1, desired.layout.stages, desired.layout.ranks);
    let layouts = [kind.on(chosen.len()), Layout::tensor_parallel(count), Layout::alike(1, count, 1)];
    let mut first = None;
    for (tried, layout) in layouts.into_iter().enumerate() {
        if layouts[..tried].contains(&layout) {
            continue;
        }
        let within = match division {
            Division::Even => None,
            Division::ByMemory => needs.stages_within(desired, layout, &free),
        };
        let Some(stages) = within.or_else(|| needs.stages(layout.stages)) else {
            first.get_or_insert(format!("{layout} has more stages than the model can have"));
            continue;
        };
        let members = chosen.iter().enumerate().map(|(index, one)| {
            placed(desired, one, &stages[usize::from(layout.place(MemberIndex(index as u16)).stage)])
        });
        let topology = Topology { layout, members: members.collect(), ..desired.clone() };
        let found = match division {
            Division::Even => fits_alone(topology, &free, needs),
            Division::ByMemory => fits_with_any_shares(topology, &free, needs),
        };
        match found {
            Ok(topology) => return Ok(topology),
            Err(reason) => drop(first.get_or_insert(reason)),
        }
    }
    Err(first.unwrap_or_else(|| "no member is left".into()))
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
