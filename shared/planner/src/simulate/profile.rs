//! Times of a node's operations: known machines, each number with its source, and measured machines. [F] from a public
//! source, [C] computed from such, [G] an estimate that a measurement on the machine should replace.
use common::latency::ratio;
use telemetry::bench::{Decode, NodeBench};
use topology::sizes::ModelSizes;

use super::network::{Link, NodeSpeed};
use crate::holding::Work;

/// A machine model.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeProfile {
    /// Its common name.
    pub name: String,
    /// Bytes per second that all threads together can read from memory.
    pub read_bytes_per_second: f64,
    /// Share of that bandwidth that decoding reaches, 0 to 1.
    pub decode_share: f64,
    /// Multiply-adds per second of a batch with the weights, all threads.
    pub macs_per_second: f64,
    /// Multiply-adds per second of attention over the KV cache.
    pub attention_macs_per_second: f64,
    /// Additional time per layer and token on one rank in nanoseconds: norms, rotation, quantisation, thread barriers.
    pub layer_ns: u64,
    /// The part of it for each further token of a batch.
    pub layer_token_ns: u64,
    /// Additional time per step in nanoseconds: its plan on the head, text and events.
    pub step_ns: u64,
    /// Sampler time per logit of this rank in nanoseconds: two exponentials.
    pub logit_ns: u64,
    /// Values per second that one core rounds to the exchange format, or reads from it and adds.
    pub exchange_values_per_second: f64,
    /// Core time to send and to receive a message, in nanoseconds.
    pub message_ns: [u64; 2],
    /// Factor of all compute times in thousandths: 1000 for nominal speed.
    pub slowness: u64,
}

/// A node of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Compute speed.
    pub profile: NodeProfile,
    /// Its link to the switch.
    pub link: Link,
}

impl Machine {
    /// Its parameters for the network simulation.
    pub fn speed(&self) -> NodeSpeed {
        let NodeProfile { message_ns: [send_ns, receive_ns], slowness, .. } = self.profile;
        NodeSpeed { link: self.link, send_ns, receive_ns, slowness }
    }
}

impl NodeProfile {
    /// Raspberry Pi 5: four Cortex-A76 at 2.4 GHz.
    pub fn pi5() -> Self {
        Self {
            name: "pi5".into(),
            // [F] Triad with four threads, about 13.4 GB/s of theoretical 17.1.
            read_bytes_per_second: 13.4e9,
            // [F] Llama 3.2 3B in Q4_K_M decodes at 6.07 tokens/s on a CM5, which is 12.2 GB/s: 91 % of the triad.
            decode_share: 0.91,
            // [C] llama.cpp prefills that model at 15.1 tokens/s without repacking (3.21e9 weights: 48.5e9 a second),
            // and repacking buys 1.9 to 2.65 times, 2.2 in the middle. Bramble's kernels cost as many instructions a
            // multiply-add as llama.cpp's repacked ones on this core: 0.123 and 0.125 in Q4_0.
            macs_per_second: 107e9,
            // [G] Half of the peak of two pipes of four f32 lanes (76.8e9): halves are converted before they are
            // multiplied.
            attention_macs_per_second: 38e9,
            // [G] Seven runs of the pool, 2 us each (a cache line travels to three cores and back), and 4 passes over a
            // hidden state of 4096 at 1 ns for 4 values.
            layer_ns: 18_000,
            layer_token_ns: 4_000,
            step_ns: 50_000,
            // [G] An f64 exponential of the C library takes about 12 ns on this core.
            logit_ns: 25,
            // [G] 40 vector instructions for a block of 32 at two per cycle.
            exchange_values_per_second: 2.5e9,
            // [C] A message costs 5 to 20 us on a Pi; the faster Pi is at the lower end.
            message_ns: [5_000, 5_000],
            slowness: 1000,
        }
    }

    /// Raspberry Pi 4: four Cortex-A72 at 1.5 GHz, no dot products.
    pub fn pi4() -> Self {
        Self {
            name: "pi4".into(),
            // [F] About 3.2 GB/s usable of theoretical 12.8.
            read_bytes_per_second: 3.2e9,
            // [F] The figure is what decoding programs reach, so no further loss is assumed.
            decode_share: 1.0,
            // [C] As on the Pi 5 (1.37 instructions per cycle, from 107e9 * 0.123 / 9.6e9) with 0.387 instructions per
            // multiply-add and 6e9 cycles per second.
            macs_per_second: 21e9,
            // [G] Half of the peak of one pipe of four f32 lanes (24e9).
            attention_macs_per_second: 12e9,
            // [G] Two and a half times the Pi 5's, by clock and instructions per cycle.
            layer_ns: 45_000,
            layer_token_ns: 10_000,
            step_ns: 125_000,
            logit_ns: 60,
            exchange_values_per_second: 1e9,
            // [C] The upper end of the range.
            message_ns: [20_000, 20_000],
            slowness: 1000,
        }
    }

