//! `console demo`: starts daemons on this machine as real processes, assigns a topology, and opens the dashboard or
//! prints one completion.
mod daemons;
mod disturb;
mod machine;
pub(super) mod options;
mod stage;
mod tour;

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use gguf::GgufFile;
use protocol::message::Generate;
use serde_json::json;
use tokio::sync::watch;
use topology::Layout;

use self::{daemons::Daemons, options::DEMO_NODES_MAX};
use crate::cli::{
    Failure,
    dashboard::{self, preferences::Session},
    generate::{complete, first, head, object},
    profile,
    shared::{
        interrupts::Interrupts,
        output,
        sessions::{assign_and_tell, open},
    },
};
use crate::state::tour::Scene;

/// The model file that comes with Bramble.
const MODEL: &str = "bard-q8_0.gguf";

/// Tokens of each request that keeps the nodes busy during a tour.
const TOUR_TOKENS: u32 = 300;
/// Default number of daemons.
const NODES: u16 = 4;

/// Runs the command.
pub(super) async fn run(mut options: options::Demo) -> Result<u8, Failure> {
    let model = model(options.model.as_deref())?;
    let next = "pass the number of daemons: console demo --nodes N";
    let count = options.count().map_err(|message| Failure::Usage { message, next })?;
    let layout = layout(count, options.assignment.layout.topology)?;
    options.assignment.layout.topology = Some(layout);
    let folder = model.parent().map(Path::to_path_buf).unwrap_or_default();
    let mut interrupts = Interrupts::listen()?;
    // From here on, dropping `Daemons` ends the processes and removes their folder.
    if options.tour {
        return guided(&options, &model, &folder, &mut interrupts).await;
    }
    let daemons = interrupts.end(Daemons::start(layout.node_count(), &folder, &[])).await?;
    if !options.json && dashboard::has_terminal() {
        let asked = options.assignment.asked(&model.to_string_lossy());
        let request = options.sampling.request(options.prompt.clone(), 0);
        return dashboard::show(
            daemons.addresses().to_vec(),
            Some(asked),
            options.prompt,
            request,
            false,
            options.session,
        )
        .await;
    }
    let result = once(&options, &model, daemons.addresses(), &mut interrupts).await;
    daemons.stop().await;
    result
}

/// Runs the tour on daemons that read simulated machine health.
async fn guided(
    options: &options::Demo,
    model: &Path,
    models: &Path,
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    let folder =
        tempfile::Builder::new().prefix("bramble-tour-").tempdir().context("cannot create a temporary folder")?;
    let machines = tour::machines(folder.path())?;
    let mut daemons = interrupts.end(Daemons::start(tour::NODES, models, &machines)).await?;
    let result = if !options.json && dashboard::has_terminal() {
        shown(options, model, &daemons, &machines).await
    } else {
        tour::run(options, model, &mut daemons, &machines, interrupts).await
    };
    daemons.stop().await;
    result
}

/// Shows the tour in the dashboard, which waits for the operator in every step.
async fn shown(
    options: &options::Demo,
    model: &Path,
    daemons: &Daemons,
    machines: &[machine::Machine],
) -> Result<u8, Failure> {
    let (scenes, wanted) = watch::channel(Scene::Calm);
    let request = options.sampling.request(options.prompt.clone(), 0);
    let busy = Generate { max_tokens: TOUR_TOKENS, ignores_end: true, ..request.clone() };
    let asked = options.assignment.asked(&model.to_string_lossy());
    let session = Session { tour: Some(scenes), ..options.session.clone() };
    let nodes = daemons.addresses().to_vec();
    let screen = dashboard::show(nodes, Some(asked), String::new(), request, false, session);
    tokio::pin!(screen);
    tokio::select! {
        code = &mut screen => code,
        // Ends only with the dashboard.
        () = stage::play(daemons, machines, &busy, wanted) => screen.await,
    }
}

/// The layout of the demo. `--nodes` and `--topology` must agree if both are given.
fn layout(nodes: Option<u16>, topology: Option<Layout>) -> Result<Layout, Failure> {
    let next = "use console demo --topology with tpN, ppS-tpN or dpR-ppS-tpN, or --nodes N";
    let layout = topology.unwrap_or(Layout::tensor_parallel(nodes.unwrap_or(NODES)));
    let count = layout.node_count();
    if nodes.is_some_and(|nodes| usize::from(nodes) != count) {
        let message = format!("topology {layout} needs {count} nodes, --nodes has another number");
        return Err(Failure::Usage { message, next });
    }
    if count > usize::from(DEMO_NODES_MAX) {
        let message = format!("topology {layout} needs {count} nodes, the demo starts at most {DEMO_NODES_MAX}");
        return Err(Failure::Usage { message, next });
    }
    Ok(layout)
}

