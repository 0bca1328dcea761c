//! Panics of libraries that bramble catches.
use std::panic;

/// Lets a panic in a file whose path has one of these parts unwind: bramble catches it, and it is an error of the request. Any
/// other panic ends the fuzzer.
pub fn are_caught_in(libraries: &'static [&'static str]) {
    let abort = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let is_caught = info.location().is_some_and(|place| libraries.iter().any(|one| place.file().contains(one)));
        if !is_caught {
            abort(info);
        }
    }));
}
