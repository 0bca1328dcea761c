//! All-reduces between ranks that are threads, over sockets on loopback or in network namespaces, compared with a bare
//! exchange of the same bytes on the same sockets in alternation. Columns as in nccl-tests: algbw = bytes / time,
//! busbw = algbw * 2(n-1)/n.
mod bare;

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, TcpListener, TcpStream},
    str::FromStr,
    sync::{Arc, Barrier},
    thread,
    time::Instant,
};

use anyhow::{Context, anyhow, ensure};
use collectives::{Algorithm, Choice, Step, payload_bytes, schedule};
use common::{
    ids::{Epoch, Rank, TopologyHash},
    precision::Exchange,
};
use engine::collective::{Abort, Group, Links, Seat, Settings, Socket, StepTiming, SyncLog};
use kernels::Kernels;
use nix::sched::{CloneFlags, setns};
use protocol::{
    bench::BENCH_VALUES_MAX,
    frame::HEADER_BYTES,
    noise,
    seal::{Cipher, Protection, Seals},
};
use telemetry::bench::{
    AllReduceTimes, CollectiveBench, CollectiveRow,
    collectives::{Bare as BesideBare, median_and_p99},
};

use self::bare::Bare;

/// All-reduces of each kind before the measurement.
const WARM_UP: u32 = 5;

/// All-reduces to measure.
#[derive(Clone, Debug)]
pub struct ThreadBench {
    /// Number of ranks.
    pub ranks: u16,
    /// Shapes of the tensors.
    pub sizes: Vec<TensorSize>,
    /// The algorithms.
    pub algorithms: Vec<Algorithm>,
    /// Format of the values on the wire.
    pub exchange: Exchange,
    /// All-reduces of each kind.
    pub repeats: u32,
    /// Where each rank's sockets are opened; empty: here.
    pub namespaces: Vec<Namespace>,
    /// Protection of the ranks' data; the bare exchange stays plain.
    pub protection: Protection,
    /// Whether to use ChaCha20-Poly1305 even if the processor has AES instructions.
    pub chacha: bool,
    /// Whether waiting ranks spin.
    pub spin: bool,
}

/// The network namespace of a rank's sockets, and their address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    process: u32,
    address: IpAddr,
}

impl FromStr for Namespace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('@').and_then(|(pid, address)| Some((pid.parse().ok()?, address.parse().ok()?)));
        let (process, address) = parts.ok_or("expected PID@ADDRESS, for example 1234@10.77.0.1")?;
        Ok(Self { process, address })
    }
}

/// The shape of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSize {
    tokens: usize,
    columns: usize,
}

impl TensorSize {
    /// A tensor of `[tokens, columns]`.
    ///
    /// # Errors
    /// It has no values, or too many.
    pub fn new(tokens: usize, columns: usize) -> Result<Self, String> {
        match tokens.checked_mul(columns) {
            Some(1..=BENCH_VALUES_MAX) => Ok(Self { tokens, columns }),
            _ => Err(format!("size {tokens}x{columns}: a tensor has 1 to {BENCH_VALUES_MAX} values")),
        }
    }
}

/// One rank's measurements of one kind of all-reduce.
#[derive(Clone, Debug, Default)]
struct RankSamples {
    times: Vec<f64>,
    bare: Vec<f64>,
    messages: u64,
    calls: u64,
}

/// Measures all sizes and algorithms.
///
/// # Errors
/// A socket or thread cannot be used, or a sum is wrong. A rank that fails ends the process, because the others wait for
/// it.
pub fn run(bench: &ThreadBench, kernels: &'static Kernels) -> anyhow::Result<CollectiveBench> {
    let world = usize::from(bench.ranks);
    let namespaces = &bench.namespaces;
    ensure!(
        namespaces.is_empty() || namespaces.len() == world,
        "--in names {} places for {world} ranks",
        namespaces.len()
    );
    let mut rows = Vec::new();
    for size in &bench.sizes {
        let ranks = ranks_of(bench, kernels, *size)?;
        for (index, algorithm) in bench.algorithms.iter().enumerate() {
            let samples: Vec<&RankSamples> = ranks.iter().map(|rank| &rank[index]).collect();
            rows.push(row(*algorithm, *size, bench.repeats, &samples));
        }
    }
    Ok(CollectiveBench {
        ranks: bench.ranks,
        exchange: bench.exchange,
        nodes: Vec::new(),
        spin: Some(bench.spin),
        repeats: bench.repeats,
        rows,
        skipped: Vec::new(),
    })
}

