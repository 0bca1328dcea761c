//! Keys and values on the disks of the ranks: prompts are read instead of computed by new engines, and never from files
//! that are damaged or of something else.
use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::sync_channel,
    },
    time::{Duration, Instant},
};

use common::limits::KV_BLOCK_LENGTH;
use daemon::kv_store::KvFolder;
use engine::kv_store::{
    Name,
    label::Kind,
    port::{Disk, Files},
};
use gguf::GgufFile;
use harness::{
    engines::{Answer, Replica},
    families,
    family_model::FamilyModel,
    gguf_writer,
    greedy::{fresh, ids, request},
    programs::{Cluster, demo_models, folder_with, wait_until},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
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

#[test]
fn prompt_behind_cached_blocks_is_read_into_its_own_blocks_of_a_window() {
    // The window is longer than what is cached and read together.
    let file = FamilyModel::gemma3(200).file();
    for replica in replicas() {
        let disks = Disks::of(&replica);
        let begun = request(ids(1, 150), 20);
        replica.answers_stored(&file, &[vec![begun.clone()]], &disks.open());
        disks.hold(5);
        // One block is cached, for less than what is worth reading; three are read behind it.
        let beginning = vec![request(ids(1, 40), 10)];
        let batches = [beginning.clone(), vec![begun], beginning];
        let answers = replica.answers_stored(&file, &batches, &disks.open());
        let times = answers[1][0].end().times;
        assert_eq!((times.stored_tokens, times.cached_tokens), (96, 128), "on {replica:?}");
        answers.iter().flatten().for_each(|answer| check(&file, answer, "gemma3"));
    }
}

#[test]
fn prompt_is_read_after_a_benchmark_of_the_links_in_a_pipeline() {
    let file = FamilyModel::gemma3(200).file();
    let replica = Replica { slots: 3, blocks: 80, context_length: 500, ..Replica::pipeline() };
    let disks = Disks::of(&replica);
    let begun = [vec![request(ids(1, 150), 20)]];
    replica.answers_stored(&file, &begun, &disks.open());
    disks.hold(5);
    // The second stage does not hear of the steps of a benchmark.
    let replica = Replica { benches_first: true, ..replica };
    let answers = replica.answers_stored(&file, &begun, &disks.open());
    assert_eq!(answers[0][0].end().times.stored_tokens, 128);
    check(&file, &answers[0][0], "gemma3");
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

/// Files whose queue is full until a name is looked for.
#[derive(Debug)]
struct Gate {
    files: Arc<dyn Files>,
    awaited: Name,
    waiting: Arc<AtomicUsize>,
}

/// Bytes of a queue that stays full.
const FULL: usize = 1 << 40;

impl Files for Gate {
    fn has(&self, name: Name) -> bool {
        if name == self.awaited && self.waiting.load(Ordering::Relaxed) >= FULL {
            self.waiting.fetch_sub(FULL, Ordering::Relaxed);
        }
        self.files.has(name)
    }

    fn finds(&self, name: Name, kind: Kind) -> bool {
        self.files.finds(name, kind)
    }
}

/// Disks that take nothing until a prompt with these first tokens arrives.
fn gated(disks: Vec<Disk>, awaited: &[u32]) -> Vec<Disk> {
    let tokens: [u32; KV_BLOCK_LENGTH] = awaited[..KV_BLOCK_LENGTH].try_into().expect("a block");
    let gated = disks.into_iter().map(|disk| {
        disk.waiting.fetch_add(FULL, Ordering::Relaxed);
        let (awaited, waiting) = (Replica::space().beginning().then(&tokens), Arc::clone(&disk.waiting));
        Disk { files: Arc::new(Gate { files: disk.files, awaited, waiting }), ..disk }
    });
    gated.collect()
}

#[test]
fn blocks_wait_in_the_cache_for_a_slow_disk_and_never_change_there() {
    let files = families::files(&["qwen3-", "gemma3-"]);
    assert!(files.len() >= 2);
    let [first, second, last] = [1, 2, 3].map(|seed| request(ids(seed, 150), 20));
    let awaited = request(ids(4, 40), 10);
    for (name, file) in files {
        for (replica, blocks) in replicas().into_iter().flat_map(|replica| [(replica, 80), (replica, 14)]) {
            let replica = Replica { blocks, context_length: 250, ..replica };
            let disks = Disks::of(&replica);
            let folders = disks.open();
            let batches = [vec![first.clone()], vec![second.clone()], vec![last.clone()], vec![awaited.clone()]];
            let gates = gated(replica.disks(&file, &folders), &ids(4, 40));
            let queues: Vec<Arc<AtomicUsize>> = gates.iter().map(|disk| Arc::clone(&disk.waiting)).collect();
            let begun = replica.answers_on(&file, &batches, gates);
            assert!(begun.iter().flatten().all(|answer| answer.end().times.stored_tokens == 0));
            wait_until("all is written", || queues.iter().all(|queue| queue.load(Ordering::Relaxed) == 0));
            let mut read = Vec::new();
            for batch in &batches[..3] {
                let answer =
                    replica.answers_stored(&file, std::slice::from_ref(batch), &disks.open()).remove(0).remove(0);
                check(&file, &answer, &name);
                read.push(answer.end().times.stored_tokens);
            }
            // Places in windows are few, and those of 14 blocks go to later prompts.
            let is_expected = match (name.starts_with("gemma3"), blocks) {
                (true, _) => read.contains(&128),
                (false, 80) => read == [128; 3],
                (false, _) => read[0] < 128 && read.contains(&128),
            };
            assert!(is_expected, "{name} on {replica:?}: {read:?}");
        }
    }
}

/// A disk whose files arrive only once the folder has so many of them.
fn late(disk: Disk, folder: &Arc<KvFolder>, files: usize) -> Disk {
    let (sender, found) = sync_channel(1);
    let (real, folder) = (disk.found, Arc::clone(folder));
    std::thread::spawn(move || {
        for found in real {
            while folder.usage().1 < files {
                std::thread::yield_now();
            }
            if sender.send(found).is_err() {
                return;
            }
        }
    });
    Disk { found, ..disk }
}

#[test]
fn load_that_is_late_is_abandoned_and_computed() {
    let (name, file) =
        families::files(&FAMILIES).into_iter().find(|(name, _)| name.starts_with("qwen3-")).expect("it is there");
    let replica = Replica { slots: 3, blocks: 80, context_length: 500, ..Replica::of(2) };
    let disks = Disks::of(&replica);
    let first = vec![request(ids(1, 150), 20)];
    replica.answers_stored(&file, &[first], &disks.open());
    disks.hold(5);
    // The other prompt shows how long computing takes; a longer answer completes blocks that are not stored yet, and
    // only then the files arrive.
    let batches = [vec![request(ids(2, 100), 2)], vec![request(ids(1, 150), 100)], vec![request(ids(1, 150), 5)]];
    let folders = disks.open();
    let disks = replica.disks(&file, &folders).into_iter().zip(&folders);
    let slow = disks.map(|(disk, folder)| late(disk, folder, 5 + 3 + 1)).collect();
    let answers = replica.answers_on(&file, &batches, slow);
    answers.iter().flatten().for_each(|answer| check(&file, answer, &name));
    assert!(answers.iter().flatten().all(|answer| answer.end().times.stored_tokens == 0));
}

#[test]
fn ranks_that_omit_their_exchange_store_nothing() {
    let (name, file) = families::files(&["qwen3-"]).remove(0);
    let replica = Replica { slots: 3, blocks: 80, context_length: 500, ..Replica::of(2) };
    for (omits_exchange, files) in [(true, 0), (false, 5)] {
        let disks = Disks::of(&replica);
        let opened = replica.disks(&file, &disks.open());
        let queues: Vec<Arc<AtomicUsize>> = opened.iter().map(|disk| Arc::clone(&disk.waiting)).collect();
        let mut setups = replica.setups(&file);
        for (setup, disk) in setups.iter_mut().zip(opened) {
            setup.store = Some((disk, Replica::space()));
            setup.variant.omits_exchange = omits_exchange;
        }
        let answer = replica.run(&file, setups, &[vec![request(ids(1, 150), 20)]]).remove(0).remove(0);
        assert_eq!(answer.ids.len(), 20, "{name}");
        wait_until("all is written", || queues.iter().all(|queue| queue.load(Ordering::Relaxed) == 0));
        let stored: Vec<usize> = (0..disks.ranks).map(|rank| disks.files(rank).len()).collect();
        assert_eq!(stored, [files; 2], "{name}, omitted: {omits_exchange}");
    }
}

/// The stores of daemons, according to `console kv`.
fn stores(cluster: &Cluster) -> Vec<Value> {
    let ended = cluster.console(&["kv", "--nodes", &cluster.nodes(), "--json"]);
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    let nodes = ended.json()["nodes"].as_array().expect("a list").clone();
    nodes.into_iter().map(|node| node["store"].clone()).collect()
}

/// Starts daemons again that end without notice; meanwhile `change` may change their stored files.
fn restart(cluster: &mut Cluster, change: fn(&Path)) {
    for node in 0..cluster.addresses.len() {
        cluster.signal(node, Signal::SIGKILL);
        cluster.wait(node);
        let files = fs::read_dir(cluster.state(node).join("kv")).expect("it is there");
        files.flatten().for_each(|file| change(&file.path()));
        cluster.start(node);
    }
}

#[test]
fn daemons_read_intact_files_compute_damaged_ones_and_clear_all() {
    let mut cluster = Cluster::with(2, &demo_models(), "kv_store = \"on\"\nkv_copies = false\n");
    let prompt = "ROMEO:\nBut soft, what light through yonder window breaks? ".repeat(8);
    let run = ["--topology", "tp2", "--prompt", &prompt, "--max-tokens", "8", "--temperature", "0"];
    let first = cluster.generate(2, &run).completion();
    let tokens = first["prompt_token_ids"].as_array().expect("a list").len();
    let (stored, blocks) = ((tokens - 1) / KV_BLOCK_LENGTH * KV_BLOCK_LENGTH, (tokens + 7) / KV_BLOCK_LENGTH);
    assert!(stored >= 3 * KV_BLOCK_LENGTH, "{tokens}");
    for (change, expected) in [((|path| damage(path)) as fn(&Path), 0), (|_| {}, stored)] {
        wait_until("all blocks are stored", || stores(&cluster).iter().all(|store| store["files"] == blocks));
        restart(&mut cluster, change);
        let again = cluster.generate(2, &run).completion();
        assert_eq!(again["token_ids"], first["token_ids"]);
        assert_eq!(again["timings"]["stored_tokens"], expected, "{again}");
        for store in stores(&cluster) {
            let counts = [&store["hits"], &store["tokens_read"], &store["files_refused"]].map(Value::as_u64);
            let [hits, read, refused] = counts.map(|count| count.expect("a count"));
            assert_eq!((hits > 0, read as usize, refused > 0), (expected > 0, expected, expected == 0), "{store}");
        }
    }
    let cleared = cluster.console(&["kv", "clear", "--nodes", &cluster.nodes(), "--node", "pi2", "--yes", "--json"]);
    assert_eq!(cleared.json()["cleared"][0]["files"], blocks, "{} {}", cleared.out, cleared.err);
    assert_eq!([0, 1].map(|node| stores(&cluster)[node]["files"].clone()), [json!(blocks), json!(0)]);
    assert_eq!(cluster.generate(2, &run).completion()["token_ids"], first["token_ids"]);
    let shown = cluster.console(&["kv", "list", "--nodes", &cluster.nodes()]).out;
    assert_eq!(shown.matches("on (kv_store = \"on\")").count(), 2, "{shown}");
    cluster.set_settings("kv_store = \"off\"\nkv_copies = false\n");
    restart(&mut cluster, |_| {});
    assert!(!cluster.state(0).join("kv").exists() && stores(&cluster)[0]["on"] == false);
}

/// The greedy answer of a node within a context of so many tokens.
fn answer_within(cluster: &Cluster, context: &str, prompt: &str) -> Value {
    let topology = ["--model", "phi3.gguf", "--topology", "tp1", "--context", context];
    let request = ["--prompt", prompt, "--max-tokens", "8", "--temperature", "0", "--logprobs", "2"];
    cluster.generate(1, &[&topology[..], &request].concat()).completion()
}

#[test]
fn keys_are_not_read_where_other_divisors_of_angles_hold() {
    // The long divisors hold in contexts of more than 512 tokens.
    let shape = families::shapes().into_iter().find(|shape| shape.0 == "phi3-ordinary");
    let mut model = shape.expect("it is there").1.untied();
    model.keys.retain(|key| key.0 != "context_length");
    model.keys.push(("context_length", gguf_writer::Value::U32(1024)));
    let models = folder_with(&[("phi3.gguf", &model.bytes())]);
    let prompt = "abcd".repeat(41);
    let plain = Cluster::with(1, models.path(), "kv_store = \"off\"\nkv_copies = false\n");
    let computed = ["512", "1024"].map(|context| answer_within(&plain, context, &prompt));
    assert_ne!(computed[0]["logprobs"], computed[1]["logprobs"], "the divisors differ");
    let tokens = computed[0]["prompt_token_ids"].as_array().expect("a list").len();
    let blocks = tokens / KV_BLOCK_LENGTH;
    assert!(blocks > 2 && (1..24).contains(&(tokens % KV_BLOCK_LENGTH)), "no answer completes a block: {tokens}");
    let cluster = Cluster::with(1, models.path(), "kv_store = \"on\"\nkv_copies = false\n");
    // Each engine is a new one: nothing is cached in memory.
    for (context, expected, read, files) in [
        ("512", &computed[0], 0, blocks),
        ("1024", &computed[1], 0, 2 * blocks),
        ("512", &computed[0], blocks, 2 * blocks),
        ("1024", &computed[1], blocks, 2 * blocks),
    ] {
        let found = answer_within(&cluster, context, &prompt);
        assert_eq!(found["timings"]["stored_tokens"], read * KV_BLOCK_LENGTH, "{context}: {found}");
        assert_eq!(found["token_ids"], expected["token_ids"], "{context}");
        assert_eq!(found["logprobs"], expected["logprobs"], "{context}");
        wait_until("all blocks are stored", || stores(&cluster)[0]["files"] == files);
    }
}
