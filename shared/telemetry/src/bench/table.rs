//! A benchmark as lines of text, shared by `brambled bench` and `console bench node`. Pure.
use super::{KernelBench, Load, NodeBench, Product};

/// Lines for a benchmark of a node.
pub fn node_table(found: &NodeBench) -> Vec<String> {
    let mut lines = vec![format!("{}, kernels {}, {}", found.model, found.kernels, threads(found.threads))];
    for one in &found.bandwidth {
        let (count, rate) = (threads(one.threads), one.bytes_per_second / 1e9);
        lines.push(format!("read bandwidth   {rate:>8.1} GB/s       {count}"));
    }
    lines.extend(load(&found.load));
    lines.push(format!(
        "weights          {:>8.0} MB         read for every decoded token",
        megabytes(found.weight_bytes)
    ));
    for one in &found.prefill {
        let (tokens, rate, gmacs) = (one.tokens, one.tokens_per_second, one.gmacs);
        lines.push(format!("prefill {tokens:>7}  {rate:>8.1} tokens/s   {gmacs:.1} GMAC/s"));
    }
    for one in &found.decode {
        let (context, rate, share) = (one.context, one.tokens_per_second, one.share_of_bandwidth * 100.0);
        lines.push(format!("decode at {context:>5}  {rate:>8.2} tokens/s   {share:.0} % of the read bandwidth"));
    }
    for one in &found.rows {
        let (rows, time, times) = (one.rows, one.milliseconds, one.times_of_one);
        lines.push(format!("step of {rows:>2} rows  {time:>8.2} ms         {times:.2} of one row"));
    }
    lines.push(match found.resident_peak {
        Some(bytes) => format!("resident peak    {:>8.0} MB         file pages included", megabytes(bytes)),
        None => "resident peak     unknown".into(),
    });
    lines.extend(found.skipped.iter().map(|why| format!("left out: {why}")));
    lines
}

fn threads(count: u16) -> String {
    if count == 1 { "1 thread".into() } else { format!("{count} threads") }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn load(load: &Load) -> Vec<String> {
    let disk = load.cold_disk_bytes.map(|bytes| format!("{:.0} MB came from the disk", megabytes(bytes)));
    let said = load.cold_note.clone().or(disk).unwrap_or_default();
    let cold = match load.cold_seconds {
        Some(seconds) => format!("load cold        {seconds:>8.2} s          {said}"),
        None => format!("load cold               -            {said}"),
    };
    vec![cold, format!("load warm        {:>8.2} s          from the page cache", load.warm_seconds)]
}

/// Lines for a benchmark of kernels.
pub fn kernels_table(found: &KernelBench) -> Vec<String> {
    let mut lines = Vec::new();
    for table in &found.tables {
        let (name, threads) = (&table.kernels, threads(found.threads));
        let peak = table.peak_gmacs.map(|peak| format!("; registers alone {peak:.0} GMAC/s a thread"));
        lines.push(format!("{name}, {threads}{}", peak.unwrap_or_default()));
        lines.push("format    rows x columns  tokens          us    GMAC/s  of peak      GB/s".into());
        for one in &table.products {
            let Product { format, rows, columns, tokens, microseconds, gmacs, gigabytes } = one;
            let share = |peak: f64| format!("{:.0} %", gmacs / (peak * f64::from(found.threads)) * 100.0);
            let share = table.peak_gmacs.map_or("-".into(), share);
            lines.push(format!(
                "{format:<7} {rows:>7} x {columns:<6} {tokens:>6} {microseconds:>11.1} {gmacs:>9.1} {share:>8} {gigabytes:>9.1}"
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bandwidth, Decode, Prefill, Rows, Table};

    fn node() -> NodeBench {
        let bandwidth = |threads, bytes_per_second| Bandwidth {
            threads,
            bytes_per_second,
            streams: 2,
            ahead: 4096,
            huge_pages: true,
        };
        NodeBench {
            model: "m-q4_0.gguf".into(),
            kernels: "neon-dotprod".into(),
            threads: 4,
            bandwidth: vec![bandwidth(1, 5.04e9), bandwidth(4, 11.96e9)],
            load: Load {
                cold_seconds: Some(14.257),
                cold_disk_bytes: Some(637_000_000),
                cold_note: None,
                warm_seconds: 1.5,
            },
            weight_bytes: 636_600_000,
            prefill: vec![Prefill { tokens: 512, tokens_per_second: 61.25, gmacs: 59.5 }],
            decode: vec![Decode { context: 0, tokens_per_second: 13.5, bytes: 637_000_000, share_of_bandwidth: 0.719 }],
            rows: vec![Rows { rows: 4, milliseconds: 80.5, times_of_one: 1.087 }],
            ids: Vec::new(),
            skipped: vec!["decode at 5000: the model's context is 2048 tokens".into()],
            resident_peak: Some(712_400_000),
        }
    }

    #[test]
    fn a_node_is_shown_line_by_line() {
        let wanted = [
            "m-q4_0.gguf, kernels neon-dotprod, 4 threads",
            "read bandwidth        5.0 GB/s       1 thread",
            "read bandwidth       12.0 GB/s       4 threads",
            "load cold           14.26 s          637 MB came from the disk",
            "load warm            1.50 s          from the page cache",
            "weights               637 MB         read for every decoded token",
            "prefill     512      61.2 tokens/s   59.5 GMAC/s",
            "decode at     0     13.50 tokens/s   72 % of the read bandwidth",
            "step of  4 rows     80.50 ms         1.09 of one row",
            "resident peak         712 MB         file pages included",
            "left out: decode at 5000: the model's context is 2048 tokens",
        ];
        assert_eq!(node_table(&node()), wanted);
    }

    #[test]
    fn what_is_not_known_is_said() {
        let mut found = node();
        found.load.cold_seconds = None;
        found.load.cold_note = Some("the pages did not leave".into());
        found.resident_peak = None;
        let lines = node_table(&found);
        assert_eq!(lines[3], "load cold               -            the pages did not leave");
        assert_eq!(lines[9], "resident peak     unknown");
    }

    #[test]
    fn kernels_are_shown_with_the_peak_on_registers() {
        let product = Product {
            format: "Q4_0".into(),
            rows: 4096,
            columns: 4096,
            tokens: 1,
            microseconds: 512.25,
            gmacs: 32.75,
            gigabytes: 18.42,
        };
        let table = |peak_gmacs| Table { kernels: "avx2".into(), peak_gmacs, products: vec![product.clone()] };
        let found = KernelBench { threads: 2, tables: vec![table(Some(65.5)), table(None)] };
        let wanted = [
            "avx2, 2 threads; registers alone 66 GMAC/s a thread",
            "format    rows x columns  tokens          us    GMAC/s  of peak      GB/s",
            "Q4_0       4096 x 4096        1       512.2      32.8     25 %      18.4",
            "avx2, 2 threads",
            "format    rows x columns  tokens          us    GMAC/s  of peak      GB/s",
            "Q4_0       4096 x 4096        1       512.2      32.8        -      18.4",
        ];
        assert_eq!(kernels_table(&found), wanted);
    }
}