/// The samples of each rank, by algorithm.
fn ranks_of(bench: &ThreadBench, kernels: &'static Kernels, size: TensorSize) -> anyhow::Result<Vec<Vec<RankSamples>>> {
    let world = usize::from(bench.ranks);
    let barrier = Arc::new(Barrier::new(world));
    let mut threads = Vec::with_capacity(world);
    for (rank, streams) in sockets(world, &bench.namespaces)?.into_iter().enumerate() {
        let (bench, barrier) = (bench.clone(), Arc::clone(&barrier));
        threads.push(thread::spawn(move || {
            measure_rank(&bench, kernels, size, rank, streams, &barrier).unwrap_or_else(|error| {
                // The other ranks wait for this one, so the measurement cannot continue.
                eprintln!("bramble-bench: rank {rank}: {error:#}");
                std::process::exit(1)
            })
        }));
    }
    // Every group lives until all ranks have finished, so that no link closes before.
    let ended: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    ended.into_iter().map(|rank| rank.map(|(samples, _)| samples).map_err(|_| anyhow!("a rank failed"))).collect()
}

fn row(algorithm: Algorithm, size: TensorSize, repeats: u32, samples: &[&RankSamples]) -> CollectiveRow {
    // An all-reduce ends when the slowest rank has its result.
    let slowest = |of: fn(&RankSamples) -> &Vec<f64>| {
        let mut times: Vec<f64> =
            (0..repeats as usize).map(|index| samples.iter().map(|rank| of(rank)[index]).fold(0.0, f64::max)).collect();
        times.sort_by(f64::total_cmp);
        median_and_p99(&times).expect("there is at least one repeat")
    };
    let ((p50_us, p99_us), (bare_us, _)) = (slowest(|rank| &rank.times), slowest(|rank| &rank.bare));
    let messages: u64 = samples.iter().map(|rank| rank.messages).sum();
    let calls: u64 = samples.iter().map(|rank| rank.calls).sum();
    let bare = BesideBare {
        bare_us,
        over_bare: p50_us / bare_us,
        messages: messages as f64 / f64::from(repeats),
        calls_per_message: calls as f64 / messages.max(1) as f64,
    };
    let row = CollectiveRow::new(AllReduceTimes {
        algorithm,
        tokens: size.tokens as u32,
        columns: size.columns as u32,
        ranks: samples.len() as u16,
        count: repeats,
        p50_us,
        p99_us,
    });
    CollectiveRow { bare: Some(bare), ..row }
}

/// Each pair of ranks has its own key.
fn protected(bench: &ThreadBench, rank: usize, streams: Vec<Option<TcpStream>>) -> Vec<Option<Socket>> {
    let cipher = if noise::has_aes() && !bench.chacha { Cipher::AesGcm } else { Cipher::ChaChaPoly };
    let mut sockets = Vec::with_capacity(streams.len());
    for (other, stream) in streams.into_iter().enumerate() {
        let mut key = [7; 32];
        (key[1], key[2]) = (rank.min(other) as u8, rank.max(other) as u8);
        let (lower, higher) = Seals::pair(cipher, &key, bench.protection);
        let seals = if rank < other { lower } else { higher };
        sockets.push(stream.map(|stream| Socket { stream, seals }));
    }
    sockets
}