    /// A built-in profile.
    ///
    /// # Errors
    /// No profile has this name.
    pub fn named(name: &str) -> Result<Self, String> {
        let all = [Self::pi4(), Self::pi5()];
        let found = all.into_iter().find(|profile| profile.name == name);
        found.ok_or_else(|| format!("unknown machine profile {name:?}; use pi4 or pi5"))
    }

    /// A machine whose benchmark with this model is known. Values that the benchmark does not measure are those of
    /// `base`; times that the simulation adds separately are subtracted from the measured times.
    pub fn measured(name: &str, bench: &NodeBench, sizes: &ModelSizes, base: &Self) -> Self {
        let layers = sizes.spec.block_count() as f64;
        let read = bench.bandwidth.last().map_or(base.read_bytes_per_second, |all| all.bytes_per_second);
        let besides = (layers * base.layer_ns as f64
            + base.step_ns as f64
            + (sizes.spec.vocabulary_length as u64 * base.logit_ns) as f64)
            / 1e9;
        // Short measurements on machines of another kind: at most half of a token's time is subtracted.
        let share = |decode: &Decode| {
            let time = ratio(1.0, decode.tokens_per_second);
            ratio(ratio(decode.bytes as f64, (time - besides).max(time / 2.0)), read)
        };
        let decode_share = bench.decode.first().map(share).filter(|share| *share > 0.0);
        let macs = bench.prefill.last().map(|prefill| prefill.gmacs * 1e9).filter(|macs| *macs > 0.0);
        Self {
            name: name.into(),
            read_bytes_per_second: if read > 0.0 { read } else { base.read_bytes_per_second },
            decode_share: decode_share.map_or(base.decode_share, |share| share.min(1.0)),
            macs_per_second: macs.unwrap_or(base.macs_per_second),
            ..base.clone()
        }
    }

    /// A machine with a fraction of this one's compute speed and the same message costs.
    pub fn at_speed(&self, speed: f64) -> Self {
        let longer = |ns: u64| (ns as f64 / speed).round() as u64;
        Self {
            read_bytes_per_second: self.read_bytes_per_second * speed,
            macs_per_second: self.macs_per_second * speed,
            attention_macs_per_second: self.attention_macs_per_second * speed,
            layer_ns: longer(self.layer_ns),
            layer_token_ns: longer(self.layer_token_ns),
            step_ns: longer(self.step_ns),
            logit_ns: longer(self.logit_ns),
            ..self.clone()
        }
    }

    /// Nanoseconds of matrix products with `tokens` tokens: the longer of reading and multiplying.
    pub fn work_ns(&self, work: Work, tokens: u32) -> u64 {
        let reading = work.bytes as f64 / (self.read_bytes_per_second * self.decode_share);
        let multiplying = work.macs as f64 * f64::from(tokens) / self.macs_per_second;
        nanoseconds(reading.max(multiplying))
    }

    /// Nanoseconds of attention that reads `bytes` of keys and values with `macs` multiply-adds.
    pub fn attention_ns(&self, bytes: f64, macs: f64) -> u64 {
        let reading = bytes / (self.read_bytes_per_second * self.decode_share);
        nanoseconds(reading.max(macs / self.attention_macs_per_second))
    }

    /// Nanoseconds to round or add so many values.
    pub fn exchange_ns(&self, values: usize) -> u64 {
        nanoseconds(values as f64 / self.exchange_values_per_second)
    }
}

/// Whole nanoseconds of a time that is computed once, before any event.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_bound_by_reading_and_a_batch_by_multiplying() {
        let pi = NodeProfile::pi5();
        // 4.36 GB of weights of an 8B model, 7.5e9 multiply-adds.
        let work = Work { bytes: 4_360_000_000, macs: 7_500_000_000 };
        let one = pi.work_ns(work, 1) as f64 / 1e9;
        assert!((one - 4.36 / 12.2).abs() < 0.002, "{one}");
        let batch = pi.work_ns(work, 128) as f64 / 1e9;
        assert!((batch - 128.0 * 7.5 / 107.0).abs() < 0.01, "{batch}");
        assert!(NodeProfile::named("pi5").is_ok() && NodeProfile::named("pi6").is_err());
    }
}
