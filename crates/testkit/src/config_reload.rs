//! Reloads: replacing files, and waiting for a generation of the configuration.

use std::path::Path;
use std::time::Duration;

use crate::gateway::Gateway;
use crate::waiting::in_time;

/// Replaces a file atomically.
pub fn replace(file: &Path, content: impl AsRef<[u8]>) {
    let new = file.with_extension("new");
    std::fs::write(&new, content).unwrap();
    std::fs::rename(new, file).unwrap();
}

impl Gateway {
    /// The generation in use.
    pub async fn generation(&self) -> u64 {
        let metrics = self.metrics("/metrics").await;
        let line = metrics.lines().find_map(|line| line.strip_prefix("portcullis_config_generation "));
        line.unwrap().parse().unwrap()
    }

    /// Waits for a later generation.
    pub async fn reloaded(&self, before: u64) {
        in_time(async {
            while self.generation().await <= before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}
