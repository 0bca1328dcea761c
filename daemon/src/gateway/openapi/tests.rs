//! The description has the paths and methods of the router, and its references resolve.
use std::collections::BTreeSet;

use serde_json::Value;

use super::DESCRIPTION;

/// Paths and methods in the source of the router.
fn routed() -> BTreeSet<(String, &'static str)> {
    let source = include_str!("../http.rs");
    let routes = source.split_once("fn routes(").and_then(|(_, rest)| rest.split_once(".fallback("));
    let (routes, _) = routes.expect("the router is here");
    let mut found = BTreeSet::new();
    for route in routes.split(".route(").skip(1) {
        let path = route.split('"').nth(1).expect("a path");
        for (call, method) in [("get(", "get"), ("post(", "post"), ("delete(", "delete"), ("answering(", "post")] {
            let is_called = route.match_indices(call).any(|(at, _)| !route[..at].ends_with(char::is_alphabetic));
            found.extend(is_called.then(|| (path.to_owned(), method)));
        }
    }
    found
}

#[test]
fn every_route_is_described_and_every_description_is_routed() {
    let description: Value = serde_json::from_str(DESCRIPTION).expect("it is JSON");
    let paths = description["paths"].as_object().expect("an object");
    let methods = ["get", "post", "delete"];
    let described: BTreeSet<(String, &str)> = paths
        .iter()
        .flat_map(|(path, item)| {
            methods.into_iter().filter(|method| item.get(method).is_some()).map(|method| (path.clone(), method))
        })
        .collect();
    let routed = routed();
    assert!(routed.len() > 20, "only {} routes were found", routed.len());
    assert_eq!(described, routed);
}

#[test]
fn references_resolve() {
    let description: Value = serde_json::from_str(DESCRIPTION).expect("it is JSON");
    let references: Vec<&str> =
        DESCRIPTION.split("\"$ref\": \"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(references.len() > 20, "{references:?}");
    for reference in references {
        assert!(description.pointer(reference).is_some(), "{reference}");
    }
}
