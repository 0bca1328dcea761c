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

/// The folder as another process uses it.
fn at(folder: &Path) -> ConversationFolder {
    ConversationFolder::at(folder.to_owned())
}

#[test]
fn conversations_round_trip_and_only_their_owner_can_read_them() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("bramble/conversations");
    let mut conversations = at(&folder);
    assert_eq!(conversations.read_all(), Ok(ReadConversations::default()), "a missing folder is empty");
    let (old, new) = (conversation("old", 1), conversation("new", 2));
    for one in [&old, &new] {
        assert_eq!(conversations.keep(one), Ok(None));
    }
    let found = conversations.read_all().expect("the folder is readable");
    assert_eq!((found.all, found.skipped), (vec![new.clone(), old], Vec::new()));
    let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("new.json"))), (0o700, 0o600));
    conversations.remove("old").expect("it exists");
    conversations.remove("old").expect("a missing one is no error");
    assert_eq!(conversations.read_all().map(|found| found.all), Ok(vec![new]));
}

#[test]
fn damaged_files_are_skipped_and_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    at(folder).keep(&conversation("good", 1)).expect("the folder is writable");
    let newer = Conversation { version: 2, ..conversation("newer", 1) }.json();
    let files = [("cut", "{\"version\": 1".to_owned()), ("newer", newer), ("other", conversation("good", 1).json())];
    for (name, text) in &files {
        fs::write(folder.join(format!("{name}.json")), text).expect("the folder is writable");
    }
    fs::write(folder.join("bytes.json"), [0xff, 0xfe]).expect("the folder is writable");
    fs::write(folder.join("notes.txt"), "not ours").expect("the folder is writable");
    let found = at(folder).read_all().expect("the folder is readable");
    assert_eq!(found.all, [conversation("good", 1)]);
    assert_eq!(found.skipped.len(), 4, "{:?}", found.skipped);
    assert!(found.skipped.iter().any(|line| line.contains("newer.json") && line.contains("version 2")));
    let copied = at(folder).keep(&conversation("cut", 2)).expect("the folder is writable");
    assert!(copied.is_some_and(|message| message.contains("\"2 + 2? (copy)\"")));
    for (name, text) in &files {
        assert_eq!(fs::read_to_string(folder.join(format!("{name}.json"))).expect("it is there"), *text);
    }
}

#[test]
fn huge_file_does_not_hide_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    at(folder.path()).keep(&conversation("good", 1)).expect("the folder is writable");
    let huge = File::create(folder.path().join("huge.json")).expect("the folder is writable");
    huge.set_len(ALL_BYTES_MAX + 1).expect("a file with a hole");
    let found = at(folder.path()).read_all().expect("the folder is readable");
    assert_eq!((found.all, found.skipped.len()), (vec![conversation("good", 1)], 1));
}

#[test]
fn names_that_leave_the_folder_and_huge_conversations_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut conversations = at(folder.path());
    for id in ["", "../x", "a/b", "A", "x.json"] {
        assert!(conversations.keep(&conversation(id, 1)).is_err() && conversations.remove(id).is_err(), "{id}");
    }
    let turn = ChatTurn { prompt: "x".repeat(FILE_BYTES_MAX as usize), answer: None };
    let huge = Conversation { turns: vec![turn], ..conversation("huge", 1) };
    let unreadable = Conversation { system: "x".repeat(SYSTEM_BYTES_MAX + 1), ..conversation("unreadable", 1) };
    assert!(conversations.keep(&huge).is_err_and(|reason| reason.contains("start a new one")));
    assert!(conversations.keep(&unreadable).is_err_and(|reason| reason.contains("system prompt")));
}

#[test]
fn version_of_a_second_console_is_stored_as_another_conversation() {
    let home = tempfile::tempdir().expect("a folder");
    let [mut chat, mut dashboard] = [at(home.path()), at(home.path())];
    let first = conversation("talk", 1);
    assert_eq!(chat.keep(&first), Ok(None));
    dashboard.hold(&first);
    // A new title is a change, although the time stays.
    let renamed = Conversation { title: "Sums".to_owned(), ..first.clone() };
    assert_eq!(chat.keep(&renamed), Ok(None));
    let longer = Conversation { turns: [&first.turns[..], &first.turns[..]].concat(), changed_ms: 2, ..first };
    let copied = dashboard.keep(&longer).expect("it is stored").expect("the user is told");
    assert!(copied.contains("\"2 + 2? (copy)\""), "{copied}");
    // Both continue, each in its own file and without another message.
    let renamed = Conversation { changed_ms: 3, ..renamed };
    let longer = Conversation { changed_ms: 4, ..longer };
    assert_eq!((chat.keep(&renamed), dashboard.keep(&longer)), (Ok(None), Ok(None)));
    let copy = Conversation { id: "talk-2".to_owned(), title: "2 + 2? (copy)".to_owned(), ..longer };
    assert_eq!(chat.read_all().map(|found| found.all), Ok(vec![copy, renamed.clone()]));
    dashboard.remove("talk").expect("it exists");
    assert_eq!(chat.read_all().map(|found| found.all), Ok(vec![renamed]), "the dashboard deletes its own version");
}

#[test]
fn copy_of_a_long_title_and_id_can_be_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = Conversation { title: "\u{fc}".repeat(60), ..conversation(&"a".repeat(64), 1) };
    for mut conversations in [at(folder.path()), at(folder.path()), at(folder.path())] {
        conversations.keep(&long).expect("it is stored");
    }
    let found = at(folder.path()).read_all().expect("the folder is readable");
    assert_eq!((found.all.len(), found.skipped), (3, Vec::new()));
}

#[test]
fn keeper_reports_a_conversation_that_another_console_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = conversation("talk", 1);
    let mut chat = at(folder.path());
    chat.keep(&first).expect("the folder is writable");
    let (sender, news) = channel();
    let keeper = Keeper::start(folder.path().to_owned(), move |told| sender.send(told).expect("test receives"));
    assert!(keeper.order(KeeperOrder::Read));
    assert!(matches!(news.recv(), Ok(KeeperNews::Read(found)) if found.all == [first.clone()]));
    chat.keep(&Conversation { changed_ms: 2, ..first.clone() }).expect("the folder is writable");
    assert!(keeper.order(KeeperOrder::Keep(Box::new(Conversation { changed_ms: 3, ..first }))));
    keeper.finish().expect("the disk is fast");
    let told: Vec<KeeperNews> = news.iter().collect();
    assert!(matches!(&told[..], [KeeperNews::Copied(message)] if message.contains("(copy)")), "{told:?}");
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
