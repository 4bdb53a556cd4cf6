//! The OpenAPI documents that kube-apiserver publishes, as its sources have them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::paths;

/// The documents of the Kubernetes release of `tests/go/go.mod`.
#[derive(Debug)]
pub struct PublishedDocuments(PathBuf);

impl PublishedDocuments {
    /// Finds them with Go, which downloads them if they are not there.
    pub fn find() -> Self {
        let listed = Command::new("go")
            .args(["mod", "download", "-json", "k8s.io/kubernetes"])
            .current_dir(paths::go_module())
            .env("GOWORK", "off")
            .output()
            .unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        let module: Value = serde_json::from_slice(&listed.stdout).unwrap();
        Self(PathBuf::from(module["Dir"].as_str().unwrap()).join("api/openapi-spec/v3"))
    }

    /// The directory with all of them.
    pub fn directory(&self) -> &PathBuf {
        &self.0
    }

    /// The file of a document, by its path on the server without `/openapi/v3/`: `apis/apps/v1`.
    pub fn file(&self, path: &str) -> PathBuf {
        self.0.join(format!("{}_openapi.json", path.replace('/', "__")))
    }
}
