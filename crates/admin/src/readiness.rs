//! Readiness: whether requests should come to this replica, and why not.

use tokio_util::sync::CancellationToken;

use audit::Audit;
use catalog::snapshot::Catalog;
use cluster::ClusterMember;
use config::OnStoreFailure;
use shutdown::Supervisor;

/// Returns why requests should go to another replica at present; empty if the gateway is ready.
pub(super) fn unready_reasons(
    pre_drain: &CancellationToken,
    supervisor: &Supervisor,
    audit: &Audit,
    cluster: Option<&ClusterMember>,
    catalog: &Catalog,
) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut add = |reason: &str| reasons.push(reason.to_owned());
    if pre_drain.is_cancelled() {
        add("draining: the gateway is shutting down");
    }
    for failure in supervisor.failures() {
        add(&format!("task_failed: {failure}; the gateway ends and must be started again"));
    }
    if audit.refuses() {
        add("audit_unavailable: the audit log cannot be written; calls are refused");
    }
    if let Some(cluster) = cluster
        && cluster.config().on_failure == OnStoreFailure::Refuse
        && cluster.failure().is_some()
    {
        add("cluster_unavailable: the store of the cluster cannot be reached; calls are refused");
    }
    if cluster.is_some_and(|cluster| cluster.is_learning()) {
        add("starting: not every session that was terminated on another replica is known yet");
    }
    if catalog.pending {
        add("starting: not every upstream has reported its list yet");
    } else if let Some(fault) = &catalog.list_fault {
        // The name of the upstream and the error are shown with the token only.
        add(fault.reason());
    }
    reasons
}
