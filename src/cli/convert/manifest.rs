//! The kube-apiserver of a static pod's manifest: its flags, and where its files are on the node.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume};
use portcullis_kubernetes::yaml;
use serde_json::Value;

use super::expansion::Environment;
use crate::config::ConfigError;

/// The key of errors.
const KEY: &str = "manifest";
const PROGRAM: &str = "kube-apiserver";
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "zsh"];
const ANOTHER: &str = "give that of a control-plane node, such as /etc/kubernetes/manifests/kube-apiserver.yaml; or \
                       `kubectl get pod --namespace kube-system NAME --output yaml`";

/// The kube-apiserver of a manifest.
#[derive(Debug)]
pub(super) struct ApiServerContainer {
    /// The container and its pod, for people.
    pub(super) description: String,
    /// The flags, with the values of variables.
    pub(super) flags: Vec<String>,
    /// Each variable in a flag with a value that only the node knows, and the source of the value.
    pub(super) unknown: BTreeSet<(String, String)>,
    mounts: Vec<Mount>,
}

/// A mounted volume.
#[derive(Debug)]
struct Mount {
    path: String,
    /// The path on the node; or the kind of a volume that has none.
    source: Result<String, &'static str>,
}

/// Where a file of a container is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileLocation {
    /// At this path of the node.
    Node(String),
    /// In a volume of this kind.
    Volume(&'static str),
    /// In the container's image.
    Image,
}

impl ApiServerContainer {
    /// Reads a manifest. `chosen` is the name of the container, if there are several.
    pub(super) fn read(text: &[u8], file: &Path, chosen: Option<&str>) -> Result<Self, ConfigError> {
        let bad = |problem: String, fix: &str| ConfigError::new(KEY, problem).in_file(file).fix(fix);
        let pod = pod(text).map_err(|problem| bad(problem, ANOTHER))?;
        let spec = pod.spec.unwrap_or_default();
        let container = container(&spec, chosen).map_err(|(problem, fix)| bad(problem, &fix))?;
        let environment = Environment::of(container);
        let mut unknown = BTreeSet::new();
        let mut expand = |word: &String| {
            let expanded = environment.expand(word);
            unknown.extend(expanded.unknown);
            expanded.text
        };
        let flags = flags_of(container).map_err(|(problem, fix)| bad(problem, &fix))?;
        let flags = flags.into_iter().map(&mut expand).collect();
        let name = pod.metadata.name.unwrap_or_default();
        let namespace = pod.metadata.namespace.unwrap_or_else(|| "default".to_owned());
        let description = format!("container {} of pod {namespace}/{name}", container.name);
        Ok(Self { description, flags, unknown, mounts: mounts(&spec, container) })
    }

