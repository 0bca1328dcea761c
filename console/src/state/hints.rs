//! What the footer offers: the keys of the page, of a replay and of all pages, as many as fit. The view renders them,
//! and a click on one acts like its key.
use unicode_width::UnicodeWidthStr;

use crate::{
    keymap::{Action, AppAction, Binding, GenerateAction, Key, NavigateAction, OperateAction, Page, Panel, Place},
    state::{State, tables},
};

/// A key in the footer.
#[derive(Clone, Debug, PartialEq)]
pub struct Hint {
    /// Cells from the left of the footer.
    pub x: u16,
    /// Width in cells.
    pub width: u16,
    /// The key as it is displayed.
    pub key: String,
    /// What it does, in one or two words.
    pub what: String,
    /// What a click does; `None` where the hint names several keys.
    pub action: Option<Action>,
}

impl Hint {
    fn new(key: String, what: &str, action: Option<Action>) -> Self {
        // A space on either side, and one between key and words.
        let width = (key.width() + what.width() + 3) as u16;
        Self { x: 0, width, key, what: what.to_owned(), action }
    }
}

impl State {
    /// Whether an action is available: a read-only dashboard acts on nothing, a replay has no cluster behind it.
    pub fn offers(&self, action: Action) -> bool {
        let is_replay = self.preferences.replay.is_some();
        match action {
            Action::Replay(_) => is_replay,
            Action::Tour(_) => !is_replay,
            Action::App(AppAction::Freeze | AppAction::Record) | Action::Operate(OperateAction::Plan) => !is_replay,
            Action::Generate(GenerateAction::SamplingForm) | Action::Navigate(NavigateAction::FocusPrompt) => {
                !self.readonly
            }
            action => !(self.readonly && action.acts()),
        }
    }

    /// Whether a section of the help page applies to this screen.
    pub fn offers_place(&self, place: Place) -> bool {
        match place {
            Place::Replay => self.preferences.replay.is_some(),
            Place::Tour => self.screen.tour.is_some(),
            Place::Prompt | Place::Message => !self.readonly,
            Place::Anywhere | Place::Panels | Place::Tables | Place::Filter | Place::On(_) => true,
        }
    }
}

/// The footer's keys in `cells` cells, from the left. The keys that quit and help are never left out.
pub fn hints(state: &State, cells: u16) -> Vec<Hint> {
    let all: Vec<(u8, &Binding)> =
        bindings(state).filter_map(|binding| rank(state, binding).map(|rank| (rank, binding))).collect();
    let mut chosen: Vec<(u8, Hint)> = Vec::new();
    let mut room = cells;
    let mut keys: Vec<(u8, Hint)> =
        all.iter().filter_map(|(rank, binding)| Some((*rank, hint(state, binding)?))).collect();
    if state.screen.focus.panel == Panel::Prompt
        && let Some(key) = page_keys(state)
    {
        keys.push((PAGES, Hint::new(key, "pages", None)));
    }
    // Stable: keys of the same rank keep the order of the table.
    keys.sort_by_key(|(rank, _)| *rank);
    let is_last = |rank: u8| rank == LAST;
    for (rank, hint) in
        keys.iter().filter(|(rank, _)| is_last(*rank)).chain(keys.iter().filter(|(rank, _)| !is_last(*rank)))
    {
        if hint.width > room {
            break;
        }
        room -= hint.width;
        chosen.push((*rank, hint.clone()));
    }
    chosen.sort_by_key(|(rank, _)| *rank);
    let mut x = 0;
    chosen
        .into_iter()
        .map(|(_, mut hint)| {
            hint.x = x;
            x += hint.width;
            hint
        })
        .collect()
}

/// The hint at this cell of the footer.
pub fn hint_at(state: &State, cells: u16, x: u16) -> Option<Hint> {
    hints(state, cells).into_iter().find(|hint| (hint.x..hint.x + hint.width).contains(&x))
}

/// Ranks of hints: the page's own come first.
const OWN: u8 = 1;
const PAGES: u8 = 2;
const LAST: u8 = 9;

fn bindings(state: &State) -> impl Iterator<Item = &Binding> {
    let is_replay = state.preferences.replay.is_some();
    let replay = state.preferences.keys.all().filter(move |binding| is_replay && binding.place == Place::Replay);
    replay.chain(state.preferences.keys.bindings(state.screen.focus))
}

