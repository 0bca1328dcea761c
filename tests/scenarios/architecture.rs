//! The structure as a test: the drawing in ARCHITECTURE.md is the graph of the crates, crates that compute have no async runtime, and no
//! crate has a circle of modules. `BRAMBLE_UPDATE_SNAPSHOTS=1` redraws the graph.
use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use harness::{modules::Modules, programs::root};

/// The lines between which ARCHITECTURE.md has the graph.
const BEGIN: &str = "<!-- crates -->\n";
const END: &str = "<!-- /crates -->";

/// Every crate of the workspace: its folder and the workspace's crates that it depends on, tests left out.
fn crates() -> BTreeMap<String, (PathBuf, Vec<String>)> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let folders: BTreeMap<String, PathBuf> = manifest
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(" = { package = \"bramble-")?;
            let path = rest.split_once("path = \"")?.1.split('"').next()?;
            Some((name.to_owned(), root().join(path)))
        })
        .chain([("tests".to_owned(), root().join("tests"))])
        .collect();
    let crates = folders.iter().map(|(name, folder)| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a crate has a manifest");
        let list = manifest.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n[").next());
        let names = list.unwrap_or_default().lines().filter_map(|line| line.strip_suffix(".workspace = true"));
        let names = names.filter(|name| folders.contains_key(*name)).map(str::to_owned);
        (name.clone(), (folder.clone(), names.collect()))
    });
    crates.collect()
}

/// Whether `from` reaches `to` by two or more arrows.
fn is_implied(crates: &BTreeMap<String, (PathBuf, Vec<String>)>, from: &str, to: &str) -> bool {
    fn reaches(crates: &BTreeMap<String, (PathBuf, Vec<String>)>, from: &str, to: &str) -> bool {
        from == to || crates[from].1.iter().any(|next| reaches(crates, next, to))
    }
    crates[from].1.iter().filter(|next| *next != to).any(|next| reaches(crates, next, to))
}

#[test]
fn architecture_shows_the_crate_graph() {
    let crates = crates();
    assert!(crates.len() >= 13, "only {} crates were found", crates.len());
    let mut drawing = format!("{BEGIN}```mermaid\ngraph TD\n");
    for (name, (_, dependencies)) in &crates {
        for dependency in dependencies.iter().filter(|dependency| !is_implied(&crates, name, dependency)) {
            writeln!(drawing, "    {name} --> {dependency}").expect("a string takes every line");
        }
    }
    drawing += "```\n";
    drawing += END;
    let path = root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&path).expect("the file can be read");
    let (before, rest) = text.split_once(BEGIN).expect("ARCHITECTURE.md marks where the graph begins");
    let (_, after) = rest.split_once(END).expect("ARCHITECTURE.md marks where the graph ends");
    let drawn = format!("{before}{drawing}{after}");
    if std::env::var_os("BRAMBLE_UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, &drawn).expect("the file can be written");
        return;
    }
    assert_eq!(text, drawn, "redraw the graph: BRAMBLE_UPDATE_SNAPSHOTS=1 cargo test --test scenarios architecture");
    assert!(text.lines().count() <= 200, "ARCHITECTURE.md has {} lines, at most 200", text.lines().count());
}

#[test]
fn computing_crates_have_no_async_runtime() {
    for (name, (folder, dependencies)) in crates() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a crate has a manifest");
        let may = ["protocol", "assignment", "daemon", "console", "bench", "tests"].contains(&name.as_str());
        assert!(may || !manifest.contains("tokio"), "{name} must not depend on tokio");
        let programs = dependencies.iter().filter(|dependency| ["daemon", "console"].contains(&dependency.as_str()));
        assert!(["bench", "tests"].contains(&name.as_str()) || programs.count() == 0, "{name} depends on a program");
    }
}

#[test]
fn no_crate_has_a_circle_of_modules() {
    let mut found = Vec::new();
    for (name, (folder, _)) in crates() {
        let modules = Modules::read(&folder.join("src/lib.rs"));
        assert!(!modules.is_empty(), "{name} has no modules");
        found.extend(modules.circles().into_iter().map(|circle| format!("{name}: {circle}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
