//! `console screen`: prints a page of the dashboard, from the live cluster or from a recording.
use std::{path::PathBuf, time::Duration};

use clap::Args;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use crate::cli::{
    Failure,
    dashboard::{
        keys,
        preferences::Arrange,
        replay::{At, at, failure},
    },
    shared::{
        need::{Need, Reach},
        output,
    },
};
use crate::{
    client::{Client, with_port},
    recording::player::Player,
    state::{Focus, GenerateDefaults, Page, State},
    update::event::Event,
    update::update,
    view::{self, picture},
};

/// Longest wait for the nodes.
const WAIT: Duration = Duration::from_secs(5);
/// Time after the first reports until the figures that are computed from differences are available.
const SETTLE: Duration = Duration::from_millis(1200);
/// Interval between two reports of a node, in milliseconds.
const WATCH_MS: u32 = 250;

/// Options of `console screen`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Screen {
    /// Page to print: cluster, topology, sync, generate, requests, events, node, models or chat; keys: the active key
    /// bindings, in the format of ~/.config/bramble/keys.toml
    #[arg(value_name = "PAGE", value_parser = page)]
    page: Printed,
    #[arg(skip)]
    nodes: Vec<String>,
    /// Print a page of a recording instead of the live cluster
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    /// Time within the recording: seconds from the start, or a time of day in UTC [default: its end]
    #[arg(long, value_name = "TIME", value_parser = at, requires = "recording")]
    at: Option<At>,
    /// Print an image (SVG) instead of text
    #[arg(long)]
    svg: bool,
    /// Size of the screen in columns and rows
    #[arg(long, value_name = "WxH", default_value = "120x40", value_parser = size)]
    size: (u16, u16),
    #[command(flatten)]
    arrange: Arrange,
    #[arg(from_global)]
    json: bool,
}

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Printed {
    Page(Page),
    Keys,
}

fn page(text: &str) -> Result<Printed, String> {
    if text.eq_ignore_ascii_case("keys") {
        return Ok(Printed::Keys);
    }
    let page = Page::ALL.into_iter().find(|page| page.title().eq_ignore_ascii_case(text)).map(Printed::Page);
    let titles = Page::ALL.map(|page| page.title().to_lowercase()).join(", ");
    page.ok_or_else(|| format!("expected one of {titles}, keys"))
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let wrong = || "expected 60x16 to 500x200, for example 120x40".to_owned();
    let (width, height) = text.split_once('x').ok_or_else(wrong)?;
    let (width, height) = (width.parse().map_err(|_| wrong())?, height.parse().map_err(|_| wrong())?);
    let fits = (60..=500).contains(&width) && (16..=200).contains(&height);
    if fits { Ok((width, height)) } else { Err(wrong()) }
}

impl Screen {
    /// The nodes that the command contacts.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        match &self.recording {
            _ if self.page == Printed::Keys => Reach::Otherwise("shows key bindings"),
            Some(_) => Reach::Otherwise("prints a page of a recording"),
            None => Reach::Nodes(&mut self.nodes, Need::Looks),
        }
    }
}

/// Renders the page. Exit code 3 if a node that is not excluded does not answer.
pub(crate) async fn run(options: Screen) -> Result<u8, Failure> {
    let page = match options.page {
        Printed::Page(_) if options.json => {
            let message = "console screen prints a page as text or SVG, not as JSON".into();
            return Err(Failure::Usage {
                message,
                next: "use console status --json, or another command for this page",
            });
        }
        Printed::Page(page) => page,
        Printed::Keys => return keys::run(options.json),
    };
    let (mut state, is_missed) = match &options.recording {
        Some(file) => {
            let mut player = Player::open(file).map_err(failure)?;
            let end = player.span().1;
            let to = options.at.map_or(end, |at| at.time(player.header(), player.span().0));
            player.seek(to);
            while !player.work(1000) {}
            if let Some(error) = player.broken() {
                output::note(&format!("console: {}", output::clean(&error.to_string())));
            }
            (player.state().shown().clone(), false)
        }
        None => live(&options.nodes).await,
    };
    state.screen.focus = Focus::first_of(page);
    if state.screen.focus.is_typing() {
        state.screen.focus = state.screen.focus.further(1);
    }
    (state.screen.help, state.operations.dialog, state.screen.form, state.screen.notice) = (None, None, None, None);
    state.preferences = options.arrange.desk()?;
    let theme = view::theme_of(&state);
    let is_light = state.preferences.theme == crate::state::preferences::ThemeName::Light;
    let buffer = view::paint(&state, &theme, options.size);
    output::text(&if options.svg { picture::svg(&buffer, is_light) } else { picture::text(&buffer) });
    Ok(if is_missed { 3 } else { 0 })
}

/// The state of a dashboard after its first reports, and whether a node is missing.
async fn live(nodes: &[String]) -> (State, bool) {
    let nodes: Vec<String> = nodes.iter().map(|node| with_port(node)).collect();
    let (sender, mut events) = mpsc::channel(1024);
    let _client = Client::start(&nodes, WATCH_MS, sender);
    let defaults = GenerateDefaults {
        max_tokens: 64,
        sampling: common::sampling::SamplingParameters::default(),
        stop: Vec::new(),
    };
    let mut state = State::new(&nodes, None, "", defaults);
    state.readonly = true;
    let begun = Instant::now();
    let mut deadline = begun + WAIT;
    let mut was_complete = false;
    while let Ok(Some(event)) = timeout_at(deadline, events.recv()).await {
        drop(update(&mut state, Event::Tick { now: begun.elapsed() }));
        drop(update(&mut state, Event::Client(event)));
        let is_complete = state.cluster.nodes.iter().all(|node| node.report.is_some() || node.fault().is_some());
        if is_complete && !was_complete {
            was_complete = true;
            deadline = deadline.min(Instant::now() + SETTLE);
        }
    }
    let is_missed = state.cluster.usable().into_iter().any(|place| !state.cluster.nodes[place].is_open());
    (state, is_missed)
}
