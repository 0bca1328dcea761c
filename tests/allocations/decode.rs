//! Decoding allocates nothing: the forward pass of one rank and of two over sockets, on the engine's and the pool's
//! threads, after 16 tokens during which the buffers grow.
use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use collectives::{Algorithm, Choice};
use common::{
    ids::{Epoch, Rank, Slot, TopologyHash},
    limits::KV_BLOCK_LENGTH,
    precision::{Exchange, KvFormat},
};
use engine::{
    collective::{Abort, Group, Links, Seat, Settings, Socket, StepTiming, SyncLog},
    model::{Batch, BatchToken, BlockTables, KvCache, Model},
};
use gguf::{BlockFormat, GgufFile};
use harness::{
    engines::shard,
    ranks::sockets,
    tiny_model::{Architecture, TinyModel},
};
use kernels::{Compute, Kernels, Pool, PoolOptions};
use protocol::seal::{Cipher, Protection, Seals};
use topology::{KvBlocks, cut};

use crate::CALLS;

const THREADS: usize = 2;
const WARM_UP: u32 = 16;
const TOKENS: u32 = 48;
const BLOCKS: usize = 3;

/// Allocations so far on all threads of a pool, including the caller.
fn calls(pool: &Pool) -> usize {
    let all = AtomicUsize::new(0);
    pool.run(&|_| _ = all.fetch_add(CALLS.get(), Ordering::Relaxed));
    all.into_inner()
}

/// Sockets of a rank with the same key on every link.
fn protected(rank: usize, streams: Vec<Option<TcpStream>>, protection: Protection) -> Vec<Option<Socket>> {
    let sockets = streams.into_iter().enumerate().map(|(other, stream)| {
        let (lower, higher) = Seals::pair(Cipher::ChaChaPoly, &[7; 32], protection);
        stream.map(|stream| Socket { stream, seals: if rank < other { lower } else { higher } })
    });
    sockets.collect()
}

/// Allocations per rank during the tokens after the warm-up.
fn decode(
    world: usize,
    exchange: Exchange,
    choice: Choice,
    protection: Protection,
    architecture: Architecture,
    format: BlockFormat,
) -> Vec<usize> {
    let model = TinyModel::new(architecture).with_format(format);
    let file = Arc::new(GgufFile::from_bytes(vec![model.bytes()]).expect("the model is valid"));
    let spec = models::read(&file).expect("the model is valid");
    let plans = cut(&spec, &vec![1; world]).expect("the model can be cut");
    let (file, spec) = (&file, &spec);
    thread::scope(|scope| {
        let rank = |(rank, (plan, streams))| {
            scope.spawn(move || {
                let kernels = Kernels::choose(None).expect("this machine has a kernel table");
                let shard = shard(file, spec, &plan, kernels);
                let cache = KvCache::new(KvFormat::F16, spec, &plan, KvBlocks::alike(BLOCKS));
                let pool = Pool::new(PoolOptions { threads: THREADS, cores: Vec::new(), spin: false });
                let compute = Compute::new(kernels, pool.expect("threads can be started"));
                let mut model = Model::new(shard, cache.expect("enough memory"), compute, spec.context_length);
                let number = Rank(rank as u16);
                let timing = StepTiming::new(number, Arc::new(SyncLog::new(number, 0..world as u16)));
                let abort = Arc::new(Abort::new().expect("a file descriptor is free"));
                let seat = Seat { own: number, stage: 0..world as u16, epoch: Epoch(1), hash: TopologyHash(2) };
                let links = (world > 1).then(|| {
                    let sockets = protected(rank, streams, protection);
                    Links::sealed(seat, sockets, abort, false).expect("the sockets are valid")
                });
                let settings = Settings { exchange, columns: spec.embedding_length, choice, kernels };
                let mut group = Group::new(links, settings, timing);
                let tables = vec![(0..BLOCKS as u32).collect::<Vec<u32>>()];
                let mut before = 0;
                for position in 0..TOKENS {
                    if position == WARM_UP {
                        before = calls(&model.compute().pool);
                    }
                    group.begin_step(u64::from(position) + 1);
                    group.timing.begin_step(false, 1);
                    let (slot, token) = (Slot(0), 3 + position);
                    let token = BatchToken { slot, position, token, wants_logits: true, is_speculative: false };
                    let batch = Batch { tokens: &[token], tables: BlockTables::alike(&tables) };
                    model.forward(batch, &mut group).expect("all ranks run");
                }
                calls(&model.compute().pool) - before
            })
        };
        let parts = plans.into_iter().zip(sockets(world)).enumerate();
        let ranks: Vec<_> = parts.map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("the rank finishes")).collect()
    })
}

#[test]
fn decoded_token_allocates_nothing_on_one_rank_or_two() {
    assert!(TOKENS as usize <= BLOCKS * KV_BLOCK_LENGTH);
    for format in [BlockFormat::Q4K, BlockFormat::Q8_0, BlockFormat::F16] {
        for architecture in [Architecture::Llama, Architecture::Qwen3Moe] {
            let what = format!("{} {}", architecture.name(), format.name());
            assert_eq!(decode(1, Exchange::F32, Choice::Auto, Protection::Plain, architecture, format), [0], "{what}");
            for (exchange, protection) in [
                (Exchange::F32, Protection::Plain),
                (Exchange::F16, Protection::Authenticated),
                (Exchange::Q80, Protection::Encrypted),
            ] {
                let found = decode(2, exchange, Choice::Auto, protection, architecture, format);
                assert_eq!(found, [0, 0], "{what} {exchange:?}");
            }
        }
    }
}

#[test]
fn no_collective_allocates_for_a_token() {
    for algorithm in Algorithm::ALL {
        for exchange in [Exchange::F32, Exchange::Q80] {
            let choice = Choice::Forced(algorithm);
            let found = decode(3, exchange, choice, Protection::Encrypted, Architecture::Llama, BlockFormat::Q8_0);
            assert_eq!(found, [0, 0, 0], "{algorithm} {exchange}");
        }
    }
}

#[test]
fn allocation_on_a_pool_thread_is_counted() {
    let pool = Pool::new(PoolOptions { threads: THREADS, cores: Vec::new(), spin: false });
    let pool = pool.expect("threads can be started");
    let before = calls(&pool);
    pool.run(&|thread| {
        if thread == 1 {
            std::hint::black_box(Box::new(thread));
        }
    });
    assert_eq!(calls(&pool) - before, 1);
}
