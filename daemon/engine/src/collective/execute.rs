//! Runs the operations of one all-reduce on links. Encoded columns are laid out slice by slice and, within a slice,
//! token by token.
use std::{ops::Range, time::Instant};

use collectives::{Algorithm, RankSet, payload_bytes};
use common::{ids::Rank, limits::NODES_MAX, precision::Exchange, units::Nanoseconds};
use kernels::Payload;
use protocol::frame::{FrameKind, FramePlace};

use super::{
    CollectiveError, FrameTag, Links, SlowestRank,
    program::{Operation, PartSource},
};

/// Values summed at a time: they stay in registers and the nearest cache while the values of all ranks are added.
const CHUNK: usize = 128;

/// Buffers of all-reduces; grow to the largest step and are kept.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// `[tokens, columns]`
    sum: Vec<f32>,
    /// This rank's values in wire format, if that rounds.
    own: Vec<u8>,
    /// The result in wire format.
    result: Vec<u8>,
}

/// The shape and wire format of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    pub(super) exchange: Exchange,
    pub(super) tokens: usize,
    pub(super) columns: usize,
    pub(super) payload: Payload,
}

impl Tensor {
    /// Encoded bytes of one token's columns.
    fn row_bytes(self, columns: usize) -> usize {
        payload_bytes(self.exchange, 1, columns)
    }

    /// Byte range of some columns of all tokens.
    fn bytes(self, columns: &Range<usize>) -> Range<usize> {
        let begin = self.tokens * self.row_bytes(columns.start);
        begin..begin + self.tokens * self.row_bytes(columns.len())
    }

    /// Value ranges of some columns, token by token.
    fn rows(self, columns: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = *columns;
        (0..self.tokens).map(move |token| token * self.columns + start..token * self.columns + end)
    }
}

/// Measurements of one all-reduce.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrivals {
    /// Bytes and messages sent, headers included.
    pub(super) sent: (u64, u64),
    /// The slowest other rank, as reported by frames.
    pub(super) slowest: SlowestRank,
    /// The rank whose part arrived last, and how long it was the only one missing.
    pub(super) last: (Rank, Nanoseconds),
    /// When the last part arrived.
    pub(super) arrived: Instant,
}

/// An all-reduce in progress.
pub(super) struct Execution<'a> {
    links: &'a mut Links,
    buffers: &'a mut Buffers,
    tensor: Tensor,
    algorithm: Algorithm,
    /// Step, and number of the collective within it.
    at: (u64, u32),
    compute: Nanoseconds,
    found: Arrivals,
    /// Messages exchanged with each rank of the stage so far.
    rounds_out: [u8; NODES_MAX],
    rounds_in: [u8; NODES_MAX],
}

impl<'a> Execution<'a> {
    pub(super) fn new(
        links: &'a mut Links,
        buffers: &'a mut Buffers,
        tensor: Tensor,
        algorithm: Algorithm,
        at: (u64, u32),
        compute: Nanoseconds,
        since: Instant,
    ) -> Self {
        let values = tensor.tokens * tensor.columns;
        let bytes = tensor.tokens * tensor.row_bytes(tensor.columns);
        if buffers.sum.len() < values {
            buffers.sum.resize(values, 0.0);
        }
        if buffers.result.len() < bytes {
            buffers.own.resize(bytes, 0);
            buffers.result.resize(bytes, 0);
        }
        let own = links.own();
        let slowest = SlowestRank { compute: Nanoseconds(0), rank: own };
        let found = Arrivals { sent: (0, 0), slowest, last: (own, Nanoseconds(0)), arrived: since };
        let (rounds_out, rounds_in) = ([0; NODES_MAX], [0; NODES_MAX]);
        Self { links, buffers, tensor, algorithm, at, compute, found, rounds_out, rounds_in }
    }

    /// Runs all operations and adds the result to `hidden`. Both tensors are `[tokens, columns]`.
    pub(super) fn run(
        mut self,
        operations: &[Operation],
        part: &[f32],
        hidden: &mut [f32],
    ) -> Result<Arrivals, CollectiveError> {
        let is_exact = self.tensor.exchange == Exchange::F32;
        let mut index = 0;
        while let Some(operation) = operations.get(index) {
            index += 1;
            match operation {
                Operation::SendSum { to, columns, own, encodes } => {
                    self.send_sum(*to, columns, *own, *encodes, part)?;
                }
                Operation::SendResult { to, columns } => self.send_result(*to, columns)?,
                Operation::Sum { from, columns, own, encodes } => {
                    // A final sum goes to `hidden` at once: saves one pass over memory, two if it is rounded.
                    let is_result = match operations.get(index) {
                        Some(Operation::Finish { columns: end, keeps }) => end == columns && !(is_exact && *keeps),
                        _ => false,
                    };
                    let result = is_result.then_some(&mut *hidden);
                    self.sum(*from, columns, *own, *encodes, part, result)?;
                    index += usize::from(is_result);
                }
                Operation::Store { from, columns, keeps } => self.store(*from, columns, *keeps, hidden)?,
                Operation::Finish { columns, keeps } => self.finish(columns, *keeps, hidden),
            }
        }
        if !self.links.is_flushed() {
            self.links.flush_stage()?;
            self.found.arrived = Instant::now();
        }
        Ok(self.found)
    }

