//! The threads that prepare requests, between the node and the engine. A cancelled request is removed at once, wherever
//! it is.
use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use common::{
    changes::TemplateChanges,
    chat::{Chat, Grammar},
    fault::{Fault, FaultKind},
    tool_use::CallGrammar,
};
use engine::{
    RequestKey,
    port::{EngineEvent, EngineOrder, RequestEvent},
};
use protocol::{
    message::{Generate, Prompt},
    texts::{TextRequest, TextResponse},
};
use tokenizer::template::Rendered;
use tokio::sync::oneshot;

use super::{
    Answers, ModelText, PromptTokens, TextWork, Translated, Unprepared,
    lanes::{FIRST_QUESTION, Lane, LaneWork, Lanes, Next, TextQuestion, Waiting},
    memory::Memory,
    prepare::{Preparer, SMALL_BYTES_MAX},
    worker::{Budget, Program, Worker},
};

/// Interval of checks for room in the engine's queue.
const ROOM: Duration = Duration::from_millis(1);
/// Idle time after which a child is ended: starting another takes some milliseconds.
const IDLE: Duration = Duration::from_secs(20);

/// Most questions about texts that wait or are being answered.
const QUESTIONS_MAX: usize = 64;

/// Receiver of faults.
type Sink = Arc<dyn Fn(EngineEvent) + Send + Sync>;

/// Prepares the requests of a head, and translates its answers. Ends its threads and children when dropped.
pub struct TextService {
    lanes: Arc<Lanes>,
    answers: Arc<Answers>,
    /// Number of questions so far.
    asked: AtomicU64,
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

/// State shared by the threads of a service.
#[derive(Clone)]
struct Around {
    node: String,
    model: Arc<ModelText>,
    memory: Arc<Memory>,
    lanes: Arc<Lanes>,
    answers: Arc<Answers>,
    engine: SyncSender<EngineOrder>,
    sink: Sink,
    /// Whether the first changes of a conversation are in the log.
    has_logged: Arc<AtomicBool>,
}

impl TextService {
    /// Starts the threads; children are started on demand.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        node: String,
        model: ModelText,
        program: &Program,
        engine: SyncSender<EngineOrder>,
        sink: Sink,
    ) -> io::Result<Self> {
        let (lanes, model) = (Arc::new(Lanes::default()), Arc::new(model));
        // Dropped if a thread cannot be started, which ends the others.
        let answers = Arc::new(Answers::new(&model));
        let service = Self { lanes: Arc::clone(&lanes), answers: Arc::clone(&answers), asked: AtomicU64::new(0) };
        let (memory, has_logged) = (Arc::default(), Arc::default());
        let around = Around { node, model: Arc::clone(&model), memory, lanes, answers, engine, sink, has_logged };
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

    /// Prepares a request and hands it to the engine, or refuses it. Never blocks.
    pub fn submit(&self, key: RequestKey, generate: Arc<Generate>) {
        self.lanes.enter(Waiting { key, work: LaneWork::Generate(generate), received: Instant::now() });
    }

    /// Answers a question about texts; dropping the receiver withdraws it. Never blocks.
    ///
    /// # Errors
    /// Too many others wait.
    pub fn ask(&self, request: TextRequest) -> Result<oneshot::Receiver<Result<TextResponse, FaultKind>>, FaultKind> {
        if self.lanes.questions() >= QUESTIONS_MAX {
            return Err(FaultKind::QueueFull { limit: QUESTIONS_MAX as u32 });
        }
        let key = RequestKey(FIRST_QUESTION.0 + self.asked.fetch_add(1, Ordering::Relaxed));
        let (answer, receiver) = oneshot::channel();
        let work = LaneWork::Question(TextQuestion { request: Arc::new(request), answer });
        self.lanes.enter(Waiting { key, work, received: Instant::now() });
        Ok(receiver)
    }

    /// Translates an event of the engine.
    pub fn translate(&self, key: RequestKey, event: RequestEvent) -> Translated {
        self.answers.translate(key, event)
    }

    /// Withdraws a request that is still being prepared; false if the engine has it. Never blocks.
    pub fn withdraw(&self, key: RequestKey) -> bool {
        self.lanes.leave(key)
    }
}

/// Refuses all work, so that it is done by a child.
struct Elsewhere;

impl TextWork for Elsewhere {
    fn render(&mut self, _: &Chat, _: u64) -> Result<Rendered, Unprepared> {
        Err(Unprepared::Elsewhere)
    }

    fn check(&mut self, _: &Grammar) -> Result<(), Unprepared> {
        Err(Unprepared::Elsewhere)
    }

    fn check_calls(&mut self, _: &CallGrammar) -> Result<(), Unprepared> {
        Err(Unprepared::Elsewhere)
    }

    fn encode(&mut self, _: &str, _: bool, _: bool) -> Result<Vec<u32>, Unprepared> {
        Err(Unprepared::Elsewhere)
    }
}

/// The lane of a question that needs a child.
fn lane_of_question(request: &TextRequest) -> Lane {
    match request {
        TextRequest::TokenizeChat { .. } | TextRequest::Render(_) if request.byte_count() <= SMALL_BYTES_MAX => {
            Lane::Chat
        }
        _ => Lane::Long,
    }
}

/// The lane of a request that needs a child; if its schema is known to be valid, only the prompt counts.
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

