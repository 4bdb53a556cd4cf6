//! Each rule and binding of deploy/rbac*.yaml is necessary: with all of them a feature of the gateway works at a real API
//! server, and without any one of them it fails, with a message that an operator finds. The permissions that the chart derives
//! suffice, also if they are bounded by names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use testkit::go_tool::output_of;
use testkit::paths::workspace_root;
use testkit::real::{ServerProcess, free_ports};

use crate::chart::documents;
use crate::cluster::{Cluster, Running};
use crate::derived::rendered_with;
use crate::{PORTCULLIS, Test, pod_requests};

/// How long a feature may take to work or to fail: leases and watches are retried after seconds.
const PATIENCE: Duration = Duration::from_mins(1);

const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// A rule or a binding, the feature that needs it, and what is seen with and without it.
struct Row {
    /// The file, after `rbac`.
    file: &'static str,
    /// The object, `Kind/name`, with the namespace of a second one of this name.
    object: &'static str,
    /// The rule of a role; `None` removes the object, a binding.
    rule: Option<usize>,
    feature: Feature,
    /// In the response or the log with all permissions; not there without this one.
    works: &'static str,
    /// In the response or the log without this one.
    fails: &'static str,
}

/// What the test asks the gateway for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Feature {
    /// A request of a user with a certificate.
    Request,
    /// A token of a service account, by a key file.
    AccountToken,
    /// The same, by the API server's published keys.
    PublishedKeys,
    /// `Impersonate-User`.
    Impersonation,
    /// A write that an admission webhook with a namespaceSelector may concern.
    NamespaceSelector,
    /// The creation of a custom resource that a webhook sees in another version.
    Conversion,
    /// A bootstrap token.
    BootstrapToken,
    /// A certificate request that an administrator has approved.
    Signing,
    /// A certificate request of a kubelet.
    Approving,
    /// The cleaner of certificate requests.
    Cleaning,
    /// The CA of a serving certificate, as a `ClusterTrustBundle`.
    TrustBundles,
    /// An expired bootstrap token.
    TokenCleaning,
    /// The signature of cluster-info.
    ClusterInfo,
    /// A token in a secret.
    SecretToken,
    /// Forwarding by impersonation, of a user with extra values.
    Impersonating,
    /// The endpoints that the API servers publish.
    EndpointSlices,
    /// The certificate of a pod.
    PodSigning,
}

const fn row(
    file: &'static str,
    object: &'static str,
    rule: Option<usize>,
    feature: Feature,
    works: &'static str,
    fails: &'static str,
) -> Row {
    Row { file, object, rule, feature, works, fails }
}

/// A rule of `rbac-pod-certificates.yaml`, or its binding.
const fn pod_row(rule: Option<usize>, fails: &'static str) -> Row {
    let object = match rule {
        Some(_) => "ClusterRole/portcullis-podcertificaterequest-signing",
        None => "ClusterRoleBinding/portcullis-podcertificaterequest-signing",
    };
    row("-pod-certificates", object, rule, PodSigning, "certificate issued", fails)
}

use Feature::{
    AccountToken, Approving, BootstrapToken, Cleaning, ClusterInfo, Conversion, EndpointSlices,
    Impersonating, Impersonation, NamespaceSelector, PodSigning, PublishedKeys, SecretToken, Signing,
    TokenCleaning, TrustBundles,
};

const ACCOUNT: &str = "system:serviceaccount:default:app";
/// No API server of the test publishes its address.
const DISCOVERED: &str = "no endpoint was found";
const LEADS: &str = "acquired the lease";
const NOT_FOLLOWED: &str = "cannot follow pods";
const NO_LEASE: &str = "no lease for controllers";

