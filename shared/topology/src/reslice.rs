//! Computes which keys and values, and which parts of states, a rank of one group sends to the ranks of another group with
//! a different partition of the model. Pure.
use std::ops::Range;

use super::ShardPlan;

/// The keys, values and states that a rank sends to one rank of another group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The receiving rank, numbered in its group.
    pub to: usize,
    /// Layers, numbered in the whole model.
    pub layers: Range<usize>,
    /// KV heads in each kind of layer, numbered in the whole model.
    pub heads_kv: Vec<Range<usize>>,
    /// Units of the mixer in each kind of layer, numbered in the whole model; each rank holds others.
    pub units: Vec<Range<usize>>,
}

/// The routes of rank `own` of the group `from` to the ranks of the group `to`. A KV head that several ranks hold is
/// sent by the lowest of them, to all receivers that hold it: every rank of `to` receives each of its layers and heads
/// once.
pub fn routes(from: &[ShardPlan], own: usize, to: &[ShardPlan]) -> Vec<Route> {
    let Some(plan) = from.get(own) else { return Vec::new() };
    let before = from[..own].iter().filter(|other| other.layers == plan.layers);
    let own: Vec<Range<usize>> = plan
        .cuts
        .iter()
        .enumerate()
        .map(|(kind, cut)| {
            let sent = before.clone().map(|other| &other.cuts[kind].heads_kv).filter(|heads| !heads.is_empty());
            let sent = sent.map(|heads| heads.end).max();
            cut.heads_kv.start.max(sent.unwrap_or(0))..cut.heads_kv.end
        })
        .collect();
    let routes = to.iter().enumerate().filter_map(|(to, other)| {
        let layers = both(&plan.layers, &other.layers);
        let heads_kv: Vec<_> = own.iter().zip(&other.cuts).map(|(own, cut)| both(own, &cut.heads_kv)).collect();
        let units: Vec<_> = plan.cuts.iter().zip(&other.cuts).map(|(own, cut)| both(&own.heads, &cut.heads)).collect();
        let is_some = !layers.is_empty() && heads_kv.iter().chain(&units).any(|part| !part.is_empty());
        is_some.then_some(Route { to, layers, heads_kv, units })
    });
    routes.collect()
}

fn both(one: &Range<usize>, two: &Range<usize>) -> Range<usize> {
    one.start.max(two.start)..one.end.min(two.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LayerCut;

    /// A group of stages with these layers, each cut at these query heads; `per_kv` query heads share a KV head, which
    /// neighbouring ranks may both hold.
    fn group(stages: &[Range<usize>], cuts: &[usize], per_kv: usize) -> Vec<ShardPlan> {
        stages
            .iter()
            .flat_map(|layers| {
                cuts.windows(2).map(move |cut| {
                    let heads = cut[0]..cut[1];
                    let heads_kv =
                        if heads.is_empty() { 0..0 } else { heads.start / per_kv..heads.end.div_ceil(per_kv) };
                    let cuts = vec![LayerCut {
                        heads,
                        heads_kv,
                        columns: 0..32,
                        experts: None,
                        shared: 0..0,
                        rank: 1,
                        ranks: 2,
                    }];
                    ShardPlan { layers: layers.clone(), cuts, vocabulary: 0..32 }
                })
            })
            .collect()
    }

    /// All combinations of rank, layer and part, in order.
    fn listed(parts: impl Iterator<Item = (usize, Range<usize>, Range<usize>)>) -> Vec<(usize, usize, usize)> {
        let mut list = Vec::new();
        for (rank, layers, parts) in parts {
            list.extend(layers.flat_map(|layer| parts.clone().map(move |part| (rank, layer, part))));
        }
        list.sort_unstable();
        list
    }

    #[test]
    fn every_rank_receives_each_layer_and_part_once() {
        let all = std::slice::from_ref(&(0..6));
        let groups = |per_kv: usize| {
            [
                group(all, &[0, 8], per_kv),
                group(all, &[0, 4, 8], per_kv),
                group(all, &[0, 3, 6, 8], per_kv),
                group(all, &[0, 1, 2, 3, 4, 5, 6, 7, 8], per_kv),
                group(all, &[0, 0, 5, 8], per_kv),
                group(&[0..2, 2..6], &[0, 7, 8], per_kv),
                group(&[0..5, 5..6], &[0, 2, 4, 8], per_kv),
            ]
        };
        for per_kv in [1, 2, 4, 8] {
            for (from, to) in groups(per_kv).iter().flat_map(|from| groups(per_kv).map(|to| (from.clone(), to))) {
                let parts = |of: fn(&Route) -> &Range<usize>| {
                    let routes = (0..from.len()).flat_map(|own| routes(&from, own, &to));
                    listed(routes.map(|route| (route.to, route.layers.clone(), of(&route).clone())))
                };
                let held = |of: fn(&LayerCut) -> &Range<usize>| {
                    let ranks = to.iter().enumerate();
                    listed(ranks.map(|(rank, plan)| (rank, plan.layers.clone(), of(&plan.cuts[0]).clone())))
                };
                let heads_kv = (parts(|route| &route.heads_kv[0]), held(|cut| &cut.heads_kv));
                assert_eq!(heads_kv.0, heads_kv.1, "{per_kv} heads a KV head, {from:?} to {to:?}");
                assert_eq!(parts(|route| &route.units[0]), held(|cut| &cut.heads), "{from:?} to {to:?}");
            }
        }
        assert_eq!(routes(&[], 0, &[]), []);
    }
}
