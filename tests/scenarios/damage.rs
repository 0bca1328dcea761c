//! Links without a key that flip bits: no wrong tokens, and a damaged frame is treated as a lost link.
use harness::{
    deep_models::assert_varied,
    faults::{Rig, error_code, ids},
    http::{beside, get, post},
    programs::{finish, wait_until},
};
use serde_json::json;
use topology::Layout;

/// Error codes allowed on a damaged link: a loss, or detected damage.
const LOST: &[&str] = &[
    "node_lost",
    "session_lost",
    "message_damaged",
    "node_unreachable",
    "not_serving",
    "request_ends_heads",
    "timeout",
];

#[test]
fn damaged_bytes_give_no_wrong_token_and_no_internal_fault() {
    let mut rig = Rig::new(Layout::tensor_parallel(3), "heartbeat_ms = 50\nsilent_ms = 5000\n");
    let expected = [0, 1].map(|prompt| rig.works(prompt, "60").0);
    expected.iter().for_each(|ids| assert_varied(ids));
    let mut lost = 0;
    for round in 0..6 {
        let (prompt, next) = (round % 2, (round + 1) % 2);
        let before = rig.cluster.status(0)["tokens"].as_u64();
        let child = rig.start(prompt, "60", true);
        wait_until("tokens arrive", || rig.cluster.status(0)["tokens"].as_u64() > before);
        rig.damage(round % 3, Some(3_001 + 5_003 * round));
        let ended = finish(child);
        if ended.code == Some(0) {
            assert_eq!(ids(&ended.json()), expected[prompt], "round {round}: wrong tokens");
        } else {
            let code = error_code(&ended);
            assert!(LOST.contains(&code.as_str()), "round {round}: {code} {}", ended.err);
            lost += 1;
        }
        rig.mend();
        let (found, _) = rig.works(next, "8");
        assert_eq!(found, expected[next][..found.len()], "wrong tokens in the next request");
    }
    assert!(lost > 0, "no request was affected by the damage");
}

#[test]
fn answer_survives_a_damaged_link() {
    let rig = Rig::new(Layout::tensor_parallel(2), "recover = true\nsilent_ms = 30000\nstall_ms = 60000\n");
    rig.works(0, "4");
    let address = beside(&rig.cluster.addresses[0]);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    let body = json!({"prompt": "abab", "max_tokens": 200, "temperature": 0.9, "seed": 5});
    let expected = post(&address, "/v1/completions", &body).good();
    let running = std::thread::spawn({
        let address = address.clone();
        move || post(&address, "/v1/completions", &body)
    });
    let before = rig.cluster.status(0)["tokens"].as_u64();
    wait_until("tokens arrive", || rig.cluster.status(0)["tokens"].as_u64() > before);
    rig.damage(1, Some(2_003));
    wait_until("a link is lost", || {
        rig.cluster.log(0).contains("was damaged") || rig.cluster.log(1).contains("was damaged")
    });
    rig.damage(1, None);
    let found = running.join().expect("no panic").good();
    assert_eq!(found["choices"], expected["choices"], "{found}");
    assert!(found["timings"]["trace"]["resumed"].as_u64() > Some(0), "{found}");
}
