//! The chart: helm's own checks, its schema, and the copies that it has of other files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use regex::Regex;
use serde_json::Value;
use testkit::go_tool::output_of;
use testkit::paths::workspace_root;
use testkit::pki::Ca;
use testkit::real::certificate_kubeconfig;

use crate::{HELM, PORTCULLIS, Test};

pub(crate) const CHART: &str = "deploy/chart/portcullis";

/// The version of Kubernetes of the test servers.
pub(crate) const KUBE_VERSION: &str = "--kube-version=1.37.2";

/// The keys of the configuration that the chart sets.
const OWN_KEYS: [&str; 8] = [
    "bindAddress",
    "securePort",
    "permitPortSharing",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "metricsBindAddress",
    "shutdownDelayDuration",
    "shutdownGracePeriod",
];

pub(crate) fn trials(trial: &impl Fn(&str, Test) -> Trial) -> Vec<Trial> {
    let mut trials: Vec<Trial> = value_files()
        .into_iter()
        .flat_map(|file| {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let (linted, checked) = (file.clone(), file);
            [
                trial(&format!("helm_lints_{name}"), Box::new(move |_| lint(&linted))),
                trial(
                    &format!("the_gateway_accepts_the_configuration_of_{name}"),
                    Box::new(move |_| check(&checked)),
                ),
            ]
        })
        .collect();
    trials.extend(REFUSED.iter().map(|(name, values, expected)| {
        trial(&format!("refused_{name}"), Box::new(|_| refused(values, expected)))
    }));
    trials.push(trial("copies_equal_their_sources", Box::new(|_| copies())));
    trials.push(trial("the_base_of_kustomize_is_rendered_by_the_chart", Box::new(|_| base())));
    trials.push(trial("configuration_of_the_kustomization_is_accepted", Box::new(|_| check_ingress())));
    trials.push(trial("the_schema_has_the_keys_of_the_configuration", Box::new(|_| schema_keys())));
    trials.push(trial("the_page_has_a_port", Box::new(|_| page_port())));
    trials.push(trial("the_shutdown_fits_the_grace_period_of_the_pod", Box::new(|_| grace_period())));
    trials
}

/// Values on the command line of helm that the schema refuses, and a part of its error.
const REFUSED: [(&str, &[&str], &str); 9] = [
    ("without_an_image", &["tls.secretName=t"], "image/repository"),
    ("without_a_certificate", &["image.repository=r"], "tls/secretName"),
    ("an_unknown_value", &["image.repository=r", "tls.secretName=t", "replica=3"], "'replica' not allowed"),
    (
        "an_unknown_key_of_the_configuration",
        &["image.repository=r", "tls.secretName=t", "config.limits.maxRequestInflight=3"],
        "'maxRequestInflight' not allowed",
    ),
    (
        "a_key_that_the_chart_sets",
        &["image.repository=r", "tls.secretName=t", "config.serving.securePort=8443"],
        "'securePort' not allowed",
    ),
    ("no_cluster", &["image.repository=r", "tls.secretName=t", "config.clusters=null"], "clusters"),
    (
        "a_file_of_two_sources",
        &[
            "image.repository=r",
            "tls.secretName=t",
            "files[0].name=a",
            "files[0].secret=s",
            "files[0].configMap=c",
        ],
        "files/0",
    ),
    (
        "an_unknown_word_for_a_permission",
        &["image.repository=r", "tls.secretName=t", "rbac.impersonate=yes"],
        "rbac/impersonate",
    ),
    (
        "a_pattern_of_extra_keys",
        &["image.repository=r", "tls.secretName=t", "rbac.impersonateExtraKeys[0]=*"],
        "rbac/impersonateExtraKeys/0",
    ),
];

