//! A rank in its tensor-parallel group: the all-reduce that the model uses, and the engine's other messages.
use std::{sync::Arc, time::Instant};

use collectives::{Algorithm, Choice, Table};
use common::{
    ids::{LayerIndex, Rank},
    precision::Exchange,
    units::Nanoseconds,
};
use kernels::Kernels;
use protocol::frame::FrameKind;
use telemetry::SyncKind;

use super::{
    Abort, Collective, CollectiveError, FrameTag, Links, SlowestRank, StepTiming,
    execute::{Buffers, Execution, Tensor},
    program::{Operation, compile},
    timing::ExchangeTiming,
    toll::Toll,
};

/// All-reduce settings of an assignment.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Wire format of partial sums.
    pub exchange: Exchange,
    /// Columns of the tensors: the model's `embedding_length`.
    pub columns: usize,
    /// A fixed algorithm, or automatic selection by benchmark.
    pub choice: Choice,
    /// Kernels that convert values to and from the wire format.
    pub kernels: &'static Kernels,
}

/// Links (none for a replica of one rank), the program of each algorithm, time accounting, and the position in the
/// step.
#[derive(Debug)]
pub struct Group {
    links: Option<Links>,
    /// Of a lone rank; that of others is in their links.
    abort: Option<Arc<Abort>>,
    settings: Settings,
    table: Table,
    /// In the order of `Algorithm::ALL`.
    programs: Vec<Box<[Operation]>>,
    buffers: Buffers,
    /// Time accounting of this rank.
    pub timing: StepTiming,
    pub(super) step: u64,
    sequence: u32,
    omits_exchange: bool,
    /// Only on a paced node.
    toll: Option<Toll>,
    /// The tensors of the model that does not run now: of the draft model, or of the target model during draft steps.
    other: Option<Width>,
    is_draft: bool,
    /// Whether hidden states may exceed what f16 holds.
    has_wide_states: bool,
}

/// Columns of a model's tensors, and the program of each algorithm for them.
#[derive(Debug)]
struct Width {
    columns: usize,
    programs: Vec<Box<[Operation]>>,
}

impl Group {
    /// Creates the group of a rank's stage, without links for a replica of one rank. Everything that does not depend on
    /// tokens is allocated here.
    pub fn new(links: Option<Links>, settings: Settings, timing: StepTiming) -> Self {
        let Settings { exchange, columns, choice, .. } = settings;
        let (own, world) = links.as_ref().map_or((0, 1), |links| (links.own().0 - links.first(), links.stage().len()));
        let table = Table::new(choice, exchange, world, columns);
        let programs = Algorithm::ALL.map(|algorithm| compile(algorithm, Rank(own), world, columns)).into();
        Self {
            links,
            abort: None,
            settings,
            table,
            programs,
            buffers: Buffers::default(),
            timing,
            step: 0,
            sequence: 0,
            omits_exchange: false,
            toll: None,
            other: None,
            is_draft: false,
            has_wide_states: false,
        }
    }

    /// For a model whose hidden states may exceed what f16 holds (`has_wide_states` of its spec).
    pub fn with_wide_states(self, has_wide_states: bool) -> Self {
        Self { has_wide_states, ..self }
    }

    /// Wire format of hidden states between stages.
    pub(super) fn state_format(&self) -> Exchange {
        self.settings.exchange.hand_over(self.has_wide_states)
    }

    /// Shares the state of a lone rank with its watchers; links share that of others already.
    pub fn watched_by(self, abort: Arc<Abort>) -> Self {
        let abort = self.links.is_none().then_some(abort);
        Self { abort, ..self }
    }

    /// The state shared with the watchers; `None` for a lone rank without any.
    pub fn abort(&self) -> Option<&Abort> {
        self.links.as_ref().map(Links::abort).or(self.abort.as_deref())
    }

    /// Prepares all-reduces of a draft model with this `embedding_length`; they use the table of the target model.
    pub fn add_draft(&mut self, columns: usize) {
        let (own, world) =
            self.links.as_ref().map_or((0, 1), |links| (links.own().0 - links.first(), links.stage().len()));
        let programs = Algorithm::ALL.map(|algorithm| compile(algorithm, Rank(own), world, columns)).into();
        self.other = Some(Width { columns, programs });
    }

    /// Changes between the target model, which runs at first, and the draft model.
    pub fn switch_model(&mut self) {
        if let Some(Width { columns, programs }) = &mut self.other {
            std::mem::swap(columns, &mut self.settings.columns);
            std::mem::swap(programs, &mut self.programs);
            self.is_draft = !self.is_draft;
        }
    }

    /// The links to the other ranks; `None` for a lone rank.
    pub fn links(&mut self) -> Option<&mut Links> {
        self.links.as_mut()
    }

    /// The all-reduce settings.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The algorithm for each number of tokens.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Replaces the algorithm table; every rank of the stage must do so at the same point.
    pub fn set_table(&mut self, table: Table) {
        self.table = table;
    }

    /// For benchmarks only: all-reduces exchange nothing from now on, so the ranks compute meaningless results.
    pub fn omit_exchange(&mut self) {
        self.omits_exchange = true;
    }

    /// For benchmarks only: makes all-reduce messages cost as much time as on the machine of a profile.
    pub fn set_toll(&mut self, toll: Option<Toll>) {
        self.toll = toll;
    }

    /// Whether all-reduces are omitted.
    pub fn omits_exchange(&self) -> bool {
        self.omits_exchange
    }

