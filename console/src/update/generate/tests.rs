//! Seeds, the pinned result and the sampling form.
use common::{ids::Epoch, sampling::SamplingParameters};
use telemetry::{NodeReport, NodeState};
use topology::{Exclusions, Layout};

use crate::{
    fixtures::{Story, address, finished, name, running},
    keymap::KeyCode,
    state::{
        request::Phase,
        result::{Difference, GenerationResult, difference},
        status::hint,
    },
    update::effect::Effect,
    update::event::{Event, GenerateEvent},
};

fn sent(story: &Story) -> Vec<(&str, &SamplingParameters, u32)> {
    let all: Vec<_> = story
        .effects
        .iter()
        .filter_map(|effect: &'_ Effect| match effect {
            Effect::Generate { generate, .. } => Some(generate.clone()),
            _ => None,
        })
        .collect();
    let all: &'static Vec<_> = Box::leak(Box::new(all));
    all.iter().map(|one| (one.prompt.text().unwrap_or_default(), &one.sampling, one.max_tokens)).collect()
}

fn again(story: &mut Story, text: &str) {
    story.on(Event::Paste("ROMEO:".to_owned())).key(KeyCode::Enter).at(5000);
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1, 2] }).token(text);
    story.generate(GenerateEvent::Finished(Box::new(finished())));
}

#[test]
fn pinned_prompt_reuses_its_seed_and_texts_are_compared() {
    let mut story = Story::finished();
    story.key(KeyCode::Function(3));
    let pinned = story.state.generation.pinned.clone().expect("a result exists");
    again(&mut story, "another text");
    let now = GenerationResult::of(&story.state.generation.request).expect("generation is finished");
    assert_eq!((now.seed, pinned.seed), (42, 42));
    assert!(matches!(difference(&pinned, &now), Difference::From { at: 0, .. }));
    story.on(Event::Paste("other".to_owned())).key(KeyCode::Enter);
    let seeds: Vec<(&str, u64)> = sent(&story).iter().map(|(text, sampling, _)| (*text, sampling.seed)).collect();
    assert_eq!(seeds, [("ROMEO:", 42), ("ROMEO:", 42), ("other", 44)]);
}

#[test]
fn newer_result_replaces_the_pinned_one_and_the_same_unpins() {
    let mut story = Story::ready();
    story.key(KeyCode::Function(3));
    assert!(story.state.generation.pinned.is_none() && story.state.screen.notice.is_some());
    let mut story = Story::finished();
    story.key(KeyCode::Function(3)).on(Event::Paste("x".to_owned()));
    again(&mut story, "another text");
    story.key(KeyCode::Function(3));
    assert_eq!(story.state.generation.pinned.as_ref().map(|run| run.text.as_str()), Some("another text"));
    story.key(KeyCode::Function(3));
    assert_eq!(story.state.generation.pinned, None);
}

#[test]
fn form_values_are_applied_and_errors_shown_in_the_form() {
    let mut story = Story::finished();
    story.key(KeyCode::Function(2)).key(KeyCode::Backspace).key(KeyCode::Enter);
    let form = story.state.screen.form.as_ref().expect("form is still open");
    assert!(form.at == 0 && form.error.is_some());
    story.key(KeyCode::Char('9')).key(KeyCode::Down);
    story.on(Event::Paste("5".to_owned())).key(KeyCode::Enter);
    assert_eq!(story.state.screen.form, None);
    again(&mut story, "x");
    let last = sent(&story).last().map(|(_, sampling, tokens)| (sampling.temperature, *tokens));
    assert_eq!(last, Some((5.0, 9)));
    story.key(KeyCode::Function(2)).key(KeyCode::Char('7')).key(KeyCode::Esc);
    assert!(
        story.state.screen.form.is_none() && story.state.generation.defaults.max_tokens == 9,
        "Esc changes nothing"
    );
}

/// The nodes vote a member out: the prompt waits for their topology, because one that this console assigns would be the
/// desired one, and the member would not return.
#[test]
fn prompt_waits_for_the_topology_that_the_nodes_restore() {
    let voted_out = |recovers| {
        let mut story = Story::ready();
        let mut exclusions = Exclusions::default();
        exclusions.say(&name(3), &address(3), Some("too slow"), "the nodes");
        for node in 0..3 {
            let exclusions = exclusions.clone();
            story.report(node, NodeReport { exclusions, recovers, ..running(node, NodeState::Faulted, false) });
        }
        story.effects.clear();
        story.on(Event::Paste("x".to_owned())).key(KeyCode::Enter);
        assert_eq!(story.state.generation.request.phase, Phase::Held);
        story
    };
    let mut story = voted_out(true);
    assert_eq!(story.effects, []);
    assert!(hint(&story.state).contains("recover by themselves"), "{}", hint(&story.state));
    for node in 0..3 {
        let mut report = running(node, NodeState::Ready, false);
        let (topology, hash, _) = report.topology.as_mut().expect("it runs");
        topology.layout = Layout::alike(1, 1, 3);
        topology.members.truncate(3);
        *hash = topology.hash();
        report.epoch = Epoch(4);
        story.report(node, report);
    }
    assert!(matches!(story.effects.as_slice(), [Effect::Generate { head: 0, .. }]), "{:?}", story.effects);
    assert!(matches!(voted_out(false).effects.as_slice(), [Effect::Assign { .. }]));
}
