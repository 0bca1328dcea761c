//! Divides each machine's cores among the ranks on it. Pure.

/// The part of a machine that one rank may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) cores: Vec<u16>,
    pub(super) threads: u16,
    pub(super) spin: bool,
}

/// The share of each rank, from the machine it runs on and the cores it may use there. Ranks on one machine never
/// share a core while there are enough cores. Otherwise each rank has one thread on one core and none spins, because
/// spinning would take the core from the rank that it waits for.
pub(super) fn shares(ranks: &[(&str, &[u16])]) -> Vec<Share> {
    let mut shares = vec![Share { cores: Vec::new(), threads: 1, spin: false }; ranks.len()];
    for (first, (machine, _)) in ranks.iter().enumerate() {
        let mates: Vec<usize> = (0..ranks.len()).filter(|rank| ranks[*rank].0 == *machine).collect();
        if mates[0] == first {
            let allowed: Vec<&[u16]> = mates.iter().map(|rank| ranks[*rank].1).collect();
            for (rank, share) in mates.iter().zip(divide(&allowed)) {
                shares[*rank] = share;
            }
        }
    }
    shares
}

/// Divides one machine: every rank gets the same number of cores, so that none waits for one with fewer.
fn divide(allowed: &[&[u16]]) -> Vec<Share> {
    let mut all = allowed.concat();
    all.sort_unstable();
    all.dedup();
    // The largest number of cores that every rank can have for itself; the ranks with the fewest cores choose first.
    let mut order: Vec<usize> = (0..allowed.len()).collect();
    order.sort_by_key(|rank| allowed[*rank].len());
    let fair = (1..=all.len() / allowed.len()).rev().find_map(|each| {
        let mut free = all.clone();
        let mut dealt = vec![Vec::new(); allowed.len()];
        for rank in &order {
            let own = allowed[*rank].iter().copied().filter(|core| free.contains(core));
            dealt[*rank] = own.take(each).collect();
            free.retain(|core| !dealt[*rank].contains(core));
        }
        dealt.iter().all(|cores| cores.len() == each).then_some(dealt)
    });
    match fair {
        Some(dealt) => {
            dealt.into_iter().map(|cores| Share { threads: cores.len() as u16, cores, spin: true }).collect()
        }
        None => allowed.iter().enumerate().map(|(index, allowed)| crowded(index, allowed)).collect(),
    }
}

fn crowded(index: usize, allowed: &[u16]) -> Share {
    let cores = if allowed.is_empty() { Vec::new() } else { vec![allowed[index % allowed.len()]] };
    Share { cores, threads: 1, spin: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(cores: &[u16], spin: bool) -> Share {
        Share { cores: cores.to_vec(), threads: cores.len().max(1) as u16, spin }
    }

    #[test]
    fn cores_are_divided_and_ranks_spin_only_on_dedicated_cores() {
        let four: &[u16] = &[0, 1, 2, 3];
        assert_eq!(shares(&[("a", four), ("b", four)]), [share(four, true), share(four, true)]);
        assert_eq!(shares(&[("a", four), ("a", four)]), [share(&[0, 1], true), share(&[2, 3], true)]);
        assert_eq!(shares(&[("a", four); 3])[2], share(&[2], true));
        let two: &[u16] = &[4, 6];
        let crowded = shares(&[("a", two); 3]);
        assert_eq!(crowded, [share(&[4], false), share(&[6], false), share(&[4], false)]);
        assert_eq!(shares(&[("a", &[])]), [share(&[], false)]);
    }

    #[test]
    fn ranks_with_different_cores_share_none_while_enough() {
        let shared = shares(&[("a", &[0, 1, 2, 3]), ("b", &[0]), ("a", &[0, 1])]);
        assert_eq!(shared, [share(&[2, 3], true), share(&[0], true), share(&[0, 1], true)]);
        assert_eq!(shares(&[("a", &[0, 1]), ("a", &[0])]), [share(&[1], true), share(&[0], true)]);
        assert_eq!(shares(&[("a", &[0, 1, 2]), ("a", &[3])]), [share(&[0], true), share(&[3], true)]);
        assert_eq!(shares(&[("a", &[5, 6]), ("a", &[])]), [share(&[5], false), share(&[], false)]);
    }

    #[test]
    fn no_core_is_given_twice_to_spinning_ranks() {
        let cores: Vec<u16> = (0..8).collect();
        for ranks in 1..=10 {
            let shares = shares(&vec![("a", cores.as_slice()); ranks]);
            let mut given: Vec<u16> = shares.iter().flat_map(|share| share.cores.clone()).collect();
            given.sort_unstable();
            let total = given.len();
            given.dedup();
            assert_eq!(shares.iter().all(|share| share.spin), given.len() == total, "{ranks} ranks: {shares:?}");
            assert_eq!(shares[0].spin, ranks <= 8);
            let threads: usize = shares.iter().map(|share| usize::from(share.threads)).sum();
            assert!(!shares[0].spin || threads <= 8);
        }
    }
}
