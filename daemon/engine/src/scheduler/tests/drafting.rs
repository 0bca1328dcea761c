//! Draft models, with texts and times that are made up: what they propose changes no text, saves time where it can, and
//! costs little where it cannot.
use super::*;

const LIMITS_DRAFTED: Limits = Limits {
    slots: 3,
    blocks: KvBlocks::alike(120),
    window: None,
    context_length: 1000,
    vocabulary_length: 5000,
    states: StateCount::NONE,
};

/// A text without repetitions.
fn truth(position: usize) -> u32 {
    (position * 1237 % 4999) as u32
}

/// How well a draft model predicts, and how fast it is.
#[derive(Clone, Copy)]
struct Drafting {
    /// Of ten tokens, how many it predicts.
    agreed: usize,
    /// Time of a step of one token relative to that of the target model, in percent.
    cost: u64,
    has_model: bool,
}

/// What it took to serve some requests.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    time: u64,
    target_steps: u32,
    draft_steps: u32,
    drafted: u32,
    /// Tokens that the draft model computed.
    fed: usize,
}

/// Serves requests with prompts of these lengths, one after another or together, for 400 tokens each.
fn serve(drafting: Drafting, batches: &[&[usize]]) -> Served {
    let vocabulary = drafting.has_model.then_some(LIMITS_DRAFTED.vocabulary_length);
    let scheduler = Scheduler::new(LIMITS_DRAFTED)
        .with_speculation(Speculation::with_draft_model(vocabulary.map(|count| (count, false))));
    let (mut scheduler, mut follower) = (scheduler, Sequences::new(LIMITS_DRAFTED));
    let (mut served, mut key) = (Served::default(), 0);
    for batch in batches {
        for prompt in *batch {
            key += 1;
            // Different texts, which are alike from the second token on.
            let prompt: Vec<u32> = std::iter::once(key as u32).chain((1..*prompt).map(truth)).collect();
            scheduler.submit(Admitted { prompt, drafts_max: ROWS_MAX, ..request(key, 1, 400) });
        }
        while scheduler.has_work() {
            step(&mut scheduler, &mut follower, drafting, &mut served);
        }
    }
    served
}

/// Draft steps, then a step.
fn step(scheduler: &mut Scheduler, follower: &mut Sequences, drafting: Drafting, served: &mut Served) {
    let mut plan = Plan::default();
    while scheduler.next_draft(&mut plan) {
        follower.draft(&plan, LIMITS_DRAFTED.vocabulary_length).expect("the draft's plan can be applied");
        let time = drafting.cost * (100_000 + 3_000 * plan.entries.len() as u64);
        scheduler.record_draft_time(&plan, Nanoseconds(time));
        served.time += time;
        served.draft_steps += 1;
        served.fed += plan.entries.len();
        for entry in plan.entries.iter().filter(|entry| entry.wants_logits) {
            let next = entry.position as usize + 1;
            let agrees = next * 7 % 10 < drafting.agreed && truth(next - 1) == entry.token;
            scheduler.drafted(entry.slot, if agrees { truth(next) } else { 4999 });
        }
    }
    let plan = next(scheduler).expect("there is work");
    follower.apply(&plan).expect("the head's plan can be applied");
    let time = 10_000_000 + 500_000 * plan.entries.len() as u64;
    scheduler.record_time(&plan, Nanoseconds(time));
    served.time += time;
    served.target_steps += 1;
    let mut refused = None;
    let mut before: Option<PlanEntry> = None;
    for entry in plan.entries.iter().filter(|entry| entry.wants_logits) {
        let position = entry.position as usize;
        let is_speculative = before.replace(*entry).is_some_and(|before| before.slot == entry.slot);
        served.drafted += u32::from(is_speculative);
        if is_speculative && entry.token != truth(position) {
            refused = Some(entry.slot);
        }
        let Some(key) = scheduler.key(entry.slot).filter(|_| refused != Some(entry.slot)) else { continue };
        let tokens = scheduler.tokens(entry.slot).len();
        assert_eq!(tokens, position + 1, "each token is sampled once, in order");
        match tokens >= LIMITS_DRAFTED.context_length - 1 || scheduler.is_full(entry.slot) {
            true => scheduler.end(key),
            false => scheduler.sampled(entry.slot, truth(position + 1)),
        }
    }
}

impl Scheduler {
    /// Whether a sequence has all its tokens but the last.
    fn is_full(&self, slot: Slot) -> bool {
        let running = self.slots[slot.index()].as_ref();
        running.is_some_and(|running| running.tokens.len() + 1 >= running.length)
    }
}

const NONE: Drafting = Drafting { agreed: 0, cost: 0, has_model: false };

#[test]
fn good_draft_saves_time_alone_and_in_batches() {
    let good = Drafting { agreed: 7, cost: 10, has_model: true };
    for batches in [&[&[30][..]][..], &[&[30, 200, 90]], &[&[30], &[40], &[200, 90]]] {
        let (with, without) = (serve(good, batches), serve(NONE, batches));
        assert!(with.time * 14 < without.time * 10, "{with:?}, without {without:?}");
        assert!(with.target_steps * 3 < without.target_steps * 2, "{with:?}, without {without:?}");
    }
}

#[test]
fn wrong_or_slow_draft_costs_at_most_3_percent() {
    let batches: &[&[usize]] = &[&[30], &[200, 90], &[60, 30, 150], &[500]];
    let without = serve(NONE, batches);
    for drafting in [
        Drafting { agreed: 0, cost: 10, has_model: true },
        Drafting { agreed: 1, cost: 10, has_model: true },
        Drafting { agreed: 7, cost: 100, has_model: true },
        Drafting { agreed: 10, cost: 150, has_model: true },
    ] {
        let with = serve(drafting, batches);
        let Drafting { agreed, cost, .. } = drafting;
        println!("{agreed} of 10 at {cost} %: {:.3}", with.time as f64 / without.time as f64);
        assert!(with.time * 97 <= without.time * 100, "{agreed} of 10 at {cost} %: {with:?}, without {without:?}");
    }
}

#[test]
fn known_beginnings_are_not_computed_again() {
    let good = Drafting { agreed: 10, cost: 10, has_model: true };
    // The second request's prompt is that of the first one, with its answer.
    let mut scheduler =
        Scheduler::new(LIMITS_DRAFTED).with_speculation(Speculation::with_draft_model(Some((5000, false))));
    let mut follower = Sequences::new(LIMITS_DRAFTED);
    let fed = [(1, 200), (2, 420)].map(|(key, length): (u64, usize)| {
        let prompt: Vec<u32> = (0..length).map(truth).collect();
        scheduler.submit(Admitted { prompt, drafts_max: ROWS_MAX, ..request(key, 1, 200) });
        let mut served = Served::default();
        while scheduler.has_work() {
            step(&mut scheduler, &mut follower, good, &mut served);
        }
        served.fed
    });
    assert!(fed[0] >= 390 && fed[1] < 300, "{fed:?}: the second prompt's first 384 tokens are known");
}
