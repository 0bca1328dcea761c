//! `brambled bench collectives`: all-reduces between ranks that are threads, over sockets on loopback or in network
//! namespaces, compared with a bare exchange of the same bytes on the same sockets in alternation. Columns as in
//! nccl-tests: algbw = bytes / time, busbw = algbw * 2(n-1)/n.
use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, TcpListener, TcpStream},
    sync::{Arc, Barrier},
    thread,
    time::Instant,
};

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use collectives::{Algorithm, Choice, Step, payload_bytes, schedule};
use common::{
    ids::{Epoch, Rank, TopologyHash},
    precision::Exchange,
};
use engine::collective::{Abort, Accounting, Group, Links, Seat, Settings, Socket, SyncRing};
use kernels::Kernels;
use nix::sched::{CloneFlags, setns};
use protocol::{
    bench::{BENCH_RANKS, BENCH_REDUCES_MAX, BENCH_VALUES_MAX, REDUCES_DEFAULT},
    frame::HEADER_BYTES,
    noise,
    seal::{Cipher, Protection, Seals},
};
use telemetry::bench::{
    CollectiveBench, CollectiveRow,
    collectives::{Bare as BesideBare, median_and_p99},
};

use super::bare::Bare;

/// All-reduces of each kind before the measurement.
const WARM_UP: u32 = 5;

/// Options of `brambled bench collectives`.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// Number of ranks
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(BENCH_RANKS))]
    ranks: u16,
    /// Tensor sizes as TOKENSxCOLUMNS
    #[arg(long, value_name = "TxC,..", value_delimiter = ',', default_value = "1x2048,16x2048,128x2048", value_parser = size)]
    sizes: Vec<Size>,
    /// Algorithms [default: all]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = <Algorithm as std::str::FromStr>::from_str)]
    algorithms: Vec<Algorithm>,
    /// Format of the values on the wire: f32, f16 or q80
    #[arg(long, default_value = "f32", value_parser = <Exchange as std::str::FromStr>::from_str)]
    exchange: Exchange,
    /// All-reduces per kind and size
    #[arg(long, value_name = "N", default_value_t = REDUCES_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_REDUCES_MAX)))]
    repeats: u32,
    /// Open each rank's sockets in the network namespace of a process, at an address there (needs root)
    #[arg(long = "in", value_name = "PID@ADDRESS,..", value_delimiter = ',', value_parser = place)]
    places: Vec<Namespace>,
    /// Protection of the ranks' data: plain, authenticated or encrypted; the bare exchange stays plain
    #[arg(long, default_value = "plain", value_parser = <Protection as std::str::FromStr>::from_str)]
    protection: Protection,
    /// Use ChaCha20-Poly1305 even if the processor has AES instructions
    #[arg(long)]
    chacha: bool,
    /// Let waiting ranks spin; needs one core per rank
    #[arg(long)]
    spin: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Location of a rank's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Namespace {
    process: u32,
    address: IpAddr,
}

fn place(text: &str) -> Result<Namespace, String> {
    let parts = text.split_once('@').and_then(|(pid, address)| Some((pid.parse().ok()?, address.parse().ok()?)));
    let (process, address) = parts.ok_or("a place is PID@ADDRESS, for example 1234@10.77.0.1")?;
    Ok(Namespace { process, address })
}

/// The shape of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    tokens: usize,
    columns: usize,
}

fn size(text: &str) -> Result<Size, String> {
    let parts = text.split_once('x').and_then(|(tokens, columns)| Some((tokens.parse().ok()?, columns.parse().ok()?)));
    let (tokens, columns): (usize, usize) = parts.ok_or("a size is TOKENSxCOLUMNS, for example 1x2048")?;
    let fits =
        tokens > 0 && columns > 0 && tokens.checked_mul(columns).is_some_and(|values| values <= BENCH_VALUES_MAX);
    if fits { Ok(Size { tokens, columns }) } else { Err(format!("a tensor has 1 to {BENCH_VALUES_MAX} values")) }
}

/// One rank's measurements of one kind of all-reduce.
#[derive(Clone, Debug, Default)]
struct Seen {
    times: Vec<f64>,
    bare: Vec<f64>,
    messages: u64,
    calls: u64,
}