/// Runs one rank: in each round, every algorithm and its bare exchange, alternating. Returns the group, so that no link
/// closes before all ranks have finished.
fn measure_rank(
    bench: &ThreadBench,
    kernels: &'static Kernels,
    size: TensorSize,
    rank: usize,
    streams: Vec<Option<TcpStream>>,
    barrier: &Barrier,
) -> anyhow::Result<(Vec<RankSamples>, Group)> {
    let world = streams.len();
    let own = Rank(rank as u16);
    let clones = streams.iter().map(|stream| stream.as_ref().map(TcpStream::try_clone).transpose());
    let mut bare = Bare::new(clones.collect::<std::io::Result<Vec<_>>>()?);
    let seat = Seat { own, stage: 0..world as u16, epoch: Epoch(1), hash: TopologyHash(1) };
    let links = Links::sealed(seat, protected(bench, rank, streams), Arc::new(Abort::new()?), bench.spin)?;
    let settings = Settings { exchange: bench.exchange, columns: size.columns, choice: Choice::Auto, kernels };
    let ring = Arc::new(SyncLog::new(own, 0..world as u16));
    let mut group = Group::new(Some(links), settings, StepTiming::new(own, ring));
    group.begin_step(1);
    let part = vec![rank as f32 + 0.5; size.tokens * size.columns];
    let mut hidden = vec![0.0; part.len()];
    let algorithms = &bench.algorithms;
    let mut samples = vec![RankSamples::default(); algorithms.len()];
    let between: Vec<_> = algorithms.iter().map(|one| traffic(*one, bench.exchange, size, rank, world)).collect();
    for round in 0..WARM_UP + bench.repeats {
        for ((algorithm, found), between) in algorithms.iter().zip(&mut samples).zip(&between) {
            // No rank may run ahead between the two: links would read data of the bare exchange.
            barrier.wait();
            let began = Instant::now();
            bare.exchange(between).context("lost a rank")?;
            let bare_us = began.elapsed().as_secs_f64() * 1e6;
            barrier.wait();
            let calls = group.links().map_or(0, |links| links.calls().total());
            group.timing.take_totals();
            let began = Instant::now();
            group.all_reduce_by(*algorithm, &part, &mut hidden, |_, _, _| ())?;
            let elapsed = began.elapsed().as_secs_f64() * 1e6;
            if round >= WARM_UP {
                found.times.push(elapsed);
                found.bare.push(bare_us);
                found.messages += group.timing.take_totals().decode.messages_sent;
                found.calls += group.links().map_or(0, |links| links.calls().total()) - calls;
            }
        }
    }
    let rounds = f64::from(WARM_UP + bench.repeats) * algorithms.len() as f64;
    let sum = rounds * (0..world).map(|rank| rank as f64 + 0.5).sum::<f64>();
    let error = hidden.iter().map(|value| (f64::from(*value) - sum).abs()).fold(0.0, f64::max) / sum;
    ensure!(error <= 0.02, "rank {rank} has a wrong sum: its relative error is {error}");
    Ok((samples, group))
}

/// Bytes, headers included, that a rank sends to and receives from each other rank in one all-reduce.
fn traffic(
    algorithm: Algorithm,
    exchange: Exchange,
    size: TensorSize,
    own: usize,
    world: usize,
) -> Vec<(usize, usize)> {
    let mut between = vec![(0, 0); world];
    for from in 0..world {
        for step in schedule(algorithm, Rank(from as u16), world, size.columns) {
            let Step::Send { to, columns, .. } = step else { continue };
            let bytes = HEADER_BYTES + payload_bytes(exchange, size.tokens, columns.len());
            if from == own {
                between[to.index()].0 += bytes;
            } else if to.index() == own {
                between[from].1 += bytes;
            }
        }
    }
    between
}

/// Connected sockets between all pairs of ranks, on loopback or in their namespaces.
fn sockets(world: usize, namespaces: &[Namespace]) -> anyhow::Result<Vec<Vec<Option<TcpStream>>>> {
    let mut links: Vec<Vec<Option<TcpStream>>> = (0..world).map(|_| (0..world).map(|_| None).collect()).collect();
    let here = IpAddr::from(Ipv4Addr::LOCALHOST);
    for (low, high) in (0..world).flat_map(|low| (low + 1..world).map(move |high| (low, high))) {
        let address = namespaces.get(high).map_or(here, |place| place.address);
        let listener = open_in(namespaces.get(high), move || {
            TcpListener::bind((address, 0)).with_context(|| format!("cannot bind {address}"))
        })?;
        let listens = listener.local_addr()?;
        links[low][high] = Some(open_in(namespaces.get(low), move || Ok(TcpStream::connect(listens)?))?);
        links[high][low] = Some(listener.accept()?.0);
    }
    Ok(links)
}

/// Creates a socket in a namespace, on a temporary thread: a socket stays in the namespace in which it was created.
fn open_in<T: Send + 'static>(
    namespace: Option<&Namespace>,
    make: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let Some(process) = namespace.map(|namespace| namespace.process) else { return make() };
    let thread = thread::spawn(move || {
        let path = format!("/proc/{process}/ns/net");
        let namespace = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        setns(namespace, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {path}; this needs root"))?;
        make()
    });
    thread.join().map_err(|_| anyhow!("a thread failed"))?
}
