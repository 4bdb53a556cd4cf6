//! A real API server validates everything that the chart and the kustomizations render; unknown fields are errors.

use std::sync::Mutex;

use libtest_mimic::Trial;

use crate::Test;
use crate::chart::{documents, rendered, value_files};
use crate::cluster::{Cluster, Running};

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
    let namespaces = "{apiVersion: v1, kind: Namespace, metadata: {name: gateway}}";
    running.apply("namespaces", namespaces, &[])?;
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
