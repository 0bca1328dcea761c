//! Records of the state folder across restarts, damage and loss.
use std::os::unix::fs::symlink;

use common::ids::TopologyHash;
use protocol::recovery::Ballot;
use topology::rolling::Phase;

use super::*;
use crate::node::quorum::Accepted;

fn committed(epoch: u64) -> Committed {
    let topology = Topology { slots: 3, ..crate::node::tests::topology(2) };
    Committed::new(Epoch(epoch), topology)
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("bramble-state-{name}-{}", std::process::id()))
}

fn full(folder: &Path) -> (StateFolder, Exclusions, Votes, Rolling) {
    let (state, kept) = StateFolder::open(folder).expect("the folder can be made");
    assert_eq!((kept.epoch, kept.committed, kept.damaged.len()), (Epoch(0), None, 0));
    let mut exclusions = Exclusions::default();
    exclusions.say("pi2", "pi2:9999", Some("fan \"stuck\""), "me@here");
    exclusions.say("pi3", "pi3:9999", None, "me@here");
    let ballot = Ballot { round: 2, member: 1 };
    let accepted = Some(Accepted { ballot, next: committed(8) });
    let votes = Votes { promised: ballot, base: committed(7), accepted };
    let targets = vec![("pi1".into(), "pi1:9999".into())];
    let (before, phase) = (Some(u64::MAX >> 1), Phase::Paused("x".into()));
    let rolling = Rolling { targets, done: 0, before, phase, drain_ms: 5, by: "me".into(), revision: 3 };
    let records = [
        Record::Promise(Epoch(7), TopologyHash(9)),
        Record::Committed(Some(committed(7))),
        Record::Votes(votes.clone()),
        Record::Witnessed(vec![votes.clone(), Votes { base: committed(9), accepted: None, ..votes.clone() }]),
        Record::Rolling(rolling.clone()),
        Record::VoteGap(None),
    ];
    records.iter().for_each(|record| state.save(record).expect("the folder can be written"));
    state.save_exclusions(&exclusions).expect("the folder can be written");
    (state, exclusions, votes, rolling)
}

#[test]
fn every_changed_bit_is_found_and_files_of_release_0_1_are_read() {
    let folder = folder("bits");
    let (state, ..) = full(&folder);
    for name in [TOPOLOGY_FILE, VOTES_FILE, WITNESSED_FILE, EXCLUSIONS_FILE, FILE] {
        let path = folder.join(name);
        let whole = fs::read(&path).expect("it was written");
        let text = whole.len() - checksum("").len();
        for bit in (0..8 * text).step_by(5) {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let intact = String::from_utf8(damaged).is_ok_and(|text| is_intact(&text));
            assert!(!intact, "bit {bit} of {name}");
        }
        fs::write(&path, &whole[..text]).expect("the folder can be written");
    }
    let (_, kept) = StateFolder::open(state.path()).expect("the folder is there");
    assert_eq!((kept.damaged.len(), kept.committed), (0, Some(committed(7))), "without checksums");
    assert!(is_intact("by = \"# sha256 \"\n"), "a text that an operator wrote");
    fs::remove_dir_all(&folder).expect("the folder can be removed");
}

#[test]
fn wiped_folder_is_remembered_until_majority_or_assignment() {
    let folder = folder("wiped");
    for _ in 0..2 {
        let (_, kept) = StateFolder::open(&folder).expect("the folder can be made");
        assert_eq!(kept.voter.forgot, Some(VoteGap::Fresh));
    }
    let (state, _) = StateFolder::open(&folder).expect("the folder is there");
    state.save(&Record::Committed(Some(committed(7)))).expect("the folder can be written");
    let (_, kept) = StateFolder::open(&folder).expect("the folder is there");
    assert_eq!(kept.voter.forgot, Some(VoteGap::Fresh), "the other nodes restored it");
    for forgot in [Some(VoteGap::UpTo(Epoch(7))), None] {
        state.save(&Record::VoteGap(forgot)).expect("the folder can be written");
        assert_eq!(StateFolder::open(&folder).expect("the folder is there").1.voter.forgot, forgot);
    }
    fs::remove_dir_all(&folder).expect("the folder can be removed");
}

