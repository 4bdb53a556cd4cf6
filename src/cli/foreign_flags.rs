//! The flags of kube-apiserver that the gateway does not have, and what becomes of them behind a gateway. A command line
//! with some of them fails with one error for each; `--ignore-unknown-apiserver-flags` turns the errors into warnings.

/// The flag that turns the errors into warnings.
pub(super) const IGNORE: &str = "--ignore-unknown-apiserver-flags";

/// A flag of kube-apiserver that the gateway does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForeignFlag {
    pub(crate) name: &'static str,
    /// Whether it is true or false, so that its value is never the next word.
    pub(crate) is_switch: bool,
    pub(super) role: ForeignRole,
}

/// What a flag is for, in a control plane with a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForeignRole {
    /// The backend does this, for requests through the gateway, too. "It" is the backend.
    Backend(&'static str),
    /// Clients of the gateway get something else than those of an API server with this flag.
    Lacking(&'static str),
}

impl ForeignRole {
    /// What becomes of the flag.
    pub(super) fn reason(self) -> String {
        match self {
            Self::Backend(reason) => format!("left to the backend: {reason}"),
            Self::Lacking(reason) => reason.to_owned(),
        }
    }
}

impl ForeignFlag {
    /// The flag of this name, without dashes.
    pub(super) fn find(name: &str) -> Option<Self> {
        let index = ALL.binary_search_by(|flag| flag.name.cmp(name)).ok()?;
        ALL.get(index).copied()
    }

    const fn switch(name: &'static str, role: ForeignRole) -> Self {
        Self { name, is_switch: true, role }
    }

    const fn valued(name: &'static str, role: ForeignRole) -> Self {
        Self { name, is_switch: false, role }
    }
}

const STORAGE: ForeignRole = ForeignRole::Backend("it stores the objects");
const KUBELETS: ForeignRole = ForeignRole::Backend("it connects to kubelets");
const TOKENS: ForeignRole = ForeignRole::Backend("it issues service account tokens");
const LEADERS: ForeignRole = ForeignRole::Backend("it elects the leaders of components");
const AGGREGATION: ForeignRole =
    ForeignRole::Backend("it connects to aggregated API servers and to its peers");
const DIAGNOSTICS: ForeignRole = ForeignRole::Backend("it has its own metrics, profiles and logs");
const ADDRESS: ForeignRole = ForeignRole::Backend("it publishes its own address");
const SERVICES: ForeignRole = ForeignRole::Backend("it allocates the addresses and ports of Services");
const ADMISSION: ForeignRole = ForeignRole::Backend("it admits objects by its own plugins");
const APIS: ForeignRole = ForeignRole::Backend("it decides which APIs it serves");
const CLOUD: ForeignRole = ForeignRole::Backend("it had cloud controllers in older releases");
const FAIRNESS: ForeignRole = ForeignRole::Backend("it schedules the requests that reach it");
const EGRESS: ForeignRole = ForeignRole::Backend("it connects to nodes by its egress selectors");
const ABAC: ForeignRole = ForeignRole::Backend("it decides by its ABAC policy");
const WATCHES: ForeignRole = ForeignRole::Backend("it ends watches");
const LOG: ForeignRole = ForeignRole::Lacking("the gateway logs by --v and --logging-format alone");
const CERT_DIR: ForeignRole = ForeignRole::Lacking(
    "the gateway makes no certificate of its own: give --tls-cert-file and --tls-private-key-file",
);
const HTTP2: ForeignRole = ForeignRole::Lacking("the gateway serves HTTP/2 in any case");
const GATES: ForeignRole =
    ForeignRole::Lacking("the gateway has no feature gates; those of the backend stay");
const GOAWAY: ForeignRole = ForeignRole::Lacking("the gateway sends no GOAWAY by chance");
const SHARING: ForeignRole = ForeignRole::Lacking("the gateway sets SO_REUSEADDR in any case");
const CURVES: ForeignRole = ForeignRole::Lacking("the gateway has its own order of key exchanges");
const BACKOFF: ForeignRole = ForeignRole::Lacking("give --audit-webhook-initial-backoff");

/// All of them, sorted by name: those of kube-apiserver 1.36 (`--help`, and deprecated ones); `cloud-*` of releases before
/// 1.33; `advertise-port` of k3s.
pub(crate) const ALL: &[ForeignFlag] = &[
    ForeignFlag::valued("admission-control", ADMISSION),
    ForeignFlag::valued("advertise-address", ADDRESS),
    ForeignFlag::valued("advertise-port", ADDRESS),
    ForeignFlag::switch("aggregator-reject-forwarding-redirect", AGGREGATION),
    ForeignFlag::valued("allow-metric-labels", DIAGNOSTICS),
    ForeignFlag::valued("allow-metric-labels-manifest", DIAGNOSTICS),
    ForeignFlag::switch("allow-privileged", ADMISSION),
    ForeignFlag::valued("apiserver-count", ADDRESS),
    ForeignFlag::valued("audit-webhook-batch-initial-backoff", BACKOFF),
    ForeignFlag::valued("authorization-policy-file", ABAC),
    ForeignFlag::valued("cert-dir", CERT_DIR),
    ForeignFlag::valued("cloud-config", CLOUD),
    ForeignFlag::valued("cloud-provider", CLOUD),
    ForeignFlag::switch("contention-profiling", DIAGNOSTICS),
    ForeignFlag::valued("coordinated-leadership-lease-duration", LEADERS),
    ForeignFlag::valued("coordinated-leadership-renew-deadline", LEADERS),
    ForeignFlag::valued("coordinated-leadership-retry-period", LEADERS),
    ForeignFlag::valued("debug-socket-path", DIAGNOSTICS),
    ForeignFlag::valued("default-not-ready-toleration-seconds", ADMISSION),
    ForeignFlag::valued("default-unreachable-toleration-seconds", ADMISSION),
    ForeignFlag::valued("default-watch-cache-size", STORAGE),
    ForeignFlag::valued("delete-collection-workers", STORAGE),
    ForeignFlag::switch("disable-http2-serving", HTTP2),
    ForeignFlag::valued("disabled-metrics", DIAGNOSTICS),
    ForeignFlag::valued("egress-selector-config-file", EGRESS),
    ForeignFlag::switch("emulation-forward-compatible", APIS),
    ForeignFlag::switch("enable-aggregator-routing", AGGREGATION),
    ForeignFlag::switch("enable-garbage-collector", STORAGE),
    ForeignFlag::switch("enable-logs-handler", DIAGNOSTICS),
    ForeignFlag::switch("enable-priority-and-fairness", FAIRNESS),
    ForeignFlag::valued("encryption-provider-config", STORAGE),
    ForeignFlag::switch("encryption-provider-config-automatic-reload", STORAGE),
    ForeignFlag::valued("endpoint-reconciler-type", ADDRESS),
    ForeignFlag::valued("etcd-cafile", STORAGE),
    ForeignFlag::valued("etcd-certfile", STORAGE),
    ForeignFlag::valued("etcd-compaction-interval", STORAGE),
    ForeignFlag::valued("etcd-count-metric-poll-period", STORAGE),
    ForeignFlag::valued("etcd-db-metric-poll-interval", STORAGE),
    ForeignFlag::valued("etcd-healthcheck-timeout", STORAGE),
    ForeignFlag::valued("etcd-keyfile", STORAGE),
    ForeignFlag::valued("etcd-prefix", STORAGE),
    ForeignFlag::valued("etcd-readycheck-timeout", STORAGE),
    ForeignFlag::valued("etcd-servers", STORAGE),
    ForeignFlag::valued("etcd-servers-overrides", STORAGE),
    ForeignFlag::valued("event-ttl", STORAGE),
    ForeignFlag::valued("external-hostname", ADDRESS),
    ForeignFlag::valued("feature-gates", GATES),
    ForeignFlag::valued("goaway-chance", GOAWAY),
    ForeignFlag::valued("kubelet-certificate-authority", KUBELETS),
    ForeignFlag::valued("kubelet-client-certificate", KUBELETS),
    ForeignFlag::valued("kubelet-client-key", KUBELETS),
    ForeignFlag::valued("kubelet-port", KUBELETS),
    ForeignFlag::valued("kubelet-preferred-address-types", KUBELETS),
    ForeignFlag::valued("kubelet-read-only-port", KUBELETS),
    ForeignFlag::valued("kubelet-timeout", KUBELETS),
    ForeignFlag::valued("kubernetes-service-node-port", SERVICES),
    ForeignFlag::valued("lease-reuse-duration-seconds", STORAGE),
    ForeignFlag::valued("log-flush-frequency", LOG),
    ForeignFlag::valued("log-json-info-buffer-size", LOG),
    ForeignFlag::switch("log-json-split-stream", LOG),
    ForeignFlag::valued("log-text-info-buffer-size", LOG),
    ForeignFlag::switch("log-text-split-stream", LOG),
    ForeignFlag::valued("max-connection-bytes-per-sec", KUBELETS),
    ForeignFlag::valued("min-compatibility-version", APIS),
    ForeignFlag::valued("min-request-timeout", WATCHES),
    ForeignFlag::valued("peer-advertise-ip", AGGREGATION),
    ForeignFlag::valued("peer-advertise-port", AGGREGATION),
    ForeignFlag::valued("peer-ca-file", AGGREGATION),
    ForeignFlag::switch("permit-address-sharing", SHARING),
    ForeignFlag::switch("profiling", DIAGNOSTICS),
    ForeignFlag::valued("proxy-client-cert-file", AGGREGATION),
    ForeignFlag::valued("proxy-client-key-file", AGGREGATION),
    ForeignFlag::valued("runtime-config", APIS),
    ForeignFlag::switch("runtime-config-emulation-forward-compatible", APIS),
    ForeignFlag::switch("service-account-extend-token-expiration", TOKENS),
    ForeignFlag::valued("service-account-jwks-uri", TOKENS),
    ForeignFlag::valued("service-account-max-token-expiration", TOKENS),
    ForeignFlag::valued("service-account-signing-endpoint", TOKENS),
    ForeignFlag::valued("service-account-signing-key-file", TOKENS),
    ForeignFlag::valued("service-cluster-ip-range", SERVICES),
    ForeignFlag::valued("service-node-port-range", SERVICES),
    ForeignFlag::valued("show-hidden-metrics-for-version", DIAGNOSTICS),
    ForeignFlag::valued("storage-backend", STORAGE),
    ForeignFlag::valued("storage-initialization-timeout", STORAGE),
    ForeignFlag::valued("storage-media-type", STORAGE),
    ForeignFlag::valued("tls-curve-preferences", CURVES),
    ForeignFlag::valued("vmodule", LOG),
    ForeignFlag::switch("watch-cache", STORAGE),
    ForeignFlag::valued("watch-cache-sizes", STORAGE),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn no_flag_of_ours_is_foreign() {
        assert!(ALL.is_sorted_by(|one, next| one.name < next.name), "the list is searched");
        let command = super::super::Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for argument in serve.get_arguments().filter_map(clap::Arg::get_long) {
            assert_eq!(ForeignFlag::find(argument), None, "{argument}");
        }
        assert!(ForeignFlag::find("etcd-servers").is_some_and(|flag| !flag.is_switch));
    }
}
