//! Ring: slices travel around the ring to be summed, then again as results; 2(N-1) messages of 1/N of the vector.
use super::{Combine, RankSet, Sent, Step, receive, send, slice};

/// Slice k starts at rank k+1 and is complete at rank k, which finishes it.
pub(super) fn ring(own: usize, world: usize, columns: usize) -> Vec<Step> {
    let (next, before) = ((own + 1) % world, (own + world - 1) % world);
    let back = |distance: usize| slice((own + world - distance % world) % world, world, columns);
    // One hop: sends a slice to the next rank and receives the preceding slice from the previous rank.
    let hop = |distance: usize, what: Sent, how: Combine| {
        let (out, into) = (back(distance), back(distance + 1));
        let send = (!out.is_empty()).then(|| send(next, what, out));
        let receive = (!into.is_empty()).then(|| receive(RankSet(1 << before), how, into));
        send.into_iter().chain(receive)
    };
    let mut steps: Vec<Step> = (1..world).flat_map(|distance| hop(distance, Sent::Sum, Combine::Sum)).collect();
    if !back(0).is_empty() {
        steps.push(Step::Finish { columns: back(0) });
    }
    steps.extend((0..world - 1).flat_map(|distance| hop(distance, Sent::Result, Combine::Store)));
    steps
}