static ROWS: [Row; 48] = [
    row("", "ClusterRole/portcullis", Some(0), AccountToken, ACCOUNT, "falling back to one GET per token"),
    row(
        "",
        "ClusterRole/portcullis",
        Some(1),
        Impersonation,
        "\"bob\"",
        "the gateway may not create subjectaccessreviews",
    ),
    row(
        "",
        "ClusterRole/portcullis",
        Some(2),
        NamespaceSelector,
        "201 Created",
        "the gateway cannot read the namespace",
    ),
    row(
        "",
        "ClusterRole/portcullis",
        Some(4),
        Conversion,
        "failed to call webhook",
        "the gateway cannot read its CustomResourceDefinition",
    ),
    row(
        "",
        "ClusterRoleBinding/portcullis",
        None,
        AccountToken,
        ACCOUNT,
        "falling back to one GET per token",
    ),
    row(
        "",
        "ClusterRoleBinding/portcullis-service-account-issuer-discovery",
        None,
        PublishedKeys,
        ACCOUNT,
        "cannot refresh the token signing keys",
    ),
    row(
        "",
        "RoleBinding/portcullis-authentication-reader",
        None,
        Feature::Request,
        "201 Created",
        "not permitted to read the names of the API server's identity headers",
    ),
    row(
        "-bootstrap-tokens",
        "Role/portcullis-bootstrap-tokens",
        Some(0),
        BootstrapToken,
        "system:bootstrap:abcdef",
        "cannot read secrets",
    ),
    row(
        "-bootstrap-tokens",
        "RoleBinding/portcullis-bootstrap-tokens",
        None,
        BootstrapToken,
        "system:bootstrap:abcdef",
        "cannot read secrets",
    ),
    row(
        "",
        "Role/portcullis-endpoints",
        Some(0),
        EndpointSlices,
        DISCOVERED,
        "verbs get, list and watch of endpointslices",
    ),
    row(
        "",
        "RoleBinding/portcullis-endpoints",
        None,
        EndpointSlices,
        DISCOVERED,
        "verbs get, list and watch of endpointslices",
    ),
    row(
        "-controllers",
        "ClusterRole/portcullis-csrsigning",
        Some(0),
        Signing,
        "certificate issued",
        "cannot watch",
    ),
    row(
        "-controllers",
        "ClusterRole/portcullis-csrsigning",
        Some(1),
        Signing,
        "certificate issued",
        "cannot update resource \\\"certificatesigningrequests/status\\\"",
    ),
    row(
        "-controllers",
        "ClusterRole/portcullis-csrsigning",
        Some(2),
        Signing,
        "certificate issued",
        "cannot sign",
    ),
    row(
        "-controllers",
        "ClusterRoleBinding/portcullis-csrsigning",
        None,
        Signing,
        "certificate issued",
        "cannot watch",
    ),
    row(
        "-controllers",
        "ClusterRole/portcullis-csrapproving",
        Some(0),
        Approving,
        "request approved",
        "cannot watch",
    ),
    row(
        "-controllers",
        "ClusterRole/portcullis-csrapproving",
        Some(1),
        Approving,
        "request approved",
        "cannot update resource \\\"certificatesigningrequests/approval\\\"",
    ),
    row(
        "-controllers",
        "ClusterRole/portcullis-csrapproving",
        Some(2),
        Approving,
        "request approved",
        "cannot approve",
    ),
    row(
        "-controllers",
        "ClusterRole/portcullis-csrapproving",
        Some(3),
        Approving,
        "request approved",
        "cannot create a SubjectAccessReview",
    ),
    row(
        "-controllers",
        "ClusterRoleBinding/portcullis-csrapproving",
        None,
        Approving,
        "request approved",
        "cannot watch",
    ),
    row("-controllers", "ClusterRole/portcullis-csrcleaner", Some(0), Cleaning, LEADS, "cannot list"),
    row("-controllers", "ClusterRoleBinding/portcullis-csrcleaner", None, Cleaning, LEADS, "cannot list"),
    row(
        "-controllers",
        "ClusterRole/portcullis-clustertrustbundle-publishing",
        Some(0),
        TrustBundles,
        "trust bundle created",
        "cannot watch",
    ),
    row(
        "-controllers",
        "ClusterRole/portcullis-clustertrustbundle-publishing",
        Some(1),
        TrustBundles,
        "trust bundle created",
        "cannot publish the trust bundle",
    ),
    row(
        "-controllers",
        "ClusterRoleBinding/portcullis-clustertrustbundle-publishing",
        None,
        TrustBundles,
        "trust bundle created",
        "cannot watch",
    ),
    row("-controllers", "Role/portcullis-leader-election", Some(0), Cleaning, LEADS, NO_LEASE),
    row("-controllers", "Role/portcullis-leader-election", Some(1), Cleaning, LEADS, NO_LEASE),
    row(
        "-controllers",
        "Role/portcullis-leader-election",
        Some(2),
        Cleaning,
        "became leader",
        "cannot publish the leader election event",
    ),
    row("-controllers", "RoleBinding/portcullis-leader-election", None, Cleaning, LEADS, NO_LEASE),
    row(
        "-bootstrap",
        "Role/portcullis-token-cleaner",
        Some(0),
        TokenCleaning,
        "token deleted",
        "cannot watch",
    ),
    row(
        "-bootstrap",
        "RoleBinding/portcullis-token-cleaner",
        None,
        TokenCleaning,
        "token deleted",
        "cannot watch",
    ),
    row(
        "-bootstrap",
        "Role/portcullis-bootstrap-signer",
        Some(0),
        ClusterInfo,
        "jws-kubeconfig",
        "cannot watch",
    ),
    row(
        "-bootstrap",
        "RoleBinding/portcullis-bootstrap-signer",
        None,
        ClusterInfo,
        "jws-kubeconfig",
        "cannot watch",
    ),
    row(
        "-bootstrap",
        "Role/portcullis-bootstrap-signer in kube-public",
        Some(0),
        ClusterInfo,
        "jws-kubeconfig",
        "cannot watch",
    ),
    row(
        "-bootstrap",
        "Role/portcullis-bootstrap-signer in kube-public",
        Some(1),
        ClusterInfo,
        "jws-kubeconfig",
        "cannot sign cluster-info",
    ),
    row(
        "-bootstrap",
        "RoleBinding/portcullis-bootstrap-signer in kube-public",
        None,
        ClusterInfo,
        "jws-kubeconfig",
        "cannot watch",
    ),
    pod_row(Some(0), "cannot watch"),
    pod_row(Some(1), "cannot update resource \\\"podcertificaterequests/status\\\""),
    pod_row(Some(2), "is not permitted to \\\"sign\\\" for signer"),
    pod_row(Some(3), "cannot read the objects of a request"),
    pod_row(Some(4), NOT_FOLLOWED),
    pod_row(None, "cannot watch"),
    row(
        "-secret-tokens",
        "ClusterRole/portcullis-secret-tokens",
        Some(0),
        SecretToken,
        ACCOUNT,
        "cannot read secrets",
    ),
    row(
        "-secret-tokens",
        "ClusterRole/portcullis-secret-tokens",
        Some(1),
        SecretToken,
        "legacy-token-last-used\":\"",
        "cannot label a service account's secret",
    ),
    row(
        "-secret-tokens",
        "ClusterRoleBinding/portcullis-secret-tokens",
        None,
        SecretToken,
        ACCOUNT,
        "cannot read secrets",
    ),
    row(
        "-impersonate",
        "ClusterRole/portcullis-impersonate",
        Some(0),
        Impersonating,
        "credential-id",
        "is not permitted to impersonate",
    ),
    row(
        "-impersonate",
        "ClusterRole/portcullis-impersonate",
        Some(1),
        Impersonating,
        "credential-id",
        "is not permitted to impersonate",
    ),
    row(
        "-impersonate",
        "ClusterRoleBinding/portcullis-impersonate",
        None,
        Impersonating,
        "credential-id",
        "is not permitted to impersonate",
    ),
];

