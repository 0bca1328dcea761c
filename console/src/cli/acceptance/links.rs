//! The step that measures the links between nodes.
use assignment::planner_query::LINK;
use protocol::network::{PINGS_DEFAULT, STREAM_MS_DEFAULT};
use tokio_util::sync::CancellationToken;

use super::bed::TestBed;
use crate::{
    cli::{Failure, shared::brambled::tell_progress},
    client::network::{Effort, measure},
    operator::acceptance::LinkFacts,
};

/// Round trips and stream of each link: the defaults of `console bench links`, without the incast.
const EFFORT: Effort = Effort { pings: PINGS_DEFAULT, stream_ms: STREAM_MS_DEFAULT, incast: false };

/// Measures all links in both directions, one after another.
pub(super) async fn measure_links(bed: &TestBed) -> Result<Vec<LinkFacts>, Failure> {
    let sessions = bed.sessions().await?;
    let found = measure(&sessions, EFFORT, &tell_progress, &CancellationToken::new()).await?;
    let links = sessions.iter().zip(found).flat_map(|(session, bench)| {
        let to = session.identity.name.clone();
        bench.links.into_iter().map(move |link| LinkFacts {
            from: link.peer,
            to: to.clone(),
            round_trip_us: link.p50.0 as f64 / 1e3,
            round_trip_p99_us: link.p99.0 as f64 / 1e3,
            mbit_per_second: link.bits_per_second as f64 / 1e6,
            predicted_us: Some(2.0 * LINK.alpha_ns as f64 / 1e3),
        })
    });
    Ok(links.collect())
}
