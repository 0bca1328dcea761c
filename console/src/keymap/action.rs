//! Everything that a key or a command can do, grouped by the part of `update` that handles it. Every group is matched
//! exhaustively there, so that an action without a handler does not compile.
use super::page::Page;

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Handled by `update/app.rs`.
    App(AppAction),
    /// Handled by `update/navigate.rs`.
    Navigate(NavigateAction),
    /// Handled by `update/navigate.rs`.
    Scroll(ScrollAction),
    /// Handled by `update/edit.rs`.
    Edit(EditAction),
    /// Handled by `update/table`.
    Table(TableAction),
    /// Handled by `update/generate`.
    Generate(GenerateAction),
    /// Handled by `update/chat`.
    Chat(ChatAction),
    /// Handled by `update/operate`.
    Operate(OperateAction),
    /// Handled by the driver of a replay.
    Replay(ReplayAction),
    /// Handled by `update/tour.rs`.
    Tour(TourAction),
}

/// Actions on the dashboard itself; none of them affects the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum AppAction {
    Interrupt,
    Escape,
    Quit,
    Help,
    Command,
    Freeze,
    Mouse,
    Record,
    ExportData,
    ExportScreen,
}

/// Actions that change what the screen shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum NavigateAction {
    Show(Page),
    PageNext,
    PagePrevious,
    FocusNext,
    FocusPrevious,
    FocusPrompt,
    Open,
    RankPrevious,
    RankNext,
    SyncMetric,
    Older,
    Newer,
    MuchOlder,
    MuchNewer,
    Live,
}

/// Movements of a selection or of the visible part of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum ScrollAction {
    Up,
    Down,
    PageUp,
    PageDown,
    Top,
    Bottom,
}

/// Actions in text fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum EditAction {
    NewLine,
    CursorLeft,
    CursorRight,
    WordLeft,
    WordRight,
    LineStart,
    LineEnd,
    LineUp,
    LineDown,
    EraseBefore,
    EraseAfter,
    EraseWord,
    EraseToStart,
    EraseToEnd,
}

/// Actions on a page's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum TableAction {
    Filter,
    KeepFilter,
    SortNext,
    SortPrevious,
    SortReverse,
    Severity,
}

/// Actions of the Generate page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum GenerateAction {
    Submit,
    SamplingForm,
    Pin,
}

/// Actions of the page Chat. Their names begin with the page, because words of the command line are the same on all pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum ChatAction {
    ChatNew,
    ChatAgain,
    ChatEdit,
    ChatThoughts,
    ChatCopy,
    ChatExport,
    ChatSystem,
    ChatRename,
    ChatDelete,
}

/// Operator commands and planner queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum OperateAction {
    LoadModel,
    AssignAgain,
    AbortAssignment,
    Restart,
    Exclude,
    Cordon,
    Drain,
    CancelRequest,
    PullModel,
    CancelPull,
    UnloadModel,
    DeleteModel,
    Plan,
}

/// Actions on the playback of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum ReplayAction {
    Pause,
    Back,
    Forward,
    MinuteBack,
    MinuteForward,
    Start,
    End,
    Faster,
    Slower,
    RecordedView,
}

/// Actions of the guided tour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each binding describes its action")]
pub enum TourAction {
    Next,
    Back,
    End,
}

impl Action {
    /// Whether the action affects the cluster; a read-only dashboard refuses it.
    pub fn acts(self) -> bool {
        match self {
            Self::App(_)
            | Self::Navigate(_)
            | Self::Scroll(_)
            | Self::Edit(_)
            | Self::Table(_)
            | Self::Replay(_)
            | Self::Tour(_) => false,
            Self::Generate(action) => action == GenerateAction::Submit,
            Self::Chat(action) => action == ChatAction::ChatAgain,
            Self::Operate(action) => !matches!(action, OperateAction::Plan | OperateAction::LoadModel),
        }
    }

    /// The name in key files and on the command line: `page-next`, `show-sync`.
    pub fn name(self) -> String {
        let variant = match self {
            Self::App(action) => format!("{action:?}"),
            Self::Navigate(action) => format!("{action:?}"),
            Self::Scroll(action) => format!("{action:?}"),
            Self::Edit(action) => format!("{action:?}"),
            Self::Table(action) => format!("{action:?}"),
            // Key files of earlier versions contain this name.
            Self::Generate(GenerateAction::SamplingForm) => "Terms".to_owned(),
            Self::Generate(action) => format!("{action:?}"),
            Self::Chat(action) => format!("{action:?}"),
            Self::Operate(action) => format!("{action:?}"),
            Self::Replay(action) => format!("Replay{action:?}"),
            Self::Tour(action) => format!("Tour{action:?}"),
        };
        let mut name = String::new();
        for letter in variant.chars().filter(|letter| *letter != ')') {
            if (letter.is_uppercase() || letter == '(') && !name.is_empty() && !name.ends_with('-') {
                name.push('-');
            }
            name.extend(letter.to_lowercase().filter(|letter| *letter != '('));
        }
        name
    }
}