/// The permissions are those of one user.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const FILES: [&str; 7] = [
    "",
    "-controllers",
    "-bootstrap",
    "-bootstrap-tokens",
    "-pod-certificates",
    "-secret-tokens",
    "-impersonate",
];

pub(crate) fn trials(trial: &impl Fn(&str, Test) -> Trial) -> Vec<Trial> {
    let mut trials = vec![
        trial("every_rule_and_binding_has_a_test", Box::new(|_| complete())),
        trial("the_chart_bounds_impersonation", Box::new(bounded)),
    ];
    trials.extend(ROWS.iter().map(|row| {
        let rule = row.rule.map(|rule| format!(" rule {rule}")).unwrap_or_default();
        trial(
            &format!("without {}{rule}: {}", row.object, row.fails),
            Box::new(|cluster| necessary(row, cluster)),
        )
    }));
    trials
}

/// The objects of a file, by the names of [`Row::object`].
fn objects(file: &str) -> Result<BTreeMap<String, Value>, String> {
    let path = workspace_root().join(format!("deploy/rbac{file}.yaml"));
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let named = documents(&text)?.into_iter().map(|object| {
        let part =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut name = format!("{}/{}", part("/kind"), part("/metadata/name"));
        if part("/metadata/namespace") == "kube-public" {
            name.push_str(" in kube-public");
        }
        (name, object)
    });
    Ok(named.collect())
}

/// What Kubernetes grants to all authenticated users, too, unless an administrator removes its `system:basic-user`: a
/// cluster that others use is not the place to do that. `tests/it` has a fake one.
const GRANTED_BY_DEFAULT: &str = "/portcullis-self-subject-reviews";

