//! The scheduler's decisions without ranks: the plans it makes, and that every plan can be applied.
mod awaited;
mod drafting;
mod follow;
mod load;

use common::sampling::SamplingParameters;

use topology::{KvBlocks, StateCount};

use super::*;
use crate::plan::{Constraint, Sequences};

const LIMITS: Limits = Limits {
    slots: 2,
    blocks: KvBlocks::alike(9),
    window: None,
    context_length: 256,
    vocabulary_length: 100,
    states: StateCount::NONE,
};

fn request(key: u64, prompt: usize, max_tokens: usize) -> Admitted {
    let sampling = SamplingParameters::default();
    let prompt = vec![key as u32; prompt];
    Admitted { key: RequestKey(key), prompt, max_tokens, sampling, drafts_max: 0, grammar: None }
}

fn next(scheduler: &mut Scheduler) -> Option<Plan> {
    let mut plan = Plan::default();
    scheduler.next_plan(&mut plan).then_some(plan)
}

#[test]
fn prompts_run_in_chunks_mixed_with_running_answers() {
    let mut scheduler = Scheduler::new(LIMITS);
    let mut follower = Sequences::new(LIMITS);
    let mut step = |scheduler: &mut Scheduler| {
        let plan = next(scheduler).expect("there is work");
        follower.apply(&plan).expect("the head's plan can be applied");
        let mut payload = Vec::new();
        plan.encode(&mut payload);
        let mut decoded = Plan { closed: vec![Slot(9)], ..Plan::default() };
        assert_eq!((decoded.decode(&payload), &decoded), (Ok(()), &plan));
        (0..payload.len()).for_each(|end| assert!(decoded.decode(&payload[..end]).is_err(), "cut at {end}"));
        payload.push(0);
        assert!(decoded.decode(&payload).is_err());
        plan
    };
    scheduler.submit(request(1, 3, 5));
    let first = step(&mut scheduler);
    assert_eq!((first.entries.len(), first.is_prefill, first.continues), (3, true, false));
    assert_eq!(first.entries.iter().filter(|entry| entry.wants_logits).count(), 1);
    scheduler.sampled(Slot(0), 7);
    scheduler.submit(request(2, 200, 5));
    let second = step(&mut scheduler);
    assert_eq!(second.entries.len(), 1 + 16, "the initial share of a prompt next to an answer");
    assert_eq!(second.entries[0], PlanEntry { slot: Slot(0), position: 3, token: 7, wants_logits: true });
    scheduler.sampled(Slot(0), 8);
    scheduler.end(RequestKey(1));
    let third = step(&mut scheduler);
    assert_eq!((third.closed.as_slice(), third.entries.len()), (&[Slot(0)][..], STEP_TOKENS_MAX));
    assert!(third.continues && third.entries.iter().all(|entry| entry.slot == Slot(1)));
    scheduler.end(RequestKey(2));
    assert!(!scheduler.has_work());
    scheduler.submit(request(3, 3, 5));
    assert!(!step(&mut scheduler).continues, "the time in between was idle");
    scheduler.end(RequestKey(3));
    assert!(next(&mut scheduler).is_none() && !scheduler.has_work());
}

#[test]
fn request_waits_for_slots_and_blocks_and_none_leak() {
    let mut scheduler = Scheduler::new(LIMITS);
    (1..=3).for_each(|key| scheduler.submit(request(key, 100, 28)));
    for round in 0..3 {
        // A sequence whose prompt is computed continues with a token.
        scheduler.sampled(Slot(0), 7);
        let plan = next(&mut scheduler).expect("there is work");
        let opened: Vec<Slot> = plan.opened.iter().map(|opened| opened.slot).collect();
        assert_eq!(opened.len(), if round == 0 { 2 } else { usize::from(round == 1) }, "round {round}");
        scheduler.end(RequestKey(round + 1));
    }
    assert!(!scheduler.has_work());
    assert_eq!(scheduler.blocks.available(), LIMITS.blocks.whole);
}

