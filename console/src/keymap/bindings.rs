//! The built-in table of key bindings.
use std::borrow::Cow;

use super::{
    Action, AppAction, Binding, ChatAction, EditAction, GenerateAction, Key, KeyCode, NavigateAction, OperateAction,
    Page, Place, ReplayAction, ScrollAction, TableAction, TourAction,
};

const fn bind(place: Place, keys: &'static [Key], action: Action, what: &'static str, short: &'static str) -> Binding {
    Binding { place, keys: Cow::Borrowed(keys), action, what, short }
}

const fn page(keys: &'static [Key], page: Page, what: &'static str) -> Binding {
    bind(Place::Anywhere, keys, Action::Navigate(NavigateAction::Show(page)), what, "")
}

const fn replay(keys: &'static [Key], action: ReplayAction, what: &'static str, short: &'static str) -> Binding {
    bind(Place::Replay, keys, Action::Replay(action), what, short)
}

const fn tour(keys: &'static [Key], action: TourAction, what: &'static str) -> Binding {
    bind(Place::Tour, keys, Action::Tour(action), what, "")
}

const fn chat(keys: &'static [Key], action: ChatAction, what: &'static str, short: &'static str) -> Binding {
    bind(Place::On(Page::Chat), keys, Action::Chat(action), what, short)
}

const fn message(keys: &'static [Key], action: ChatAction, what: &'static str, short: &'static str) -> Binding {
    bind(Place::Message, keys, Action::Chat(action), what, short)
}

const fn key(code: KeyCode) -> Key {
    Key::plain(code)
}