/// `APIService`s: without them, a write to a custom resource is refused for the moments between its creation and its publication. That
/// depends on time; `tests/it` has a fake API server that publishes nothing.
const OF_A_MOMENT: (&str, &str, Option<usize>) = ("", "ClusterRole/portcullis", Some(3));

fn complete() -> Result<(), String> {
    let mut missing = Vec::new();
    for file in FILES {
        for (name, object) in objects(file)? {
            if name.ends_with(GRANTED_BY_DEFAULT) {
                continue;
            }
            let rules = object["rules"].as_array().map(Vec::len);
            let parts: Vec<Option<usize>> =
                rules.map_or_else(|| vec![None], |rules| (0..rules).map(Some).collect());
            for rule in parts {
                if (file, &*name, rule) != OF_A_MOMENT
                    && !ROWS.iter().any(|row| row.file == file && row.object == name && row.rule == rule)
                {
                    missing.push(format!("rbac{file}.yaml: {name}, rule {rule:?}"));
                }
            }
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(format!("no test of {}", missing.join("\n"))) }
}

/// The objects that the feature needs: files, and the names in them, each with what it begins with.
fn needed(feature: Feature) -> &'static [(&'static str, &'static str)] {
    const READER: (&str, &str) = ("", "portcullis-authentication-reader");
    const LEASE: (&str, &str) = ("-controllers", "portcullis-leader-election");
    const OWN: (&str, &str) = ("", "portcullis");
    match feature {
        Feature::Request => &[READER],
        AccountToken | Impersonation | NamespaceSelector | Conversion => &[READER, OWN],
        PublishedKeys => &[READER, OWN, ("", "portcullis-service-account-issuer-discovery")],
        BootstrapToken => &[READER, ("-bootstrap-tokens", "portcullis-bootstrap-tokens")],
        Signing => &[READER, ("-controllers", "portcullis-csrsigning")],
        Approving => &[READER, ("-controllers", "portcullis-csrapproving")],
        Cleaning => &[READER, LEASE, ("-controllers", "portcullis-csrcleaner")],
        TrustBundles => &[READER, ("-controllers", "portcullis-clustertrustbundle-publishing")],
        TokenCleaning => &[READER, ("-bootstrap", "portcullis-token-cleaner")],
        ClusterInfo => &[READER, ("-bootstrap", "portcullis-bootstrap-signer")],
        SecretToken => &[READER, OWN, ("-secret-tokens", "portcullis-secret-tokens")],
        EndpointSlices => &[READER, ("", "portcullis-endpoints")],
        PodSigning => &[READER, ("-pod-certificates", "portcullis-podcertificaterequest-signing")],
        Impersonating => &[READER, OWN, ("-impersonate", "portcullis-impersonate")],
    }
}

/// The feature works with all permissions, and fails without the row's.
fn necessary(row: &Row, cluster: &Cluster) -> Result<(), String> {
    let _guard = ONE_AT_A_TIME.lock();
    let running = cluster.running()?;
    set_up(running)?;
    for (is_complete, expected, unexpected) in [(true, row.works, ""), (false, row.fails, row.works)] {
        grant(running, row, is_complete)?;
        let number = ROWS.iter().position(|other| std::ptr::eq(other, row)).unwrap_or_default();
        let name = format!("gateway-{number}-{is_complete}");
        let trial = Attempt::start(running, row.feature, &name)?;
        let evidence = trial.until(expected)?;
        // The cleaner also holds its lease when it may not list.
        let is_told_apart = row.works != LEADS || row.fails == NO_LEASE;
        // Certificates are issued while pods cannot be followed.
        let is_told_apart = is_told_apart && row.fails != NOT_FOLLOWED;
        if !unexpected.is_empty() && is_told_apart && evidence.contains(unexpected) {
            return Err(format!("it works without {} {:?}: {}", row.object, row.rule, tail(&evidence)));
        }
    }
    Ok(())
}

