//! The figures of the running model, and what "best" means among the candidates.
use common::units::Bytes;
use planner::search::Goal;
use ratatui::text::Line;

use crate::{
    state::{
        State,
        clean::clean_line,
        plan::{Planning, division},
    },
    view::{theme::Theme, widgets::paragraph::paragraph},
};

/// The lines of the panel; none while no topology runs.
pub(super) fn lines_of(state: &State, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let Some((topology, _)) = state.cluster.topology() else { return Vec::new() };
    let mut texts = vec![(facts(state), theme.plain)];
    if let Planning::Done(planned) = &state.plan.answer {
        let best = planned.plan.ranked.first();
        let runs = best.is_some_and(|best| best.layout == topology.layout && planned.ask.model == topology.model);
        let standing = match best {
            None => "no layout fits these nodes".to_owned(),
            Some(_) if runs => "the best layout runs".to_owned(),
            Some(best) => format!("{} would be best; Enter assigns the selected one", best.layout),
        };
        texts.push((format!("Best is {}: {standing}.", meaning(state.plan.goal)), theme.dim));
        texts.extend(planned.plan.warnings.first().map(|warning| (format!("{warning}."), theme.warn)));
    }
    let cells = usize::from(width).saturating_sub(1);
    texts.into_iter().flat_map(|(text, style)| paragraph(&clean_line(&text), " ", style, cells)).collect()
}

/// The model in a sentence: what it is, and what it takes.
fn facts(state: &State) -> String {
    let Some((topology, _)) = state.cluster.topology() else { return String::new() };
    let mut parts = vec![topology.model.clone()];
    let layers = topology.members.iter().map(|member| member.layers.end).max().unwrap_or(0);
    parts.push(format!("{layers} layers"));
    if let Planning::Done(planned) = &state.plan.answer
        && planned.ask.model == topology.model
    {
        let spec = &planned.sizes.spec;
        parts.push(format!("{} wide", spec.embedding_length));
        parts.push(format!("vocabulary of {}", spec.vocabulary_length));
        parts.push(format!("context {} of {}", topology.context_length, spec.context_length));
    } else {
        parts.push(format!("context {}", topology.context_length));
    }
    parts.push(format!("{} at a time", topology.slots));
    if let Some(division) = division(state) {
        let copies = u64::from(topology.layout.replicas.max(1));
        let sum = |part: fn(&planner::working::RankMemory) -> Bytes| {
            Bytes(division.iter().map(|rank| part(rank).0).sum::<u64>() / copies)
        };
        let positions = u64::from(topology.context_length).saturating_mul(u64::from(topology.slots)).max(1);
        parts.push(format!("weights {}", sum(|rank| rank.weights)));
        parts.push(format!("KV cache {}", sum(|rank| rank.kv)));
        parts.push(format!("{} of {} a token", Bytes(sum(|rank| rank.kv).0 / positions), topology.kv));
    } else {
        parts.push(format!("KV in {}", topology.kv));
    }
    parts.push(format!("exchange in {}", topology.exchange));
    parts.join(", ")
}

/// What a goal prefers.
fn meaning(goal: Goal) -> &'static str {
    match goal {
        Goal::Balanced => "the fewest nodes that hold the model, then more ranks while each makes a token faster",
        Goal::Ttft => "the shortest time to the first token",
        Goal::Tpot => "the most tokens per second for one answer",
        Goal::Throughput => "the most tokens per second of all answers together",
        Goal::Latency => "the shortest time from a prompt to the end of its answer",
    }
}
