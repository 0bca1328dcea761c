//! Layers with a window keep only the blocks that later tokens see.
use harness::{
    engines::Replica,
    family_model::FamilyModel,
    greedy::{fresh, ids, request},
};
use models::known;
use planner::holding::kv_bytes;
use topology::{KvBlocks, cut};

#[test]
fn answers_are_the_same_with_freed_blocks_on_any_layout() {
    let file = FamilyModel::gemma3(40).file();
    // Turns of two conversations with a common beginning, and a long prompt of another one in between.
    let first = request(ids(1, 300), 60);
    for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
        let replica = Replica { slots: 3, blocks: 34, ..replica };
        let begun = replica.each_alone(&file, std::slice::from_ref(&first)).remove(0);
        let turn = |seed: u32| [&ids(1, 300)[..], &begun.ids, &ids(seed, 90)].concat();
        let batches = vec![
            vec![first.clone(), request(ids(2, 200), 50)],
            vec![request(turn(3), 40)],
            vec![request(ids(4, 600), 50)],
            vec![request(turn(5), 40), request(turn(3), 90)],
        ];
        let answers = replica.answers(&file, &batches);
        for answer in answers.iter().flatten() {
            let all = [&answer.prompt[..], &answer.ids].concat();
            let expected = fresh(&file, &all[..all.len() - 1], answer.prompt.len() - 1);
            assert_eq!(answer.ids, expected, "{} prompt tokens on {replica:?}", answer.prompt.len());
        }
        let cached = |batch: usize, index: usize| answers[batch][index].end().times.cached_tokens;
        // The last token of an answer is never computed; blocks are reused whole.
        assert_eq!(cached(1, 0), 352, "the second turn begins behind the first");
        assert_eq!(cached(3, 1) % 32, 0);
    }
}

#[test]
fn windows_of_known_models_keep_their_published_part_of_the_cache() {
    let spec = known::MODELS.iter().find(|model| model.name == "gemma-3-12b").expect("it is known").spec();
    let plans = cut(&spec, &[1]).expect("one rank has all");
    let bytes = |window, slots| {
        let blocks = KvBlocks::of(32_768, slots, window);
        let blocks = KvBlocks { windowed: if window.is_some() { blocks.windowed } else { blocks.whole }, ..blocks };
        kv_bytes(common::precision::KvFormat::F16, &spec, &plans[0], blocks) as f64 / f64::from(1 << 20)
    };
    // 48 layers of 8 KV heads of 256: 8 attend to everything, 40 to the last 1024 positions.
    assert_eq!(bytes(None, 1), 12_288.0);
    assert_eq!(bytes(spec.window(), 1), 2048.0 + 380.0);
    assert_eq!(bytes(spec.window(), 16), 2078.0 + 1850.0);
}
