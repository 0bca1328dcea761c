//! The output of `console generate --profile` for a run on two daemons: arrival times of the peers' partial sums, and a breakdown
//! that accounts for all of the time.
use std::fs;

use harness::programs::{Cluster, folder_with};
use serde_json::Value;
use telemetry::SyncRecord;

#[test]
fn profile_shows_peer_arrivals_and_accounts_for_all_time() {
    let cluster = Cluster::of(2);
    let (nodes, folder) = (cluster.nodes(), folder_with(&[]));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (trace, kept) = (file("trace.json"), file("records.json"));
    let common = [
        "generate",
        "--profile",
        "--nodes",
        &nodes,
        "--model",
        "bard-q8_0.gguf",
        "--prompt",
        "ROMEO: But soft",
        "--max-tokens",
        "24",
    ];
    let more = ["--collective", "direct", "--trace", &trace, "--records", &kept, "--json"];
    let object = cluster.console(&[common.as_slice(), &more].concat()).completion();
    let rows = object["arrivals"].as_array().expect("rows");
    let who: Vec<_> = rows.iter().map(|row| (&row["phase"], &row["node"])).collect();
    assert_eq!(format!("{who:?}").matches("pi1").count(), 2, "{who:?}");
    assert_eq!((rows.len(), &rows[0]["phase"], &rows[3]["phase"]), (4, &"batch".into(), &"decode".into()));
    for row in rows {
        let time = |what: &str, which: &str| row[what][which].as_u64().expect("a time");
        assert!(row["count"].as_u64() > Some(0) && time("first", "p50_ns") <= time("whole", "p50_ns"), "{row}");
        assert!(time("whole", "p50_ns") <= time("whole", "p99_ns"), "{row}");
    }
    let read = |path: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(path).expect("it is written")).expect("JSON")
    };
    let lists: Vec<Vec<SyncRecord>> = serde_json::from_value(read(&kept)["records"].clone()).expect("records");
    assert_eq!(lists.len(), 2);
    for (rank, list) in lists.iter().enumerate() {
        for step in list.chunk_by(|one, two| one.step == two.step) {
            // From the end of one all-reduce to the end of the step's last one, these three parts account for all of
            // the time.
            let sum: u64 = step[1..].iter().map(|record| record.compute.0 + record.wait.0 + record.wire.0).sum();
            assert_eq!(sum, step[step.len() - 1].exit.0 - step[0].exit.0, "rank {rank}: {step:?}");
        }
        for record in list {
            let [arrival] = record.arrivals[..] else { panic!("exactly one arrival expected: {record:?}") };
            assert_eq!(arrival.rank.index(), 1 - rank);
            assert!(arrival.first <= arrival.whole && arrival.whole.0 <= record.exit.0 - record.enter.0, "{record:?}");
        }
    }
    let events = read(&trace)["traceEvents"].clone();
    let events = events.as_array().expect("events");
    let tracks: Vec<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    assert_eq!(tracks, ["rank 0 pi1", "rank 1 pi2", "rank 0 pi1 hears pi2", "rank 1 pi2 hears pi1"]);
    let until = events.iter().filter(|event| event["name"] == "until its first byte").count();
    assert!(until > 0, "some rank must have waited for a first byte");
    let ended = cluster.console(&common);
    let said = ended.out.lines().find(|line| line.starts_with("phase    parts of"));
    assert!(said.is_some_and(|line| line.contains("first p50") && line.contains("way p50")), "{}", ended.out);
}
