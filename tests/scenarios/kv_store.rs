//! Keys and values on the disks of the ranks: prompts are read instead of computed by new engines, and never from files
//! that are damaged or of something else.
use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use daemon::kv_store::KvFolder;
use gguf::GgufFile;
use harness::{
    engines::{Answer, Replica},
    families,
    greedy::{fresh, ids, request},
};
use tempfile::TempDir;

/// Layers that attend to everything, to a window, that are recurrent, or that keep latents.
const FAMILIES: [&str; 5] = ["qwen3-", "gemma3-", "lfm2-", "qwen35-", "deepseek2-"];

fn replicas() -> [Replica; 4] {
    let halves = Replica { stages: 2, ..Replica::of(2) };
    let replicas = [Replica::of(1), Replica::of(2), Replica::pipeline(), halves];
    replicas.map(|replica| Replica { slots: 3, blocks: 80, context_length: 500, ..replica })
}

/// A folder of each rank.
struct Disks {
    place: TempDir,
    ranks: usize,
}

impl Disks {
    fn of(replica: &Replica) -> Self {
        let ranks = usize::from(replica.stages * replica.ranks);
        Self { place: tempfile::tempdir().expect("a folder can be made"), ranks }
    }

    /// Opens them as a daemon does after a restart.
    fn open(&self) -> Vec<Arc<KvFolder>> {
        let folders = (0..self.ranks).map(|rank| KvFolder::open(&self.path(rank), u64::MAX));
        folders.map(|folder| Arc::new(folder.expect("it can be opened"))).collect()
    }

    fn path(&self, rank: usize) -> std::path::PathBuf {
        self.place.path().join(rank.to_string())
    }

    /// Waits until each has so many files, which are written in the background.
    fn hold(&self, files: usize) {
        let deadline = Instant::now() + Duration::from_secs(30);
        for rank in 0..self.ranks {
            while self.files(rank).len() < files {
                assert!(Instant::now() < deadline, "{} of {files} files of rank {rank}", self.files(rank).len());
                std::thread::yield_now();
            }
        }
    }

    fn files(&self, rank: usize) -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(self.path(rank)).expect("it is there").flatten().map(|entry| entry.path());
        entries.filter(|path| path.extension().is_none()).collect()
    }
}

#[track_caller]
fn check(file: &Arc<GgufFile>, answer: &Answer, name: &str) {
    let all = [&answer.prompt[..], &answer.ids].concat();
    let expected = fresh(file, &all[..all.len() - 1], answer.prompt.len() - 1);
    assert_eq!(answer.ids, expected, "{name}: {} prompt tokens", answer.prompt.len());
}

#[test]
fn new_engines_read_prompts_and_answer_as_if_computed_afresh() {
    let files = families::files(&FAMILIES);
    assert!(files.len() >= FAMILIES.len());
    for (name, file) in files {
        for replica in replicas() {
            let disks = Disks::of(&replica);
            let first = request(ids(1, 150), 20);
            let begun = replica.answers_stored(&file, &[vec![first.clone()]], &disks.open()).remove(0).remove(0);
            assert_eq!(begun.end().times.stored_tokens, 0);
            // Five blocks; a sequence whose state was not saved at the end of a block continues at an earlier one.
            disks.hold(5);
            let turn = request([&ids(1, 150)[..], &begun.ids, &ids(3, 30)].concat(), 10);
            let other = request([&ids(1, 70)[..], &ids(4, 50)].concat(), 10);
            let batches = [vec![first.clone(), request(ids(2, 90), 10)], vec![turn], vec![other]];
            let answers = replica.answers_stored(&file, &batches, &disks.open());
            assert_eq!(answers[0][0].ids, begun.ids, "{name} on {replica:?}");
            answers.iter().flatten().for_each(|answer| check(&file, answer, &name));
            let times = answers[0][0].end().times;
            assert_eq!((times.stored_tokens, times.cached_tokens), (128, 128), "{name} on {replica:?}");
            assert_eq!(answers[0][1].end().times.stored_tokens, 0, "it is new");
            assert!(answers[1][0].end().times.cached_tokens >= 128, "{name}: what was read is in memory");
        }
    }
}

/// Flips a bit in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(path, bytes).expect("it can be written");
}

#[test]
fn damaged_and_missing_files_are_computed_again_with_the_same_text() {
    let (name, file) =
        families::files(&FAMILIES).into_iter().find(|(name, _)| name.starts_with("qwen3-")).expect("it is there");
    for replica in replicas() {
        let disks = Disks::of(&replica);
        let batch = [vec![request(ids(1, 150), 20)]];
        let begun = replica.answers_stored(&file, &batch, &disks.open()).remove(0).remove(0);
        disks.hold(5);
        for rank in 0..disks.ranks {
            disks.files(rank).iter().for_each(|path| damage(path));
            let again = replica.answers_stored(&file, &batch, &disks.open()).remove(0).remove(0);
            assert_eq!((again.ids, again.finished.expect("it ended").times.stored_tokens), (begun.ids.clone(), 0));
            // They were deleted, and stored again when they were computed.
            disks.hold(5);
            let read = replica.answers_stored(&file, &batch, &disks.open()).remove(0).remove(0);
            assert_eq!((read.end().times.stored_tokens, &read.ids), (128, &begun.ids), "{name} on {replica:?}");
        }
        // A rank that stored nothing, as after a change of its disk.
        let last = disks.ranks - 1;
        disks.files(last).iter().for_each(|path| fs::remove_file(path).expect("it can be deleted"));
        let again = replica.answers_stored(&file, &batch, &disks.open()).remove(0).remove(0);
        assert_eq!((again.end().times.stored_tokens, again.ids), (0, begun.ids));
    }
}

/// Each cut reads what another one stored, part by part.
#[test]
fn ranks_of_another_cut_read_what_earlier_ranks_stored() {
    let [_, two, pipeline, halves] = replicas();
    let cuts = [two, Replica { ranks: 3, ..two }, pipeline, Replica { ranks: 1, ..two }, halves];
    for family in FAMILIES {
        let (name, file) = families::files(&[family]).remove(0);
        let place = tempfile::tempdir().expect("a folder can be made");
        let batch = [vec![request(ids(1, 150), 20)]];
        for (index, replica) in cuts.iter().enumerate() {
            let folder = Arc::new(KvFolder::open(place.path(), u64::MAX).expect("it can be opened"));
            let folders = vec![folder; usize::from(replica.stages * replica.ranks)];
            let answer = replica.answers_stored(&file, &batch, &folders).remove(0).remove(0);
            check(&file, &answer, &name);
            let stored = if index == 0 { 0 } else { 128 };
            assert_eq!(answer.end().times.stored_tokens, stored, "{name} on {replica:?}");
            let deadline = Instant::now() + Duration::from_secs(30);
            while folders[0].usage().1 < 5 * usize::from(cuts[0].ranks) {
                assert!(Instant::now() < deadline, "the first cut stores five files of each rank");
                std::thread::yield_now();
            }
        }
    }
}
