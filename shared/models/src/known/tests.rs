//! Every row of the table is read.
use super::*;

#[test]
fn every_known_model_has_the_keys_of_its_family() {
    for model in MODELS {
        let spec = model.spec();
        assert!(spec.is_sound(), "{}", model.name);
        assert_eq!((spec.architecture.as_str(), spec.block_count()), (model.architecture, model.block_count));
        let columns = model.mixed.map_or(0, |mixed| mixed.expert_columns);
        let columns = if columns > 0 { columns } else { model.feed_forward_length };
        // Leading layers may be dense, and others wider.
        let has_network = spec.kinds.iter().map(|kind| &kind.feed_forward).any(|network| {
            let experts = network.experts().map(|experts| (experts.count, experts.used_count));
            (network.columns(), experts) == (columns, model.experts)
        });
        assert!(has_network, "{} has no network of {columns} columns", model.name);
    }
}

#[test]
fn glm4_with_sections_of_its_rotation_is_rotated_in_halves() {
    let model = MODELS.iter().find(|model| model.architecture == "glm4").expect("the table has one");
    let with_vision =
        KnownModel { further: &[("rope.dimension_sections", FurtherValue::List(&[8, 12, 12, 0]))], ..*model };
    let rotations = [*model, with_vision].map(|model| model.spec().ropes[0].rotation);
    assert_eq!(rotations, [crate::rotation::Rotation::Neighbours, crate::rotation::Rotation::Halves]);
}