pub(crate) fn value_files() -> Vec<PathBuf> {
    let files = fs::read_dir(workspace_root().join(CHART).join("ci")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// What helm renders with a file of values.
pub(crate) fn rendered(values: &Path) -> Result<String, String> {
    let values = values.display().to_string();
    HELM.run(["template", "gateway", CHART, "--namespace=gateway", KUBE_VERSION, "--values", &values])
}

/// The documents of a manifest.
pub(crate) fn documents(manifest: &str) -> Result<Vec<Value>, String> {
    serde_saphyr::from_multiple::<Value>(manifest)
        .map(|documents| documents.into_iter().filter(|document| !document.is_null()).collect())
        .map_err(|error| format!("{error}\n{manifest}"))
}

fn lint(values: &Path) -> Result<(), String> {
    HELM.run(["lint", "--strict", CHART, KUBE_VERSION, "--values", &values.display().to_string()]).map(drop)
}

fn refused(values: &[&str], expected: &str) -> Result<(), String> {
    let set = values.iter().flat_map(|value| ["--set", value]);
    match HELM.run(["template", CHART, KUBE_VERSION].into_iter().chain(set)) {
        Ok(_) => Err("helm accepts it".to_owned()),
        Err(error) if error.contains(expected) => Ok(()),
        Err(error) => Err(format!("no {expected} in: {error}")),
    }
}

/// The port of the page is that of its address, in the pods, the Service and the `NetworkPolicy`.
fn page_port() -> Result<(), String> {
    let values = ["image.repository=r", "tls.secretName=t", "config.page.bindAddress=0.0.0.0:8444"];
    refused(&values, "config.page.cookieKeyFile is required with several replicas")?;
    let key = "config.page.cookieKeyFile=../files/page/cookie.key";
    let set = values.iter().chain([&key]).flat_map(|value| ["--set", value]);
    let manifest = HELM.run(["template", CHART, KUBE_VERSION].into_iter().chain(set))?;
    for part in [
        "{name: page, containerPort: 8444}",
        "{name: page, port: 8444, targetPort: page, appProtocol: https}",
        "{port: page, protocol: TCP}",
        "bindAddress: 0.0.0.0:8444",
    ] {
        if !manifest.contains(part) {
            return Err(format!("no {part} in:\n{manifest}"));
        }
    }
    Ok(())
}

/// The objects of the base are those of the chart, without the labels that belong to helm.
fn base() -> Result<(), String> {
    let dir = workspace_root().join("deploy/kustomize/base");
    let values = dir.join("values.yaml").display().to_string();
    let chart = HELM.run(["template", "portcullis", CHART, KUBE_VERSION, "--values", &values])?;
    let of_helm = ["# Source:", "helm.sh/chart:", "app.kubernetes.io/managed-by:", "namespace: default"];
    let lines = chart.lines().filter(|line| !of_helm.iter().any(|text| line.trim_start().starts_with(text)));
    let wanted = "# Rendered by the chart, see values.yaml: change it there.\n".to_owned()
        + &lines.collect::<Vec<_>>().join("\n")
        + "\n";
    let file = dir.join("gateway.yaml");
    if fs::read_to_string(&file).unwrap_or_default() == wanted {
        return Ok(());
    }
    if std::env::var_os("UPDATE_DOCS").is_none() {
        return Err(format!("{} is not what the chart renders; write it with UPDATE_DOCS=1", file.display()));
    }
    fs::write(&file, wanted).map_err(|error| error.to_string())
}

/// The gateway accepts the configuration of the ingress.
fn check_ingress() -> Result<(), String> {
    accepted(&fs::read_to_string(workspace_root().join("deploy/kustomize/ingress/gateway.yaml")).unwrap())
}

/// Puts the rendered configuration where the pod has it, with files for its mounts, and checks it with the gateway.
fn check(values: &Path) -> Result<(), String> {
    let objects = documents(&rendered(values)?)?;
    let config = objects.iter().find(|object| object["kind"] == "ConfigMap").ok_or("no ConfigMap")?;
    accepted(config["data"]["gateway.yaml"].as_str().ok_or("no gateway.yaml")?)
}

fn accepted(config: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let place = |path: &str| dir.path().join(path);
    for path in ["config", "tls", "files/clients", "files/clusters"].into_iter().chain([
        "files/prod",
        "files/backend",
        "files/staging",
        "files/management",
    ]) {
        fs::create_dir_all(place(path)).unwrap();
    }
    let (servers, clients, front) = (Ca::new("servers"), Ca::new("clients"), Ca::new("front"));
    for (name, issued) in
        [("tls/tls", servers.server(&["gateway"])), ("front", front.leaf().cn("front").issue())]
    {
        fs::write(place(&format!("{name}.crt")), issued.cert_pem()).unwrap();
        fs::write(place(&format!("{name}.key")), issued.key_pem()).unwrap();
    }
    fs::write(place("files/clients/ca.crt"), clients.cert_pem()).unwrap();
    fs::write(place("servers-ca.crt"), servers.cert_pem()).unwrap();
    let kubeconfig = certificate_kubeconfig(([127, 0, 0, 1], 6443).into(), &place("servers-ca.crt"), "front");
    for cluster in ["prod", "backend", "staging", "management"] {
        fs::write(place(&format!("files/{cluster}/kubeconfig")), &kubeconfig).unwrap();
    }
    // The pod's own credential exists only in a pod.
    let config = config.replace("identity: impersonate", "kubeconfig: ../files/prod/kubeconfig");
    fs::write(place("config/gateway.yaml"), &config).unwrap();
    let mut check = Command::new(PORTCULLIS);
    let printed =
        output_of(check.args(["check", "--output=json", "--config"]).arg(place("config/gateway.yaml")))
            .map_err(|error| format!("{error}\n{config}"))?;
    if printed.contains("9094") { Ok(()) } else { Err(format!("no metrics address in {printed}")) }
}

/// The chart's files, and the kustomization's, are copies; with `UPDATE_DOCS=1` they are written.
fn copies() -> Result<(), String> {
    let root = workspace_root();
    let mut pairs = Vec::new();
    for entry in fs::read_dir(root.join("deploy")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with("rbac") {
            // The chart's own template has the rules of these two, as far as they are needed (`derived`).
            if name != "rbac.yaml" && name != "rbac-impersonate.yaml" {
                pairs.push((format!("deploy/{name}"), format!("{CHART}/files/{name}")));
            }
            pairs.push((format!("deploy/{name}"), format!("deploy/kustomize/permissions/{name}")));
        }
    }
    if pairs.len() < 10 {
        return Err(format!("the permissions were not found: {pairs:?}"));
    }
    pairs.push(("deploy/monitoring/alerts.yaml".to_owned(), format!("{CHART}/files/alerts.yaml")));
    pairs.push(("deploy/ingress-values.yaml".to_owned(), format!("{CHART}/ci/ingress-values.yaml")));
    let mut different = Vec::new();
    for (source, copy) in pairs {
        let source_text = fs::read_to_string(root.join(&source)).unwrap();
        if fs::read_to_string(root.join(&copy)).unwrap_or_default() != source_text {
            if std::env::var_os("UPDATE_DOCS").is_some() {
                fs::write(root.join(&copy), source_text).unwrap();
            } else {
                different.push(format!("{copy} is not {source}; write it with UPDATE_DOCS=1"));
            }
        }
    }
    if different.is_empty() { Ok(()) } else { Err(different.join("\n")) }
}

/// The keys of docs/configuration.md, which is written from the flags, and the keys of the schema.
fn schema_keys() -> Result<(), String> {
    let file = workspace_root().join(CHART).join("values.schema.json");
    let mut schema: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let page = fs::read_to_string(workspace_root().join("docs/configuration.md")).unwrap();
    let documented = |section: &str| -> BTreeSet<String> {
        let heading = Regex::new(&format!(r"(?m)^##+ `{}`$", regex::escape(section))).unwrap();
        let Some(found) = heading.find(&page) else { return BTreeSet::new() };
        let rest = page.get(found.end()..).unwrap_or_default();
        let rows = rest.lines().take_while(|line| !line.starts_with("##"));
        let keys =
            rows.filter_map(|row| row.strip_prefix("| `")?.split_once('`')).map(|(key, _)| key.to_owned());
        keys.filter(|key| section == "page" || !OWN_KEYS.contains(&key.as_str())).collect()
    };
    let config = "/properties/config/properties";
    let cluster = format!("{config}/clusters/items/properties");
    let mut places: Vec<(String, BTreeSet<String>)> = Vec::new();
    for section in ["serving", "operation", "page", "managementCluster"] {
        places.push((format!("{config}/{section}/properties"), documented(section)));
    }
    let per_cluster =
        ["authentication", "authorization", "admission", "audit", "limits", "controllerManager"];
    for section in per_cluster {
        places.push((format!("{config}/{section}/properties"), documented(section)));
        places.push((format!("{cluster}/{section}/properties"), documented(section)));
    }
    places.push((format!("{cluster}/match/properties"), documented("clusters[].match")));
    let mut keys = documented("clusters[]");
    keys.extend(per_cluster.map(str::to_owned));
    keys.insert("match".to_owned());
    places.push((cluster, keys));
    let mut wrong = Vec::new();
    for (place, keys) in places {
        let properties = schema.pointer_mut(&place).and_then(Value::as_object_mut).ok_or(place.clone())?;
        if keys.is_empty() {
            return Err(format!("{place}: the page has no keys"));
        }
        if properties.keys().cloned().collect::<BTreeSet<_>>() != keys {
            wrong.push(format!("{place}: {:?} is not {keys:?}", properties.keys()));
            properties.retain(|key, _| keys.contains(key));
            for key in keys {
                properties.entry(key).or_insert_with(|| serde_json::json!({}));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = serde_json::to_string_pretty(&schema).unwrap();
        fs::write(&file, format!("{text}\n")).unwrap();
        return Ok(());
    }
    Err(format!("write the schema with UPDATE_DOCS=1:\n{}", wrong.join("\n")))
}

/// The shutdown takes at most the delay, the grace period and four seconds (docs/operations.md).
fn grace_period() -> Result<(), String> {
    for values in value_files() {
        let objects = documents(&rendered(&values)?)?;
        let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind);
        let pod = &of_kind("Deployment").ok_or("no Deployment")?["spec"]["template"]["spec"];
        let config = of_kind("ConfigMap").ok_or("no ConfigMap")?["data"]["gateway.yaml"].as_str().unwrap();
        let config = &documents(config)?[0]["operation"];
        let seconds = |key: &str| config[key].as_str()?.strip_suffix('s')?.parse::<u64>().ok();
        let (delay, grace) =
            (seconds("shutdownDelayDuration").unwrap(), seconds("shutdownGracePeriod").unwrap());
        let given = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
        if delay == 0 || given < delay + grace + 4 {
            return Err(format!("{}: {delay} s and {grace} s in {given} s", values.display()));
        }
    }
    Ok(())
}
