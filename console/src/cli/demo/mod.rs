//! `console demo`: daemons on this machine as real processes, a topology on them, and the dashboard or one text.
mod daemons;

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde_json::json;
use shared::{
    gguf::{GgufFile, Shape},
    topology::{Layout, spec::check_built},
};

use self::daemons::Daemons;
use super::{
    Failure, dashboard,
    failure::INTERRUPTED,
    generate::{assign_and_tell, complete, object, open},
    options, output, profile,
};

/// The model that comes with Bramble.
const MODEL: &str = "bard-q8_0.gguf";

/// Runs the command.
pub(super) async fn run(mut options: options::Demo) -> Result<u8, Failure> {
    let model = model(options.model.as_deref())?;
    let layout = options.assignment.topology.unwrap_or(Layout::tensor_parallel(options.nodes));
    options.assignment.topology = Some(layout);
    let refused = |error: shared::topology::SpecError| Failure::Usage {
        message: error.to_string(),
        next: "console demo --topology tpN, or --nodes N",
    };
    check_built(layout).map_err(refused)?;
    let wanted = options.assignment.wanted(layout.node_count(), &model.to_string_lossy());
    let folder = model.parent().map(Path::to_path_buf).unwrap_or_default();
    let daemons = Daemons::start(layout.node_count(), &folder).await?;
    let request = options.sampling.request(options.prompt.clone(), 0);
    if !options.once && dashboard::has_terminal() {
        return dashboard::show(daemons.addresses().to_vec(), Some(wanted), options.prompt, request).await;
    }
    let seed = request.sampling.seed;
    let sessions = open(daemons.addresses()).await?;
    let assigned = assign_and_tell(&sessions, &wanted).await?;
    if !options.json {
        output::line(&format!(
            "{} nodes on {}, {} on {layout}, seed {seed}",
            layout.node_count(),
            daemons.addresses().join(" "),
            wanted.model
        ));
        output::text(&format!("\n{}", options.prompt));
    }
    let completion = complete(&sessions[0], request, !options.json).await?;
    if options.json {
        let mut object = object(&completion, &assigned, seed, false);
        object["nodes"] = json!(daemons.addresses());
        output::line(&object.to_string());
    } else {
        let file = GgufFile::open(&model).map_err(anyhow::Error::from)?;
        let shape = Shape::read(&file).map_err(anyhow::Error::from)?;
        let (layers, embedding) = (shape.block_count as u64, shape.embedding_length as u64);
        output::line("\n");
        let lines = profile::lines(&completion.finished, &assigned.topology, layers, embedding);
        lines.iter().for_each(|line| output::line(line));
    }
    daemons.stop().await;
    Ok(if completion.interrupted { INTERRUPTED } else { 0 })
}

/// The model file: the one named, or the demo model beside the program, in its source tree or where packages put it.
fn model(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = named {
        let found = path.canonicalize().with_context(|| format!("no model file {}", path.display()))?;
        return Ok(found);
    }
    let program = std::env::current_exe().context("cannot find this program's own path")?;
    let beside = program.ancestors().skip(1).take(4).map(|folder| folder.join("packaging/demo").join(MODEL));
    let packaged = [PathBuf::from("/usr/share/bramble").join(MODEL)];
    let found = beside.chain(packaged).find(|path| path.is_file());
    Ok(found.ok_or_else(|| {
        anyhow!(
            "the demo model {MODEL} is not beside this program nor in /usr/share/bramble; name one with --model FILE"
        )
    })?)
}