    /// Prepares requests that need no child, and moves all others to their lanes.
    fn run_front(&self) {
        let mut preparer = self.preparer(Elsewhere);
        loop {
            let waiting = match self.lanes.next(Lane::Front, IDLE) {
                Next::Prepare(waiting) => waiting,
                Next::Rest => continue,
                Next::End => return,
            };
            if let Some((lane, waiting)) = self.work(&mut preparer, waiting) {
                self.lanes.hand_on(lane, waiting);
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
            if let Some((_, unprepared)) = self.work(&mut preparer, waiting) {
                self.refuse_elsewhere(unprepared);
            }
        }
    }

    /// Does the work of a request. Returns the request and its lane if it needs a child.
    fn work<W: TextWork>(&self, preparer: &mut Preparer<W>, waiting: Waiting) -> Option<(Lane, Waiting)> {
        let Waiting { key, work, received } = waiting;
        match work {
            LaneWork::Generate(generate) => match preparer.prepare(&generate, now()) {
                Err(Unprepared::Elsewhere) => {
                    let lane = lane_of(&generate, preparer.knows_form(&generate));
                    return Some((lane, Waiting { key, work: LaneWork::Generate(generate), received }));
                }
                result => {
                    let result = result.map(|prompt| {
                        let calls = preparer.call_grammar(&generate, &prompt.ids);
                        (prompt, calls)
                    });
                    self.deliver(key, received, &generate, result);
                }
            },
            LaneWork::Question(question) if question.answer.is_closed() => drop(self.lanes.leave(key)),
            LaneWork::Question(question) => match preparer.answer(&question.request, now()) {
                Err(Unprepared::Elsewhere) => {
                    let lane = lane_of_question(&question.request);
                    return Some((lane, Waiting { key, work: LaneWork::Question(question), received }));
                }
                Err(Unprepared::Refused(kind)) => self.answer(key, question, Err(kind)),
                Ok(response) => self.answer(key, question, Ok(response)),
            },
        }
        None
    }

    /// Answers a question.
    fn answer(&self, key: RequestKey, question: TextQuestion, answer: Result<TextResponse, FaultKind>) {
        self.lanes.leave(key);
        // Its client may be gone.
        drop(question.answer.send(answer));
    }

    /// Ends work that no lane can do, or that was withdrawn while it was being done.
    fn refuse_elsewhere(&self, waiting: Waiting) {
        let kind = FaultKind::Internal { reason: "no worker can prepare the request".into() };
        match waiting.work {
            LaneWork::Generate(_) => self.refuse(waiting.key, kind),
            LaneWork::Question(question) => self.answer(waiting.key, question, Err(kind)),
        }
    }

    fn refuse(&self, key: RequestKey, kind: FaultKind) {
        if self.lanes.leave(key) {
            let fault = Fault::new(&self.node, kind);
            (self.sink)(EngineEvent::Request(key, RequestEvent::Refused(fault)));
        }
    }

    /// Hands a request to the engine or reports why it cannot be run; does nothing if it was cancelled meanwhile.
    fn deliver(
        &self,
        key: RequestKey,
        received: Instant,
        generate: &Generate,
        result: Result<(PromptTokens, Option<CallGrammar>), Unprepared>,
    ) {
        match result {
            Ok((prompt, calls)) => {
                self.log(prompt.changes);
                let prepared = self.answers.begin_with(key, received, generate, prompt, calls);
                if !self.hand_over(key, EngineOrder::Begin(key, Box::new(prepared))) {
                    self.answers.forget(key);
                }
            }
            Err(Unprepared::Refused(kind)) => self.refuse(key, kind),
            Err(Unprepared::Elsewhere) => {
                self.refuse(key, FaultKind::Internal { reason: "no worker can prepare the request".into() });
            }
        }
    }
}

impl Around {
    /// Logs the first changes of a conversation.
    fn log(&self, changes: TemplateChanges) {
        if changes.is_empty() || self.has_logged.swap(true, Ordering::Relaxed) {
            return;
        }
        let model = &self.model.name;
        tracing::info!(
            "the chat template of {model} does not take all conversations as clients send them: {changes}; the header \
             X-Bramble-Changed names the changes of each answer"
        );
    }

    /// Waits for room in the engine's queue and sends a request, unless it is cancelled before. A later cancellation is
    /// queued after it. Returns whether the engine has it.
    fn hand_over(&self, key: RequestKey, order: EngineOrder) -> bool {
        let mut next = Some(order);
        let mut is_sent = false;
        while let Some(order) = next.take() {
            is_sent = self.lanes.leave_with(key, || match self.engine.try_send(order) {
                Err(TrySendError::Full(order)) => {
                    next = Some(order);
                    false
                }
                // An engine that ended has reported that itself.
                Ok(()) | Err(TrySendError::Disconnected(_)) => true,
            }) == Some(true);
            if next.is_some() {
                thread::park_timeout(ROOM);
            }
        }
        is_sent
    }
}

/// Seconds since 1970; 0 if the clock was never set.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
