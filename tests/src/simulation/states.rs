//! The states of a cluster at the instant of a fault.

common::listed! {
    /// What a cluster is doing; if several of these hold, the rarer one counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ClusterState {
        /// All members serve, and no request runs.
        Idle,
        /// All members serve, and requests run.
        Answering,
        /// A member loads its shard.
        Loading,
        /// A member opens its links.
        Connecting,
        /// A member holds a vote about the next topology.
        Voting,
        /// The topology is broken, and waits for members.
        Recovering,
        /// A rolling restart is in progress.
        Rolling,
        /// A member drains.
        Draining,
        /// The topology of fewer members serves.
        Reduced,
        /// The topology of fewer members serves, and the next one is voted on or loaded.
        Returning,
        /// One replica serves, another one is broken.
        HalfDown,
    }
}
