//! Commands for the engine, which takes them between two steps. The queue is bounded and never blocks the driver: if it
//! is full, a request is refused, and so is a remote prefill for another group. Commands that must not be lost wait
//! here for room.
use std::{
    collections::{HashSet, VecDeque},
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
};

use engine::port::EngineOrder;
use protocol::across::Across;

use crate::node::machine::QUEUE_MAX;

/// Capacity of the queue: all requests of a full admission queue, and their ends.
pub(super) const COMMANDS_MAX: usize = 2 * QUEUE_MAX;
/// Commands that must not be lost and wait for room.
const WAITING_MAX: usize = 4 * QUEUE_MAX;

/// The driver's end of the queue.
#[derive(Debug)]
pub(super) struct Orders {
    sender: SyncSender<EngineOrder>,
    waiting: VecDeque<EngineOrder>,
    /// Unanswered remote prefills that heads of other groups requested: replica and transfer.
    asks: HashSet<(u16, u64)>,
}

impl Orders {
    /// Creates both ends.
    pub(super) fn new() -> (Self, Receiver<EngineOrder>) {
        let (sender, receiver) = sync_channel(COMMANDS_MAX);
        (Self { sender, waiting: VecDeque::new(), asks: HashSet::new() }, receiver)
    }

    /// A sender for the threads that prepare requests; it blocks them, not the driver, when the queue is full.
    pub(super) fn sender(&self) -> SyncSender<EngineOrder> {
        self.sender.clone()
    }

    /// Queues a command, or keeps it until there is room. Succeeds also if the engine has ended, which reports that
    /// itself.
    ///
    /// # Errors
    /// Returns a command that found no room: a request, or a message of another group.
    pub(super) fn push(&mut self, command: EngineOrder) -> Result<(), EngineOrder> {
        self.flush();
        let ask = match &command {
            EngineOrder::Across(replica, Across::Ask(ask)) => Some((*replica, ask.transfer)),
            _ => None,
        };
        if let Some((replica, _)) = ask
            && self.asks.iter().filter(|(of, _)| *of == replica).count() >= QUEUE_MAX
        {
            return Err(command);
        }
        match &command {
            EngineOrder::Across(replica, Across::Cancel { transfer }) => {
                self.asks.remove(&(*replica, *transfer));
            }
            EngineOrder::AcrossLost(replica) => self.asks.retain(|(of, _)| of != replica),
            _ => {}
        }
        let rest = if self.waiting.is_empty() { self.send(command) } else { Some(command) };
        match rest {
            None => self.asks.extend(ask),
            Some(command) => self.wait(command)?,
        }
        Ok(())
    }

    /// Queues waiting commands as long as there is room.
    pub(super) fn flush(&mut self) {
        while let Some(command) = self.waiting.pop_front() {
            if let Some(command) = self.send(command) {
                return self.waiting.push_front(command);
            }
        }
    }

    /// Records that the engine has answered the head of another group.
    pub(super) fn answered(&mut self, replica: u16, message: &Across) {
        if let Across::Done { transfer, .. } | Across::Refused { transfer } = message {
            self.asks.remove(&(replica, *transfer));
        }
    }

    /// Returns the command if there is no room.
    fn send(&self, command: EngineOrder) -> Option<EngineOrder> {
        match self.sender.try_send(command) {
            Err(TrySendError::Full(command)) => Some(command),
            Ok(()) | Err(TrySendError::Disconnected(_)) => None,
        }
    }

