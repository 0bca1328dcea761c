//! `console screen keys`: prints the active key bindings.
use serde_json::json;

use crate::cli::{Failure, dashboard::preferences, shared::output};
use crate::keymap::{Key, Place};

/// Prints the active key bindings in the format of a key bindings file.
pub(super) fn run(json: bool) -> Result<u8, Failure> {
    let keys = preferences::keys()?;
    if json {
        let list: Vec<_> = keys
            .all()
            .map(|binding| {
                let pressed: Vec<String> = binding.keys.iter().map(Key::to_string).collect();
                json!({"place": binding.place.section(), "action": binding.action.name(), "keys": pressed, "what": binding.what})
            })
            .collect();
        let file = preferences::key_file().map(|path| path.display().to_string());
        output::line(&json!({"file": file, "keys": list}).to_string());
        return Ok(0);
    }
    for place in Place::ALL {
        let bindings: Vec<_> = keys.all().filter(|binding| binding.place == place).collect();
        if bindings.is_empty() {
            continue;
        }
        output::line(&format!("[{}]", place.section()));
        for binding in bindings {
            let pressed =
                binding.keys.iter().map(|key| format!("{:?}", key.to_string())).collect::<Vec<_>>().join(", ");
            output::line(&format!("{:<18} = {:<26} # {}", binding.action.name(), format!("[{pressed}]"), binding.what));
        }
        output::line("");
    }
    Ok(0)
}
