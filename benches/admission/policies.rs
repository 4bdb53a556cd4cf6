//! What validating admission policies cost: creations per second through the gateway with 1, 10 and 300 policies, of which one matches
//! config maps and none Secrets. Beside it kube-apiserver with the same policies in files, to which the client sends each write twice,
//! first as a dry run: what a gateway with `pinnedDryRun` makes of a write.

use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::webhooks::write_static_plugins;

use super::{CLIENTS, Load, MAPS, ROUND, SECRETS, Side, compare};

const UNMATCHED: Load = Load { name: "Secrets: no policy matches", path: SECRETS, kind: "Secret", label: "" };
const MATCHED: Load =
    Load { name: "config maps: one policy matches", path: MAPS, kind: "ConfigMap", label: "" };

/// The policies with their bindings.
fn policies(count: usize) -> Vec<Value> {
    let policy = |number: usize| {
        let resource = if number == 0 { "configmaps".to_owned() } else { format!("things{number}") };
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": format!("p{number}.static.k8s.io")},
        "spec": {
            "matchConstraints": {"resourceRules": [
                {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}]},
            "matchConditions": [{"name": "people", "expression": "!request.userInfo.username.startsWith('system:node:')"}],
            "variables": [{"name": "labels", "expression": "object.metadata.?labels.orValue({})"}],
            "validations": [
                {"expression": "variables.labels.all(key, key.matches('^[a-z./]+$'))", "message": "labels are in lower case"},
                {"expression": "object.metadata.name.size() < 60", "messageExpression": "'too long: ' + object.metadata.name"},
            ],
        }})
    };
    let binding = |number: usize| {
        let name = format!("p{number}.static.k8s.io");
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}})
    };
    (0..count).flat_map(|number| [policy(number), binding(number)]).collect()
}

/// Measures with each of these numbers of policies. `start` starts an API server with these flags, and `gateway` a gateway in front of one without
/// policies.
pub(super) async fn run<P>(
    counts: &[usize],
    dir: &std::path::Path,
    plain: &GatewayProcess,
    admin: &Issued,
    rounds: usize,
    start: impl AsyncFn(String, &[&str]) -> (std::net::SocketAddr, P),
    gateway: impl AsyncFn(Vec<String>) -> GatewayProcess,
) {
    println!(
        "\npolicies: {CLIENTS} clients, {rounds} rounds of {} s: creations per second, median",
        ROUND.as_secs()
    );
    for &count in counts {
        let folder = dir.join(format!("policies-{count}"));
        std::fs::create_dir_all(&folder).unwrap();
        let file: PathBuf = write_static_plugins(&folder, "admission.json", &[], &policies(count));
        let files = format!("--admission-control-config-file={}", file.display());
        let gates = "--feature-gates=ManifestBasedAdmissionControlConfig=true";
        let (policing, _policing) = start(format!("policing-{count}"), &[&files, gates]).await;
        let of_mode =
            async |mode: &str| gateway(vec![files.clone(), format!("--admission-mode={mode}")]).await;
        let request_level = of_mode("requestLevel").await;
        let pinned = of_mode("pinnedDryRun").await;
        let without = plain.gateway.address;
        let side = |name, address, is_rehearsed| Side { name, address, is_rehearsed };
        let (direct, levelled) = (
            side("gateway without policies", without, false),
            side("gateway, requestLevel", request_level.gateway.address, false),
        );
        println!("\n{count} policies");
        compare(&[direct, levelled], UNMATCHED, admin, rounds, "the first").await;
        let twice = side("kube-apiserver, a dry run and the write", policing, true);
        let levelled = side("gateway, requestLevel", request_level.gateway.address, false);
        let by_dry_run = side("gateway, pinnedDryRun", pinned.gateway.address, false);
        compare(&[twice, by_dry_run, levelled], MATCHED, admin, rounds, "the first").await;
        for gateway in [request_level, pinned] {
            let (status, log) = gateway.end().await;
            assert!(status.success(), "the gateway failed: {log}");
        }
    }
}