/// How far left a binding is shown; `None` = not in the footer.
fn rank(state: &State, binding: &Binding) -> Option<u8> {
    let focus = state.screen.focus;
    if binding.short.is_empty() || binding.keys.is_empty() || !state.offers(binding.action) {
        return None;
    }
    Some(match (binding.place, binding.action) {
        (_, Action::App(AppAction::Help | AppAction::Quit)) => LAST,
        (Place::Replay | Place::Tour, _) => 0,
        (_, Action::App(AppAction::Escape)) => {
            escape(state)?;
            PAGES
        }
        (_, Action::Navigate(NavigateAction::FocusNext)) if focus.page.panels().len() < 2 => return None,
        (_, Action::Navigate(NavigateAction::RankNext)) if !matches!(focus.page, Page::Sync | Page::Node) => {
            return None;
        }
        (Place::Prompt, action) if action != Action::Generate(GenerateAction::Submit) => 3,
        (Place::Tables | Place::Filter | Place::Prompt | Place::Message | Place::On(_), _) => OWN,
        (_, Action::Navigate(NavigateAction::FocusPrompt)) => 3,
        (_, Action::Operate(_)) => 4,
        (_, Action::App(AppAction::Command)) => 5,
        (Place::Anywhere | Place::Panels, _) => 6,
    })
}

fn hint(state: &State, binding: &Binding) -> Option<Hint> {
    let typing = state.screen.focus.is_typing() && binding.place != Place::Replay;
    let key = binding.keys.iter().find(|key| !(typing && key.types()))?;
    let what = match binding.action {
        Action::App(AppAction::Escape) => escape(state)?,
        _ => binding.short,
    };
    Some(Hint::new(key.to_string(), what, Some(binding.action)))
}

/// What Esc does now, if anything.
pub fn escape(state: &State) -> Option<&'static str> {
    let focus = state.screen.focus;
    if focus.is_filter() || !tables::arrangement(state, focus.page).filter.typed().is_empty() {
        return Some("show all");
    }
    if state.generation.request.is_open() && !state.readonly {
        return Some("cancel");
    }
    (focus.panel == Panel::Prompt).then_some("leave")
}

/// The keys that open pages while a prompt is typed: `Alt-1..9`.
fn page_keys(state: &State) -> Option<String> {
    let key = |page: Page| {
        let action = Action::Navigate(NavigateAction::Show(page));
        let bound = state.preferences.keys.all().find(|binding| binding.action == action)?;
        bound.keys.iter().find(|key| !key.types()).map(Key::to_string)
    };
    let (first, last) = (key(Page::ALL[0])?, key(*Page::ALL.last()?)?);
    let digit = last.chars().next_back()?;
    let is_series = first.strip_suffix('1').is_some_and(|start| last.strip_suffix(digit) == Some(start));
    Some(if is_series { format!("{first}..{digit}") } else { format!("{first}..{last}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::Story,
        keymap::{Focus, ReplayAction},
        state::preferences::ReplayStatus,
    };

    fn words(state: &State, cells: u16) -> Vec<String> {
        hints(state, cells).into_iter().map(|hint| format!("{} {}", hint.key, hint.what)).collect()
    }

    fn replaying() -> Story {
        let mut story = Story::finished();
        story.state.readonly = true;
        story.state.preferences.replay = Some(ReplayStatus::default());
        story
    }

    #[test]
    fn quit_and_help_are_in_every_footer() {
        for page in Page::ALL {
            let mut story = Story::finished();
            story.state.screen.focus = Focus { page, panel: *page.panels().last().expect("a page has a panel") };
            for cells in [60, 80, 200] {
                let words = words(&story.state, cells);
                assert!(words.contains(&"q quit".to_owned()) && words.contains(&"? help".to_owned()), "{words:?}");
                let used = hints(&story.state, cells).last().map_or(0, |hint| hint.x + hint.width);
                assert!(used <= cells, "{used} of {cells}: {words:?}");
            }
        }
    }

    #[test]
    fn prompt_box_names_the_page_keys_and_how_to_leave() {
        let mut story = Story::finished();
        story.state.screen.focus = Focus::first_of(Page::Generate);
        let words = words(&story.state, 80);
        for expected in ["Alt-1..9 pages", "Esc leave", "F1 help"] {
            assert!(words.contains(&expected.to_owned()), "{words:?}");
        }
    }

    #[test]
    fn readonly_dashboard_and_replay_offer_nothing_that_is_refused() {
        let mut readonly = Story::finished();
        readonly.state.readonly = true;
        for story in [readonly, replaying()] {
            for page in Page::ALL {
                let mut state = story.state.clone();
                state.screen.focus = Focus { page, panel: *page.panels().last().expect("a page has a panel") };
                for hint in hints(&state, 500) {
                    let action = hint.action.expect("outside of the prompt box every hint is one key");
                    assert!(state.offers(action) && !action.acts(), "{hint:?}");
                }
            }
        }
    }

    #[test]
    fn replay_shows_its_keys_first() {
        let mut story = replaying();
        story.state.screen.focus = Focus::first_of(Page::Events);
        let words = words(&story.state, 120);
        assert_eq!(words[..3], ["Space pause/play", "← -10 s", "→ +10 s"], "{words:?}");
        assert!(
            hint_at(&story.state, 120, 3).is_some_and(|hint| hint.action == Some(Action::Replay(ReplayAction::Pause)))
        );
    }
}
