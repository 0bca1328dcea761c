//! Which nodes a command needs, and for what.

/// The nodes that a command contacts.
#[derive(Debug)]
pub(crate) enum Reach<'a> {
    /// It contacts these, once they are filled in.
    Nodes(&'a mut Vec<String>, Need),
    /// It needs no nodes, but accepts a cluster.
    Cluster,
    /// Its `--nodes` is a number.
    Counts,
    /// It contacts no nodes, or names them otherwise. The text explains it, after "it".
    Otherwise(&'static str),
}

/// Where a command gets its nodes from if none are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A read-only command: discovered nodes are acceptable.
    Looks,
    /// A command that changes the cluster: its nodes must be given.
    Acts,
    /// Nodes are optional, and may come from the environment.
    May,
    /// Nodes are optional, and may come from the environment or the default cluster.
    Tries,
    /// Nodes are optional, and must come from the command line.
    Typed,
}
