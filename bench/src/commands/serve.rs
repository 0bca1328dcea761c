//! `bramble-bench serve`: loads the HTTP API of a server and measures one point after another of a sweep of request
//! rates or concurrencies.
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use console::cli::toolkit::{Endpoint, Failure, Interrupts, output};
use serde_json::{Value, json};

use super::pages::{read, write};
use crate::{
    measurement::{
        load::{Job, PROMPT_TOKENS_MAX, Prompt, REQUESTS_MAX, TRACE_BYTES_MAX, arrivals, trace},
        sample::{Sample, Slo, Summary},
        stats::Percentiles,
    },
    target::{Load, Target, UNDER_WAY_MAX, Until},
};

/// Options of `bramble-bench serve`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Serve {
    /// Name of the model [default: the served model]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Open loop: send requests at random times with these mean rates per second, one rate after another
    #[arg(long, visible_alias = "rate", value_delimiter = ',', value_name = "R,..", value_parser = rate, group = "shape")]
    rates: Vec<f64>,
    /// Closed loop: keep this many requests in flight, one number after another [default: 1]
    #[arg(long, visible_alias = "concurrency", value_delimiter = ',', value_name = "N,..", group = "shape",
        value_parser = clap::value_parser!(u16).range(1..=UNDER_WAY_MAX as i64))]
    concurrencies: Vec<u16>,
    /// Open loop: replay a trace file with one JSON object per line: at_ms, prompt or prompt_tokens, max_tokens
    #[arg(long, value_name = "FILE", group = "shape")]
    trace: Option<PathBuf>,
    /// Largest number of requests of a point [default: 10 times the concurrency; no limit with --rates]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=REQUESTS_MAX as i64))]
    requests: Option<u32>,
    /// Send requests for this many seconds at each point, then wait for outstanding answers [default: 30 with --rates]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    duration: Option<u64>,
    /// Warm-up requests before each point, sent one after another and not measured
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    /// Length of the random prompts in tokens; no two prompts share a prefix
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(PROMPT_TOKENS_MAX)))]
    prompt_tokens: u32,
    /// Send this prompt in every request instead
    #[arg(long, value_name = "TEXT", conflicts_with = "trace")]
    prompt: Option<String>,
    /// Largest number of tokens to generate per request
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Latency objective (SLO): time to first token in milliseconds
    #[arg(long, value_name = "MS", value_parser = rate)]
    slo_ttft_ms: Option<f64>,
    /// Latency objective (SLO): time per output token in milliseconds
    #[arg(long, value_name = "MS", value_parser = rate)]
    slo_tpot_ms: Option<f64>,
    /// Seed of the arrival times and prompts
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Write a CSV file with one line per point
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    endpoint: Endpoint,
}

fn rate(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (1e-3..=1e6).contains(&value) { Ok(value) } else { Err("expected 0.001 to 1000000".into()) }
}

/// A point of a sweep.
#[derive(Clone, Debug)]
enum LoadPoint {
    Rate(f64),
    Concurrency(u16),
    Trace(Arc<Vec<(Duration, Job)>>),
}

impl LoadPoint {
    fn name(&self) -> String {
        match self {
            Self::Rate(rate) => format!("{rate}/s"),
            Self::Concurrency(count) => format!("x{count}"),
            Self::Trace(_) => "trace".into(),
        }
    }
}

/// Runs the command. Exit code 1 if no request was completed.
pub(crate) async fn run(options: Serve) -> Result<u8, Failure> {
    let points = options.points()?;
    let mut apis = options.endpoint.apis();
    if apis.len() != 1 {
        let message = format!("{} URLs given, expected one", apis.len());
        return Err(Failure::Usage { message, next: "pass one: --url http://NODE:9980" });
    }
    let mut interrupts = Interrupts::listen()?;
    let model = interrupts.end(options.endpoint.model(&apis, options.model.as_deref())).await?;
    let target = Target::Http { api: apis.remove(0), model: model.clone() };
    let load = Arc::new(Load::new(target, options.endpoint.patience(), options.seed));
    let slo = Slo { ttft_ms: options.slo_ttft_ms, tpot_ms: options.slo_tpot_ms };
    let mut found = Vec::new();
    if !options.json {
        output::line(HEAD);
    }
    for point in &points {
        let samples = interrupts.end(async { Ok::<_, Failure>(options.measure(&load, point).await) }).await?;
        let summary = Summary::of(&samples, &slo);
        if !options.json {
            output::line(&output::clean(&line(&point.name(), &summary)));
        }
        found.push((point.name(), summary));
    }
    if let Some(path) = &options.csv {
        write(path, &csv(&found))?;
    }
    if options.json {
        output::line(&options.object(&model, &slo, &found).to_string());
    }
    Ok(u8::from(found.iter().all(|(_, summary)| summary.completed == 0)))
}

impl Serve {
    fn points(&self) -> Result<Vec<LoadPoint>, Failure> {
        if let Some(path) = &self.trace {
            let jobs = trace(&read(path, TRACE_BYTES_MAX)?).map_err(|error| Failure::Usage {
                message: format!("{}: {error}", path.display()),
                next: "write one object per line: {\"at_ms\": 0, \"prompt_tokens\": 128, \"max_tokens\": 64}",
            })?;
            return Ok(vec![LoadPoint::Trace(Arc::new(jobs))]);
        }
        let rates = self.rates.iter().map(|rate| LoadPoint::Rate(*rate));
        let concurrencies: &[u16] =
            if self.rates.is_empty() && self.concurrencies.is_empty() { &[1] } else { &self.concurrencies };
        Ok(rates.chain(concurrencies.iter().map(|count| LoadPoint::Concurrency(*count))).collect())
    }