/// With the permissions that the chart derives, and names that bound them, the API server passes its self-check, users within the
/// bounds are forwarded, and others are refused by the API server.
fn bounded(cluster: &Cluster) -> Result<(), String> {
    let _guard = ONE_AT_A_TIME.lock();
    let running = cluster.running()?;
    set_up(running)?;
    revoke(running)?;
    let permissions = documents(&rendered_with(&[
        r#"rbac.subject="user""#,
        r#"config.clusters=[{"name": "a", "kubeconfig": "a", "identity": "impersonate"}]"#,
        r#"config.authentication={"serviceAccountIssuer": ["https://kubernetes.default.svc"],
            "serviceAccountKeyFile": ["sa.pub"]}"#,
        r#"rbac.impersonateUsers=["alice"]"#,
        r#"rbac.impersonateGroups=["system:serviceaccounts", "system:serviceaccounts:default"]"#,
        r#"rbac.impersonateExtraKeys=["authentication.kubernetes.io/credential-id"]"#,
    ])?)?;
    let permissions: Vec<String> = permissions
        .iter()
        .filter(|object| object["apiVersion"] == "rbac.authorization.k8s.io/v1")
        .map(ToString::to_string)
        .collect();
    running.apply("permissions", &permissions.join("\n---\n"), &[])?;
    let question = |group: &str| json!({"resourceAttributes": {"verb": "impersonate", "group": "", "resource": "groups", "name": group}});
    until_allowed(running, &question("system:serviceaccounts"), true)?;
    until_allowed(running, &question("system:masters"), false)?;
    let attempt = Attempt::start(running, Impersonating, "gateway-bounded")?;
    // A service account.
    attempt.until("credential-id")?;
    let alice = attempt.curl("selfsubjectreviews", &[], "alice");
    let admin = attempt.curl("selfsubjectreviews", &[], "admin");
    if !alice.contains("201 Created") || !alice.contains("\"alice\"") {
        return Err(format!("alice, who is listed: {alice}"));
    }
    if !admin.contains("403 Forbidden") || !admin.contains("cannot impersonate") {
        return Err(format!("admin, who is not listed: {admin}"));
    }
    Ok(())
}

/// Objects that the features use.
fn set_up(running: &Running) -> Result<(), String> {
    let token = |id: &str, more: &Value| {
        let mut data = json!({"token-id": id, "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true"});
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"}, "stringData": data})
    };
    let objects = [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "app", "namespace": "default"}}),
        token("abcdef", &json!({})),
        token("eeeeee", &json!({"expiration": "2020-01-01T00:00:00Z"})),
    ];
    let documents: Vec<String> = objects.iter().map(ToString::to_string).collect();
    running.apply("permissions-objects", &documents.join("\n---\n"), &[]).map(drop)
}

/// Takes all permissions away.
fn revoke(running: &Running) -> Result<(), String> {
    let kinds = "clusterrole,clusterrolebinding,role,rolebinding";
    for namespace in ["kube-system", "kube-public", "default"] {
        let own = running.kubectl(&["--namespace", namespace, "get", kinds, "--output=name"])?;
        let own: Vec<&str> = own.lines().filter(|name| name.contains("/portcullis")).collect();
        if !own.is_empty() {
            running.kubectl(&[&["--namespace", namespace, "delete"], &*own].concat())?;
        }
    }
    Ok(())
}

/// Grants the permissions of the feature, all or without the row's, and waits until the API server knows.
fn grant(running: &Running, row: &Row, is_complete: bool) -> Result<(), String> {
    revoke(running)?;
    let mut granted = Vec::new();
    for (file, name) in needed(row.feature) {
        for (object_name, mut object) in objects(file)? {
            if object["metadata"]["name"] != *name {
                continue;
            }
            if !is_complete && *file == row.file && object_name == row.object {
                match row.rule {
                    Some(rule) => drop(object["rules"].as_array_mut().unwrap().remove(rule)),
                    None => continue,
                }
            }
            granted.push(object.to_string());
        }
    }
    if !granted.is_empty() {
        running.apply("permissions", &granted.join("\n---\n"), &[])?;
    }
    until_allowed(running, &question(row)?, is_complete)
}