    /// Begins a step: frames carry its number, and their sequence numbers restart.
    pub fn begin_step(&mut self, step: u64) {
        (self.step, self.sequence) = (step, 0);
        self.timing.at_step(step);
    }

    /// Follows the head to a step that began without a plan, as a benchmark of its stage does.
    pub fn catch_up(&mut self, step: u64) {
        if self.step != step {
            self.begin_step(step);
        }
    }

    /// Sequence number of the step's next message outside of its all-reduces; all ranks count alike.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence += 1;
        self.sequence
    }

    /// Sends a message outside of an all-reduce (plan, candidates, query, answer).
    ///
    /// # Errors
    /// The peer is lost.
    pub fn send(&mut self, to: Rank, kind: FrameKind, sequence: u32, payload: &[u8]) -> Result<(), CollectiveError> {
        let compute = self.timing.compute_so_far();
        let (step, links) = (self.step, self.links.as_mut());
        let links = links.expect("a message to another rank needs a world of two");
        let bytes =
            links.send(to, FrameTag::new(kind, step, sequence), compute, |out| out.extend_from_slice(payload))?;
        self.timing.sent(bytes, 1);
        Ok(())
    }

    /// Sends a message to all other ranks of the stage.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn tell(&mut self, kind: FrameKind, sequence: u32, payload: &[u8]) -> Result<(), CollectiveError> {
        let Some(others) = self.links.as_ref().map(Links::others) else { return Ok(()) };
        for rank in others {
            self.send(rank, kind, sequence, payload)?;
        }
        Ok(())
    }

    /// Waits for one message of `kind` from every other rank of the stage and gives each to `take`, in rank order.
    ///
    /// # Errors
    /// A peer is lost or out of step.
    pub fn gather(
        &mut self,
        kind: FrameKind,
        sequence: u32,
        mut take: impl FnMut(Rank, &[u8]),
    ) -> Result<(), CollectiveError> {
        let Some(links) = self.links.as_mut() else { return Ok(()) };
        let (compute, sent) = self.timing.enter();
        links.wait_for(links.others())?;
        let (arrived, last) = (Instant::now(), links.last_arrival());
        let own = links.own();
        let mut slowest = SlowestRank { compute: Nanoseconds(0), rank: own };
        for rank in links.stage().filter(|rank| *rank != own) {
            let (header, payload) = links.front(rank, FrameTag::new(kind, self.step, sequence))?;
            slowest = slowest.max(SlowestRank { compute: Nanoseconds(header.compute_ns), rank });
            take(rank, payload);
        }
        for rank in links.others() {
            links.consume(rank)?;
        }
        self.timing.close(ExchangeTiming { compute, slowest, last, sent, arrived });
        Ok(())
    }

    /// Runs an all-reduce with `algorithm`, regardless of the table; `close` closes it in the accounting and can read
    /// the links.
    ///
    /// # Errors
    /// A peer is lost or out of step, or the wait was aborted.
    pub fn all_reduce_by(
        &mut self,
        algorithm: Algorithm,
        partial: &[f32],
        hidden: &mut [f32],
        close: impl FnOnce(&mut StepTiming, ExchangeTiming, &Links),
    ) -> Result<(), CollectiveError> {
        let Settings { exchange, columns, kernels, .. } = self.settings;
        assert_eq!(partial.len(), hidden.len(), "both are [tokens, embedding_length]");
        assert!(columns > 0 && partial.len().is_multiple_of(columns), "a token has {columns} columns");
        let (compute, sent) = self.timing.enter();
        let Some(links) = self.links.as_mut().filter(|links| !self.omits_exchange && links.stage().len() > 1) else {
            hidden.iter_mut().zip(partial).for_each(|(hidden, partial)| *hidden += partial);
            self.abort.iter().for_each(|abort| abort.advance());
            // Transfers to and from other stages progress while this one computes.
            return self.links.as_mut().map_or(Ok(()), Links::pump);
        };
        let tensor = Tensor { exchange, columns, tokens: partial.len() / columns, payload: kernels.payload };
        let at = (self.step, self.sequence);
        let program = &self.programs[usize::from(algorithm.number()) - 1];
        links.listen();
        self.toll.iter_mut().for_each(Toll::begin);
        let execution = Execution::new(links, &mut self.buffers, tensor, algorithm, at, compute, sent);
        let found = execution.run(program, partial, hidden)?;
        self.sequence += 1;
        links.pump()?;
        let (slowest, last, mut arrived) = (found.slowest, found.last, found.arrived);
        if let Some(toll) = &mut self.toll {
            toll.pay(found.sent.1);
            arrived = Instant::now();
        }
        self.timing.sent(found.sent.0, found.sent.1);
        close(&mut self.timing, ExchangeTiming { compute, slowest, last, sent, arrived }, links);
        Ok(())
    }
}

impl Collective for Group {
    fn all_reduce(
        &mut self,
        layer: LayerIndex,
        kind: SyncKind,
        partial: &[f32],
        hidden: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let algorithm = self.table.algorithm(partial.len() / self.settings.columns.max(1));
        let is_draft = self.is_draft;
        self.all_reduce_by(algorithm, partial, hidden, |timing, span, links| {
            if is_draft {
                // The records are of the target model's layers.
                timing.close(span);
            } else {
                timing.close_layer(layer, kind, span, links.heard());
            }
        })
    }
}
