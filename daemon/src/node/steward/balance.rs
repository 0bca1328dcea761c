//! Rebalances the shares of a stage from the recently measured compute time of its ranks: a rank that computes longer
//! than its peers gets a smaller share. Pure.
use common::{ids::MemberIndex, latency::ratio};
use topology::{Member, Topology};

use crate::node::steward::View;

/// New shares are worth a reload only if they shorten the step to this fraction of its current time or less.
const WORTH: f64 = 0.9;
/// Approximate sum of the new weights of a stage; finer than the unit in which any model is cut.
const WHOLE: f64 = 1000.0;
/// Smallest weight of a rank.
const LEAST: u32 = 20;
/// Largest weight of a member that [`Topology::check`] accepts.
const WEIGHT_MAX: u64 = 1 << 20;

/// The topology with new weights in the stages that gain enough from them; `None` if no stage does.
pub(super) fn rebalanced(topology: &Topology, views: &[View]) -> Option<Topology> {
    if topology.layout.has_roles() {
        return None;
    }
    let mut next = topology.clone();
    let mut is_other = false;
    for member in 0..topology.members.len() {
        let index = MemberIndex(member as u16);
        let place = topology.place(index);
        let begin = member - place.rank.index() + usize::from(place.group.start);
        let stage = begin..begin + place.group.len();
        if member != begin || stage.len() < 2 {
            continue;
        }
        let busy: Option<Vec<f64>> = views
            .get(stage.clone())?
            .iter()
            .map(|view| Some(f64::from(view.standing.as_ref()?.busy?.max(1))))
            .collect();
        let weights: Vec<f64> = topology.members[stage.clone()].iter().map(|one| f64::from(one.weight)).collect();
        let Some(shares) = busy.and_then(|busy| shares(&weights, &busy)) else { continue };
        next.members[stage].iter_mut().zip(shares).for_each(|(one, share)| one.weight = share);
        is_other = true;
    }
    is_other.then_some(next)
}

/// New weights for ranks with these `weights` that compute for `busy` thousandths of a step.
fn shares(weights: &[f64], busy: &[f64]) -> Option<Vec<u32>> {
    // Work per unit of compute time.
    let speeds: Vec<f64> = weights.iter().zip(busy).map(|(weight, busy)| ratio(*weight, *busy)).collect();
    let (all, held): (f64, f64) = (speeds.iter().sum(), weights.iter().sum());
    let longest = busy.iter().copied().fold(0.0, f64::max);
    let together = ratio(held, all);
    let shares = speeds.iter().map(|speed| ((WHOLE * ratio(*speed, all)).round() as u32).max(LEAST));
    // The part of a step in which even the slowest rank waits does not change.
    (1000.0 - longest + together <= WORTH * 1000.0).then(|| shares.collect())
}

/// The desired topology with the shares of `now`. Weights count only relative to those of the same stage, so the
/// weights of absent members are scaled like those of the present members of their stage.
pub(in crate::node) fn with_shares(desired: &Topology, now: &Topology) -> Topology {
    let mut wanted = desired.clone();
    let stage = |index: usize| {
        let place = desired.place(MemberIndex(index as u16));
        (place.replica, place.stage)
    };
    let held =
        |member: &Member| now.members.iter().find(|one| one.name == member.name).map(|one| u64::from(one.weight));
    for (index, member) in desired.members.iter().enumerate() {
        let of_stage = desired.members.iter().enumerate().filter(|(other, _)| stage(*other) == stage(index));
        let present = of_stage.filter_map(|(_, one)| Some((held(one)?, u64::from(one.weight))));
        let (new, old) = present.fold((0, 0), |sums, weights| (sums.0 + weights.0, sums.1 + weights.1));
        let scaled = (u64::from(member.weight) * new + old / 2).checked_div(old).unwrap_or(u64::from(member.weight));
        wanted.members[index].weight = held(member).unwrap_or(scaled).clamp(1, WEIGHT_MAX) as u32;
    }
    wanted
}

#[cfg(test)]
mod tests {
    use telemetry::NodeState;
    use topology::Layout;

    use super::*;
    use crate::node::tests::steward::{base, view};

    fn weights(layout: Layout, held: &[u32], busy: &[Option<u16>]) -> Option<Vec<u32>> {
        let mut base = base(held.len() as u16);
        base.topology.layout = layout;
        base.topology.members.iter_mut().zip(held).for_each(|(member, weight)| member.weight = *weight);
        let mut views: Vec<View> = (0..held.len()).map(|index| view(&base, index, NodeState::Serving)).collect();
        for (view, busy) in views.iter_mut().zip(busy) {
            view.standing.as_mut().expect("it answers").busy = *busy;
        }
        rebalanced(&base.topology, &views).map(|next| next.members.iter().map(|member| member.weight).collect())
    }

    #[test]
    fn slower_rank_gets_smaller_share_unless_gain_is_small() {
        let tp2 = Layout::tensor_parallel(2);
        // The second node is throttled to 0.6 of its speed: it computes all the time, its peer for 0.6 of it.
        assert_eq!(weights(tp2, &[1, 1], &[Some(600), Some(1000)]), Some(vec![625, 375]));
        // It runs at full speed again.
        assert_eq!(weights(tp2, &[625, 375], &[Some(1000), Some(600)]), Some(vec![500, 500]));
        assert_eq!(weights(tp2, &[1, 1], &[Some(900), Some(1000)]), None);
        assert_eq!(weights(tp2, &[1, 1], &[Some(600), None]), None, "one rank has no measurement");
        let three = weights(Layout::tensor_parallel(3), &[1; 3], &[Some(500), Some(500), Some(1000)]);
        assert_eq!(three, Some(vec![400, 400, 200]));
    }

    #[test]
    fn each_stage_of_each_replica_is_balanced_separately() {
        let busy = [Some(500), Some(1000), Some(1000), Some(1000)];
        for layout in [Layout::alike(2, 1, 2), Layout::alike(1, 2, 2)] {
            assert_eq!(weights(layout, &[1; 4], &busy), Some(vec![667, 333, 1, 1]));
        }
        assert_eq!(weights(Layout::alike(4, 1, 1), &[1; 4], &busy), None, "a stage of one rank has nothing to balance");
    }
}
