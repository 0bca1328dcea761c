//! Pictures of every page at four sizes and in five states, for looking at them one by one. Not a test of its own: it
//! writes to the folder that `BRAMBLE_PICTURES` names (CONTRIBUTING.md, "Test").
use std::{fs, path::PathBuf};

use telemetry::{NodeReport, NodeState};
use topology::{Rolling, rolling::Phase};

use super::page::{planned, read_log};
use crate::{
    fixtures::{NODES, Story, address, idle, name, running},
    state::{Focus, Page, preferences::ThemeName},
    view::{paint, picture, theme::Theme},
};

/// The smallest terminal over ssh, a window, a full screen, and a wall.
const SIZES: [(u16, u16); 4] = [(80, 24), (120, 40), (200, 60), (300, 80)];

/// A state of the cluster and how it comes about.
type PictureState = (&'static str, fn() -> Story);

const SCENES: [PictureState; 5] = [
    ("idle", Story::ready),
    ("serving", Story::busy),
    ("straggler", Story::degraded),
    ("lost", Story::lost),
    ("restarting", restarting),
];

/// The second of four nodes is restarted.
fn restarting() -> Story {
    let mut story = Story::busy();
    let targets = (0..NODES).map(|node| (name(node), address(node))).collect();
    let by = "me@here".to_owned();
    let rolling = Rolling { targets, done: 1, before: Some(7), phase: Phase::Runs, drain_ms: 1000, by, revision: 5 };
    let until = story.state.now.as_millis() as u64;
    story.report(0, NodeReport { rolling: Some(rolling), ..running(0, NodeState::Faulted, false) });
    story.report(1, idle(1)).at(until + 1500);
    story
}

/// Every page of every scene renders at every size; with `BRAMBLE_PICTURES`, as files.
#[test]
fn every_page_renders_in_five_states_at_four_sizes() {
    let folder = std::env::var_os("BRAMBLE_PICTURES").map(PathBuf::from);
    folder.iter().for_each(|folder| fs::create_dir_all(folder).expect("the folder can be made"));
    let (theme, mut count) = (Theme::of(ThemeName::Dark), 0);
    for (scene, make) in SCENES {
        for page in Page::ALL {
            let mut story = make();
            if story.state.cluster.topology().is_some() {
                planned(&mut story);
            }
            story.state.screen.focus = Focus::first_of(page);
            if page == Page::Node {
                read_log(&mut story);
            }
            if page == Page::Models {
                super::models::fill(&mut story);
            }
            for (width, height) in SIZES {
                let buffer = paint(&story.state, &theme, (width, height));
                let text = picture::text(&buffer);
                assert_eq!(text.lines().count(), usize::from(height), "{} {scene} {width}x{height}", page.title());
                count += 1;
                let Some(folder) = &folder else { continue };
                let name = format!("{}-{scene}-{width}x{height}", page.title().to_lowercase());
                fs::write(folder.join(format!("{name}.txt")), text).expect("the folder is writable");
                fs::write(folder.join(format!("{name}.svg")), picture::svg(&buffer, false))
                    .expect("the folder is writable");
            }
        }
    }
    assert_eq!(count, SCENES.len() * SIZES.len() * Page::ALL.len());
}
