//! The simulation finds no violation in the current daemons, and finds planted bugs.
use common::planted::Planted;

use super::*;

/// Seeds of histories that showed bugs of the daemons: a member whose record of votes was lost never voted again, a failed
/// assignment kept its members from returning, an exclusion was never learned, a recovery waited for an answer, requests
/// were refused while their model came back, one epoch had two topologies, and a damaged file was not noticed. Then: two
/// topologies of one epoch kept their nodes apart (4444, 4577, 9377), a node went back to a topology that it had left (9144),
/// the check of refused requests expected too much of the gateway (5453), a node that loaded another topology hid the one
/// that served from the gateway (50322), and a node with an older list of exclusions did not return (59105).
const FOUND: [u64; 31] = [
    43, 46, 90, 116, 120, 142, 216, 365, 433, 459, 560, 580, 625, 630, 1019, 1092, 1406, 1649, 2181, 4076, 4199, 4444,
    4577, 5453, 7023, 8543, 8595, 9144, 9377, 50322, 59105,
];

#[test]
fn histories_of_faults_violate_nothing() {
    let (mut whole, mut errors, mut decisions) = (0, 0, 0);
    for seed in (0..44).chain(FOUND) {
        let history = History::draw(seed);
        assert!(history.faults.len() >= 20 && history.requests >= 50);
        let outcome = history.run(false);
        assert!(outcome.violation.is_none(), "{}", history.tell());
        (whole, errors, decisions) = (whole + outcome.whole, errors + outcome.errors, decisions + outcome.decisions);
    }
    println!("{whole} requests complete, {errors} failed, {decisions} votes decided");
    assert!(whole > 1000 && decisions >= 5, "{whole} whole, {errors} errors, {decisions} votes");
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

/// Finds a bug in at most `most` histories; the violated invariant contains the words.
#[track_caller]
fn check_found(bug: Planted, most: u64, words: &str) {
    check_found_by(bug, most, &[words]);
}

/// As [`check_found`], for a bug that breaks several invariants.
#[track_caller]
fn check_found_by(bug: Planted, most: u64, words: &[&str]) {
    let found = planted::find(bug, 0, most).unwrap_or_else(|| panic!("{bug:?} is not found in {most} histories"));
    println!("{bug:?}: {} after {} histories", found.what, found.histories);
    assert!(words.iter().any(|words| found.what.contains(words)), "{}", found.what);
}

#[test]
fn bugs_that_properties_find_are_found() {
    for bug in [
        Planted::UnlockedState,
        Planted::FullAnswerRefused,
        Planted::FrameUnchecked,
        Planted::LeaseForever,
        Planted::AnyLinkAccepted,
        Planted::QueueUnbounded,
        Planted::PauseUnbounded,
        Planted::SilenceUnnoticed,
    ] {
        check_found(bug, 0, "property");
    }
}

#[test]
fn planted_unreported_fault_is_found() {
    // A request or the topology: that depends on the first history in which a link breaks on one side only.
    check_found_by(Planted::UntoldFault, 600, &["does not serve", "neither ends nor moves"]);
}

#[test]
fn planted_serving_leader_is_found() {
    check_found(Planted::ServingLeader, 300, "does not serve");
}

#[test]
fn bugs_of_voters_are_found_by_scripts_of_votes() {
    check_found(Planted::BallotTwice, 4_000, "two topologies");
    check_found(Planted::OlderBallotAccepted, 400, "promised ballot");
    check_found(Planted::AcceptedUntold, 400, "two topologies");
}