#[test]
fn records_survive_a_restart() {
    let folder = folder("kept");
    let (state, exclusions, votes, rolling) = full(&folder);
    let (_, kept) = StateFolder::open(&folder).expect("the folder is there");
    assert_eq!((kept.epoch, kept.exclusions, kept.committed), (Epoch(7), exclusions, Some(committed(7))));
    let witnessed = vec![votes.clone(), Votes { base: committed(9), accepted: None, ..votes.clone() }];
    assert_eq!((kept.voter.witnessed, kept.voter.votes, kept.voter.forgot), (witnessed, Some(votes), None));
    assert_eq!(kept.rolling, Some(rolling));
    state.save(&Record::Committed(None)).expect("the folder can be written");
    let (_, kept) = StateFolder::open(&folder).expect("the folder is there");
    assert_eq!((kept.committed, kept.damaged.len()), (None, 0));
    fs::remove_dir_all(&folder).expect("the folder can be removed");
}

#[test]
fn desired_topology_is_kept_until_it_is_the_topology() {
    let folder = folder("desired");
    let (state, _) = StateFolder::open(&folder).expect("the folder can be made");
    let desired = |kept: PersistedState| kept.committed.and_then(|committed| committed.desired);
    let wanted = Some(Box::new(crate::node::tests::topology(3)));
    let reduced = Committed { desired: wanted.clone(), ..committed(7) };
    state.save(&Record::Committed(Some(reduced))).expect("the folder can be written");
    assert_eq!(desired(StateFolder::open(&folder).expect("the folder is there").1), wanted);
    let file = fs::read(folder.join(DESIRED_FILE)).expect("it was written");
    state.save(&Record::Committed(Some(committed(8)))).expect("the folder can be written");
    assert!(!folder.join(DESIRED_FILE).exists());
    // After a crash before the removal, the file of another epoch remains.
    fs::write(folder.join(DESIRED_FILE), file).expect("the folder can be written");
    assert_eq!(desired(StateFolder::open(&folder).expect("the folder is there").1), None);
    fs::remove_dir_all(&folder).expect("the folder can be removed");
}

#[test]
fn votes_with_an_invalid_topology_are_put_aside() {
    let folder = folder("votes");
    let (state, _, votes, _) = full(&folder);
    let mut invalid = crate::node::tests::topology(2);
    invalid.members[1].name = invalid.members[0].name.clone();
    let mut next = votes.clone();
    next.accepted.as_mut().expect("it accepted").next.topology = invalid.clone();
    let desired = Votes { base: Committed { desired: Some(Box::new(invalid)), ..committed(7) }, ..votes };
    for votes in [next, desired] {
        state.save(&Record::Votes(votes)).expect("the folder can be written");
        let (_, kept) = StateFolder::open(&folder).expect("damaged votes are survived");
        assert_eq!((kept.voter.votes, &kept.damaged[..]), (None, &[VOTES_FILE.to_owned()][..]));
    }
    fs::remove_dir_all(&folder).expect("the folder can be removed");
}

/// Replaces a file by one whose reading fails with EIO, as on a bad sector: the memory of this process at address 0.
fn damage_sector(path: &Path) {
    fs::remove_file(path).and_then(|()| symlink("/proc/self/mem", path)).expect("the folder can be written");
    assert_eq!(fs::read(path).map_err(|error| error.raw_os_error()), Err(Some(Errno::EIO as i32)));
}

