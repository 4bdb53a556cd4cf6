//! Kubernetes' own kubelet with kubemark's containers and mounts: its requests and the files of volumes are real (`tests/go/kubelet`).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{ServerProcess, eventually, free_ports, retry_on_collision};

/// A running kubelet.
pub struct Kubelet {
    /// A directory of its own choice.
    root: PathBuf,
    process: ServerProcess,
}

impl Kubelet {
    /// Starts the kubelet of a node with a kubeconfig and further flags, and waits until it has registered. Its log is
    /// `NAME.log` in the directory.
    ///
    /// # Errors
    /// It has ended, or does not register in time.
    pub async fn start(
        (dir, name): (&Path, &str),
        program: &Path,
        (node, config): (&str, &Path),
        more: &[&str],
    ) -> Result<Self, String> {
        retry_on_collision(async || {
            let [port] = free_ports()?;
            let mut arguments = vec![
                "--morph=kubelet".to_owned(),
                format!("--name={node}"),
                format!("--kubeconfig={}", config.display()),
                format!("--kubelet-port={port}"),
                "--kubelet-read-only-port=0".to_owned(),
                "--use-host-image-service=false".to_owned(),
            ];
            arguments.extend(more.iter().map(|flag| (*flag).to_owned()));
            let mut process = ServerProcess::start(dir, name, program, arguments)?;
            let mut root = None;
            let is_ready = eventually(name, async || {
                process.check()?;
                let log = fs::read_to_string(process.log()).map_err(|error| error.to_string())?;
                let after = log.split_once("] Using ").and_then(|(_, rest)| rest.split_once(" as root dir"));
                root = after.map(|(root, _)| PathBuf::from(root));
                Ok(root.is_some() && log.contains("Successfully registered node"))
            });
            is_ready.await.map_err(|error| format!("{error}\n{}", process.log_tail()))?;
            Ok(Self { root: root.clone().ok_or("no directory")?, process })
        })
        .await
    }

    /// A file of a projected volume of a pod, once the kubelet has written it.
    ///
    /// # Errors
    /// It is not written in time.
    pub async fn file(&mut self, pod: &Value, volume: &str, name: &str) -> Result<String, String> {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let end = format!("pods/{uid}/volumes/kubernetes.io~projected/{volume}/{name}");
        let mut content = None;
        let written = eventually(name, async || {
            self.process.check()?;
            content = fs::read_to_string(self.root.join(&end)).ok();
            Ok(content.is_some())
        });
        written.await.map_err(|error| format!("{error}\n{}", self.process.log_tail()))?;
        content.ok_or_else(|| format!("{name} is gone"))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).ok();
    }
}
