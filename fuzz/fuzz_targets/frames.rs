//! Frames between ranks: headers with a right checksum, and the payload of every kind. Plans are applied one after
//! another to the sequences of a rank, which must keep every invariant of the forward pass.
#![no_main]
use bramble_fuzz::{cut::Input, memory::bounded};
use collectives::TableRow;
use common::{
    ids::{Rank, Slot},
    limits::KV_BLOCK_LENGTH,
};
use engine::{
    plan::{Limits, Plan, Sequences},
    sample::{Answer, Chosen, Query, Summary},
    sampler::SampledTokens,
    transfer::{TransferOrder, TransferStatus},
    worker::CandidatesMessage,
};
use libfuzzer_sys::fuzz_target;
use protocol::{
    checksum::checksum,
    frame::{FrameHeader, HEADER_BYTES, PAYLOAD_BYTES_MAX},
};
use telemetry::RankTotals;
use topology::{KvBlocks, StateCount};

const BLOCKS: usize = 40;

fn limits(flags: u8) -> Limits {
    let window = (flags & 1 != 0).then_some(40);
    Limits {
        slots: 4,
        blocks: KvBlocks {
            whole: BLOCKS,
            windowed: if window.is_some() { 12 } else { 0 },
            step: if window.is_some() { 4 } else { 0 },
        },
        window,
        context_length: 256,
        vocabulary_length: 300,
        states: if flags & 2 != 0 { StateCount::of(4) } else { StateCount::default() },
    }
}

fn header(bytes: &[u8], payload: &[u8]) {
    let Some(raw) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    let _ = FrameHeader::decode(raw);
    let mut right = *raw;
    let sum = checksum(&right[..HEADER_BYTES - 8]);
    right[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    let Ok(header) = FrameHeader::decode(&right) else { return };
    assert!(header.length as usize <= PAYLOAD_BYTES_MAX);
    assert_eq!(header.encode(), right, "a header is read back");
    let summed = FrameHeader { payload_sum: checksum(payload), ..header };
    assert_eq!(summed.check_payload(payload), Ok(()));
    let _ = (header.check_payload(payload), header.from == Rank(0));
}

/// Applies plans; each begins with its length.
fn plans(mut input: Input<'_>) {
    let flags = input.byte();
    let limits = limits(flags);
    let (mut sequences, mut plan) = (Sequences::new(limits), Plan::default());
    for number in 0_usize.. {
        if input.0.is_empty() {
            break;
        }
        let length = usize::from(input.short()).min(input.0.len());
        let (bytes, rest) = input.0.split_at(length);
        input.0 = rest;
        // A list takes at most its items' size for each byte.
        if bounded(512 * bytes.len() + (1 << 16), || plan.decode(bytes)).is_err() {
            continue;
        }
        let mut again = Vec::new();
        plan.encode(&mut again);
        let mut read = Plan::default();
        read.decode(&again).expect("a plan is read back");
        // A draft model computes tokens of sequences that the target model's plans opened.
        let is_draft = flags & 4 != 0 && number % 2 == 1;
        let applied = if is_draft { sequences.draft(&plan, 200) } else { sequences.apply(&plan) };
        if applied.is_err() {
            // The rank fails: it applies no other plan.
            return;
        }
        let batch = sequences.batch();
        assert!(!batch.tokens.is_empty());
        for token in batch.tokens {
            let sequence = sequences.get(token.slot).expect("a token has its sequence");
            let place = token.position as usize;
            assert!(place < limits.context_length && (token.token as usize) < limits.vocabulary_length);
            assert!(place < sequence.tokens.len(), "a token of a step is in its sequence");
            let table = &batch.tables.whole[token.slot.index()];
            assert!((table[place / KV_BLOCK_LENGTH] as usize) < BLOCKS, "a token has its block");
            if limits.window.is_some() && !is_draft {
                assert!((batch.tables.windowed[token.slot.index()][place / KV_BLOCK_LENGTH] as usize) < 12);
            }
            let _ = (sequence.ends_prompt(token.position), sequence.prompted_after(token.position));
        }
        let _ = sequences.draft_batch();
        assert!((0..4).all(|slot| sequences.get(Slot(slot)).is_none_or(|it| it.tokens.len() <= 256)));
    }
}

fn sampling(which: u8, bytes: &[u8]) {
    match which {
        0 => {
            let Ok(query) = Query::decode(bytes) else { return };
            let mut again = Vec::new();
            query.encode(&mut again);
            assert!(again == bytes && query.place() <= usize::from(u16::MAX), "a query is read back");
        }
        1 => {
            let Ok(answer) = Answer::decode(bytes) else { return };
            let mut again = Vec::new();
            answer.encode(&mut again);
            assert_eq!(Answer::decode(&again), Ok(answer), "an answer is read back");
        }
        2 => {
            let Ok((summary, rest)) = Summary::decode(bytes) else { return };
            let mut again = Vec::new();
            summary.encode(&mut again);
            assert!(again.len() <= Summary::BYTES_MAX && again.len() + rest.len() == bytes.len());
            let _ = summary.is_broken();
        }
        3 => {
            let Ok((chosen, _)) = Chosen::decode(bytes) else { return };
            let mut again = Vec::new();
            chosen.encode(&mut again);
            assert!(bytes.starts_with(&again), "a sampled token is read back");
        }
        4 => {
            let mut sampled = SampledTokens::default();
            for ranks in [0, 1, 3] {
                if sampled.decode(bytes, ranks).is_ok() {
                    let mut again = Vec::new();
                    sampled.encode(&mut again);
                    sampled.decode(&again, ranks).expect("samples are read back");
                }
            }
        }
        _ => {
            let (mut totals, mut summaries) = ([RankTotals::default(); 3], Vec::new());
            let _ = CandidatesMessage::decode(bytes, totals.iter_mut(), 2, &mut summaries);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    match input.byte() % 12 {
        0 => header(input.0, input.0.get(HEADER_BYTES..).unwrap_or_default()),
        1..=5 => plans(input),
        which @ 6..=11 => {
            let room = 64 * input.0.len() + (1 << 16);
            bounded(room, || sampling(which - 6, input.0));
            let room = 64 * input.0.len() + (2 << 20);
            let _ = bounded(room, || postcard::from_bytes::<TransferOrder>(input.0));
            let _: Result<TransferStatus, _> = postcard::from_bytes(input.0);
            let _: Result<Vec<TableRow>, _> = postcard::from_bytes(input.0);
        }
        _ => unreachable!("a remainder of 12"),
    }
});