#[test]
fn answers_alternate_in_pipeline_and_empty_step_is_none() {
    let limits = Limits { slots: 5, blocks: KvBlocks::alike(10), window: None, ..LIMITS };
    let mut scheduler = Scheduler::new(limits).with_stages(2, 64);
    (1..=5).for_each(|key| scheduler.submit(request(key, 2, 5)));
    let slots =
        |plan: Option<Plan>| plan.map_or(Vec::new(), |plan| plan.entries.iter().map(|entry| entry.slot.0).collect());
    assert_eq!(next(&mut scheduler).map(|plan| plan.entries.len()), Some(10), "prompts run at once");
    assert_eq!(next(&mut scheduler), None, "all wait for their tokens");
    (0..5).for_each(|slot| scheduler.sampled(Slot(slot), 7));
    scheduler.end(RequestKey(2));
    let (first, second) = (next(&mut scheduler), next(&mut scheduler));
    assert_eq!(first.as_ref().map(|plan| plan.closed.clone()), Some(vec![Slot(1)]));
    assert_eq!((slots(first), slots(second)), (vec![0, 2], vec![3, 4]));
    scheduler.end(RequestKey(1));
    assert_eq!(next(&mut scheduler), None, "a finished sequence is closed with the next step");
    scheduler.sampled(Slot(2), 8);
    let third = next(&mut scheduler).expect("one continues");
    assert_eq!((third.closed.as_slice(), third.continues), (&[Slot(0)][..], true));
}

#[test]
fn answer_in_a_high_slot_gets_its_turn_where_tokens_return_early() {
    let limits = Limits { slots: 3, blocks: KvBlocks::alike(10), window: None, ..LIMITS };
    let mut scheduler = Scheduler::new(limits).with_stages(3, 64);
    (1..=3).for_each(|key| scheduler.submit(request(key, 2, 5)));
    next(&mut scheduler).expect("prompts run at once");
    (0..3).for_each(|slot| scheduler.sampled(Slot(slot), 7));
    let mut turn = || next(&mut scheduler).map(|plan| plan.entries[0].slot);
    assert_eq!([turn(), turn()], [Some(Slot(0)), Some(Slot(1))]);
    scheduler.sampled(Slot(0), 8);
    assert_eq!(next(&mut scheduler).map(|plan| plan.entries[0].slot), Some(Slot(2)));
    assert_eq!(next(&mut scheduler).map(|plan| plan.entries[0].slot), Some(Slot(0)));
}

#[test]
fn plan_outside_limits_is_refused() {
    let good = |mutate: &dyn Fn(&mut Plan)| {
        let mut scheduler = Scheduler::new(LIMITS);
        scheduler.submit(request(1, 3, 5));
        let mut plan = next(&mut scheduler).expect("there is work");
        mutate(&mut plan);
        Sequences::new(LIMITS).apply(&plan)
    };
    assert_eq!(good(&|_| {}), Ok(()));
    assert!(good(&|plan| plan.entries[0].slot = Slot(9)).is_err());
    assert!(good(&|plan| plan.entries[0].position = 300).is_err());
    assert!(good(&|plan| plan.entries[1].token = 100).is_err());
    assert!(good(&|plan| plan.blocks[0].1 = 9).is_err());
    assert!(good(&|plan| plan.blocks.clear()).is_err());
    assert!(good(&|plan| plan.opened[0].prompt[1] = 100).is_err());
    assert!(good(&|plan| plan.opened[0].slot = Slot(2)).is_err());
    assert!(good(&|plan| plan.closed.push(Slot(1))).is_err());
    assert!(good(&|plan| plan.entries.clear()).is_err());
}

/// A compute-bound machine: a step takes as long as reading its weights, or computing its rows, in microseconds.
fn step_time(rows: usize) -> u64 {
    17_000.max(4_500 * rows as u64) + 500 * rows as u64
}

const LONG: Limits = Limits {
    slots: 4,
    blocks: KvBlocks::alike(400),
    window: None,
    context_length: 8192,
    vocabulary_length: 100,
    states: StateCount::NONE,
};

/// Runs a step and returns its time in microseconds. Every slot that wanted a token gets one.
fn run(scheduler: &mut Scheduler, follower: &mut Sequences) -> (Plan, u64) {
    let plan = next(scheduler).expect("there is work");
    follower.apply(&plan).expect("the head's plan can be applied");
    let time = step_time(plan.entries.len());
    scheduler.record_time(&plan, Nanoseconds(1000 * time));
    for entry in plan.entries.iter().filter(|entry| entry.wants_logits) {
        scheduler.sampled(entry.slot, 1 + entry.position % 97);
    }
    (plan, time)
}

