//! A thread that reads, stores and deletes conversations one after another, so that a dashboard never waits for the disk.
use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::JoinHandle,
};

use super::{ReadConversations, keep, read_all, remove};
use crate::conversation::Conversation;

/// Most orders that wait for the disk; a full queue refuses further ones.
const ORDERS_MAX: usize = 64;

/// An order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperOrder {
    /// Read all conversations.
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
    /// An order failed, with the reason.
    Failed(String),
}

/// The thread.
#[derive(Debug)]
pub struct Keeper {
    orders: Option<SyncSender<KeeperOrder>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread for this folder. It ends when the keeper is dropped, after the last order.
    pub fn start(folder: PathBuf, news: impl Fn(KeeperNews) + Send + 'static) -> Self {
        let (orders, received) = sync_channel(ORDERS_MAX);
        let thread =
            std::thread::Builder::new().name("conversations".to_owned()).spawn(move || work(&received, &folder, &news));
        Self { orders: Some(orders), thread: thread.ok() }
    }

    /// Gives an order; `false` if the thread cannot take it.
    pub fn order(&self, order: KeeperOrder) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.try_send(order).is_ok())
    }
}

impl Drop for Keeper {
    /// Waits for the orders given so far: without this, the last answer of a session could be lost.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

fn work(orders: &Receiver<KeeperOrder>, folder: &std::path::Path, news: &dyn Fn(KeeperNews)) {
    for order in orders {
        let done = match order {
            KeeperOrder::Read => read_all(folder).map(|found| news(KeeperNews::Read(found))),
            KeeperOrder::Keep(conversation) => keep(folder, &conversation),
            KeeperOrder::Remove(id) => remove(folder, &id),
        };
        if let Err(reason) = done {
            news(KeeperNews::Failed(reason));
        }
    }
}