    fn wait(&mut self, command: EngineOrder) -> Result<(), EngineOrder> {
        let can_be_refused = match &command {
            EngineOrder::Begin(..) | EngineOrder::BenchLinks(..) => true,
            EngineOrder::Across(_, message) => matches!(message, Across::Ask(_)) || self.waiting.len() >= WAITING_MAX,
            // One for each queued request, one for each group.
            EngineOrder::Cancel(_) | EngineOrder::Withdrawn(_) | EngineOrder::AcrossLost(_) | EngineOrder::Stop => {
                false
            }
        };
        if can_be_refused {
            return Err(command);
        }
        if !self.waiting.contains(&command) {
            self.waiting.push_back(command);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::LazyLock, time::Instant};

    use common::sampling::SamplingParameters;
    use protocol::{across::Ask, message::Generate};

    use super::*;
    use engine::{RequestKey, port::Prepared};

    fn submit(key: u64) -> EngineOrder {
        let generate = Generate::new("a", 1, SamplingParameters::default(), Vec::new());
        static RECEIVED: LazyLock<Instant> = LazyLock::new(Instant::now);
        let prepared = Prepared::new(*RECEIVED, &generate, vec![1], false);
        EngineOrder::Begin(RequestKey(key), Box::new(prepared))
    }

    fn ask(replica: u16, transfer: u64) -> EngineOrder {
        EngineOrder::Across(replica, Across::Ask(Box::new(Ask { transfer, tokens: vec![1], first_block: 0 })))
    }

    #[test]
    fn full_queue_refuses_requests_and_loses_no_cancel() {
        let (mut orders, engine) = Orders::new();
        let count = COMMANDS_MAX as u64;
        for key in 0..count {
            assert_eq!(orders.push(submit(key)), Ok(()));
        }
        // The engine is in a long step and takes no command.
        assert_eq!(orders.push(submit(count)), Err(submit(count)));
        for key in (0..count).chain(0..count) {
            assert_eq!(orders.push(EngineOrder::Cancel(RequestKey(key))), Ok(()));
        }
        assert_eq!(orders.waiting.len(), COMMANDS_MAX, "each waits once");
        assert_eq!(orders.push(submit(count)), Err(submit(count)));
        let mut taken = Vec::new();
        while let Ok(command) = engine.try_recv() {
            taken.push(command);
            orders.flush();
        }
        let wanted = (0..count).map(submit).chain((0..count).map(|key| EngineOrder::Cancel(RequestKey(key))));
        assert!(taken == wanted.collect::<Vec<_>>(), "all of them, in their order");
        assert_eq!(orders.push(submit(count)), Ok(()), "there is room again");
    }

    #[test]
    fn remote_prefills_of_another_group_are_bounded() {
        let (mut orders, engine) = Orders::new();
        let most = QUEUE_MAX as u64;
        for transfer in 0..most {
            assert_eq!(orders.push(ask(1, transfer)), Ok(()));
            assert!(engine.try_recv().is_ok(), "the engine takes all of them at once");
        }
        assert_eq!(orders.push(ask(1, most)), Err(ask(1, most)));
        assert_eq!(orders.push(ask(2, most)), Ok(()), "the limit is that of one group");
        orders.answered(1, &Across::Refused { transfer: 3 });
        assert_eq!(orders.push(ask(1, most)), Ok(()));
        assert_eq!(orders.push(EngineOrder::Across(1, Across::Cancel { transfer: 4 })), Ok(()));
        assert_eq!(orders.push(ask(1, most + 1)), Ok(()));
        assert_eq!(orders.push(EngineOrder::AcrossLost(1)), Ok(()));
        assert_eq!(orders.asks.len(), 1);
    }

    #[test]
    fn messages_of_another_group_are_bounded_while_engine_is_busy() {
        let (mut orders, _engine) = Orders::new();
        let cancels = (0..10_000).map(|transfer| EngineOrder::Across(1, Across::Cancel { transfer }));
        let taken = cancels.map_while(|cancel| orders.push(cancel).ok()).count();
        assert_eq!(taken, COMMANDS_MAX + WAITING_MAX);
        assert_eq!(orders.push(EngineOrder::AcrossLost(1)), Ok(()), "the loss of the group is queued anyway");
    }

    #[test]
    fn ended_engine_accepts_every_command() {
        let (mut orders, engine) = Orders::new();
        drop(engine);
        assert!((0..1000).all(|key| orders.push(submit(key)).is_ok()));
    }
}