#[test]
fn long_prompt_at_most_doubles_time_per_token() {
    let (mut scheduler, mut follower) = (Scheduler::new(LONG), Sequences::new(LONG));
    scheduler.submit(request(1, 200, 4000));
    let alone: Vec<u64> = (0..40).map(|_| run(&mut scheduler, &mut follower).1).skip(10).collect();
    let alone = alone.iter().sum::<u64>() as f64 / alone.len() as f64;
    scheduler.submit(request(2, 2000, 4));
    let mut beside = Vec::new();
    loop {
        let (plan, time) = run(&mut scheduler, &mut follower);
        if !plan.is_prefill {
            break;
        }
        beside.push(time as f64);
    }
    let mean = beside.iter().sum::<f64>() / beside.len() as f64;
    assert!(mean <= 2.0 * alone, "{mean} after {alone}");
    assert!(beside[5..].iter().all(|time| *time <= 2.0 * alone), "{beside:?}");
    // Not slower than necessary: half of the machine's time belongs to the prompt.
    assert!(beside.len() <= 410, "{} steps", beside.len());
}

#[test]
fn short_prompt_passes_long_one_and_equal_ones_are_fifo() {
    let (mut scheduler, mut follower) = (Scheduler::new(LONG), Sequences::new(LONG));
    scheduler.submit(request(1, 4096, 4));
    run(&mut scheduler, &mut follower);
    scheduler.submit(request(2, 100, 4));
    let answered =
        |plan: &Plan, slot: u16| plan.entries.iter().any(|entry| entry.slot == Slot(slot) && entry.wants_logits);
    let steps = (1..).find(|_| answered(&run(&mut scheduler, &mut follower).0, 1));
    assert_eq!(steps, Some(2), "it gets half of each step");
    let (mut scheduler, mut follower) = (Scheduler::new(LONG), Sequences::new(LONG));
    (1..=3).for_each(|key| scheduler.submit(request(key, 512, 1)));
    let mut order = Vec::new();
    while order.len() < 3 {
        let (plan, _) = run(&mut scheduler, &mut follower);
        for slot in (0..3).filter(|slot| answered(&plan, *slot)) {
            order.push(slot);
            scheduler.end(RequestKey(u64::from(slot) + 1));
        }
    }
    assert_eq!(order, [0, 1, 2]);
}

#[test]
fn equal_prefixes_are_computed_once() {
    let (mut scheduler, mut follower) = (Scheduler::new(LONG), Sequences::new(LONG));
    let prompt: Vec<u32> = (0..300).map(|index| index % 89).collect();
    for key in 1..=3 {
        scheduler.submit(Admitted { prompt: prompt.clone(), ..request(key, 1, 400) });
    }
    scheduler.submit(request(4, 20, 400));
    let (plan, _) = run(&mut scheduler, &mut follower);
    let opened: Vec<(u16, u32)> = plan.opened.iter().map(|opened| (opened.slot.0, opened.cached)).collect();
    assert_eq!(opened, [(0, 0), (1, 0)], "the first of the equal prompts, and the one with another prefix");
    let opened = loop {
        let (plan, _) = run(&mut scheduler, &mut follower);
        if !plan.opened.is_empty() {
            break plan.opened;
        }
    };
    let cached: Vec<u32> = opened.iter().map(|opened| opened.cached).collect();
    assert!(cached.iter().all(|cached| (288..300).contains(cached)), "{cached:?}");
}

#[test]
fn constrained_request_waits_for_vocabulary_and_delays_none() {
    let (mut scheduler, mut follower) = (Scheduler::new(LONG), Sequences::new(LONG));
    let constrained = |key: u64| {
        let grammar = Some(Constraint { grammar: common::chat::Grammar::Json.into(), begin: 20 });
        Admitted { grammar, ..request(key, 20, 5) }
    };
    scheduler.set_masks_ready(false);
    scheduler.submit(constrained(1));
    let (plan, _) = run(&mut scheduler, &mut follower);
    assert_eq!((plan.opened.len(), plan.prepares), (1, false), "no other request would wait");
    scheduler.submit(constrained(2));
    scheduler.submit(request(3, 20, 5));
    for _ in 0..3 {
        let (plan, _) = run(&mut scheduler, &mut follower);
        assert!(plan.prepares && plan.opened.iter().all(|opened| opened.grammar.is_none()), "{plan:?}");
    }
    assert_eq!(scheduler.key(Slot(1)), Some(RequestKey(3)), "a later request passed it");
    scheduler.set_masks_ready(true);
    let (plan, _) = run(&mut scheduler, &mut follower);
    assert_eq!((plan.opened.len(), plan.prepares, scheduler.key(Slot(2))), (1, false, Some(RequestKey(2))));
}