    /// Where a file of the container is: the innermost mount decides.
    pub(super) fn locate(&self, path: &str) -> FileLocation {
        let below = |mount: &Mount| {
            let rest = path.strip_prefix(mount.path.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
        };
        let found = self.mounts.iter().filter_map(|mount| Some((mount, below(mount)?)));
        match found.max_by_key(|(mount, _)| mount.path.len()) {
            Some((Mount { source: Ok(host), .. }, rest)) => {
                FileLocation::Node(format!("{}{rest}", host.trim_end_matches('/')))
            }
            Some((Mount { source: Err(kind), .. }, _)) => FileLocation::Volume(kind),
            None => FileLocation::Image,
        }
    }
}

/// The pod of a manifest, or why it has none.
fn pod(text: &[u8]) -> Result<Pod, String> {
    let value = yaml::value(text)?;
    if !value.is_object() {
        return Err("is not the manifest of a Pod: it is not a map".to_owned());
    }
    match value.get("kind").and_then(Value::as_str) {
        Some("Pod") => {}
        Some(kind) => return Err(format!("is the manifest of a {kind}, not of a Pod")),
        None => return Err("is not the manifest of a Pod: it has no kind".to_owned()),
    }
    serde_json::from_value(value).map_err(|error| format!("is not the manifest of a Pod: {error}"))
}

/// The container that runs kube-apiserver; or the problem, and the fix.
fn container<'a>(spec: &'a PodSpec, chosen: Option<&str>) -> Result<&'a Container, (String, String)> {
    let names = |containers: &[&Container]| {
        containers.iter().map(|container| container.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let all: Vec<&Container> = spec.containers.iter().collect();
    if let Some(chosen) = chosen {
        let found = all.iter().find(|container| container.name == chosen);
        return found.copied().ok_or_else(|| {
            (format!("has no container {chosen:?}"), format!("give one of {} by --container", names(&all)))
        });
    }
    let running: Vec<&Container> =
        all.iter().copied().filter(|container| runs_apiserver(container)).collect();
    match running.as_slice() {
        [one] => Ok(one),
        [] if all.is_empty() => Err(("has no containers".to_owned(), ANOTHER.to_owned())),
        [] => {
            let problem = format!("has no container that runs {PROGRAM}; its containers are {}", names(&all));
            Err((problem, ANOTHER.to_owned()))
        }
        several => {
            let problem = format!("has several containers that run {PROGRAM}: {}", names(several));
            Err((problem, "choose one by --container".to_owned()))
        }
    }
}

/// The words of a container's command.
fn words(container: &Container) -> impl Iterator<Item = &String> {
    container.command.iter().flatten().chain(container.args.iter().flatten())
}

fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Whether the first word is a shell, which has its command in one word.
fn is_shell(container: &Container) -> bool {
    words(container).next().is_some_and(|word| SHELLS.contains(&file_name(word)))
}

fn runs_apiserver(container: &Container) -> bool {
    let names_program = words(container).any(|word| file_name(word) == PROGRAM);
    let in_script = is_shell(container) && words(container).any(|word| word.contains(PROGRAM));
    let by_image = container.command.is_none() && container.name == PROGRAM;
    names_program || in_script || by_image
}

/// The words behind the name of the program, before which a wrapper such as go-runner may stand; all words if the image
/// has the name.
fn flags_of(container: &Container) -> Result<Vec<&String>, (String, String)> {
    let words: Vec<&String> = words(container).collect();
    let program = words.iter().position(|word| file_name(word) == PROGRAM);
    if is_shell(container) {
        let problem = format!("container {} runs {PROGRAM} by a shell script", container.name);
        let fix = "give the flags in place of the manifest: portcullis convert -- --FLAG=VALUE …";
        return Err((problem, fix.to_owned()));
    }
    match program {
        Some(program) => Ok(words.into_iter().skip(program + 1).collect()),
        None if words.first().is_none_or(|word| word.starts_with('-')) => Ok(words),
        None => {
            let problem = format!("container {} does not run {PROGRAM}", container.name);
            Err((problem, "choose another one by --container".to_owned()))
        }
    }
}

fn mounts(spec: &PodSpec, container: &Container) -> Vec<Mount> {
    let volumes: Vec<&Volume> = spec.volumes.iter().flatten().collect();
    let mounts = container.volume_mounts.iter().flatten().map(|mount| {
        let volume = volumes.iter().find(|volume| volume.name == mount.name);
        let host = volume.and_then(|volume| volume.host_path.as_ref());
        let source = match (host, &mount.sub_path, &mount.sub_path_expr) {
            (Some(host), None, None) => Ok(host.path.clone()),
            (Some(host), Some(below), None) => Ok(format!("{}/{below}", host.path.trim_end_matches('/'))),
            (Some(_), _, Some(_)) => Err("hostPath with subPathExpr"),
            (None, _, _) => Err(volume.map_or("unknown", |volume| volume_kind(volume))),
        };
        Mount { path: mount.mount_path.clone(), source }
    });
    mounts.collect()
}

fn volume_kind(volume: &Volume) -> &'static str {
    if volume.config_map.is_some() {
        "configMap"
    } else if volume.secret.is_some() {
        "secret"
    } else if volume.projected.is_some() {
        "projected"
    } else if volume.empty_dir.is_some() {
        "emptyDir"
    } else {
        "other"
    }
}
