//! Checks every model of a folder against its reference outputs: `reference FOLDER [RANKS,..] [KERNELS]`.
use std::{path::PathBuf, process::ExitCode};

use harness::reference::{check, models};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: reference FOLDER [RANKS,..] [KERNELS]; for example reference models 1,2,3,4,5,8 scalar");
        return ExitCode::from(2);
    };
    let ranks = arguments.next().unwrap_or_else(|| "1,2,3,4,5,8".into());
    let worlds: Result<Vec<usize>, _> = ranks.split(',').map(str::parse).collect();
    let Ok(worlds) = worlds else {
        eprintln!("{ranks:?} is not a list of rank counts");
        return ExitCode::from(2);
    };
    let kernels: Option<&'static str> = arguments.next().map(|name| &*name.leak());
    let mut all_hold = true;
    println!("{:<22} {:>5} {:>12} {:>20} {:>11}", "model", "ranks", "max error", "rms / llama.cpp's", "greedy ids");
    for (name, model, json) in models(&folder) {
        let findings = check(&model, &json, &worlds, kernels);
        for world in &worlds {
            let of_world = || findings.iter().filter(|finding| finding.world == *world);
            let most = |value: &dyn Fn(&harness::reference::Finding) -> f64| of_world().map(value).fold(0.0, f64::max);
            let max_error = most(&|finding| finding.max_error);
            let ratio = most(&|finding| finding.rms_ratio.unwrap_or(0.0));
            let ratio = if ratio > 0.0 { format!("{ratio:.2}") } else { "-".into() };
            let ids: usize = of_world().map(|finding| finding.greedy_ids).sum();
            let holds = of_world().all(|finding| finding.holds);
            all_hold &= holds;
            let verdict = if holds { "" } else { "  BEYOND THE BOUND" };
            println!("{name:<22} {world:>5} {max_error:>12.1e} {ratio:>20} {ids:>11}{verdict}");
        }
    }
    println!("{}", if all_hold { "all within their bounds" } else { "some exceed their bounds" });
    ExitCode::from(u8::from(!all_hold))
}