#[test]
fn constrained_request_waits_for_its_masks_and_delays_none() {
    let (mut scheduler, mut follower) = (Scheduler::new(LONG), Sequences::new(LONG));
    let grammar = Some(Constraint { grammar: common::chat::Grammar::Json.into(), begin: 20 });
    scheduler.submit(request(1, 20, 50));
    run(&mut scheduler, &mut follower);
    scheduler.submit(Admitted { grammar, ..request(2, 20, 5) });
    let held = Slot(1);
    let (plan, _) = run(&mut scheduler, &mut follower);
    assert!(plan.opened.iter().any(|opened| opened.slot == held), "the ranks begin to compile");
    for is_compiled in [false, false, true] {
        assert!(plan.entries.iter().all(|entry| entry.slot != held), "{plan:?}");
        scheduler.release_compiled(|slot| slot != held || is_compiled);
        let (plan, _) = run(&mut scheduler, &mut follower);
        assert_eq!(plan.entries.iter().any(|entry| entry.slot == held), is_compiled, "{plan:?}");
        assert!(plan.entries.iter().any(|entry| entry.slot == Slot(0)), "the other answer continues");
    }
}

#[test]
fn constrained_request_alone_is_not_held_back() {
    let (mut scheduler, mut follower) = (Scheduler::new(LONG), Sequences::new(LONG));
    let grammar = Some(Constraint { grammar: common::chat::Grammar::Json.into(), begin: 20 });
    scheduler.submit(Admitted { grammar, ..request(1, 20, 5) });
    let (plan, _) = run(&mut scheduler, &mut follower);
    assert_eq!((plan.opened.len(), plan.entries.len()), (1, 20));
}

#[test]
fn speculation_changes_only_the_number_of_steps() {
    let limits = Limits {
        slots: 3,
        blocks: KvBlocks::alike(60),
        window: None,
        context_length: 400,
        vocabulary_length: 100,
        states: StateCount::NONE,
    };
    speculate(limits);
    speculate(Limits { states: StateCount::of(3), ..limits });
}

/// Serves three requests without and with speculation.
fn speculate(limits: Limits) {
    // A text that repeats itself every 23 tokens with few exceptions, and exceeds the context.
    let truth = |position: usize| if position.is_multiple_of(61) { 99 } else { (position % 23 * 7 % 40) as u32 };
    let steps = |drafts_max: usize| {
        let (mut scheduler, mut follower) = (Scheduler::new(limits), Sequences::new(limits));
        for (key, prompt, max_tokens) in [(1, 70, 300), (2, 33, 390), (3, 50, 40)] {
            let prompt: Vec<u32> = (0..prompt).map(truth).collect();
            scheduler.submit(Admitted { prompt, drafts_max, ..request(key, 1, max_tokens) });
        }
        let mut texts = [70, 33, 50].map(|prompt| (0..prompt).map(truth).collect::<Vec<u32>>());
        let (ends, mut steps) = ([370, 400, 90], 0);
        while scheduler.has_work() {
            let plan = next(&mut scheduler).expect("there is work");
            follower.apply(&plan).expect("the head's plan can be applied");
            let rows = plan.entries.iter().filter(|entry| entry.wants_logits).count();
            assert!(rows <= ROWS_MAX, "{rows}");
            scheduler.record_time(&plan, Nanoseconds(10_000_000 + 300_000 * plan.entries.len() as u64));
            steps += 1;
            let mut refused = None;
            for entry in plan.entries.iter().filter(|entry| entry.wants_logits) {
                let (index, position) = (usize::from(entry.slot.0), entry.position as usize);
                let Some(key) = scheduler.key(entry.slot).filter(|_| refused != Some(entry.slot)) else { continue };
                if entry.token != truth(position) {
                    // A speculative token that differs from the one sampled before it.
                    refused = Some(entry.slot);
                    continue;
                }
                assert_eq!(texts[index].len(), position + 1);
                texts[index].push(truth(position + 1));
                match texts[index].len() == ends[index] {
                    true => scheduler.end(key),
                    false => scheduler.sampled(entry.slot, truth(position + 1)),
                }
            }
        }
        for (text, end) in texts.iter().zip(ends) {
            assert_eq!(*text, (0..end).map(truth).collect::<Vec<u32>>());
        }
        assert_eq!(scheduler.blocks.available(), limits.blocks.whole);
        steps
    };
    let (without, with) = (steps(0), steps(ROWS_MAX));
    assert!(with * 2 < without, "{with} steps with speculation, {without} without");
}

