//! The simulation finds no violation in the current daemons, and finds each fault of release 0.1 that is reintroduced.
use daemon::node::planted::{Planted, plant};

use super::*;

/// Reintroduces a fault for its lifetime.
struct Back;

impl Back {
    fn put(fault: Planted) -> Self {
        plant(Some(fault));
        Self
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        plant(None);
    }
}

/// The first failing history.
fn first_failure(histories: impl Iterator<Item = History>) -> Option<History> {
    histories.into_iter().find(|history| history.run(false).violation.is_some())
}

#[track_caller]
fn check_told(history: Option<History>, words: &[&str]) -> String {
    let told = history.expect("a history fails").tell();
    println!("{told}\n");
    words.iter().for_each(|word| assert!(told.contains(word), "{word:?} is not in\n{told}"));
    told
}

#[test]
fn fifty_histories_of_faults_violate_nothing() {
    let (mut whole, mut errors, mut decisions) = (0, 0, 0);
    for seed in 0..50 {
        let history = History::draw(seed);
        assert!(history.faults.len() >= 20 && history.requests >= 50);
        let outcome = history.run(false);
        assert!(outcome.violation.is_none(), "{}", history.tell());
        (whole, errors, decisions) = (whole + outcome.whole, errors + outcome.errors, decisions + outcome.decisions);
    }
    println!("{whole} requests complete, {errors} failed, {decisions} votes decided");
    assert!(whole > 2000 && errors < whole / 10 && decisions >= 5, "{whole} whole, {errors} errors, {decisions} votes");
}

#[test]
fn same_seed_is_the_same_history() {
    let history = History::draw(7);
    assert_eq!(history.run(true).story, history.run(true).story);
}

#[test]
fn power_lost_everywhere_is_survived_within_10_s() {
    for seed in 0..20 {
        let history = History::draw_power_loss(seed);
        let outcome = history.run(false);
        assert!(outcome.violation.is_none(), "{}", history.tell());
    }
}

#[test]
fn kills_at_each_message_of_a_vote_decide_once() {
    let mut decisions = 0;
    for members in 3..=5 {
        let (away, scripts) = vote_scripts(members, if members == 3 { 2 } else { 1 });
        for (seed, turns) in scripts.iter().enumerate() {
            let outcome = run_vote(members, &away, turns, seed as u64, false);
            assert!(
                outcome.violation.is_none(),
                "{members} members, {turns:?}:\n{}",
                run_vote(members, &away, turns, seed as u64, true).story.join("\n")
            );
            decisions += outcome.decisions;
        }
    }
    assert!(decisions > 300, "{decisions}");
}

#[test]
fn planted_unreported_fault_is_found() {
    let _back = Back::put(Planted::UntoldFault);
    let told = check_told(first_failure((0..60).map(History::draw)), &["does not serve", "FAULT"]);
    assert!(told.contains("reset") || told.contains("cut"), "{told}");
}

#[test]
fn planted_serving_leader_is_found() {
    let _back = Back::put(Planted::ServingLeader);
    check_told(first_failure((0..60).map(History::draw)), &["does not serve", "prefill", "brings the topology up"]);
}

#[test]
fn planted_patient_abort_is_found() {
    let _back = Back::put(Planted::PatientAbort);
    check_told(first_failure((0..120).map(History::draw)), &["does not serve", "connecting", "is killed"]);
}

#[test]
fn planted_second_use_of_a_ballot_is_found() {
    let _back = Back::put(Planted::BallotTwice);
    let (away, scripts) = vote_scripts(3, 2);
    let runs = (0..40).flat_map(|seed| scripts.iter().map(move |turns| (seed, turns)));
    let found = runs.into_iter().find_map(|(seed, turns)| {
        let outcome = run_vote(3, &away, turns, seed, false);
        outcome.violation.filter(|what| what.contains("two topologies")).map(|_| (seed, turns))
    });
    let (seed, turns) = found.expect("some vote is decided twice");
    let outcome = run_vote(3, &away, turns, seed, true);
    println!("{:?}\n{}", outcome.violation, outcome.story.join("\n"));
    assert!(outcome.story.iter().any(|line| line.contains("killed at message")));
}
