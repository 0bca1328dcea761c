//! A thread that reads, stores and deletes conversations one after another, so that a dashboard never waits for the disk.
use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use super::{ConversationFolder, ReadConversations};
use crate::conversation::Conversation;

/// Most orders that wait for the disk; a full queue refuses further ones.
const ORDERS_MAX: usize = 64;
/// Longest wait for the disk at the end: a home folder on a server that is gone would keep the console from ending.
const END_WAIT: Duration = Duration::from_secs(5);

/// An order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperOrder {
    /// Read all conversations: the console holds them from now on.
    Read,
    /// Store a conversation.
    Keep(Box<Conversation>),
    /// Delete the conversation with this id.
    Remove(String),
}

/// The outcome of an order, if there is something to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperNews {
    /// All conversations.
    Read(ReadConversations),
    /// A conversation was stored as another one, because a second console changed its file; the message for the user.
    Copied(String),
    /// An order failed, with the reason.
    Failed(String),
}

/// The thread.
#[derive(Debug)]
pub struct Keeper {
    orders: Option<SyncSender<KeeperOrder>>,
    done: Receiver<()>,
}

impl Keeper {
    /// Starts the thread for this folder. It ends when the keeper is dropped, after the last order.
    pub fn start(folder: PathBuf, news: impl Fn(KeeperNews) + Send + 'static) -> Self {
        let (orders, received) = sync_channel(ORDERS_MAX);
        let (ended, done) = sync_channel(1);
        let started = thread::Builder::new().name("conversations".to_owned()).spawn(move || {
            work(&received, ConversationFolder::at(folder), &news);
            // The keeper may be gone.
            let _ = ended.try_send(());
        });
        // Without the thread, orders are refused.
        drop(started);
        Self { orders: Some(orders), done }
    }

    /// Gives an order; `false` if the thread cannot take it.
    pub fn order(&self, order: KeeperOrder) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// Waits for the orders given so far, at most [`END_WAIT`]: otherwise the last answer of a session could be lost.
    ///
    /// # Errors
    /// Some of them are not carried out yet.
    pub fn finish(mut self) -> Result<(), String> {
        self.end(END_WAIT)
    }

    pub(super) fn end(&mut self, patience: Duration) -> Result<(), String> {
        if self.orders.take().is_none() {
            return Ok(());
        }
        match self.done.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => {
                Err("the disk is too slow; the last conversation may not be stored".to_owned())
            }
            // A panic of the thread has been printed.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Errors are reported by `finish` only.
        let _ = self.end(END_WAIT);
    }
}

fn work(orders: &Receiver<KeeperOrder>, mut folder: ConversationFolder, news: &dyn Fn(KeeperNews)) {
    for order in orders {
        let done = match order {
            KeeperOrder::Read => folder.read_all().map(|found| {
                found.all.iter().for_each(|read| folder.hold(read));
                Some(KeeperNews::Read(found))
            }),
            KeeperOrder::Keep(conversation) => folder.keep(&conversation).map(|copied| copied.map(KeeperNews::Copied)),
            KeeperOrder::Remove(id) => folder.remove(&id).map(|()| None),
        };
        if let Some(told) = done.unwrap_or_else(|reason| Some(KeeperNews::Failed(reason))) {
            news(told);
        }
    }
}
