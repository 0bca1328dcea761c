//! The language model of Qwen3-VL: Qwen3 with a rotation in sections.
use gguf::GgufError;

use super::{Family, common::dense, qwen3::with_head_norms};
use crate::{keys::Keys, limits::HEAD_LENGTH_MAX, spec::ModelSpec};

pub(super) const FAMILY: Family =
    Family { name: "qwen3vl", spec: |keys| in_sections(keys, with_head_norms(keys, dense)?) };

/// The model with the sections that the file names.
pub(super) fn in_sections(keys: &Keys<'_>, mut spec: ModelSpec) -> Result<ModelSpec, GgufError> {
    const KEY: &str = "rope.dimension_sections";
    let found = keys.integers(KEY)?.unwrap_or_default();
    let sections: Option<Vec<usize>> = found.iter().map(|length| usize::try_from(*length).ok()).collect();
    let sections = sections.filter(|sections| sections.iter().all(|length| *length as u64 <= HEAD_LENGTH_MAX));
    match sections.as_deref() {
        Some([time, height, width] | [time, height, width, _]) if time + height + width > 0 => {
            spec.ropes.iter_mut().for_each(|rope| rope.sections = Some([*time, *height, *width]));
            Ok(spec)
        }
        _ => {
            let shown = match found.len() {
                0..=4 => format!("{found:?}"),
                count => format!("a list of {count} numbers"),
            };
            Err(keys.refuse(KEY, shown, format!("it must be three or four lengths of at most {HEAD_LENGTH_MAX}")))
        }
    }
}