#[test]
fn state_is_saved_before_speculative_tokens_and_never_taken_back() {
    let limits = Limits { states: StateCount::of(2), ..LIMITS };
    let (mut scheduler, mut follower) = (Scheduler::new(limits), Sequences::new(limits));
    scheduler.submit(Admitted { drafts_max: 4, ..request(1, 40, 60) });
    let drafted = loop {
        let plan = next(&mut scheduler).expect("there is work");
        follower.apply(&plan).expect("the head's plan can be applied");
        let first = plan.entries[0];
        if plan.entries.len() > 1 && !plan.is_prefill {
            break first;
        }
        if plan.entries.iter().any(|entry| entry.wants_logits) {
            scheduler.sampled(first.slot, 1);
        }
    };
    let back = |position: u32| {
        let entries = vec![PlanEntry { position, ..drafted }];
        follower.clone().apply(&Plan { entries, ..Plan::default() })
    };
    assert!(back(drafted.position).is_ok(), "all its tokens may be rejected");
    assert!(back(drafted.position + 2).is_ok() && back(drafted.position - 1).is_err());
    // The sequence ends: its saved state is that before the step with speculative tokens.
    scheduler.sampled(drafted.slot, 1);
    scheduler.sampled(drafted.slot, 1);
    scheduler.end(RequestKey(1));
    scheduler.submit(request(1, 80, 1));
    let plan = next(&mut scheduler).expect("there is work");
    assert_eq!(plan.opened[0].cached, drafted.position);
    assert_eq!(plan.states, [(0, 2), (2, 0)], "saved, then restored");
    follower.apply(&plan).expect("the head's plan can be applied");
}

#[test]
fn scored_prompt_takes_few_rows_and_waits_for_those_in_flight() {
    for turns in [1, 2] {
        let mut scheduler = Scheduler::new(LIMITS).with_stages(turns, STEP_TOKENS_MAX);
        let mut follower = Sequences::new(LIMITS);
        scheduler.submit(request(1, 100, 9));
        let plan = next(&mut scheduler).expect("there is work");
        follower.apply(&plan).expect("the head's plan can be applied");
        scheduler.sampled(Slot(0), 7);
        // Its beginning is cached.
        let mut scored = Admitted { prompt: vec![1; 100], ..request(2, 100, 2) };
        scored.sampling.scores_prompt = true;
        scheduler.submit(scored);
        let mut computed = 0;
        while computed < 100 {
            let plan = next(&mut scheduler).expect("there is work");
            follower.apply(&plan).expect("the head's plan can be applied");
            let own: Vec<&PlanEntry> = plan.entries.iter().filter(|entry| entry.slot == Slot(1)).collect();
            let rows = plan.entries.iter().filter(|entry| entry.wants_logits).count();
            assert!(rows <= ROWS_MAX && !own.is_empty(), "{rows} rows, {} of the prompt", own.len());
            assert!(own.iter().all(|entry| entry.wants_logits), "all positions are scored");
            assert_eq!(own[0].position as usize, computed, "from the first one on");
            assert!(follower.batch().tokens.iter().all(|token| !token.is_speculative), "the prompt is final");
            let sequence = follower.get(Slot(1)).expect("it is open");
            let known = own.iter().filter(|entry| sequence.prompted_after(entry.position) == Some(1)).count();
            assert_eq!(known, own.len().min(99 - computed), "all but the last token have a next one");
            computed += own.len();
            if plan.entries.iter().any(|entry| entry.slot == Slot(0)) {
                scheduler.sampled(Slot(0), 7);
            }
            let more = next(&mut scheduler);
            let goes_on = more.as_ref().is_some_and(|plan| plan.entries.iter().any(|entry| entry.slot == Slot(1)));
            assert!(!goes_on, "its rows are in flight");
            if let Some(more) = more {
                follower.apply(&more).expect("the head's plan can be applied");
                scheduler.sampled(Slot(0), 7);
            }
            scheduler.scored(Slot(1), own.len());
        }
    }
}
