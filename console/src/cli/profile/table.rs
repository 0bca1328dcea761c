//! Where a request's time went, as a table: computing, waiting, wire, and measured bytes and messages next to the
//! predicted ones.
use collectives::{Cost, Table, cost, payload_bytes};
use common::{
    ids::Rank,
    latency::ratio,
    units::{Bytes, Nanoseconds},
};
use models::ModelSpec;
use protocol::{frame::HEADER_BYTES, message::Finished};
use telemetry::{PhaseTotals, RankTotals};
use topology::Topology;

/// The properties of a model that determine the exchanges of its ranks.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Exchanged<'a> {
    /// Elements of a hidden state.
    pub(in crate::cli) embedding_length: usize,
    /// What the layers compute, if this console can read it; otherwise each adds up one state behind each half.
    pub(in crate::cli) spec: Option<&'a ModelSpec>,
}

/// The lines of the profile of a request on a replica. `tables` are the algorithm tables of the ranks, indexed by rank
/// of the replica.
pub(in crate::cli) fn lines(
    finished: &Finished,
    topology: &Topology,
    replica: u16,
    exchanged: Exchanged<'_>,
    tables: &[Option<Table>],
) -> Vec<String> {
    let times = &finished.times;
    let mut lines = vec![
        format!(
            "{} on {} nodes: TTFT {:.1} ms, TPOT {:.2} ms, prefill {:.1} tokens/s, decode {:.1} tokens/s",
            topology.layout,
            topology.members.len(),
            times.ttft_ms(),
            times.tpot_ms(),
            times.prefill_tokens_per_second(),
            times.decode_tokens_per_second()
        ),
        String::new(),
        format!(
            "{:<8} {:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>11} {:>11} {:>10} {:>10}",
            "phase",
            "node",
            "compute",
            "threads",
            "waiting",
            "wire",
            "bubble",
            "network",
            "bytes/token",
            "formula",
            "msgs/step",
            "formula"
        ),
    ];
    type Part = fn(&RankTotals) -> &PhaseTotals;
    let phases: [(&str, Part); 2] = [("prefill", |rank| &rank.prefill), ("decode", |rank| &rank.decode)];
    for (name, part) in phases {
        for (index, (rank, member)) in finished.ranks.iter().zip(topology.replica(replica)).enumerate() {
            let totals = part(rank);
            let Some(tokens) = totals.tokens.checked_div(totals.steps) else { continue };
            let table = tables.get(index).and_then(Option::as_ref);
            let formula = formula(topology, replica, index, table, tokens.max(1), exchanged);
            lines.push(row(name, &member.name, totals, &formula));
        }
    }
    lines.push(String::new());
    lines.extend(summary(finished, usize::from(topology.layout.ranks_of(replica))));
    lines.push(String::new());
    lines.push(
        "bytes and messages: sent by the rank, headers, plans and candidates included; formula: all-reduces and hand-overs; \
         bubble: waiting for another stage to compute; its hand-overs in transit count as wire; \
         network: (waiting + wire) / (everything but the bubble); \
         threads: waking the rank's own threads and waiting for the last of them"
            .into(),
    );
    lines
}

/// Where the time of a whole request went if it ran alone, summed over the stages.
fn summary(finished: &Finished, ranks: usize) -> Vec<String> {
    let times = &finished.times;
    let network = |part: fn(&RankTotals) -> &PhaseTotals| {
        let sum: u64 = finished.ranks.iter().map(|rank| part(rank).wait.0 + part(rank).wire.0).sum();
        sum / ranks.max(1) as u64
    };
    let span = |from: Nanoseconds, to: Nanoseconds| to.0.saturating_sub(from.0);
    let (prefill, decode) = (span(times.dispatched, times.first_token), span(times.first_token, times.last_token));
    let (in_prefill, in_decode) =
        (network(|rank| &rank.prefill).min(prefill), network(|rank| &rank.decode).min(decode));
    let row = |name: &str, network: u64, total: u64| {
        let (local, all) = (Nanoseconds(total - network), Nanoseconds(total));
        let share = 100.0 * ratio(network as f64, total as f64);
        format!("{name:<16} {local:>11} {:>11} {all:>11} {share:>8.1}%", Nanoseconds(network))
    };
    let tokens = u64::from(times.sampled_tokens.saturating_sub(1)).max(1);
    vec![
        format!("{:<16} {:>11} {:>11} {:>11} {:>9}", "summary", "local", "network", "total", "network"),
        row("prefill", in_prefill, prefill),
        row("decode", in_decode, decode),
        row("decode, a token", in_decode / tokens, decode / tokens),
        row("both", in_prefill + in_decode, prefill + decode),
    ]
}

/// Predicted bytes per token and messages per step of the rank `index` of a replica in steps of `tokens` tokens:
/// all-reduces and the hand-over to the next stage. The algorithm is that of the rank's table; without a table, the
/// forced one or the initial choice of `auto`.
fn formula(
    topology: &Topology,
    replica: u16,
    index: usize,
    table: Option<&Table>,
    tokens: u64,
    exchanged: Exchanged<'_>,
) -> Cost {
    let (world, columns) = (usize::from(topology.layout.ranks_of(replica)), exchanged.embedding_length);
    let count = tokens as usize;
    let usual = Table::new(topology.collective, topology.exchange, world, columns);
    let member = &topology.replica(replica)[index];
    let (mut bytes, mut messages) = (0, 0);
    for layer in member.layers.clone() {
        let spec = exchanged.spec.filter(|spec| (layer as usize) < spec.block_count());
        let all = spec.map_or([count; 2], |spec| spec.layer(layer as usize).exchanges(count, world, columns));
        for states in all.into_iter().filter(|states| *states > 0) {
            let algorithm = table.unwrap_or(&usual).algorithm(states);
            let one = cost(algorithm, topology.exchange, Rank((index % world) as u16), world, states, columns);
            bytes += one.bytes + one.messages * HEADER_BYTES as u64;
            messages += one.messages;
        }
    }
    let hand_overs = u64::from(member.layers.end < topology.block_count());
    let format = topology.exchange.hand_over(exchanged.spec.is_some_and(ModelSpec::has_wide_states));
    bytes += hand_overs * (payload_bytes(format, count, columns) + HEADER_BYTES) as u64;
    Cost { bytes: bytes / tokens, messages: messages + hand_overs }
}

fn row(phase: &str, node: &str, totals: &PhaseTotals, formula: &Cost) -> String {
    format!(
        "{phase:<8} {node:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7.1}% {:>11} {:>11} {:>10.1} {:>10}",
        totals.compute,
        totals.threads,
        totals.wait,
        totals.wire,
        totals.bubble,
        100.0 * totals.network_fraction(),
        Bytes(totals.bytes_sent / totals.tokens.max(1)),
        Bytes(formula.bytes),
        totals.messages_sent as f64 / totals.steps as f64,
        formula.messages
    )
}