/// Measures all sizes and algorithms.
pub(super) fn run(arguments: &Arguments, kernels: &'static Kernels) -> anyhow::Result<CollectiveBench> {
    let algorithms =
        if arguments.algorithms.is_empty() { Algorithm::ALL.to_vec() } else { arguments.algorithms.clone() };
    let world = usize::from(arguments.ranks);
    let places = &arguments.places;
    ensure!(places.is_empty() || places.len() == world, "--in names {} places for {world} ranks", places.len());
    let mut rows = Vec::new();
    for size in &arguments.sizes {
        let barrier = Arc::new(Barrier::new(world));
        let spawn = |(rank, streams): (usize, Vec<Option<TcpStream>>)| {
            let (arguments, algorithms, barrier, size) =
                (arguments.clone(), algorithms.clone(), Arc::clone(&barrier), *size);
            thread::spawn(move || {
                rank_of((&arguments, kernels), &algorithms, size, rank, streams, &barrier).unwrap_or_else(|error| {
                    // The other ranks wait for this one, so the measurement cannot continue.
                    eprintln!("brambled: rank {rank}: {error:#}");
                    std::process::exit(1)
                })
            })
        };
        let threads: Vec<_> = sockets(world, places)?.into_iter().enumerate().map(spawn).collect();
        let ended = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a rank failed")));
        let ranks = ended.collect::<anyhow::Result<Vec<_>>>()?;
        for (index, algorithm) in algorithms.iter().enumerate() {
            let seen: Vec<&Seen> = ranks.iter().map(|(seen, _)| &seen[index]).collect();
            rows.push(row(*algorithm, *size, arguments.repeats, &seen));
        }
    }
    Ok(CollectiveBench {
        ranks: arguments.ranks,
        exchange: arguments.exchange,
        nodes: Vec::new(),
        spin: Some(arguments.spin),
        repeats: arguments.repeats,
        rows,
        skipped: Vec::new(),
    })
}

