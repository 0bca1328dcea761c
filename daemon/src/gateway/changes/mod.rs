//! Changes of models at the request of clients whose key permits it: loading a model that no node serves, downloading and
//! deleting files. Topologies in use are never replaced: only idle nodes are used, and those of models that were loaded for a
//! request and have none.
pub(super) mod files;
mod load;
mod nodes;
mod putting;

pub(super) use self::{
    files::{delete, pull},
    load::LoadTurns,
};