/// The first permission of the row's rule, or of the role that its binding grants.
fn question(row: &Row) -> Result<Value, String> {
    let own = objects(row.file)?;
    let object = own.get(row.object).ok_or_else(|| format!("no {}", row.object))?;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let role = object["roleRef"]["name"].as_str().unwrap_or_default();
    if role == "system:service-account-issuer-discovery" {
        return Ok(json!({"nonResourceAttributes": {"path": "/openid/v1/jwks", "verb": "get"}}));
    }
    let reader = json!({"rules": [{"apiGroups": [""], "resources": ["configmaps"],
        "resourceNames": ["extension-apiserver-authentication"], "verbs": ["get"]}]});
    let place = if namespace == "kube-public" { " in kube-public" } else { "" };
    let role = match object["roleRef"]["kind"].as_str() {
        None => object,
        Some(_) if role == "extension-apiserver-authentication-reader" => &reader,
        Some(kind) => own.get(&format!("{kind}/{role}{place}")).ok_or_else(|| format!("no role {role}"))?,
    };
    let rule = &role["rules"][row.rule.unwrap_or(0)];
    let first = |key: &str| rule[key][0].as_str().unwrap_or_default();
    let (resource, subresource) = first("resources").split_once('/').unwrap_or((first("resources"), ""));
    // `*` is for userextras/KEY.
    let (resource, subresource) =
        if resource == "*" { ("userextras", "key") } else { (resource, subresource) };
    Ok(
        json!({"resourceAttributes": {"namespace": namespace, "verb": first("verbs"), "group": first("apiGroups"),
        "resource": resource, "subresource": subresource, "name": first("resourceNames")}}),
    )
}

fn until_allowed(running: &Running, question: &Value, expected: bool) -> Result<(), String> {
    let mut spec = question.clone();
    spec["user"] = "system:portcullis".into();
    spec["groups"] = json!(["system:authenticated"]);
    let review =
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let file = running.dir.join("review.json");
    fs::write(&file, review.to_string()).unwrap();
    let (path, file) = ("/apis/authorization.k8s.io/v1/subjectaccessreviews", file.display().to_string());
    let started = Instant::now();
    loop {
        let answer = running.kubectl(&["create", "--raw", path, "-f", &file])?;
        let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
        if answer["status"]["allowed"] == expected {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(format!("allowed is not {expected}: {answer}"));
        }
    }
}

/// A running gateway and the requests of a feature.
struct Attempt<'a> {
    running: &'a Running,
    feature: Feature,
    process: Mutex<ServerProcess>,
    log: PathBuf,
    url: String,
}

impl<'a> Attempt<'a> {
    fn start(running: &'a Running, feature: Feature, name: &str) -> Result<Self, String> {
        let file = |name: &str| running.dir.join(name).display().to_string();
        // Leases of a killed gateway, and what an earlier attempt wrote.
        running.kubectl(&["--namespace=kube-system", "delete", "lease", "--all"])?;
        running.kubectl(&["--namespace=kube-system", "delete", "events", "--all"])?;
        running.kubectl(&["delete", "secret", "app-token", "--ignore-not-found"])?;
        running.kubectl(&["delete", "clustertrustbundles", "--all"])?;
        running.kubectl(&[
            "--namespace=kube-public",
            "delete",
            "configmap",
            "cluster-info",
            "--ignore-not-found",
        ])?;
        running.kubectl(&[
            "--namespace=kube-public",
            "create",
            "configmap",
            "cluster-info",
            "--from-literal=kubeconfig=x",
        ])?;
        let [port] = free_ports()?;
        let user = if feature == Impersonating { "own" } else { "front" };
        fs::write(running.dir.join("gateway.kubeconfig"), running.kubeconfig_of(user)).unwrap();
        let mut flags = vec![
            "serve".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            "--metrics-bind-address=0".to_owned(),
            "--workers=1".to_owned(),
            "-v=6".to_owned(),
            "--logging-format=json".to_owned(),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--client-ca-file={}", file("pki/ca.crt")),
            format!("--backend-kubeconfig={}", file("gateway.kubeconfig")),
        ];
        flags.extend(feature_flags(running, feature));
        let process = ServerProcess::start(&running.dir, name, Path::new(PORTCULLIS), &flags)?;
        let log = running.dir.join(format!("{name}.log"));
        let attempt = Self {
            running,
            feature,
            process: Mutex::new(process),
            log,
            url: format!("https://127.0.0.1:{port}"),
        };
        attempt.request_certificate(name)?;
        Ok(attempt)
    }

