//! Bugs that a test can plant one at a time, to prove that the simulation or a named test finds them: those of release
//! 0.1, and at least one against each promise. Builds without debug assertions have them only with the feature
//! `planted`, which no package has. `docs/planted-faults.md` lists what searches for each.
#[cfg(any(debug_assertions, feature = "planted"))]
use std::cell::Cell;

crate::listed! {
    /// A bug.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Planted {
        /// A rank does not report to its peers that its topology broke, and a rank that has not noticed is not assigned
        /// again.
        UntoldFault,
        /// A serving member is chosen as the leader of a recovery.
        ServingLeader,
        /// Members that bring a topology up again do not compare the content of their model files.
        ContentUnchecked,
        /// A list of exclusions takes effect before it is on the disk.
        ExclusionBeforeDisk,
        /// A voter promises a ballot twice, and votes although its state folder was wiped.
        BallotTwice,
        /// A recovery that failed on one member waits for all others.
        PatientAbort,
        /// A broken link ends answers as an internal error.
        BrokenLinkIsInternal,
        /// A restarted node does not report the topology that it expects back.
        ForgetsExpected,
        /// Two daemons may use one state folder.
        UnlockedState,
        /// An answer that is full when it is resumed is refused.
        FullAnswerRefused,
        /// Half of the voters count as a majority.
        SmallMajority,
        /// A voter accepts a ballot below the one that it has promised.
        OlderBallotAccepted,
        /// A voter that promises conceals what it has accepted.
        AcceptedUntold,
        /// A vote is answered before it is on the disk.
        VoteBeforeDisk,
        /// A node learns an older topology than its own.
        OlderTopologyLearned,
        /// A node prepares an epoch that is not above the one it has seen.
        AnyEpochPrepared,
        /// A head continues an answer of another model.
        ModelUnchecked,
        /// A request that ends with its topology fails twice.
        ErrorTwice,
        /// A peer without heartbeats is not lost.
        SilenceUnnoticed,
        /// A head takes requests although a member of its replica is excluded.
        ExcludedServes,
        /// Reports of finished requests are kept for ever.
        FinishedKept,
        /// A prompt is logged.
        PromptLogged,
        /// Members that are back are not included again.
        NeverReturns,
        /// The pause between attempts to bring a topology back has no limit.
        PauseUnbounded,
        /// A head takes any number of requests.
        QueueUnbounded,
        /// The scheduler keeps a cancelled request.
        CancelIgnored,
        /// The KV blocks of an ended sequence stay in use.
        BlocksLeak,
        /// A request that leaves the gateway's queue keeps its place there.
        TicketLeak,
        /// The gateway resumes an answer without its latest token.
        ResumeLosesToken,
        /// The checksum of a frame is not compared.
        FrameUnchecked,
        /// A prepared assignment without a commit never expires.
        LeaseForever,
        /// A link of another assignment is accepted.
        AnyLinkAccepted,
    }
}

#[cfg(any(debug_assertions, feature = "planted"))]
thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Plants a bug on this thread; `None` removes it.
#[cfg(any(debug_assertions, feature = "planted"))]
pub fn plant(fault: Option<Planted>) {
    PLANTED.set(fault);
}

/// Whether this bug is planted on this thread.
#[cfg(any(debug_assertions, feature = "planted"))]
pub fn is_planted(fault: Planted) -> bool {
    PLANTED.get() == Some(fault)
}

/// Always false.
#[cfg(not(any(debug_assertions, feature = "planted")))]
pub const fn is_planted(_: Planted) -> bool {
    false
}
