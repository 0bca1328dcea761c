//! The guided tour of `console demo --tour`: its steps as data, and how far the operator has come. The disturbances that
//! belong to the steps are performed by the demo.
use serde::{Deserialize, Serialize};

use crate::{
    keymap::{Action, Key, NavigateAction, Page},
    state::{State, request::Phase},
};

/// What the demo does to its nodes during a step; it ends when the step is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scene {
    /// All nodes are well.
    #[default]
    Calm,
    /// The second node is throttled.
    Throttled,
    /// The second node is throttled and slow, and requests are running.
    Slow,
    /// The last node is killed.
    Lost,
}

/// What the operator does in a step before the tour continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Read the text.
    Read,
    /// Open this page.
    Open(Page),
    /// Generate an answer.
    Generate,
}

/// A step of the tour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TourStep {
    /// The event, in a few words.
    pub title: &'static str,
    /// The event in detail, and what to look at.
    pub text: &'static str,
    /// What to do, after the key of a page.
    pub task: &'static str,
    /// When it is done.
    pub goal: Goal,
    /// What the demo does to its nodes.
    pub scene: Scene,
    /// The same without the dashboard.
    pub command: &'static str,
}

/// All steps. Only the last one makes no sense without a dashboard.
pub const STEPS: [TourStep; 8] = [
    TourStep {
        title: "Four nodes on this machine",
        text: "Four daemons run on this machine, each with the simulated health of a Raspberry Pi 4. The page Cluster \
               lists their state, temperature, clock, memory and speed. No other machine is touched, and all of them \
               end with the demo.",
        task: "Look at the four nodes.",
        goal: Goal::Read,
        scene: Scene::Calm,
        command: "console status",
    },
    TourStep {
        title: "One model on all of them",
        text: "The layout tp4 gives each node a quarter of every layer, so that all four work on every token together.",
        task: "the page Topology shows which node holds what.",
        goal: Goal::Open(Page::Topology),
        scene: Scene::Calm,
        command: "console topology show",
    },
    TourStep {
        title: "A first answer",
        text: "A prompt goes to the head; the text streams back. Below it, the stages of the request show where the time \
               went.",
        task: "the page Generate. Type a few words and press Enter.",
        goal: Goal::Generate,
        scene: Scene::Calm,
        command: "console generate, console requests",
    },
    TourStep {
        title: "pi2 overheats",
        text: "Its firmware lowers the clock: 84 degrees, and the supply is too weak. The page Cluster shows UNDERVOLT \
               and THROTTLED; 7 opens the page of the selected node, with the remedy.",
        task: "the page Cluster shows the warning.",
        goal: Goal::Open(Page::Cluster),
        scene: Scene::Throttled,
        command: "console doctor, console node show pi2",
    },
    TourStep {
        title: "pi2 delays the others",
        text: "Requests are running, and pi2 gets only half of its processor: in every layer all others wait for it. The \
               page Sync names the straggler and the cause within seconds.",
        task: "the page Sync names the straggler.",
        goal: Goal::Open(Page::Sync),
        scene: Scene::Slow,
        command: "console sync",
    },
    TourStep {
        title: "pi4 is lost",
        text: "Its process was killed, as if its power had failed. The others notice at once, stop together, and name \
               the lost node.",
        task: "the page Events lists what happened, with the time.",
        goal: Goal::Open(Page::Events),
        scene: Scene::Lost,
        command: "console events --severity warning",
    },
    TourStep {
        title: "pi4 returns",
        text: "It was started again. The nodes restore the topology without a command, and give the same text as before.",
        task: "on the page Cluster all nodes are ready again.",
        goal: Goal::Open(Page::Cluster),
        scene: Scene::Calm,
        command: "console status",
    },
    TourStep {
        title: "The end of the tour",
        text: "x excludes a node, R restarts all of them one by one, : takes commands, Ctrl-R records the session, and ? \
               explains the keys of each page. The demo continues until you quit with q.",
        task: "Try it.",
        goal: Goal::Read,
        scene: Scene::Calm,
        command: "console --help",
    },
];

/// How far the operator has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tour {
    /// Index of the step.
    pub step: usize,
    /// Whether its task is done.
    pub is_done: bool,
}

impl Tour {
    /// The current step.
    pub fn current(self) -> &'static TourStep {
        &STEPS[self.step.min(STEPS.len() - 1)]
    }

    /// Whether the task of the step is done in this state.
    pub fn is_reached(self, state: &State) -> bool {
        match self.current().goal {
            Goal::Read => true,
            Goal::Open(page) => state.screen.focus.page == page,
            Goal::Generate => matches!(state.generation.request.phase, Phase::Finished(_)),
        }
    }

    /// What to do now, with the key that opens the page from here.
    pub fn task(self, state: &State) -> String {
        let step = self.current();
        let page = match step.goal {
            Goal::Read => return step.task.to_owned(),
            Goal::Open(page) => page,
            Goal::Generate => Page::Generate,
        };
        let action = Action::Navigate(NavigateAction::Show(page));
        let is_typing = state.screen.focus.is_typing();
        let bound = state.preferences.keys.all().find(|binding| binding.action == action);
        let key = bound.and_then(|binding| binding.keys.iter().find(|key| !(is_typing && key.types())));
        let key = key.map_or_else(|| format!(":{}", action.name()), Key::to_string);
        format!("Press {key}: {}", step.task)
    }
}
