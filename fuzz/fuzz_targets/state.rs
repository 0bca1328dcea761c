//! The records of a node on its disk, damaged in any way, and what it writes back: epoch, topologies, votes, exclusions,
//! restart, neighbours. Parts divided by zero bytes, a file each; a part that is `=` has its hash put right.
#![no_main]
use bramble_fuzz::{cut::Input, folder::Folder, memory::bounded};
use daemon::node::{driver::state::StateFolder, event::Record};
use libfuzzer_sys::fuzz_target;
use protocol::recovery::Committed;

const FILES: [&str; 10] = [
    "topology.toml",
    "epoch.toml",
    "votes.toml",
    "exclusions.toml",
    "desired.toml",
    "restart.toml",
    "forgot.toml",
    "unloaded.toml",
    "neighbours.toml",
    "witnessed.toml",
];

thread_local! {
    static FOLDER: Folder = Folder::new("state");
}

/// The file of a topology with the hash that belongs to it: no mutation guesses it.
fn with_hash(text: &str) -> Option<String> {
    let mut table: toml::Table = text.parse().ok()?;
    let topology: topology::Topology = table.get("topology")?.clone().try_into().ok()?;
    table.insert("hash".into(), topology.hash().to_string().into());
    toml::to_string(&table).ok()
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let flags = input.byte();
    let mut texts = input.texts();
    texts.truncate(FILES.len());
    if flags & 1 == 0
        && let Some(first) = texts.first_mut()
        && let Some(right) = with_hash(first)
    {
        *first = right;
    }
    FOLDER.with(|folder| {
        folder.fill(
            FILES
                .into_iter()
                .zip(&texts)
                .filter(|(_, text)| !text.is_empty())
                .map(|(name, text)| (name, text.as_bytes())),
        );
        let room = 256 * data.len() + (4 << 20);
        let (state, kept) = bounded(room, || StateFolder::open(folder.path())).expect("the folder can be used");
        if let Some(Committed { topology, desired, epoch }) = &kept.committed {
            topology.check().expect("a topology that counts is valid");
            desired.iter().for_each(|desired| desired.check().expect("a desired one, too"));
            assert!(kept.epoch >= *epoch, "the epoch never lies behind the topology");
        }
        kept.exclusions.check().expect("exclusions that count are valid");
        // What was read is written and read again.
        if let Some(committed) = &kept.committed {
            state.save(&Record::Committed(Some(committed.clone()))).expect("the folder can be written");
        }
        state.save_exclusions(&kept.exclusions).expect("the folder can be written");
        kept.rolling.iter().for_each(|rolling| state.save(&Record::Rolling(rolling.clone())).expect("it is written"));
        if let Some(votes) = &kept.voter.votes {
            state.save(&Record::Votes(votes.clone())).expect("it is written");
        }
        state.save(&Record::Witnessed(kept.voter.witnessed.clone())).expect("it is written");
        let (_, again) = StateFolder::open(folder.path()).expect("the folder can be used");
        assert_eq!(again.committed, kept.committed);
        assert_eq!((again.epoch, &again.exclusions, &again.rolling), (kept.epoch, &kept.exclusions, &kept.rolling));
        assert_eq!(again.voter.votes, kept.voter.votes);
        assert_eq!(again.voter.witnessed, kept.voter.witnessed);
        assert!(again.voter.forgot == kept.voter.forgot, "a gap in the votes stays");
    });
});
