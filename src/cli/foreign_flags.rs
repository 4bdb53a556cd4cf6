//! The flags of kube-apiserver that the gateway does not support. A command line with some of them fails with one error
//! for each; `--ignore-unknown-apiserver-flags` turns the errors into warnings.

use crate::config::{ConfigError, ConfigErrors};

/// The flag that turns the errors into warnings.
const IGNORE: &str = "--ignore-unknown-apiserver-flags";

/// The file of an authorization mode that only the backend can have.
const ABAC_POLICY: &str = "--authorization-policy-file";

/// Splits the arguments of `serve`, `check` and `explain` into those for clap and the unsupported kube-apiserver flags.
pub(super) fn take_out(arguments: Vec<String>) -> Result<(Vec<String>, Vec<String>), ConfigErrors> {
    if !matches!(arguments.get(1).map(String::as_str), Some("serve" | "check" | "explain")) {
        return Ok((arguments, Vec::new()));
    }
    let mut kept = Vec::with_capacity(arguments.len());
    let mut foreign = Vec::new();
    let mut ignore = false;
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        ignore |= argument == IGNORE;
        let flag = argument.strip_prefix("--").unwrap_or_default();
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        if WITH_VALUE.binary_search(&name).is_ok() {
            foreign.push(format!("--{name}"));
            if value.is_none() {
                // Its value is the next argument.
                rest.next();
            }
        } else if SWITCHES.binary_search(&name).is_ok() {
            foreign.push(format!("--{name}"));
        } else {
            kept.push(argument);
        }
    }
    if ignore || foreign.is_empty() {
        return Ok((kept, foreign));
    }
    let error = |flag: String| {
        let reason = if flag == ABAC_POLICY { ": the backend decides by its ABAC policy" } else { "" };
        let fix = format!("remove it, or give {IGNORE}");
        ConfigError::new(flag, format!("is a kube-apiserver flag that portcullis does not support{reason}"))
            .fix(fix)
    };
    Err(ConfigErrors(foreign.into_iter().map(error).collect()))
}

// kubernetes: kube-apiserver --help, 1.36
const SWITCHES: &[&str] = &[
    "aggregator-reject-forwarding-redirect",
    "allow-privileged",
    "contention-profiling",
    "disable-http2-serving",
    "emulation-forward-compatible",
    "enable-aggregator-routing",
    "enable-garbage-collector",
    "enable-logs-handler",
    "enable-priority-and-fairness",
    "encryption-provider-config-automatic-reload",
    "log-json-split-stream",
    "log-text-split-stream",
    "permit-address-sharing",
    "profiling",
    "runtime-config-emulation-forward-compatible",
    "service-account-extend-token-expiration",
    "watch-cache",
];

const WITH_VALUE: &[&str] = &[
    "admission-control",
    "advertise-address",
    "allow-metric-labels",
    "allow-metric-labels-manifest",
    "authorization-policy-file",
    "cert-dir",
    "coordinated-leadership-lease-duration",
    "coordinated-leadership-renew-deadline",
    "coordinated-leadership-retry-period",
    "cors-allowed-origins",
    "debug-socket-path",
    "default-not-ready-toleration-seconds",
    "default-unreachable-toleration-seconds",
    "delete-collection-workers",
    "disabled-metrics",
    "egress-selector-config-file",
    "emulated-version",
    "encryption-provider-config",
    "endpoint-reconciler-type",
    "etcd-cafile",
    "etcd-certfile",
    "etcd-compaction-interval",
    "etcd-count-metric-poll-period",
    "etcd-db-metric-poll-interval",
    "etcd-healthcheck-timeout",
    "etcd-keyfile",
    "etcd-prefix",
    "etcd-readycheck-timeout",
    "etcd-servers",
    "etcd-servers-overrides",
    "event-ttl",
    "external-hostname",
    "feature-gates",
    "goaway-chance",
    "kubelet-certificate-authority",
    "kubelet-client-certificate",
    "kubelet-client-key",
    "kubelet-preferred-address-types",
    "kubelet-timeout",
    "kubernetes-service-node-port",
    "lease-reuse-duration-seconds",
    "log-flush-frequency",
    "log-json-info-buffer-size",
    "log-text-info-buffer-size",
    "max-connection-bytes-per-sec",
    "min-compatibility-version",
    "min-request-timeout",
    "peer-advertise-ip",
    "peer-advertise-port",
    "peer-ca-file",
    "proxy-client-cert-file",
    "proxy-client-key-file",
    "runtime-config",
    "service-account-jwks-uri",
    "service-account-max-token-expiration",
    "service-account-signing-endpoint",
    "service-account-signing-key-file",
    "service-cluster-ip-range",
    "service-node-port-range",
    "show-hidden-metrics-for-version",
    "storage-backend",
    "storage-initialization-timeout",
    "storage-media-type",
    "tls-curve-preferences",
    "vmodule",
    "watch-cache-sizes",
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn arguments(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn foreign_flags_are_named_all_at_once() {
        let line = "portcullis serve --etcd-servers x --secure-port=1 --profiling --cert-dir=y";
        let errors = take_out(arguments(line)).unwrap_err();
        let keys: Vec<&str> = errors.0.iter().map(|error| error.key.as_str()).collect();
        assert_eq!(keys, ["--etcd-servers", "--profiling", "--cert-dir"]);
    }

    #[test]
    fn a_policy_of_the_backend_is_named_as_such() {
        let errors = take_out(arguments("portcullis serve --authorization-policy-file=x")).unwrap_err();
        let [error] = errors.0.as_slice() else { panic!("{errors}") };
        assert!(
            error.problem.ends_with("does not support: the backend decides by its ABAC policy"),
            "{error}"
        );
    }

    #[test]
    fn they_are_left_out_with_their_values_when_asked_to() {
        let line =
            "portcullis check --etcd-servers x --ignore-unknown-apiserver-flags --secure-port=1 --profiling";
        let (kept, left_out) = take_out(arguments(line)).unwrap();
        assert_eq!(kept, arguments("portcullis check --ignore-unknown-apiserver-flags --secure-port=1"));
        assert_eq!(left_out, ["--etcd-servers", "--profiling"]);
    }

    #[test]
    fn other_commands_are_left_alone() {
        let line = "portcullis dev --etcd-servers x";
        assert_eq!(take_out(arguments(line)).unwrap().0, arguments(line));
    }

    #[test]
    fn no_flag_of_ours_is_foreign() {
        assert!(SWITCHES.is_sorted() && WITH_VALUE.is_sorted(), "the lists are searched");
        let command = super::super::Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for argument in serve.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(!SWITCHES.contains(&argument) && !WITH_VALUE.contains(&argument), "{argument}");
        }
    }
}