    fn send_sum(
        &mut self,
        to: Rank,
        columns: &Range<usize>,
        own: PartSource,
        encodes: bool,
        part: &[f32],
    ) -> Result<(), CollectiveError> {
        let tensor = self.tensor;
        if tensor.exchange != Exchange::F32 {
            if encodes {
                self.encode_own(columns, own, part);
            }
            let (tag, slowest) = (self.next_tag(to), self.slowest());
            let own = &self.buffers.own[tensor.bytes(columns)];
            let bytes = self.links.send_slice(self.global(to), tag, slowest, own)?;
            self.count(bytes);
            return Ok(());
        }
        let (tag, slowest, to) = (self.next_tag(to), self.slowest(), self.global(to));
        let values = if own == PartSource::Part { part } else { &self.buffers.sum };
        let bytes = if columns.len() == tensor.columns {
            let whole = bytemuck::must_cast_slice(&values[..tensor.tokens * tensor.columns]);
            self.links.send_slice(to, tag, slowest, whole)?
        } else {
            self.links.send_reporting(to, tag, slowest, |out| {
                tensor.rows(columns).for_each(|row| out.extend_from_slice(bytemuck::must_cast_slice(&values[row])));
            })?
        };
        self.count(bytes);
        Ok(())
    }

    fn send_result(&mut self, to: Rank, columns: &Range<usize>) -> Result<(), CollectiveError> {
        let (tag, slowest, to) = (self.next_tag(to), self.slowest(), self.global(to));
        let result = &self.buffers.result[self.tensor.bytes(columns)];
        let bytes = self.links.send_slice(to, tag, slowest, result)?;
        self.count(bytes);
        Ok(())
    }

    /// Sums the parts that the ranks send; if `result` is given, stores the sum there in wire format.
    fn sum(
        &mut self,
        from: RankSet,
        columns: &Range<usize>,
        own: PartSource,
        encodes: bool,
        part: &[f32],
        result: Option<&mut [f32]>,
    ) -> Result<(), CollectiveError> {
        let tensor = self.tensor;
        let is_rounded = tensor.exchange != Exchange::F32;
        if is_rounded && encodes {
            self.encode_own(columns, own, part);
        }
        self.receive(from, columns)?;
        let last = self.links.last_arrival();
        if last.1 > self.found.last.1 {
            self.found.last = last;
        }
        let first = self.links.first();
        let own_rank = Rank(self.links.own().0 - first);
        let Buffers { sum, own: own_bytes, result: rounded } = &mut *self.buffers;
        let mut terms = [Term::Own; NODES_MAX];
        let mut count = 0;
        for rank in from.with(own_rank).iter() {
            terms[count] = match rank == own_rank {
                false => Term::Bytes(self.links.front_any(Rank(first + rank.0)).1),
                true if is_rounded => Term::Bytes(&own_bytes[tensor.bytes(columns)]),
                true => Term::Own,
            };
            count += 1;
        }
        let part = (own == PartSource::Part).then_some(part);
        match result {
            Some(hidden) if is_rounded => {
                let (rounded, Payload { encode, add, .. }) = (&mut rounded[tensor.bytes(columns)], tensor.payload);
                add_terms(tensor, columns, &terms[..count], part, sum, |_, chunk, total, place| {
                    encode(tensor.exchange, total, &mut rounded[place.clone()]);
                    add(tensor.exchange, &rounded[place], &mut hidden[chunk]);
                });
            }
            Some(hidden) => add_terms(tensor, columns, &terms[..count], part, sum, |_, chunk, total, _| {
                hidden[chunk].iter_mut().zip(total).for_each(|(hidden, total)| *hidden += total);
            }),
            None => add_terms(tensor, columns, &terms[..count], part, sum, |sum, chunk, total, _| {
                sum[chunk].copy_from_slice(total);
            }),
        }
        self.consume(from)
    }

    fn store(
        &mut self,
        from: Rank,
        columns: &Range<usize>,
        keeps: bool,
        hidden: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.receive(RankSet::one(from), columns)?;
        let (_, bytes) = self.links.front_any(self.global(from));
        add_rows(self.tensor, columns, bytes, hidden);
        if keeps {
            self.buffers.result[self.tensor.bytes(columns)].copy_from_slice(bytes);
        }
        self.consume(RankSet::one(from))
    }

    fn finish(&mut self, columns: &Range<usize>, keeps: bool, hidden: &mut [f32]) {
        let (tensor, Buffers { sum, result, .. }) = (self.tensor, &mut *self.buffers);
        let is_exact = tensor.exchange == Exchange::F32;
        if is_exact {
            for row in tensor.rows(columns) {
                hidden[row.clone()].iter_mut().zip(&sum[row]).for_each(|(hidden, sum)| *hidden += sum);
            }
        }
        if keeps || !is_exact {
            encode_rows(tensor, columns, sum, result);
        }
        if !is_exact {
            add_rows(tensor, columns, &result[tensor.bytes(columns)], hidden);
        }
    }

