//! A real API server validates everything that the chart and the kustomizations render; unknown fields are errors.

use std::sync::Mutex;

use libtest_mimic::Trial;
use testkit::paths::workspace_root;

use crate::Test;
use crate::chart::{documents, rendered, value_files};
use crate::cluster::{Cluster, Running};

/// The kustomizations, each a directory.
const KUSTOMIZATIONS: [&str; 5] = ["permissions", "base", "ingress", "sidecar", "close-the-way"];

pub(crate) fn trials(trial: &impl Fn(&str, Test) -> Trial) -> Vec<Trial> {
    let mut trials: Vec<Trial> = value_files()
        .into_iter()
        .map(|file| {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let test: Test = Box::new(move |cluster| {
                let manifest = rendered(&file)?;
                let applied = prepared(cluster)?.apply(
                    &format!("chart-{}", file.file_stem().unwrap().display()),
                    &manifest,
                    &[],
                )?;
                counted(&applied, documents(&manifest)?.len())
            });
            trial(&format!("the_chart_with_{name}"), test)
        })
        .collect();
    for name in KUSTOMIZATIONS {
        trials.push(trial(&format!("kustomize_{name}"), Box::new(|cluster| kustomization(cluster, name))));
    }
    trials.push(trial("the_endpoints_of_the_sidecar", Box::new(endpoints)));
    trials.push(trial("the_management_cluster", Box::new(management)));
    trials.push(trial("an_unknown_field_is_an_error", Box::new(unknown_field)));
    trials
}

/// The API server with the custom resources and the namespace of the manifests.
pub(crate) fn prepared(cluster: &Cluster) -> Result<&Running, String> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let running = cluster.running()?;
    let _guard = ONE_AT_A_TIME.lock();
    running.apply("crds", include_str!("crds.yaml"), &[])?;
    running.kubectl(&["wait", "--for=condition=established", "--timeout=60s", "crd", "--all"])?;
    // The namespaces that kustomizations expect, and the account of static pods, which kube-controller-manager makes.
    let objects = "{apiVersion: v1, kind: Namespace, metadata: {name: gateway}}\n---\n\
                   {apiVersion: v1, kind: Namespace, metadata: {name: portcullis}}\n---\n\
                   {apiVersion: v1, kind: Namespace, metadata: {name: control-planes}}\n---\n\
                   {apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: kube-system}}";
    running.apply("namespaces", objects, &[])?;
    Ok(running)
}

/// Whether kubectl reports each object.
pub(crate) fn counted(applied: &str, objects: usize) -> Result<(), String> {
    let reported = applied.lines().filter(|line| line.contains("serverside-applied")).count();
    if reported == objects && objects > 0 { Ok(()) } else { Err(format!("{objects} objects: {applied}")) }
}

/// The tests above can fail.
fn unknown_field(cluster: &Cluster) -> Result<(), String> {
    let values = value_files();
    let manifest = rendered(&values[0])?.replace("readOnlyRootFilesystem:", "readOnlyRootFileSystem:");
    match prepared(cluster)?.apply("unknown-field", &manifest, &["--dry-run=server"]) {
        Err(error) if error.contains("readOnlyRootFileSystem") => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Builds a kustomization, and applies it.
fn kustomization(cluster: &Cluster, name: &str) -> Result<(), String> {
    let running = prepared(cluster)?;
    let manifest = kustomized(running, name)?;
    let applied = running.apply(&format!("kustomize-{name}"), &manifest, &[])?;
    counted(&applied, documents(&manifest)?.len())
}

/// What kustomize builds of a directory.
pub(crate) fn kustomized(running: &Running, name: &str) -> Result<String, String> {
    let dir = workspace_root().join("deploy/kustomize").join(name);
    running.kubectl(&["kustomize", &dir.display().to_string()])
}

/// The Service of the API server leads to the gateways, in the slice that the API server itself would write.
fn endpoints(cluster: &Cluster) -> Result<(), String> {
    let slice = include_str!("../../deploy/kustomize/sidecar/kubernetes-service.yaml");
    counted(&prepared(cluster)?.apply("kubernetes-service", slice, &[])?, 1)
}

/// The namespace of the Secrets that are clusters, the role and its binding.
fn management(cluster: &Cluster) -> Result<(), String> {
    let manifest = include_str!("../../deploy/management-cluster.yaml");
    counted(&prepared(cluster)?.apply("management-cluster", manifest, &[])?, 3)
}
