//! What the chart derives from `config`: its permissions, whether the pod mounts a token, and which egress rules it demands.

use std::collections::BTreeSet;
use std::fs;

use libtest_mimic::Trial;
use serde_json::Value;
use testkit::paths::workspace_root;

use crate::chart::{CHART, KUBE_VERSION, documents, rendered, value_files};
use crate::{HELM, Test};

/// Values, and what the chart makes of them.
struct Row {
    name: &'static str,
    /// `KEY=JSON`.
    values: &'static [&'static str],
    /// The rules of all roles as `VERBS RESOURCES NAMES`, and the bound roles of Kubernetes as `role NAME`.
    permissions: &'static [&'static str],
    /// Whether the pod mounts the token of its service account.
    token: bool,
}

const SELF_CHECK: &str = "create selfsubjectreviews";
const REVIEWS: &str = "create subjectaccessreviews";
const TOKEN_OBJECTS: &str = "get,list,watch serviceaccounts,pods,nodes";
const KEYS: &str = "role system:service-account-issuer-discovery";
const READER: &str = "role extension-apiserver-authentication-reader";
const NAMESPACES: &str = "get,list,watch namespaces";
const API_SERVICES: &str = "get apiservices";
const DEFINITIONS: &str = "get customresourcedefinitions";
const KUBE_SYSTEM: &str = "get namespaces kube-system";
const SLICES: &str = "get,list,watch endpointslices";
const USERS: &str = "impersonate users";
const GROUPS: &str = "impersonate groups";
const ACCOUNTS: &str = "impersonate serviceaccounts";
const EXTRA: &str = "impersonate *";

/// A cluster that is reached with a front-proxy certificate.
const FRONT_PROXY: &str = r#"config.clusters=[{"name": "a", "kubeconfig": "../files/a/kubeconfig"}]"#;
const ISSUER: &str = r#"config.authentication.serviceAccountIssuer=["https://kubernetes.default.svc"]"#;
const KEY_FILE: &str = r#"config.authentication.serviceAccountKeyFile=["../files/a/sa.pub"]"#;
const USER: &str = r#"rbac.subject="user""#;