    fn encode_own(&mut self, columns: &Range<usize>, source: PartSource, part: &[f32]) {
        let Buffers { sum, own, .. } = &mut *self.buffers;
        encode_rows(self.tensor, columns, if source == PartSource::Part { part } else { sum }, own);
    }

    /// Waits for one message of each rank and checks that it is the expected one.
    fn receive(&mut self, from: RankSet, columns: &Range<usize>) -> Result<(), CollectiveError> {
        self.links.receive(from.counted_from(self.links.first()))?;
        self.found.arrived = Instant::now();
        let expected = self.tensor.bytes(columns).len();
        for rank in from.iter() {
            let place = FramePlace { algorithm: self.algorithm.number(), round: self.rounds_in[rank.index()] };
            let (header, bytes) = self.links.front(self.global(rank), self.tag(place))?;
            if bytes.len() != expected {
                let (got, expected) = (format!("{} bytes", bytes.len()), format!("{expected} bytes"));
                return Err(CollectiveError::OutOfStep { rank: self.global(rank), got, expected });
            }
            let reported = SlowestRank { compute: Nanoseconds(header.compute_ns), rank: header.slowest };
            self.found.slowest = self.found.slowest.max(reported);
        }
        Ok(())
    }

    fn consume(&mut self, from: RankSet) -> Result<(), CollectiveError> {
        for rank in from.iter() {
            self.rounds_in[rank.index()] += 1;
            self.links.consume(self.global(rank))?;
        }
        Ok(())
    }

    fn tag(&self, place: FramePlace) -> FrameTag {
        FrameTag { kind: FrameKind::Partial, step: self.at.0, sequence: self.at.1, place }
    }

    /// The tag of the next message to a rank.
    fn next_tag(&mut self, to: Rank) -> FrameTag {
        let round = &mut self.rounds_out[to.index()];
        let place = FramePlace { algorithm: self.algorithm.number(), round: *round };
        *round += 1;
        self.tag(place)
    }

    /// The slowest rank known to this one.
    fn slowest(&self) -> SlowestRank {
        self.found.slowest.max(SlowestRank { compute: self.compute, rank: self.links.own() })
    }

    fn global(&self, rank: Rank) -> Rank {
        Rank(self.links.first() + rank.0)
    }

    fn count(&mut self, bytes: u64) {
        self.found.sent.0 += bytes;
        self.found.sent.1 += 1;
    }
}

/// One addend: a rank's encoded values, or this rank's unrounded ones.
#[derive(Clone, Copy)]
enum Term<'a> {
    Own,
    Bytes(&'a [u8]),
}

/// Totals the terms in order, chunk by chunk of each token, and passes each chunk's range in the sum, its total and its
/// byte range in the wire format to `put`. This rank's values are taken from `part` or, without it, from the sum
/// itself.
fn add_terms(
    tensor: Tensor,
    columns: &Range<usize>,
    terms: &[Term<'_>],
    part: Option<&[f32]>,
    sum: &mut [f32],
    mut put: impl FnMut(&mut [f32], Range<usize>, &[f32], Range<usize>),
) {
    let (exchange, payload, width) = (tensor.exchange, tensor.payload, tensor.row_bytes(columns.len()));
    let mut space = [0.0; CHUNK];
    for (token, row) in tensor.rows(columns).enumerate() {
        for begin in row.clone().step_by(CHUNK) {
            let chunk = begin..row.end.min(begin + CHUNK);
            let place = token * width + tensor.row_bytes(begin - row.start);
            let bytes = place..place + tensor.row_bytes(chunk.len());
            let total = &mut space[..chunk.len()];
            for (index, term) in terms.iter().enumerate() {
                match (term, index) {
                    (Term::Bytes(all), 0) => (payload.load)(exchange, &all[bytes.clone()], total),
                    (Term::Bytes(all), _) => (payload.add)(exchange, &all[bytes.clone()], total),
                    (Term::Own, 0) => total.copy_from_slice(&part.unwrap_or(sum)[chunk.clone()]),
                    (Term::Own, _) => {
                        let own = &part.unwrap_or(sum)[chunk.clone()];
                        total.iter_mut().zip(own).for_each(|(total, own)| *total += own);
                    }
                }
            }
            put(sum, chunk, total, bytes);
        }
    }
}

/// Encodes columns of `values` into their byte ranges in `out`.
fn encode_rows(tensor: Tensor, columns: &Range<usize>, values: &[f32], out: &mut [u8]) {
    let out = &mut out[tensor.bytes(columns)];
    for (row, out) in tensor.rows(columns).zip(out.chunks_exact_mut(tensor.row_bytes(columns.len()))) {
        (tensor.payload.encode)(tensor.exchange, &values[row], out);
    }
}

/// Adds encoded columns to `hidden`.
fn add_rows(tensor: Tensor, columns: &Range<usize>, bytes: &[u8], hidden: &mut [f32]) {
    for (row, bytes) in tensor.rows(columns).zip(bytes.chunks_exact(tensor.row_bytes(columns.len()))) {
        (tensor.payload.add)(tensor.exchange, bytes, &mut hidden[row]);
    }
}
