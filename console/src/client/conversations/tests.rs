//! Conversations survive a round trip; damaged files are skipped; the folder is bounded and private.
use std::{
    os::unix::fs::PermissionsExt,
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use super::{
    keeper::{Keeper, KeeperNews, KeeperOrder},
    *,
};
use crate::conversation::{ChatAnswer, ChatTurn, SYSTEM_BYTES_MAX};

fn conversation(id: &str, changed_ms: u64) -> Conversation {
    let answer = ChatAnswer { text: "4".to_owned(), thought: "add".to_owned(), ..ChatAnswer::default() };
    let turns = vec![ChatTurn { prompt: "2 + 2?".to_owned(), answer: Some(answer) }];
    Conversation { changed_ms, turns, ..Conversation::new(id.to_owned(), "be short".to_owned()) }
}

#[test]
fn conversations_round_trip_and_only_their_owner_can_read_them() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("bramble/conversations");
    assert_eq!(read_all(&folder), Ok(ReadConversations::default()), "a missing folder is empty");
    let (old, new) = (conversation("old", 1), conversation("new", 2));
    for one in [&old, &new] {
        keep(&folder, one).expect("the folder is writable");
    }
    let found = read_all(&folder).expect("the folder is readable");
    assert_eq!((found.all, found.skipped), (vec![new.clone(), old], Vec::new()));
    let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("new.json"))), (0o700, 0o600));
    remove(&folder, "old").expect("it exists");
    remove(&folder, "old").expect("a missing one is no error");
    assert_eq!(read_all(&folder).map(|found| found.all), Ok(vec![new]));
}

#[test]
fn damaged_files_are_skipped_and_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    keep(folder, &conversation("good", 1)).expect("the folder is writable");
    let newer = Conversation { version: 2, ..conversation("newer", 1) }.json();
    let files = [("cut", "{\"version\": 1".to_owned()), ("newer", newer), ("other", conversation("good", 1).json())];
    for (name, text) in &files {
        fs::write(folder.join(format!("{name}.json")), text).expect("the folder is writable");
    }
    fs::write(folder.join("bytes.json"), [0xff, 0xfe]).expect("the folder is writable");
    fs::write(folder.join("notes.txt"), "not ours").expect("the folder is writable");
    let found = read_all(folder).expect("the folder is readable");
    assert_eq!(found.all, [conversation("good", 1)]);
    assert_eq!(found.skipped.len(), 4, "{:?}", found.skipped);
    assert!(found.skipped.iter().any(|line| line.contains("newer.json") && line.contains("version 2")));
    assert!(files.iter().all(|(name, _)| folder.join(format!("{name}.json")).exists()));
}

#[test]
fn huge_file_does_not_hide_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    keep(folder.path(), &conversation("good", 1)).expect("the folder is writable");
    let huge = File::create(folder.path().join("huge.json")).expect("the folder is writable");
    huge.set_len(ALL_BYTES_MAX + 1).expect("a file with a hole");
    let found = read_all(folder.path()).expect("the folder is readable");
    assert_eq!((found.all, found.skipped.len()), (vec![conversation("good", 1)], 1));
}

#[test]
fn names_that_leave_the_folder_and_huge_conversations_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for id in ["", "../x", "a/b", "A", "x.json"] {
        assert!(keep(folder.path(), &conversation(id, 1)).is_err() && remove(folder.path(), id).is_err(), "{id}");
    }
    let turn = ChatTurn { prompt: "x".repeat(FILE_BYTES_MAX as usize), answer: None };
    let huge = Conversation { turns: vec![turn], ..conversation("huge", 1) };
    let unreadable = Conversation { system: "x".repeat(SYSTEM_BYTES_MAX + 1), ..conversation("unreadable", 1) };
    assert!(keep(folder.path(), &huge).is_err_and(|reason| reason.contains("start a new one")));
    assert!(keep(folder.path(), &unreadable).is_err_and(|reason| reason.contains("system prompt")));
}

#[test]
fn keeper_finishes_its_orders_before_it_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let (sender, news) = std::sync::mpsc::channel();
    let keeper = Keeper::start(folder.path().to_owned(), move |told| sender.send(told).expect("test receives"));
    assert!(keeper.order(KeeperOrder::Keep(Box::new(conversation("one", 1)))));
    assert!(keeper.order(KeeperOrder::Keep(Box::new(conversation("../x", 1)))));
    assert!(keeper.order(KeeperOrder::Read));
    drop(keeper);
    let news: Vec<KeeperNews> = news.iter().collect();
    assert!(matches!(&news[0], KeeperNews::Failed(reason) if reason.contains("../x")), "{news:?}");
    assert!(matches!(&news[1], KeeperNews::Read(found) if found.all.len() == 1), "{news:?}");
}

#[test]
fn disk_that_hangs_delays_the_end_of_the_keeper_only_briefly() {
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, hangs): (_, Receiver<()>) = channel();
    // The thread waits here as it would for a disk, until the sender is dropped.
    let mut keeper = Keeper::start(folder.path().to_owned(), move |_| hangs.recv().unwrap_or_default());
    assert!(keeper.order(KeeperOrder::Read));
    let reason = keeper.end(Duration::from_millis(1)).expect_err("the order is not carried out");
    assert!(reason.contains("too slow"), "{reason}");
    assert!(!keeper.order(KeeperOrder::Read), "it has ended");
    drop(disk);
}
