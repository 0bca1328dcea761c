//! Prompts whose keys and values come from a prefill group or from disks.
use super::*;

#[test]
fn remote_prefill_keeps_slot_and_resumes_before_last_token() {
    let mut scheduler = Scheduler::new(LIMITS);
    let mut follower = Sequences::new(LIMITS);
    scheduler.submit_awaiting(request(1, 70, 5), KvSource::Group);
    scheduler.submit(request(2, 2, 5));
    let plan = next(&mut scheduler).expect("the other runs");
    assert_eq!((plan.opened.len(), plan.entries.len(), plan.entries[0].slot), (1, 2, Slot(1)));
    follower.apply(&plan).expect("the head's plan can be applied");
    let remote = scheduler.next_awaited().expect("it has its slot");
    assert_eq!((remote.key, remote.slot, remote.blocks.len()), (RequestKey(1), Slot(0), 3));
    assert_eq!((remote.first_block, scheduler.next_awaited(), next(&mut scheduler)), (0, None, None), "reported once");
    scheduler.sampled(Slot(1), 7);
    scheduler.resume_with_kv(Slot(0), 69);
    let plan = next(&mut scheduler).expect("both continue");
    let entries: Vec<_> = plan.entries.iter().map(|entry| (entry.slot.0, entry.position)).collect();
    assert_eq!((entries, plan.is_prefill), (vec![(0, 69), (1, 2)], false));
    follower.apply(&plan).expect("the head's plan can be applied");
    assert_eq!(follower.batch().tables.whole[0], remote.blocks);
    // The received blocks are found by the next prompt with that prefix: only the rest would have to be transferred.
    scheduler.end(RequestKey(1));
    scheduler.submit_awaiting(Admitted { key: RequestKey(3), ..request(1, 70, 5) }, KvSource::Group);
    next(&mut scheduler);
    assert_eq!(scheduler.next_awaited().map(|remote| remote.first_block), Some(2));
}

#[test]
fn failed_remote_prefill_runs_locally_or_leaves_no_trace() {
    let mut scheduler = Scheduler::new(LIMITS);
    let mut follower = Sequences::new(LIMITS);
    (1..=2).for_each(|key| scheduler.submit_awaiting(request(key, 40, 5), KvSource::Group));
    assert_eq!(next(&mut scheduler), None);
    let slots: Vec<Slot> = std::iter::from_fn(|| scheduler.next_awaited()).map(|remote| remote.slot).collect();
    assert_eq!(slots.len(), 2);
    scheduler.end(RequestKey(1));
    scheduler.resume_with_kv(Slot(1), 0);
    let plan = next(&mut scheduler).expect("the other is computed here");
    assert_eq!((plan.closed.len(), plan.opened.len(), plan.entries.len()), (0, 1, 40));
    follower.apply(&plan).expect("the head's plan can be applied");
    scheduler.end(RequestKey(2));
    assert!(!scheduler.has_work());
    assert_eq!(scheduler.blocks.available(), LIMITS.blocks.whole);
}

#[test]
fn stored_beginning_is_not_computed_and_the_rest_of_the_prompt_is() {
    let mut scheduler = Scheduler::new(LIMITS);
    let mut follower = Sequences::new(LIMITS);
    scheduler.submit_awaiting(request(1, 100, 5), KvSource::Store { tokens: 96 });
    assert_eq!(next(&mut scheduler), None);
    let awaited = scheduler.next_awaited().expect("it has its slot");
    assert_eq!((awaited.source, awaited.first_block), (KvSource::Store { tokens: 96 }, 0));
    scheduler.resume_with_kv(Slot(0), 64);
    let plan = next(&mut scheduler).expect("it continues");
    assert_eq!((plan.opened[0].cached, plan.is_prefill), (64, true));
    assert_eq!(plan.entries.iter().map(|entry| entry.position).collect::<Vec<_>>(), (64..100).collect::<Vec<_>>());
    follower.apply(&plan).expect("the head's plan can be applied");
    scheduler.end(RequestKey(1));
    assert_eq!(scheduler.cached(&[1; 100]), 96, "read blocks are found again in memory");
}

#[test]
fn prompts_that_wait_for_keys_and_values_of_another_begin_with_them() {
    for (source, tokens) in [(KvSource::Group, 69), (KvSource::Store { tokens: 64 }, 64)] {
        let (mut scheduler, mut follower) = (Scheduler::new(LIMITS), Sequences::new(LIMITS));
        (1..=2).for_each(|key| {
            scheduler.submit_awaiting(Admitted { key: RequestKey(key), ..request(7, 70, 5) }, source);
        });
        assert_eq!(next(&mut scheduler), None);
        assert_eq!(scheduler.next_awaited().map(|awaited| awaited.key), Some(RequestKey(1)));
        assert_eq!(scheduler.next_awaited(), None, "the second one waits for what the first one gets");
        scheduler.resume_with_kv(Slot(0), tokens);
        let plan = next(&mut scheduler).expect("the first one continues");
        follower.apply(&plan).expect("the head's plan can be applied");
        let second = scheduler.next_awaited().expect("it has its slot");
        assert_eq!((second.key, second.first_block), (RequestKey(2), 2), "{source:?}");
    }
}

#[test]
fn prompt_that_gets_no_keys_and_values_begins_with_the_saved_state_that_it_found() {
    let limits = Limits { states: StateCount { slots: 2, saved: 2 }, ..LIMITS };
    let (mut scheduler, mut follower) = (Scheduler::new(limits), Sequences::new(limits));
    let mut step = |scheduler: &mut Scheduler| {
        let plan = next(scheduler).expect("there is work");
        follower.apply(&plan).expect("the head's plan can be applied");
        plan
    };
    // Saves the state behind 64 tokens, later that at its end.
    scheduler.submit(request(1, 80, 5));
    while !step(&mut scheduler).entries.iter().any(|entry| entry.wants_logits) {}
    scheduler.sampled(Slot(0), 9);
    step(&mut scheduler);
    scheduler.sampled(Slot(0), 9);
    scheduler.end(RequestKey(1));
    scheduler.submit(request(2, 2, 5));
    step(&mut scheduler);
    scheduler.submit_awaiting(Admitted { key: RequestKey(3), ..request(1, 100, 5) }, KvSource::Group);
    assert_eq!(next(&mut scheduler), None);
    let slot = scheduler.next_awaited().expect("it has its slot").slot;
    scheduler.resume_with_kv(slot, 0);
    assert_eq!(step(&mut scheduler).opened[0].cached, 64);
}
