//! The configuration that takes effect: the settings of the gateway with the clusters that are served. Of a cluster whose
//! settings in the configuration are refused, those in force.

use std::sync::Arc;

use super::cluster_claims::decide_clusters;
use super::cluster_outcome::{ClusterOutcomes, RefusedCluster, UnbuildableClusters};
use crate::config::ConfigErrors;
use crate::config::flags::ServeFlags;
use crate::config::inputs::InputReader;
use crate::config::resolve::{ResolvedConfig, page_host_conflict, resolve, unknown_issuer_warning};
use crate::config::settings::Settings;

/// The configuration that takes effect.
#[derive(Debug)]
pub struct EffectiveConfig {
    /// The settings of the gateway, with all clusters that are served.
    pub settings: Settings,
    /// Warnings, which `check` prints and `serve` logs.
    pub warnings: Vec<String>,
    pub(super) separate: ClusterOutcomes,
}

impl EffectiveConfig {
    /// The configuration of a gateway that starts with these flags.
    pub fn load(flags: &ServeFlags) -> Result<Self, ConfigErrors> {
        Self::at_start(&resolve(flags, &mut InputReader::default())?)
    }

    /// The configuration of a gateway that starts, with nothing in force.
    pub fn at_start(config: &ResolvedConfig) -> Result<Self, ConfigErrors> {
        Self::decide(config, &ClusterOutcomes::default(), &UnbuildableClusters::default())
    }

    /// Decides which clusters of `config` are served, where those of `before` are in force.
    pub(super) fn decide(
        config: &ResolvedConfig,
        before: &ClusterOutcomes,
        unbuildable: &UnbuildableClusters,
    ) -> Result<Self, ConfigErrors> {
        let separate = decide_clusters(config, before, unbuildable)?;
        let ResolvedConfig { settings, warnings, .. } = config;
        let (mut settings, mut warnings) = (settings.clone(), warnings.clone());
        let served: Vec<_> = separate.served().map(|(_, resolved)| Arc::clone(&resolved.cluster)).collect();
        if let Some(error) = settings.page.as_ref().and_then(|page| page_host_conflict(page, &served)) {
            let mut errors = vec![error];
            config.locate(&mut errors);
            return Err(ConfigErrors(errors));
        }
        settings.clusters.extend(served);
        let page = settings.page.as_ref();
        warnings.extend(page.and_then(|page| unknown_issuer_warning(page, &settings.clusters)));
        Ok(Self { settings, warnings, separate })
    }

    /// The clusters whose settings in the configuration are refused.
    pub fn refused(&self) -> impl Iterator<Item = RefusedCluster<'_>> {
        self.separate.refused()
    }
}
