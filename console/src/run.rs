//! TEMPORARY: replaced by the tui branch.
#![allow(missing_docs, reason = "temporary")]
use crate::client::event::ClientEvent;
use shared::protocol::message::Generate;
pub trait Cluster {
    fn assign(&self);
    fn generate(&self, request: Generate);
    fn cancel(&self);
}
pub struct DashboardOptions {
    pub nodes: Vec<String>,
    pub assign: bool,
    pub prompt: String,
    pub defaults: Generate,
}
pub async fn dashboard(
    _options: DashboardOptions,
    _cluster: &dyn Cluster,
    _events: tokio::sync::mpsc::Receiver<ClientEvent>,
) -> anyhow::Result<i32> {
    anyhow::bail!("the dashboard is not merged yet")
}
