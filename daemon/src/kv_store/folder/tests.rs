//! Stored files: their order, damage, and several writers of one file.
use common::limits::KV_BLOCK_LENGTH;
use engine::kv_store::{
    Space,
    label::{HEADER_BYTES, Kind},
};

use super::*;

const PAYLOAD: [u8; 1000] = [5; 1000];
const BYTES: u64 = (HEADER_BYTES + PAYLOAD.len()) as u64;

fn part() -> Part {
    "000000160000000400000020".parse().expect("a part")
}

fn write(folder: &KvFolder, label: &Label) {
    let file = Arc::new([&label.header(&PAYLOAD)[..], &PAYLOAD].concat());
    folder.write(label, &part(), &file).expect("there is room");
}

/// The labels of a text's blocks, whose tokens begin with `first`.
fn chain(first: u32, blocks: usize) -> Vec<Label> {
    let space = Space::of(&["a model"]);
    let mut before = space.beginning();
    let labels = (0..blocks).map(|block| {
        let tokens = [first + block as u32; KV_BLOCK_LENGTH];
        let label = Label { space, before, part: part().hash(), kind: Kind::Block, tokens };
        before = label.name();
        label
    });
    labels.collect()
}

fn held(folder: &KvFolder, labels: &[Label]) -> usize {
    labels.iter().filter(|label| folder.read(label, &part()).is_some()).count()
}

#[test]
fn ends_of_the_oldest_texts_are_deleted_first_also_after_a_restart() {
    let place = tempfile::tempdir().expect("a folder can be made");
    let (old, new) = (chain(10, 4), chain(20, 4));
    let folder = KvFolder::open(place.path(), 6 * BYTES).expect("it can be opened");
    old.iter().for_each(|label| write(&folder, label));
    new[..2].iter().for_each(|label| write(&folder, label));
    assert_eq!(folder.usage(), (6 * BYTES, 6));
    new[2..].iter().for_each(|label| write(&folder, label));
    let has = |label: &Label| folder.size(label.name(), &part()).is_some();
    assert!(has(&old[1]) && !has(&old[2]), "the end of the old one");
    assert_eq!(held(&folder, &new), 4);
    drop(folder);
    fs::write(place.path().join("other"), "of another program").expect("it can be written");
    fs::write(place.path().join(format!("{}-0{PART}", old[3].name())), "cut off").expect("it can be written");
    let folder = KvFolder::open(place.path(), 4 * BYTES).expect("it can be opened");
    assert_eq!((folder.usage(), held(&folder, &new), held(&folder, &old)), ((4 * BYTES, 4), 4, 0));
    assert_eq!(fs::read_dir(place.path()).expect("it is there").count(), 5, "those and the other's");
    folder.clear().expect("they can be deleted");
    assert_eq!((folder.usage(), held(&folder, &new)), ((0, 0), 0));
    drop(folder);
    KvFolder::delete_all(place.path()).expect("it can be deleted");
    assert!(place.path().join("other").exists());
}

#[test]
fn a_state_may_be_larger_than_what_is_sent_to_other_nodes() {
    let place = tempfile::tempdir().expect("a folder can be made");
    let folder = KvFolder::open(place.path(), u64::MAX).expect("it can be opened");
    let label = Label { kind: Kind::State, ..chain(1, 1)[0] };
    let payload = vec![5; KV_FILE_BYTES_MAX + 1];
    let file = Arc::new([&label.header(&payload)[..], &payload].concat());
    folder.write(&label, &part(), &file).expect("there is room");
    assert_eq!(folder.size(label.name(), &part()), Some(file.len() as u64));
    assert!(folder.read(&label, &part()).is_some());
    let block = chain(1, 1)[0];
    write(&folder, &block);
    assert_eq!(folder.list().files, [(block.name().0, 0)], "a node would refuse the state");
    assert_eq!(folder.piece(label.name(), &part(), 0, 1), None);
}

#[test]
fn damaged_and_foreign_files_are_deleted_and_never_used() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().expect("a folder can be made");
    let labels = chain(1, 3);
    let folder = KvFolder::open(place.path(), u64::MAX).expect("it can be opened");
    labels.iter().for_each(|label| write(&folder, label));
    let path = |label: &Label| place.path().join(file_name(label.name(), &part(), label.needs()));
    let mode = fs::metadata(path(&labels[0])).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut bytes = fs::read(path(&labels[0])).expect("it is there");
    bytes[HEADER_BYTES + 500] ^= 1;
    fs::write(path(&labels[0]), &bytes).expect("it can be written");
    fs::copy(path(&labels[2]), path(&labels[1])).expect("it can be written");
    fs::write(path(&labels[2]), []).expect("it can be written");
    assert_eq!(held(&folder, &labels), 0);
    assert_eq!((folder.usage(), fs::read_dir(place.path()).expect("it is there").count()), ((0, 0), 0));
    labels.iter().for_each(|label| write(&folder, label));
    assert_eq!(held(&folder, &labels), 3, "they are computed and stored again");
}

#[test]
fn writers_of_one_file_do_not_mix_their_bytes() {
    let place = tempfile::tempdir().expect("a folder can be made");
    let folder = KvFolder::open(place.path(), u64::MAX).expect("it can be opened");
    let labels = chain(1, 20);
    // Of equal length: kernels differ in the rounding of their sums.
    std::thread::scope(|scope| {
        for byte in 0..4 {
            let (folder, labels) = (&folder, &labels);
            scope.spawn(move || {
                for label in labels {
                    let payload = [byte; 100_000];
                    let file = Arc::new([&label.header(&payload)[..], &payload].concat());
                    folder.write(label, &part(), &file).expect("each writes a file of its own");
                }
            });
        }
    });
    assert_eq!(held(&folder, &labels), labels.len(), "none is damaged");
    assert_eq!(fs::read_dir(place.path()).expect("it is there").count(), labels.len(), "nothing else is left");
}

#[test]
fn unfinished_files_have_names_of_their_own_and_are_deleted_at_start() {
    let place = tempfile::tempdir().expect("a folder can be made");
    let folder = KvFolder::open(place.path(), u64::MAX).expect("it can be opened");
    let name = chain(1, 1)[0].name();
    let names = [folder.unfinished(name), folder.unfinished(name)];
    assert_ne!(names[0], names[1]);
    names.iter().for_each(|name| fs::write(place.path().join(name), "cut off").expect("it can be written"));
    drop(folder);
    let folder = KvFolder::open(place.path(), u64::MAX).expect("it can be opened");
    assert_eq!((folder.usage(), fs::read_dir(place.path()).expect("it is there").count()), ((0, 0), 0));
}