    /// Asks again until the text is in the log or in a response.
    fn until(&self, expected: &str) -> Result<String, String> {
        let started = Instant::now();
        loop {
            self.process.lock().unwrap().check()?;
            let evidence = self.ask()? + &fs::read_to_string(&self.log).unwrap_or_default();
            if evidence.contains(expected) {
                return Ok(evidence);
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("no {expected:?} in {}", tail(&evidence)));
            }
        }
    }

    /// The certificate request that the controllers are to sign or approve.
    fn request_certificate(&self, name: &str) -> Result<(), String> {
        let (signer, common_name, organization) = match self.feature {
            Signing => ("kubernetes.io/kube-apiserver-client", name.to_owned(), "testers"),
            PodSigning => return pod_requests::create(self.running, name),
            Approving => {
                ("kubernetes.io/kube-apiserver-client-kubelet", format!("system:node:{name}"), "system:nodes")
            }
            _ => return Ok(()),
        };
        let out = |extension: &str| self.running.dir.join(format!("{name}.{extension}"));
        let mut request = Command::new(PORTCULLIS);
        request.args(["certs", "request", "--timeout=1s", "--name", name, "--signer-name", signer]);
        request.args(["--common-name", &common_name, "--organization", organization]);
        request.arg("--kubeconfig").arg(self.running.dir.join("admin.kubeconfig"));
        request.arg("--out-cert").arg(out("out.crt")).arg("--out-key").arg(out("out.key"));
        // Ends with an error, since nothing is approved within a second.
        let error = output_of(&mut request);
        if self.feature == Signing {
            self.running
                .kubectl(&["certificate", "approve", name])
                .map_err(|text| format!("{text}\n{error:?}"))?;
        }
        Ok(())
    }

    /// A request of the feature, and its response.
    fn ask(&self) -> Result<String, String> {
        let kubectl = |arguments: &[&str]| self.running.kubectl(arguments);
        let token = match self.feature {
            AccountToken | PublishedKeys | Impersonating => kubectl(&["create", "token", "app"])?,
            BootstrapToken => "abcdef.0123456789abcdef".to_owned(),
            SecretToken => return self.secret_token(),
            ClusterInfo => {
                return kubectl(&[
                    "--namespace=kube-public",
                    "get",
                    "configmap",
                    "cluster-info",
                    "--output=yaml",
                ]);
            }
            Cleaning => return kubectl(&["--namespace=kube-system", "get", "events"]),
            _ => String::new(),
        };
        let header = format!("Authorization: Bearer {}", token.trim());
        Ok(match self.feature {
            Feature::Request => self.curl("selfsubjectreviews", &[], "alice"),
            Impersonation => self.curl("selfsubjectreviews", &["--header", "Impersonate-User: bob"], "admin"),
            NamespaceSelector => self.curl("configmaps", &[], "admin"),
            Conversion => {
                self.running.apply("things", THINGS, &[])?;
                self.curl("things", &[], "admin")
            }
            _ if token.is_empty() => String::new(),
            _ => self.curl("selfsubjectreviews", &["--header", &header], ""),
        })
    }

    /// Uses a token in a secret; returns the response and the labels of the secret.
    fn secret_token(&self) -> Result<String, String> {
        let kubectl = |arguments: &[&str]| self.running.kubectl(arguments);
        if kubectl(&["get", "secret", "app-token"]).is_err() {
            let account = kubectl(&["get", "serviceaccount", "app", "--output=jsonpath={.metadata.uid}"])?;
            let annotations = json!({"kubernetes.io/service-account.name": "app",
                "kubernetes.io/service-account.uid": account});
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
                "metadata": {"name": "app-token", "namespace": "default", "annotations": annotations},
                "stringData": {"token": self.running.legacy_token("app", &account, "app-token")}});
            self.running.apply("app-token", &secret.to_string(), &[])?;
        }
        let secret: Value =
            serde_json::from_str(&kubectl(&["get", "secret", "app-token", "--output=json"])?).unwrap();
        let token = BASE64_STANDARD.decode(secret["data"]["token"].as_str().unwrap()).unwrap();
        let header = format!("Authorization: Bearer {}", String::from_utf8(token).unwrap());
        let response = self.curl("selfsubjectreviews", &["--header", &header], "");
        Ok(format!("{response} {}", secret["metadata"]["labels"]))
    }

    /// Posts an object to the gateway; the response with its status line, empty without one.
    fn curl(&self, resource: &str, more: &[&str], user: &str) -> String {
        let (path, body) = match resource {
            "configmaps" => {
                ("/api/v1/namespaces/default/configmaps", r#"{"metadata":{"generateName":"made-"}}"#)
            }
            "things" => ("/apis/deploy.test/v1/namespaces/default/things", THING),
            _ => ("/apis/authentication.k8s.io/v1/selfsubjectreviews", REVIEW),
        };
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--insecure", "--http1.1", "--include", "--max-time", "20"]);
        curl.args(["--header", "Content-Type: application/json", "--data", body]).args(more);
        if !user.is_empty() {
            curl.arg("--cert").arg(self.running.dir.join(format!("{user}.crt")));
            curl.arg("--key").arg(self.running.dir.join(format!("{user}.key")));
        }
        output_of(curl.arg(format!("{}{path}", self.url))).unwrap_or_default()
    }
}