#[test]
fn bad_sectors_do_not_prevent_the_start_and_stop_votes() {
    let folder = folder("sectors");
    full(&folder);
    for name in [FILE, VOTES_FILE] {
        damage_sector(&folder.join(name));
    }
    let (state, kept) = StateFolder::open(&folder).expect("bad sectors are survived");
    assert_eq!(kept.damaged, [FILE, VOTES_FILE]);
    assert_eq!((kept.epoch, kept.voter.votes), (Epoch(7), None));
    assert!([FILE, VOTES_FILE].iter().all(|name| folder.join(format!("{name}.damaged")).is_symlink()));
    state.save(&Record::Promise(Epoch(9), TopologyHash(9))).expect("a file that was set aside can be replaced");
    // A file that can be neither renamed nor replaced.
    damage_sector(&folder.join(ROLLING_FILE));
    for name in ["damaged", "new"] {
        fs::create_dir(folder.join(format!("{ROLLING_FILE}.{name}"))).expect("the folder can be written");
    }
    for _ in 0..2 {
        let (_, kept) = StateFolder::open(&folder).expect("a file that stays is survived");
        assert_eq!((&kept.damaged[..], kept.rolling), (&[ROLLING_FILE.to_owned()][..], None));
        assert_eq!((kept.epoch, kept.voter.forgot), (Epoch(9), Some(VoteGap::UpTo(Epoch(7)))));
    }
    fs::remove_dir_all(&folder).expect("the folder can be removed");
}

#[test]
fn only_errors_of_the_medium_count_as_damage() {
    for error in [Errno::EIO, Errno::EUCLEAN, Errno::EBADMSG] {
        assert_eq!(intact_text(Err(error.into())).ok(), Some(None), "{error}");
    }
    // Votes must not be forgotten because a file could not be opened.
    for error in [Errno::ENOENT, Errno::EACCES, Errno::EMFILE, Errno::EINTR] {
        assert!(intact_text(Err(error.into())).is_err(), "{error}");
    }
}

#[test]
fn truncated_file_is_reported_and_stops_votes_if_they_are_lost() {
    let folder = folder("cut");
    full(&folder);
    for name in [FILE, EXCLUSIONS_FILE, TOPOLOGY_FILE, VOTES_FILE, WITNESSED_FILE, ROLLING_FILE] {
        let whole = fs::read(folder.join(name)).expect("it was written");
        for length in (1..whole.len() - checksum("").len()).step_by(7) {
            fs::write(folder.join(name), &whole[..length]).expect("the folder can be written");
            let (_, kept) = StateFolder::open(&folder).expect("a damaged file is survived");
            // A list of exclusions can be valid without its last entries.
            if name == TOPOLOGY_FILE {
                assert_eq!((kept.committed.as_ref(), &kept.damaged[..]), (None, &[name.to_owned()][..]), "{length}");
            }
            let is_lost = kept.damaged.iter().any(|lost| [FILE, VOTES_FILE, WITNESSED_FILE].contains(&lost.as_str()));
            assert_eq!(kept.voter.forgot.is_some(), is_lost, "{name} cut at {length}");
            assert_eq!(folder.join(format!("{name}.damaged")).is_file(), folder.join(name).metadata().is_err());
            let _ = fs::remove_file(folder.join(format!("{name}.damaged")));
            let (_, kept) = StateFolder::open(&folder).expect("it was set aside");
            assert_eq!(kept.voter.forgot.is_some(), is_lost, "still after the next restart: {name} cut at {length}");
            let _ = fs::remove_file(folder.join(FORGOT_FILE));
        }
        fs::write(folder.join(name), &whole).expect("the folder can be written");
    }
    fs::write(folder.join(FILE), [0xff; 40]).expect("the folder can be written");
    let (_, kept) = StateFolder::open(&folder).expect("a damaged file is survived");
    assert_eq!(
        (kept.epoch, kept.voter.forgot),
        (Epoch(7), Some(VoteGap::UpTo(Epoch(7)))),
        "the topology gives the epoch"
    );
    fs::remove_dir_all(&folder).expect("the folder can be removed");
}