/// Prints one completion and its profile on running daemons.
async fn once(
    options: &options::Demo,
    model: &Path,
    addresses: &[String],
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    let wanted = options.assignment.wanted(addresses.len(), &model.to_string_lossy());
    let mut request = options.sampling.request(options.prompt.clone(), 0);
    let seed = request.sampling.seed;
    let sessions = interrupts.end(open(addresses)).await?;
    let assigned = interrupts.end(assign_and_tell(&sessions, &wanted)).await?;
    if !options.json {
        let (count, nodes) = (addresses.len(), addresses.join(" "));
        output::line(&format!("{count} nodes on {nodes}, {} on {}, seed {seed}", wanted.model, wanted.layout));
        output::text(&format!("\n{}", options.prompt));
    }
    let head = interrupts.end(head(&sessions, &assigned.topology)).await?;
    request.model = Some(assigned.topology.roots().into());
    let completion = complete(&first(&sessions, &assigned.topology, head), request, !options.json, interrupts).await?;
    if options.json {
        let mut object = object(&completion, (&assigned, head), seed, false);
        object["nodes"] = json!(addresses);
        output::line(&object.to_string());
    } else {
        let file = GgufFile::open(model).map_err(anyhow::Error::from)?;
        let spec = models::read(&file).map_err(anyhow::Error::from)?;
        let exchanged = profile::table::Exchanged { embedding_length: spec.embedding_length, spec: Some(&spec) };
        let replica = assigned.topology.place(head).replica;
        output::line("\n");
        let members = assigned.topology.layout.members(replica);
        let (_, tables) = interrupts.end(profile::reports(&sessions[members])).await?;
        let lines = profile::table::lines(&completion.finished, &assigned.topology, replica, exchanged, &tables);
        lines.iter().for_each(|line| output::line(line));
    }
    Ok(completion.interrupted.unwrap_or(0))
}

/// The given model file, or the demo model: next to the program, in its source tree or in the package's folder.
fn model(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = named {
        let found = path.canonicalize().with_context(|| format!("cannot find the model file {}", path.display()))?;
        return Ok(found);
    }
    let program = std::env::current_exe().context("cannot find this program's own path")?;
    Ok(demo_model(&program).ok_or_else(|| {
        anyhow!("the demo model {MODEL} is neither next to this program nor in /usr/share/bramble; use --model FILE")
    })?)
}

/// Finds the demo model for a program at this path: next to it, in its source tree, or where the package installs it.
fn demo_model(program: &Path) -> Option<PathBuf> {
    let sources = program.ancestors().skip(1).take(4).map(|folder| folder.join("packaging/demo").join(MODEL));
    let prefix = program.ancestors().nth(2).unwrap_or(Path::new("/usr"));
    let packaged = [prefix.join("share/bramble").join(MODEL), Path::new("/usr/share/bramble").join(MODEL)];
    let beside = program.parent().map(|folder| folder.join(MODEL));
    beside.into_iter().chain(sources).chain(packaged).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_model_next_to_the_program_has_priority() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("one/two/console");
        let (beside, sources) = (program.with_file_name(MODEL), folder.path().join("packaging/demo").join(MODEL));
        for place in [&sources, &beside] {
            std::fs::create_dir_all(place.parent().expect("a folder")).expect("it can be made");
            std::fs::write(place, "a model").expect("it can be written");
            assert_eq!(demo_model(&program).as_ref(), Some(place));
        }
    }

    #[test]
    fn demo_has_four_nodes_by_default_and_options_must_agree() {
        let topology = |text: &str| Some(text.parse::<Layout>().expect("a topology"));
        let count = |nodes, topology| layout(nodes, topology).map(Layout::node_count).map_err(|error| error.code());
        assert_eq!(count(None, None), Ok(4));
        assert_eq!(count(Some(2), None), Ok(2));
        assert_eq!(count(None, topology("tp3")), Ok(3));
        assert_eq!(count(Some(3), topology("tp3")), Ok(3));
        assert_eq!(count(Some(4), topology("tp3")), Err(2));
        assert_eq!(count(None, topology("tp9")), Err(2));
        assert_eq!(count(None, topology("pp2-tp2")), Ok(4));
        assert_eq!(count(None, topology("dp2-pp2-tp4")), Err(2));
    }

    #[test]
    fn demo_model_is_in_source_tree_and_missing_file_is_named() {
        let found = model(None).expect("it is in the source tree");
        assert!(found.ends_with("packaging/demo/bard-q8_0.gguf"), "{}", found.display());
        let error = model(Some(Path::new("no/such.gguf"))).expect_err("there is none");
        assert!(error.to_string().contains("no/such.gguf"), "{error}");
    }
}