fn row(algorithm: Algorithm, size: Size, repeats: u32, seen: &[&Seen]) -> CollectiveRow {
    // An all-reduce ends when the slowest rank has its result.
    let slowest = |of: &dyn Fn(&Seen) -> &Vec<f64>| {
        let at = |index: usize| seen.iter().map(|seen| of(seen)[index]).fold(0.0, f64::max);
        let mut times: Vec<f64> = (0..repeats as usize).map(at).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let (times, bare) = (slowest(&|seen| &seen.times), slowest(&|seen| &seen.bare));
    let spread = |times: &[f64]| median_and_p99(times).expect("there is at least one repeat");
    let (found, (bare_us, _)) = (spread(&times), spread(&bare));
    let messages: u64 = seen.iter().map(|seen| seen.messages).sum();
    let calls: u64 = seen.iter().map(|seen| seen.calls).sum();
    let bare = BesideBare {
        bare_us,
        over_bare: found.0 / bare_us,
        messages: messages as f64 / f64::from(repeats),
        calls_per_message: calls as f64 / messages.max(1) as f64,
    };
    let (tokens, columns) = (size.tokens as u32, size.columns as u32);
    let row = CollectiveRow::new(algorithm, (tokens, columns), (repeats, seen.len() as u16), found);
    CollectiveRow { bare: Some(bare), ..row }
}

/// Each pair of ranks has its own key.
fn protected(arguments: &Arguments, rank: usize, streams: Vec<Option<TcpStream>>) -> Vec<Option<Socket>> {
    let cipher = if noise::has_aes() && !arguments.chacha { Cipher::AesGcm } else { Cipher::ChaChaPoly };
    let seals = |other: usize| {
        let mut key = [7; 32];
        (key[1], key[2]) = (rank.min(other) as u8, rank.max(other) as u8);
        let (lower, higher) = Seals::pair(cipher, &key, arguments.protection);
        if rank < other { lower } else { higher }
    };
    streams.into_iter().enumerate().map(|(other, stream)| stream.map(|stream| (stream, seals(other)))).collect()
}

/// Runs one rank: in each round, every algorithm and its bare exchange, alternating. Returns the group, so that no link
/// closes before all ranks have finished.
fn rank_of(
    (arguments, kernels): (&Arguments, &'static Kernels),
    algorithms: &[Algorithm],
    size: Size,
    rank: usize,
    streams: Vec<Option<TcpStream>>,
    barrier: &Barrier,
) -> anyhow::Result<(Vec<Seen>, Group)> {
    let world = streams.len();
    let own = Rank(rank as u16);
    let clones = streams.iter().map(|stream| stream.as_ref().map(TcpStream::try_clone).transpose());
    let mut bare = Bare::new(clones.collect::<std::io::Result<Vec<_>>>()?);
    let seat = Seat { own, stage: 0..world as u16, epoch: Epoch(1), hash: TopologyHash(1) };
    let links = Links::sealed(seat, protected(arguments, rank, streams), Arc::new(Abort::new()?), arguments.spin)?;
    let settings = Settings { exchange: arguments.exchange, columns: size.columns, choice: Choice::Auto, kernels };
    let ring = Arc::new(SyncRing::new(own, 0..world as u16));
    let mut group = Group::new(Some(links), settings, Accounting::new(own, ring));
    group.begin_step(1);
    let part = vec![rank as f32 + 0.5; size.tokens * size.columns];
    let mut hidden = vec![0.0; part.len()];
    let mut seen = vec![Seen::default(); algorithms.len()];
    let between: Vec<_> = algorithms.iter().map(|one| traffic(*one, arguments.exchange, size, rank, world)).collect();
    for round in 0..WARM_UP + arguments.repeats {
        for ((algorithm, seen), between) in algorithms.iter().zip(&mut seen).zip(&between) {
            // No rank may run ahead between the two: links would read data of the bare exchange.
            barrier.wait();
            let began = Instant::now();
            bare.exchange(between).context("lost a rank")?;
            let bare_us = began.elapsed().as_secs_f64() * 1e6;
            barrier.wait();
            let calls = group.links().map_or(0, |links| links.calls().total());
            group.accounting.take_totals();
            let began = Instant::now();
            group.all_reduce_by(*algorithm, &part, &mut hidden, |_, _, _| ())?;
            let elapsed = began.elapsed().as_secs_f64() * 1e6;
            if round >= WARM_UP {
                seen.times.push(elapsed);
                seen.bare.push(bare_us);
                seen.messages += group.accounting.take_totals().decode.messages_sent;
                seen.calls += group.links().map_or(0, |links| links.calls().total()) - calls;
            }
        }
    }
    let rounds = f64::from(WARM_UP + arguments.repeats) * algorithms.len() as f64;
    let sum = rounds * (0..world).map(|rank| rank as f64 + 0.5).sum::<f64>();
    let error = hidden.iter().map(|value| (f64::from(*value) - sum).abs()).fold(0.0, f64::max) / sum;
    ensure!(error <= 0.02, "rank {rank} has a wrong sum: its relative error is {error}");
    Ok((seen, group))
}

/// Bytes, headers included, that a rank sends to and receives from each other rank in one all-reduce.
fn traffic(algorithm: Algorithm, exchange: Exchange, size: Size, own: usize, world: usize) -> Vec<(usize, usize)> {
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
fn sockets(world: usize, places: &[Namespace]) -> anyhow::Result<Vec<Vec<Option<TcpStream>>>> {
    let mut links: Vec<Vec<Option<TcpStream>>> = (0..world).map(|_| (0..world).map(|_| None).collect()).collect();
    let here = IpAddr::from(Ipv4Addr::LOCALHOST);
    for (low, high) in (0..world).flat_map(|low| (low + 1..world).map(move |high| (low, high))) {
        let address = places.get(high).map_or(here, |place| place.address);
        let bind = move || TcpListener::bind((address, 0)).with_context(|| format!("cannot bind {address}"));
        let listener = at(places.get(high), bind)?;
        let listens = listener.local_addr()?;
        links[low][high] = Some(at(places.get(low), move || Ok(TcpStream::connect(listens)?))?);
        links[high][low] = Some(listener.accept()?.0);
    }
    Ok(links)
}

/// Creates a socket in a namespace, on a temporary thread: a socket stays in the namespace in which it was created.
fn at<T: Send + 'static>(
    place: Option<&Namespace>,
    make: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let Some(process) = place.map(|place| place.process) else { return make() };
    let inside = move || {
        let path = format!("/proc/{process}/ns/net");
        let namespace = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        setns(namespace, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {path}; this needs root"))?;
        make()
    };
    thread::spawn(inside).join().map_err(|_| anyhow!("a thread failed"))?
}