fn feature_flags(running: &Running, feature: Feature) -> Vec<String> {
    let file = |name: &str| running.dir.join(name).display().to_string();
    let issuer = "--service-account-issuer=https://kubernetes.default.svc".to_owned();
    let keys = format!("--service-account-key-file={}", file("sa.pub"));
    let controller =
        |name: &str, elect: bool| vec![format!("--controllers={name}"), format!("--leader-elect={elect}")];
    match feature {
        AccountToken | SecretToken => vec![issuer, keys],
        PublishedKeys => vec![issuer],
        Impersonating => vec![issuer, keys, "--identity=impersonate".to_owned()],
        BootstrapToken => vec!["--enable-bootstrap-token-auth".to_owned()],
        NamespaceSelector | Conversion => {
            fs::create_dir_all(running.dir.join("webhooks")).unwrap();
            fs::write(running.dir.join("webhooks/labels.yaml"), WEBHOOK).unwrap();
            fs::create_dir_all(running.dir.join("policies")).unwrap();
            fs::create_dir_all(running.dir.join("mutations")).unwrap();
            let config = include_str!("../../config/admission/admission.yaml")
                .replace("/etc/portcullis/admission/mutations", &file("mutations"))
                .replace("/etc/portcullis/admission/validating", &file("webhooks"))
                .replace("/etc/portcullis/admission/policies", &file("policies"));
            fs::write(running.dir.join("admission.yaml"), config).unwrap();
            vec![
                format!("--admission-control-config-file={}", file("admission.yaml")),
                "--admission-mode=pinnedDryRun".to_owned(),
            ]
        }
        Signing => [
            controller("csrsigning", false),
            vec![
                format!("--cluster-signing-cert-file={}", file("pki/ca.crt")),
                format!("--cluster-signing-key-file={}", file("pki/ca.key")),
            ],
        ]
        .concat(),
        Approving => controller("csrapproving", false),
        PodSigning => {
            let profiles = format!("--pod-signer-profiles={}", pod_requests::write_signer(running));
            [controller("podcertificaterequest-signing", false), vec![profiles]].concat()
        }
        Cleaning => controller("csrcleaner", true),
        TrustBundles => [
            controller("clustertrustbundle-publishing", false),
            vec![format!("--cluster-trust-bundle-serving-ca-file={}", file("pki/ca.crt"))],
        ]
        .concat(),
        TokenCleaning => controller("tokencleaner", false),
        ClusterInfo => controller("bootstrapsigner", false),
        EndpointSlices => vec!["--backend-endpoint-discovery=kubernetes".to_owned()],
        // By default the API server decides.
        Impersonation => vec!["--impersonation=gateway".to_owned()],
        Feature::Request => Vec::new(),
    }
}

/// A webhook for the namespaces with a label that `default` has not, and one for a version of a custom resource.
const WEBHOOK: &str = r#"{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
"metadata": {"name": "labels.static.k8s.io"}, "webhooks": [{"name": "labels.static.k8s.io", "admissionReviewVersions": ["v1"],
"sideEffects": "None", "clientConfig": {"url": "https://127.0.0.1:1/"}, "namespaceSelector": {"matchLabels": {"checked": "yes"}},
"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]},
{"name": "things.static.k8s.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
"clientConfig": {"url": "https://127.0.0.1:1/"},
"rules": [{"operations": ["CREATE"], "apiGroups": ["deploy.test"], "apiVersions": ["v2"], "resources": ["things"]}]}]}"#;

/// A custom resource of two versions, and an object of one of them.
const THINGS: &str = r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
"metadata": {"name": "things.deploy.test"}, "spec": {"group": "deploy.test", "scope": "Namespaced",
"names": {"plural": "things", "kind": "Thing"}, "versions": [
{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
{"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}"#;
const THING: &str = r#"{"apiVersion":"deploy.test/v1","kind":"Thing","metadata":{"generateName":"made-"}}"#;

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("\"level\":\"DEBUG\"")).collect();
    lines.iter().skip(lines.len().saturating_sub(12)).copied().collect::<Vec<_>>().join("\n")
}
