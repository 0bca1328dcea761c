//! The threads that prepare requests for an engine, between the node and the engine. A cancelled request leaves at once, wherever it is.
use std::{
    fmt, io,
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use shared::protocol::{
    error::{Fault, FaultKind},
    message::{Chat, Generate, Grammar, Prompt},
};

use super::{
    ModelText, TextWork, Unprepared,
    lanes::{Lane, Lanes, Next, Waiting},
    memory::Memory,
    prepare::{Preparer, SMALL_BYTES_MAX},
    worker::{Budget, Program, Worker},
};
use crate::{
    engine::{
        RequestKey,
        port::{EngineOrder, Prepared},
    },
    node::Progress,
};

/// Between two looks for room in the engine's queue.
const ROOM: Duration = Duration::from_millis(1);
/// A child without work is ended after this: the next starts in some milliseconds.
const IDLE: Duration = Duration::from_secs(20);

/// Where faults go.
type Sink = Arc<dyn Fn(Progress) + Send + Sync>;

/// Prepares the requests of a head. Ends its threads and children when it is dropped.
pub struct TextService {
    lanes: Arc<Lanes>,
}

impl fmt::Debug for TextService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextService").field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

impl Drop for TextService {
    fn drop(&mut self) {
        self.lanes.end();
    }
}

/// What the threads of a service share.
#[derive(Clone)]
struct Around {
    node: String,
    model: Arc<ModelText>,
    memory: Arc<Memory>,
    lanes: Arc<Lanes>,
    engine: SyncSender<EngineOrder>,
    sink: Sink,
}

impl TextService {
    /// Starts the threads; children start when they are needed.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(
        node: String,
        model: ModelText,
        program: &Program,
        engine: SyncSender<EngineOrder>,
        sink: Sink,
    ) -> io::Result<Self> {
        let (lanes, model) = (Arc::new(Lanes::default()), Arc::new(model));
        // Dropped where a thread cannot be started: then the others end.
        let service = Self { lanes: Arc::clone(&lanes) };
        let around = Around { node, model: Arc::clone(&model), memory: Arc::default(), lanes, engine, sink };
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| thread::Builder::new().name(name.into()).spawn(run);
        let own = around.clone();
        spawn("text", Box::new(move || own.run_front()))?;
        for (lane, name, budget) in
            [(Lane::Chat, "text-chat", Budget::SMALL), (Lane::Long, "text-long", Budget::large(model.context_length))]
        {
            let (own, worker) = (around.clone(), Worker::new(program.clone(), &model, budget));
            spawn(name, Box::new(move || own.run_with_child(lane, worker)))?;
        }
        Ok(service)
    }

    /// Prepares a request and hands it to the engine, or refuses it. Never waits.
    pub fn submit(&self, key: RequestKey, generate: Arc<Generate>) {
        self.lanes.enter(Waiting { key, generate, received: Instant::now() });
    }

    /// Takes back a request that is still prepared; false if the engine has it. Never waits.
    pub fn withdraw(&self, key: RequestKey) -> bool {
        self.lanes.leave(key)
    }
}

/// Does nothing itself.
struct Elsewhere;

impl TextWork for Elsewhere {
    fn render(&mut self, _: &Chat, _: u64) -> Result<String, Unprepared> {
        Err(Unprepared::Elsewhere)
    }

    fn check(&mut self, _: &Grammar) -> Result<(), Unprepared> {
        Err(Unprepared::Elsewhere)
    }

    fn encode(&mut self, _: &str, _: bool) -> Result<Vec<u32>, Unprepared> {
        Err(Unprepared::Elsewhere)
    }
}

/// Where a request is prepared that needs a child; one whose schema is known to be good has none to check.
fn lane_of(generate: &Generate, is_form_known: bool) -> Lane {
    match &generate.prompt {
        Prompt::Chat(_) if generate.prompt.byte_count() <= SMALL_BYTES_MAX && is_form_known => Lane::Chat,
        _ => Lane::Long,
    }
}

impl Around {
    fn preparer<W: TextWork>(&self, work: W) -> Preparer<W> {
        Preparer { model: Arc::clone(&self.model), memory: Arc::clone(&self.memory), work }
    }

    /// What needs no child is prepared here, all else is handed on.
    fn run_front(&self) {
        let mut preparer = self.preparer(Elsewhere);
        loop {
            let waiting = match self.lanes.next(Lane::Front, IDLE) {
                Next::Prepare(waiting) => waiting,
                Next::Rest => continue,
                Next::End => return,
            };
            match preparer.prepare(&waiting.generate, now()) {
                Err(Unprepared::Elsewhere) => {
                    let is_form_known = preparer.knows_form(&waiting.generate);
                    self.lanes.hand_on(lane_of(&waiting.generate, is_form_known), waiting);
                }
                result => self.deliver(waiting, result),
            }
        }
    }

    fn run_with_child(&self, lane: Lane, worker: Worker) {
        let mut preparer = self.preparer(worker);
        loop {
            let waiting = match self.lanes.next(lane, IDLE) {
                Next::Prepare(waiting) => waiting,
                Next::Rest => {
                    preparer.work.end();
                    continue;
                }
                Next::End => return,
            };
            let (lanes, key) = (Arc::clone(&self.lanes), waiting.key);
            preparer.work.is_wanted = Box::new(move || lanes.is_wanted(key));
            let result = preparer.prepare(&waiting.generate, now());
            self.deliver(waiting, result);
        }
    }

    /// Hands a request to the engine, or says why it cannot be run; one that was cancelled meanwhile is forgotten.
    fn deliver(&self, waiting: Waiting, result: Result<Vec<u32>, Unprepared>) {
        let Waiting { key, generate, received } = waiting;
        match result {
            Ok(prompt) => {
                let tool_format = self.model.tool_format();
                let prepared = Box::new(Prepared { received, generate, prompt, tool_format });
                self.hand_over(key, EngineOrder::Begin(key, prepared));
            }
            Err(error) => {
                let kind = match error {
                    Unprepared::Refused(kind) => kind,
                    Unprepared::Elsewhere => FaultKind::Internal { reason: "the request is prepared nowhere".into() },
                };
                if self.lanes.leave(key) {
                    (self.sink)(Progress::Refused(key, Fault::new(&self.node, kind)));
                }
            }
        }
    }
}

impl Around {
    /// Gives the engine a request as soon as there is room, or nobody wants it any more. A cancel that comes later is behind it.
    fn hand_over(&self, key: RequestKey, order: EngineOrder) {
        let mut next = Some(order);
        while let Some(order) = next.take() {
            self.lanes.leave_with(key, || match self.engine.try_send(order) {
                Err(TrySendError::Full(order)) => {
                    next = Some(order);
                    false
                }
                // An engine that ended said so itself.
                Ok(()) | Err(TrySendError::Disconnected(_)) => true,
            });
            if next.is_some() {
                thread::park_timeout(ROOM);
            }
        }
    }
}

/// Seconds since 1970; a clock before that is one that was never set.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