/// The built-in bindings. The first match for a key wins.
pub const BINDINGS: &[Binding] = &{
    use KeyCode::*;
    use Place::{Anywhere, On, Panels, Prompt, Tables};
    [
        bind(
            Anywhere,
            &[Key::control('c')],
            Action::App(AppAction::Interrupt),
            "cancel what is generated, else quit",
            "",
        ),
        bind(
            Anywhere,
            &[key(Esc)],
            Action::App(AppAction::Escape),
            "cancel; end a restart after its node; leave the prompt box",
            "cancel",
        ),
        bind(Anywhere, &[key(Tab)], Action::Navigate(NavigateAction::FocusNext), "to the next panel", "panel"),
        bind(
            Anywhere,
            &[Key::with_shift(Tab)],
            Action::Navigate(NavigateAction::FocusPrevious),
            "to the previous panel",
            "",
        ),
        bind(Panels, &[Key::character('q')], Action::App(AppAction::Quit), "quit", "quit"),
        bind(Panels, &[Key::character('?'), key(Function(1))], Action::App(AppAction::Help), "this help", "help"),
        page(
            &[Key::character('1'), Key::with_alt(Char('1'))],
            Page::Cluster,
            "the cluster at a glance: nodes, speed, requests, events",
        ),
        page(
            &[Key::character('2'), Key::with_alt(Char('2'))],
            Page::Topology,
            "the running layout, and the planner's candidates",
        ),
        page(
            &[Key::character('3'), Key::with_alt(Char('3'))],
            Page::Sync,
            "who delays whom: ranks and all-reduces by layer",
        ),
        page(&[Key::character('4'), Key::with_alt(Char('4'))], Page::Generate, "prompt and text"),
        page(
            &[Key::character('5'), Key::with_alt(Char('5'))],
            Page::Requests,
            "running, waiting and finished requests",
        ),
        page(&[Key::character('6'), Key::with_alt(Char('6'))], Page::Events, "events of the cluster, newest first"),
        page(&[Key::character('7'), Key::with_alt(Char('7'))], Page::Node, "one node: health, log, layers"),
        page(&[Key::character('8'), Key::with_alt(Char('8'))], Page::Models, "models: on the nodes, and to download"),
        page(&[Key::character('9'), Key::with_alt(Char('9'))], Page::Chat, "conversations with the running model"),
        bind(Panels, &[Key::character(']')], Action::Navigate(NavigateAction::PageNext), "the next page", "page"),
        bind(Panels, &[Key::character('[')], Action::Navigate(NavigateAction::PagePrevious), "the previous page", ""),
        bind(
            Panels,
            &[Key::character('i')],
            Action::Navigate(NavigateAction::FocusPrompt),
            "to the prompt box",
            "prompt",
        ),
        bind(Panels, &[key(Enter)], Action::Navigate(NavigateAction::Open), "open what is selected", ""),
        bind(
            Panels,
            &[Key::character(':')],
            Action::App(AppAction::Command),
            "command line: every action by name; Tab completes",
            "command",
        ),
        bind(Panels, &[Key::character('f')], Action::App(AppAction::Freeze), "pause / continue the display", "freeze"),
        bind(
            Panels,
            &[Key::character('e')],
            Action::App(AppAction::ExportData),
            "write the page's data to a file (CSV)",
            "",
        ),
        bind(
            Panels,
            &[Key::character('E')],
            Action::App(AppAction::ExportScreen),
            "write the screen to a file (SVG)",
            "",
        ),
        bind(Anywhere, &[Key::control('r')], Action::App(AppAction::Record), "start / stop recording", ""),
        bind(
            Panels,
            &[Key::character('m')],
            Action::App(AppAction::Mouse),
            "release / capture the mouse (released, the terminal selects text)",
            "",
        ),
        bind(
            Panels,
            &[Key::character('M')],
            Action::Operate(OperateAction::LoadModel),
            "the page Models: load a model, or download one",
            "",
        ),
        bind(
            Panels,
            &[Key::character('r')],
            Action::Operate(OperateAction::AssignAgain),
            "assign the topology again",
            "assign",
        ),
        bind(
            Panels,
            &[Key::character('R')],
            Action::Operate(OperateAction::Restart),
            "restart all nodes one by one; pause, resume or stop that",
            "restart",
        ),
        bind(
            Panels,
            &[Key::character('A')],
            Action::Operate(OperateAction::AbortAssignment),
            "abort the assignment under way",
            "",
        ),
        bind(
            Panels,
            &[Key::character('x')],
            Action::Operate(OperateAction::Exclude),
            "exclude / include the selected node",
            "out/in",
        ),
        bind(
            Panels,
            &[Key::character('c')],
            Action::Operate(OperateAction::Cordon),
            "cordon / uncordon the selected node: no new requests",
            "",
        ),
        bind(
            Panels,
            &[Key::character('d')],
            Action::Operate(OperateAction::Drain),
            "drain it: cordon, and wait until its requests have ended",
            "",
        ),
        bind(
            Panels,
            &[key(Up), Key::character('k')],
            Action::Scroll(ScrollAction::Up),
            "up: a line, a layer, a node",
            "",
        ),
        bind(
            Panels,
            &[key(Down), Key::character('j')],
            Action::Scroll(ScrollAction::Down),
            "down: a line, a layer, a node",
            "",
        ),
        bind(Panels, &[key(PageUp)], Action::Scroll(ScrollAction::PageUp), "up a page", ""),
        bind(Panels, &[key(PageDown), Key::character(' ')], Action::Scroll(ScrollAction::PageDown), "down a page", ""),
        bind(Panels, &[key(Home), Key::character('g')], Action::Scroll(ScrollAction::Top), "to the top", ""),
        bind(
            Panels,
            &[key(End), Key::character('G')],
            Action::Scroll(ScrollAction::Bottom),
            "to the bottom, and follow",
            "",
        ),
        bind(
            Panels,
            &[key(Left), Key::character('h')],
            Action::Navigate(NavigateAction::RankPrevious),
            "layers of the previous node",
            "",
        ),
        bind(
            Panels,
            &[key(Right), Key::character('l')],
            Action::Navigate(NavigateAction::RankNext),
            "layers of the next node",
            "node",
        ),
        bind(
            Tables,
            &[Key::character('/')],
            Action::Table(TableAction::Filter),
            "filter: text, !not, ~regex; Esc shows all",
            "filter",
        ),
        bind(
            Tables,
            &[Key::character('s'), Key::character('>')],
            Action::Table(TableAction::SortNext),
            "sort by the next column",
            "sort",
        ),
        bind(
            Tables,
            &[Key::character('<')],
            Action::Table(TableAction::SortPrevious),
            "sort by the previous column",
            "",
        ),
        bind(Tables, &[Key::character('S')], Action::Table(TableAction::SortReverse), "reverse the order", ""),
        bind(Place::Filter, &[key(Enter)], Action::Table(TableAction::KeepFilter), "keep the filter", "keep"),
        bind(
            Place::Filter,
            &[key(Backspace), Key::control('h')],
            Action::Edit(EditAction::EraseBefore),
            "erase a letter",
            "",
        ),
        bind(
            Place::Filter,
            &[Key::control('w'), Key::with_alt(Backspace)],
            Action::Edit(EditAction::EraseWord),
            "erase a word",
            "",
        ),
        bind(Place::Filter, &[Key::control('u')], Action::Edit(EditAction::EraseToStart), "erase all", ""),
        bind(Place::Filter, &[key(Up)], Action::Scroll(ScrollAction::Up), "a row up", ""),
        bind(Place::Filter, &[key(Down)], Action::Scroll(ScrollAction::Down), "a row down", ""),
        bind(
            On(Page::Topology),
            &[Key::character('p')],
            Action::Operate(OperateAction::Plan),
            "compare layouts; Enter assigns the selected one",
            "plan",
        ),
        bind(
            On(Page::Events),
            &[Key::character('w')],
            Action::Table(TableAction::Severity),
            "show all, warnings and errors, or errors only",
            "severity",
        ),
        bind(
            On(Page::Sync),
            &[Key::character('v')],
            Action::Navigate(NavigateAction::SyncMetric),
            "map p50, p95, p99, compute, waiting or transfer",
            "show",
        ),
        bind(On(Page::Sync), &[Key::character('<')], Action::Navigate(NavigateAction::Older), "a second back", "back"),
        bind(On(Page::Sync), &[Key::character('>')], Action::Navigate(NavigateAction::Newer), "a second forward", ""),
        bind(
            On(Page::Sync),
            &[Key::character('{')],
            Action::Navigate(NavigateAction::MuchOlder),
            "ten seconds back",
            "",
        ),
        bind(
            On(Page::Sync),
            &[Key::character('}')],
            Action::Navigate(NavigateAction::MuchNewer),
            "ten seconds forward",
            "",
        ),
        bind(On(Page::Sync), &[Key::character('0')], Action::Navigate(NavigateAction::Live), "back to live", ""),
        bind(
            On(Page::Generate),
            &[Key::character('p'), key(Function(2))],
            Action::Generate(GenerateAction::SamplingForm),
            "settings of the next answers",
            "settings",
        ),
        bind(
            On(Page::Generate),
            &[Key::character('P'), key(Function(3))],
            Action::Generate(GenerateAction::Pin),
            "pin this result, to compare the next one with it",
            "pin",
        ),
        bind(
            On(Page::Chat),
            &[Key::character('p'), key(Function(2))],
            Action::Generate(GenerateAction::SamplingForm),
            "settings of the next answers",
            "settings",
        ),
        chat(&[Key::character('n'), key(Function(6))], ChatAction::ChatNew, "start a new conversation", "new"),
        chat(
            &[Key::character('u'), key(Function(4))],
            ChatAction::ChatEdit,
            "edit the last message, and send it again",
            "edit",
        ),
        chat(&[Key::character('a'), key(Function(5))], ChatAction::ChatAgain, "answer the last message again", "again"),
        chat(
            &[Key::character('t'), key(Function(7))],
            ChatAction::ChatThoughts,
            "show / hide what the model thought",
            "thoughts",
        ),
        chat(
            &[Key::character('y'), key(Function(8))],
            ChatAction::ChatCopy,
            "copy the last answer to the clipboard (OSC 52)",
            "copy",
        ),
        chat(&[Key::character('w')], ChatAction::ChatExport, "write the conversation to a file (Markdown)", "write"),
        chat(
            &[Key::character('s'), key(Function(9))],
            ChatAction::ChatSystem,
            "the system prompt of the conversation",
            "system",
        ),
        chat(&[Key::character('N')], ChatAction::ChatRename, "rename the conversation", ""),
        chat(&[Key::character('D')], ChatAction::ChatDelete, "delete the conversation, after a question", ""),
        bind(
            On(Page::Requests),
            &[Key::character('X')],
            Action::Operate(OperateAction::CancelRequest),
            "cancel the selected request",
            "cancel it",
        ),
        bind(
            On(Page::Models),
            &[Key::character('p')],
            Action::Operate(OperateAction::PullModel),
            "download the selected model to all nodes (Enter does so too, or loads it)",
            "pull",
        ),
        bind(
            On(Page::Models),
            &[Key::character('X')],
            Action::Operate(OperateAction::CancelPull),
            "cancel the download; what has arrived is kept",
            "",
        ),
        bind(
            On(Page::Models),
            &[Key::character('u')],
            Action::Operate(OperateAction::UnloadModel),
            "unload the running model",
            "unload",
        ),
        bind(
            On(Page::Models),
            &[key(Delete), Key::character('D')],
            Action::Operate(OperateAction::DeleteModel),
            "delete the files of the selected model on the nodes",
            "delete",
        ),
        bind(Prompt, &[key(Enter)], Action::Generate(GenerateAction::Submit), "generate", "generate"),
        message(&[key(Function(6))], ChatAction::ChatNew, "start a new conversation", "new"),
        message(&[key(Function(4))], ChatAction::ChatEdit, "edit the last message, and send it again", "edit"),
        message(&[key(Function(5))], ChatAction::ChatAgain, "answer the last message again", "again"),
        message(&[key(Function(7))], ChatAction::ChatThoughts, "show / hide what the model thought", "thoughts"),
        message(&[key(Function(8))], ChatAction::ChatCopy, "copy the last answer to the clipboard (OSC 52)", "copy"),
        message(&[key(Function(9))], ChatAction::ChatSystem, "the system prompt of the conversation", "system"),
        bind(
            Prompt,
            &[key(Function(2))],
            Action::Generate(GenerateAction::SamplingForm),
            "settings of the next answers",
            "settings",
        ),
        bind(
            Prompt,
            &[key(Function(3))],
            Action::Generate(GenerateAction::Pin),
            "pin this result, to compare the next one with it",
            "pin",
        ),
        bind(
            Prompt,
            &[Key::with_alt(Enter), Key::control('j')],
            Action::Edit(EditAction::NewLine),
            "a new line in the prompt",
            "",
        ),
        bind(Prompt, &[key(Function(1))], Action::App(AppAction::Help), "this help", "help"),
        bind(
            Prompt,
            &[key(Up), Key::control('p')],
            Action::Edit(EditAction::LineUp),
            "line up, else an older prompt",
            "older",
        ),
        bind(
            Prompt,
            &[key(Down), Key::control('n')],
            Action::Edit(EditAction::LineDown),
            "line down, else a newer prompt",
            "",
        ),
        bind(Prompt, &[key(Left), Key::control('b')], Action::Edit(EditAction::CursorLeft), "left", ""),
        bind(Prompt, &[key(Right), Key::control('f')], Action::Edit(EditAction::CursorRight), "right", ""),
        bind(
            Prompt,
            &[Key::with_control(Left), Key::with_alt(Char('b'))],
            Action::Edit(EditAction::WordLeft),
            "a word left",
            "",
        ),
        bind(
            Prompt,
            &[Key::with_control(Right), Key::with_alt(Char('f'))],
            Action::Edit(EditAction::WordRight),
            "a word right",
            "",
        ),
        bind(
            Prompt,
            &[key(Home), Key::control('a')],
            Action::Edit(EditAction::LineStart),
            "to the start of the line",
            "",
        ),
        bind(Prompt, &[key(End), Key::control('e')], Action::Edit(EditAction::LineEnd), "to the end of the line", ""),
        bind(
            Prompt,
            &[key(Backspace), Key::control('h')],
            Action::Edit(EditAction::EraseBefore),
            "erase before the cursor",
            "",
        ),
        bind(
            Prompt,
            &[key(Delete), Key::control('d')],
            Action::Edit(EditAction::EraseAfter),
            "erase after the cursor",
            "",
        ),
        bind(
            Prompt,
            &[Key::control('w'), Key::with_alt(Backspace)],
            Action::Edit(EditAction::EraseWord),
            "erase a word",
            "",
        ),
        bind(
            Prompt,
            &[Key::control('u')],
            Action::Edit(EditAction::EraseToStart),
            "erase to the start of the line",
            "",
        ),
        bind(Prompt, &[Key::control('k')], Action::Edit(EditAction::EraseToEnd), "erase to the end of the line", ""),
        bind(Prompt, &[key(PageUp)], Action::Scroll(ScrollAction::PageUp), "text up a page", ""),
        bind(Prompt, &[key(PageDown)], Action::Scroll(ScrollAction::PageDown), "text down a page", ""),
        replay(&[key(Char(' '))], ReplayAction::Pause, "pause / play", "pause/play"),
        replay(&[key(Left)], ReplayAction::Back, "ten seconds back", "-10 s"),
        replay(&[key(Right)], ReplayAction::Forward, "ten seconds forward", "+10 s"),
        replay(&[key(PageUp)], ReplayAction::MinuteBack, "a minute back", "-1 min"),
        replay(&[key(PageDown)], ReplayAction::MinuteForward, "a minute forward", "+1 min"),
        replay(&[key(Home)], ReplayAction::Start, "to the start", ""),
        replay(&[key(End)], ReplayAction::End, "to the end", ""),
        replay(&[key(Char('+'))], ReplayAction::Faster, "play faster", "faster"),
        replay(&[key(Char('-'))], ReplayAction::Slower, "play slower", "slower"),
        replay(
            &[key(Backspace)],
            ReplayAction::RecordedView,
            "show what the recorded operator looked at",
            "recorded view",
        ),
        tour(&[key(Enter), key(Right)], TourAction::Next, "the next step; Enter only after the task is done"),
        tour(&[key(Left)], TourAction::Back, "the previous step"),
        tour(&[key(Esc)], TourAction::End, "end the tour"),
    ]
};