static ROWS: [Row; 27] = [
    Row {
        name: "the_default_impersonates_users",
        values: &[],
        permissions: &[REVIEWS, USERS, GROUPS, EXTRA],
        token: true,
    },
    Row {
        name: "a_front_proxy_does_not_impersonate",
        values: &[FRONT_PROXY, USER],
        permissions: &[READER],
        token: false,
    },
    Row {
        name: "the_account_of_the_pod_has_no_permissions_if_no_cluster_uses_it",
        values: &[FRONT_PROXY, ISSUER],
        permissions: &[],
        token: false,
    },
    Row {
        name: "a_user_has_no_permissions_if_the_pod_uses_its_account",
        values: &[USER],
        permissions: &[],
        token: true,
    },
    Row {
        name: "service_account_tokens",
        values: &[ISSUER],
        permissions: &[REVIEWS, TOKEN_OBJECTS, KEYS, USERS, GROUPS, ACCOUNTS, EXTRA],
        token: true,
    },
    Row {
        name: "service_account_tokens_of_a_front_proxy",
        values: &[FRONT_PROXY, USER, ISSUER],
        permissions: &[TOKEN_OBJECTS, KEYS, READER],
        token: false,
    },
    Row {
        name: "keys_in_a_file_are_not_fetched",
        values: &[FRONT_PROXY, USER, ISSUER, KEY_FILE],
        permissions: &[TOKEN_OBJECTS, READER],
        token: false,
    },
    Row {
        name: "a_key_file_alone_verifies_tokens",
        values: &[FRONT_PROXY, USER, KEY_FILE],
        permissions: &[TOKEN_OBJECTS, READER],
        token: false,
    },
    Row {
        name: "a_cluster_unsets_the_issuer_of_the_section",
        values: &[
            ISSUER,
            r#"config.clusters=[{"name": "a", "identity": "impersonate",
                "authentication": {"serviceAccountIssuer": null}}]"#,
        ],
        permissions: &[REVIEWS, USERS, GROUPS, EXTRA],
        token: true,
    },
    Row {
        name: "a_cluster_has_an_issuer_of_its_own",
        values: &[
            USER,
            r#"config.clusters=[{"name": "a", "kubeconfig": "a"},
                {"name": "b", "kubeconfig": "b", "authentication": {"serviceAccountIssuer": ["b"]}}]"#,
        ],
        permissions: &[TOKEN_OBJECTS, KEYS, READER],
        token: false,
    },
    Row {
        name: "another_clusters_issuer_does_not_count",
        values: &[r#"config.clusters=[{"name": "a", "identity": "impersonate"},
            {"name": "b", "kubeconfig": "b", "authentication": {"serviceAccountIssuer": ["b"]}}]"#],
        permissions: &[REVIEWS, USERS, GROUPS, EXTRA],
        token: true,
    },
    Row {
        name: "a_token_webhook_names_service_accounts",
        values: &[r#"config.authentication.authenticationTokenWebhookConfigFile="../files/a/webhook""#],
        permissions: &[REVIEWS, USERS, GROUPS, ACCOUNTS, EXTRA],
        token: true,
    },
    Row {
        name: "admission_webhooks_read_namespaces",
        values: &[FRONT_PROXY, USER, r#"config.admission.admissionControlConfigFile="../files/a/admission""#],
        permissions: &[REVIEWS, NAMESPACES, API_SERVICES, DEFINITIONS, READER],
        token: false,
    },
    Row {
        name: "the_gateway_decides_on_impersonation",
        values: &[USER, r#"config.clusters=[{"name": "a", "kubeconfig": "a", "impersonation": "gateway"}]"#],
        permissions: &[REVIEWS, READER],
        token: false,
    },
    Row {
        name: "an_audit_needs_the_impersonated_user",
        values: &[FRONT_PROXY, USER, r#"config.audit.auditPolicyFile="../files/a/policy""#],
        permissions: &[REVIEWS, READER],
        token: false,
    },
    Row {
        name: "an_authorizer_needs_the_impersonated_user",
        values: &[
            USER,
            r#"config.clusters=[{"name": "a", "kubeconfig": "a", "authorization": {"authorizationMode": ["AlwaysDeny"]}}]"#,
        ],
        permissions: &[REVIEWS, READER],
        token: false,
    },
    Row {
        name: "configured_identity_headers_are_not_read",
        values: &[
            USER,
            r#"config.clusters=[{"name": "a", "kubeconfig": "a", "requestheaderUsernameHeaders": ["X-Remote-User"]}]"#,
        ],
        permissions: &[],
        token: false,
    },
    Row {
        name: "endpoints_of_one_cluster_are_compared",
        values: &[
            USER,
            r#"config.clusters=[{"name": "a", "kubeconfig": "a", "identity": "impersonate",
                "endpoints": ["https://192.0.2.1:6443", "https://192.0.2.2:6443"]}]"#,
        ],
        permissions: &[REVIEWS, KUBE_SYSTEM, READER, USERS, GROUPS, EXTRA],
        token: false,
    },
    Row {
        name: "endpoint_discovery",
        values: &[
            r#"config.clusters=[{"name": "a", "identity": "impersonate", "endpointDiscovery": "kubernetes"}]"#,
        ],
        permissions: &[REVIEWS, KUBE_SYSTEM, SLICES, USERS, GROUPS, EXTRA],
        token: true,
    },
    Row {
        name: "impersonation_is_bounded_by_names",
        values: &[
            r#"rbac.impersonateUsers=["alice", "bob"]"#,
            r#"rbac.impersonateGroups=["developers"]"#,
            r#"rbac.impersonateExtraKeys=["authentication.kubernetes.io/credential-id"]"#,
        ],
        permissions: &[
            REVIEWS,
            "impersonate users system:portcullis:self-check,system:anonymous,alice,bob",
            "impersonate groups portcullis:self-check,system:authenticated,system:unauthenticated,developers",
            "impersonate uids,userextras/portcullis.dev/self-check,userextras/authentication.kubernetes.io/credential-id",
        ],
        token: true,
    },
    Row {
        name: "groups_alone_are_bounded",
        values: &[r#"rbac.impersonateGroups=["developers", "system:authenticated"]"#],
        permissions: &[
            REVIEWS,
            USERS,
            "impersonate groups portcullis:self-check,system:authenticated,system:unauthenticated,developers",
            EXTRA,
        ],
        token: true,
    },
    Row {
        name: "impersonation_is_refused",
        values: &["rbac.impersonate=false", "rbac.accessReviews=false"],
        permissions: &[],
        token: true,
    },
    Row {
        name: "clusters_of_a_directory_are_not_seen",
        values: &["config.clusters=null", r#"config.clusterDirectory="../files/clusters""#, ISSUER],
        permissions: &[],
        token: false,
    },
    Row {
        name: "clusters_of_a_directory_are_named_by_values",
        values: &[
            "config.clusters=null",
            r#"config.clusterDirectory="../files/clusters""#,
            "rbac.impersonate=true",
            "rbac.accessReviews=true",
            "rbac.serviceAccountTokens=true",
        ],
        permissions: &[REVIEWS, TOKEN_OBJECTS, KEYS, USERS, GROUPS, ACCOUNTS, EXTRA],
        token: true,
    },
    Row {
        name: "service_accounts_are_impersonated_on_request",
        values: &["rbac.impersonateServiceAccounts=true"],
        permissions: &[REVIEWS, USERS, GROUPS, ACCOUNTS, EXTRA],
        token: true,
    },
    Row {
        name: "no_permissions_are_created",
        values: &["rbac.create=false", ISSUER],
        permissions: &[],
        token: true,
    },
    Row {
        name: "a_token_is_mounted_on_request",
        values: &[FRONT_PROXY, USER, "serviceAccount.automount=true"],
        permissions: &[READER],
        token: true,
    },
];

pub(crate) fn trials(trial: &impl Fn(&str, Test) -> Trial) -> Vec<Trial> {
    let mut trials: Vec<Trial> = ROWS
        .iter()
        .map(|row| trial(&format!("permissions_{}", row.name), Box::new(|_| derived(row))))
        .collect();
    trials.push(trial("with_everything_the_rules_are_those_of_the_files", Box::new(|_| everything())));
    trials.push(trial("tenants_that_choose_addresses_need_egress_rules", Box::new(|_| egress())));
    trials.push(trial("every_deployment_has_a_memory_limit", Box::new(|_| memory())));
    trials
}

/// What the chart renders with these values, each `KEY=JSON`, beside those that it requires.
pub(crate) fn rendered_with(values: &[&str]) -> Result<String, String> {
    let required = [r#"image.repository="r""#, r#"tls.secretName="t""#];
    let set = required.iter().chain(values).flat_map(|value| ["--set-json", value]);
    HELM.run(["template", "gateway", CHART, "--namespace=gateway", KUBE_VERSION].into_iter().chain(set))
}

fn derived(row: &Row) -> Result<(), String> {
    let objects = documents(&rendered_with(row.values)?)?;
    let given: BTreeSet<String> = objects.iter().flat_map(permissions).collect();
    let mut wanted: BTreeSet<String> = row.permissions.iter().map(|&line| line.to_owned()).collect();
    if !row.permissions.is_empty() {
        // Of the self-check, wherever there is a cluster.
        wanted.insert(SELF_CHECK.to_owned());
    }
    if given != wanted {
        return Err(format!("{given:#?} instead of {wanted:#?}"));
    }
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").ok_or("no Deployment")?;
    let mounts = &deployment["spec"]["template"]["spec"]["automountServiceAccountToken"];
    if *mounts == row.token { Ok(()) } else { Err(format!("automountServiceAccountToken: {mounts}")) }
}

/// The rules of a role, and the role of Kubernetes that a binding grants.
fn permissions(object: &Value) -> Vec<String> {
    let joined =
        |list: &Value| list.as_array().map(|list| list.iter().map(text).collect::<Vec<_>>().join(","));
    let rules = object["rules"].as_array().into_iter().flatten().map(|rule| {
        let parts = ["verbs", "resources", "resourceNames"];
        parts.iter().filter_map(|key| joined(&rule[*key])).collect::<Vec<_>>().join(" ")
    });
    let role = text(&object["roleRef"]["name"]);
    let is_own = role.is_empty() || role.starts_with("portcullis");
    rules.chain((!is_own).then(|| format!("role {role}"))).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// With all values, the permissions are those of deploy/rbac.yaml and deploy/rbac-impersonate.yaml, in the same objects.
fn everything() -> Result<(), String> {
    let names =
        ["serviceAccountTokens", "accessReviews", "namespaces", "authenticationReader", "endpointSlices"];
    let names = names.iter().chain(&["impersonate", "impersonateServiceAccounts"]);
    let values: Vec<String> = names.map(|name| format!("rbac.{name}=true")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).chain([USER]).collect();
    let chart: BTreeSet<String> = documents(&rendered_with(&values)?)?.iter().flat_map(grants).collect();
    let mut files = BTreeSet::new();
    for file in ["rbac.yaml", "rbac-impersonate.yaml"] {
        let content = fs::read_to_string(workspace_root().join("deploy").join(file)).unwrap();
        files.extend(documents(&content)?.iter().flat_map(grants));
    }
    if chart == files && files.len() > 20 {
        return Ok(());
    }
    let (more, fewer): (Vec<_>, Vec<_>) =
        (chart.difference(&files).collect(), files.difference(&chart).collect());
    Err(format!("more than the files: {more:#?}, fewer: {fewer:#?}"))
}

/// Each verb of each resource that a role grants, and what a binding binds to whom.
fn grants(object: &Value) -> Vec<String> {
    let place =
        format!("{}/{} in {}", object["kind"], object["metadata"]["name"], object["metadata"]["namespace"]);
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut grants = Vec::new();
    for rule in list(&object["rules"]) {
        for (group, resource) in list(&rule["apiGroups"]).iter().flat_map(|group| {
            list(&rule["resources"]).into_iter().map(move |resource| (group.clone(), resource))
        }) {
            let names = &rule["resourceNames"];
            let verbs = list(&rule["verbs"]);
            grants.extend(verbs.iter().map(|verb| format!("{place}: {verb} {group} {resource} {names}")));
        }
    }
    if object.get("roleRef").is_some() {
        grants.push(format!("{place}: {} to {}", object["roleRef"], object["subjects"]));
    }
    grants
}

/// With a management cluster the egress rules are the operator's, unless there is no policy.
fn egress() -> Result<(), String> {
    const MANAGEMENT: &str =
        r#"config.managementCluster={"kubeconfig": "m", "namespace": "n", "domain": "d.example.com"}"#;
    let policy = |last: &'static str| -> Result<Value, String> {
        let values = ["config.clusters=null", MANAGEMENT, last];
        let objects = documents(&rendered_with(&values)?)?;
        let policy = objects.into_iter().find(|object| object["kind"] == "NetworkPolicy");
        Ok(policy.map(|policy| policy["spec"]["egress"].clone()).unwrap_or_default())
    };
    let required = "networkPolicy.egress is required with config.managementCluster";
    for absent in ["networkPolicy.egress=null", "networkPolicy.enabled=true"] {
        match policy(absent) {
            Err(error) if error.contains(required) => {}
            other => return Err(format!("{absent}: {other:?}")),
        }
    }
    for (values, rules) in [
        (
            r#"networkPolicy.egress=[{"ports": [{"port": 6443}]}]"#,
            serde_json::json!([{"ports": [{"port": 6443}]}]),
        ),
        ("networkPolicy.egress=[]", serde_json::json!([])),
    ] {
        let given = policy(values)?;
        if given != rules {
            return Err(format!("other rules: {given}"));
        }
    }
    let none = policy("networkPolicy.enabled=false")?;
    if !none.is_null() {
        return Err(format!("a policy: {none}"));
    }
    // The operator chooses the addresses of other clusters.
    let default = documents(&rendered_with(&[])?)?;
    let default = default.iter().find(|object| object["kind"] == "NetworkPolicy").ok_or("no policy")?;
    let ports = serde_json::json!([
        {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
        {"ports": [{"port": 443, "protocol": "TCP"}, {"port": 6443, "protocol": "TCP"}]},
    ]);
    if default["spec"]["egress"] == ports { Ok(()) } else { Err(default["spec"]["egress"].to_string()) }
}

/// The containers of the chart and of the static pod have a limit, and the service of systemd has one.
fn memory() -> Result<(), String> {
    let read = |file: &str| fs::read_to_string(workspace_root().join("deploy").join(file)).unwrap();
    let mut pods = Vec::new();
    for values in value_files() {
        let objects = documents(&rendered(&values)?)?;
        let deployment = objects.into_iter().find(|object| object["kind"] == "Deployment");
        pods.push(deployment.ok_or("no Deployment")?["spec"]["template"]["spec"].clone());
    }
    for file in ["kustomize/base/gateway.yaml", "kustomize/sidecar/portcullis.yaml"] {
        for object in documents(&read(file))? {
            match text(&object["kind"]) {
                "Deployment" => pods.push(object["spec"]["template"]["spec"].clone()),
                "Pod" => pods.push(object["spec"].clone()),
                _ => {}
            }
        }
    }
    if pods.len() != value_files().len() + 2 {
        return Err(format!("{} pods", pods.len()));
    }
    for pod in &pods {
        let resources = &pod["containers"][0]["resources"];
        if !resources["limits"]["memory"].is_string() {
            return Err(format!("no limit: {resources}"));
        }
    }
    let unit = read("portcullis.service");
    if unit.lines().any(|line| line.starts_with("MemoryMax=")) {
        Ok(())
    } else {
        Err("no MemoryMax=".to_owned())
    }
}