    fn job(&self) -> Job {
        let prompt = self.prompt.as_ref().map_or(Prompt::Made(self.prompt_tokens), |text| Prompt::Text(text.clone()));
        Job { prompt, max_tokens: self.max_tokens }
    }

    async fn measure(&self, load: &Arc<Load>, point: &LoadPoint) -> Vec<Sample> {
        let forever = Duration::from_secs(86_400);
        if self.warmup > 0 {
            load.closed(&[self.job()], 1, Until { requests: self.warmup as usize, elapsed: forever }).await;
        }
        let elapsed = self.duration.map(Duration::from_secs);
        let most = self.requests.map(|count| count as usize);
        match point {
            LoadPoint::Rate(rate) => {
                let until = elapsed.unwrap_or(if most.is_some() { forever } else { Duration::from_secs(30) });
                let due = arrivals(*rate, until, most.unwrap_or(REQUESTS_MAX), self.seed);
                load.open(due.into_iter().map(|at| (at, self.job()))).await
            }
            LoadPoint::Concurrency(count) => {
                let default = if elapsed.is_some() { REQUESTS_MAX } else { 10 * usize::from(*count) };
                let until = Until { requests: most.unwrap_or(default), elapsed: elapsed.unwrap_or(forever) };
                load.closed(&[self.job()], usize::from(*count), until).await
            }
            LoadPoint::Trace(jobs) => {
                let until = elapsed.unwrap_or(forever);
                let jobs = jobs.iter().take_while(|(at, _)| *at <= until).take(most.unwrap_or(REQUESTS_MAX)).cloned();
                load.open(jobs.collect::<Vec<_>>()).await
            }
        }
    }

    fn object(&self, model: &str, slo: &Slo, found: &[(String, Summary)]) -> Value {
        let points: Vec<Value> = found
            .iter()
            .map(|(name, summary)| {
                let mut object = json!(summary);
                object["point"] = json!(name);
                object
            })
            .collect();
        json!({"url": self.endpoint.url.first().map(|url| &url.authority), "model": model, "seed": self.seed, "slo": slo,
            "max_tokens": self.max_tokens, "prompt_tokens": self.prompt.is_none().then_some(self.prompt_tokens), "points": points})
    }
}

const HEAD: &str = "  point   sent   done    ok/s   tok/s   TTFT p50     p95     p99   TPOT p50     p95     p99    E2E p50     p95     p99   \
    good  good/s  refused p50   p99";

/// A row of the table with times in milliseconds, followed by lines about failed requests and late sending.
fn line(name: &str, summary: &Summary) -> String {
    let (ttft, tpot, e2e) = (&summary.ttft_ms, &summary.tpot_ms, &summary.e2e_ms);
    let mut text = format!(
        "{name:>7} {:>6} {:>6} {:>7.2} {:>7.1}   {:>8.1} {:>7.1} {:>7.1}   {:>8.2} {:>7.2} {:>7.2}   {:>8.1} {:>7.1} {:>7.1}  {:>4.0} % {:>6.2} {:>4} {:>7.1} {:>5.1}",
        summary.requests,
        summary.completed,
        summary.completed_per_second,
        summary.tokens_per_second,
        ttft.p50,
        ttft.p95,
        ttft.p99,
        tpot.p50,
        tpot.p95,
        tpot.p99,
        e2e.p50,
        e2e.p95,
        e2e.p99,
        100.0 * summary.good as f64 / summary.requests.max(1) as f64,
        summary.goodput_per_second,
        summary.refused,
        summary.refusal_ms.p50,
        summary.refusal_ms.p99,
    );
    if !summary.errors.is_empty() {
        let errors: Vec<String> = summary.errors.iter().map(|(code, count)| format!("{code} {count}")).collect();
        text += &format!("\n        failed requests: {}", errors.join(", "));
    }
    if summary.late_ms.p99 > 10.0 {
        text += &format!(
            "\n        requests were sent up to {:.0} ms late (p99): this machine limits the load",
            summary.late_ms.p99
        );
    }
    text
}

fn csv(found: &[(String, Summary)]) -> String {
    let mut csv = String::from(
        "point,requests,completed,seconds,completed_per_second,tokens_per_second,ttft_p50_ms,ttft_p95_ms,ttft_p99_ms,\
         tpot_p50_ms,tpot_p95_ms,tpot_p99_ms,e2e_p50_ms,e2e_p95_ms,e2e_p99_ms,good,goodput_per_second,refused,refusal_p50_ms,\
         refusal_p99_ms,errors,late_p99_ms\n",
    );
    for (name, it) in found {
        let three = |it: &Percentiles| format!("{:.3},{:.3},{:.3}", it.p50, it.p95, it.p99);
        csv += &format!(
            "{name},{},{},{:.3},{:.3},{:.3},{},{},{},{},{:.3},{},{:.3},{:.3},{},{:.3}\n",
            it.requests,
            it.completed,
            it.seconds,
            it.completed_per_second,
            it.tokens_per_second,
            three(&it.ttft_ms),
            three(&it.tpot_ms),
            three(&it.e2e_ms),
            it.good,
            it.goodput_per_second,
            it.refused,
            it.refusal_ms.p50,
            it.refusal_ms.p99,
            it.errors.values().sum::<u64>(),
            it.late_ms.p99,
        );
    }
    csv
}

/// A path for messages.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Checks, before anything is measured, that the folder of an output file exists.
pub(super) fn check_folder(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_folder =
        std::fs::metadata(folder).with_context(|| format!("cannot write to {}", folder.display()))?.is_dir();
    if is_folder { Ok(()) } else { Err(anyhow::anyhow!("{} is not a folder", folder.display()).into()) }
}
