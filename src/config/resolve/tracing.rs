//! Resolves `--tracing-config-file`, with kube-apiserver's file format and rules.
// component-base: tracing/api/v1/{types,config}.go

use serde::{Deserialize, Serialize};

use super::ConfigResolver;
use crate::config::apiserver_config::decode::decode;
use crate::config::apiserver_config::{ALL_VERSIONS, ConfigKind};
use crate::config::error::ConfigError;
use crate::config::flags::OperationFlags;
use crate::config::sections::MergedSection;
use crate::traces::TracingSettings;

/// The default of OTLP over gRPC.
const DEFAULT_ENDPOINT: &str = "localhost:4317";
const MAX_RATE: i32 = 1_000_000;

/// The wire type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TracingConfiguration {
    api_version: String,
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i32>,
}

impl ConfigKind for TracingConfiguration {
    const KIND: &'static str = "TracingConfiguration";
    const API_VERSIONS: &'static [&'static str] = ALL_VERSIONS;
    const EMPTY_IS_DEFAULT: bool = false;
}

impl ConfigResolver<'_> {
    /// The settings of traces; `None` also after an error, which prevents the start anyway.
    pub(super) fn tracing(&mut self, given: &MergedSection<OperationFlags>) -> Option<TracingSettings> {
        let place = given.place("tracing-config-file");
        let file = &place.path(given.values.tracing_config_file.as_deref()?);
        let text = self.read(&place.key, file)?;
        let decoded = decode::<TracingConfiguration>(&text).map_err(|error| {
            let problem = format!("failed to read tracing config: {}", error.problem);
            ConfigError::new(&place.key, problem).in_file(file).fix(error.fix)
        });
        let (configuration, _) = self.ok(decoded)?;
        let mut bad = |problem: String, fix: &str| {
            self.errors.push(ConfigError::new(&place.key, problem).in_file(file).fix(fix));
        };
        let rate = configuration.sampling_rate_per_million.unwrap_or_default();
        if !(0..=MAX_RATE).contains(&rate) {
            let problem =
                format!("samplingRatePerMillion: Invalid value: {rate}: it is not within 0 and one million");
            bad(problem, "give 10000 for one request of a hundred");
        }
        let endpoint = configuration.endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let Some(endpoint) = host_and_port(&endpoint) else {
            bad(
                format!("endpoint: Invalid value: {endpoint:?}"),
                "give HOST:PORT or dns:///HOST:PORT of the collector",
            );
            return None;
        };
        Some(TracingSettings { endpoint, rate_per_million: rate.unsigned_abs() })
    }
}

/// The collector's address: sockets of UNIX and other DNS servers, which gRPC for Go knows, are not supported.
fn host_and_port(endpoint: &str) -> Option<String> {
    let address = endpoint.strip_prefix("dns:///").unwrap_or(endpoint);
    let (host, port) = address.rsplit_once(':')?;
    let is_host = !host.is_empty() && !host.contains(['/', ' ', '@']);
    (is_host && port.parse::<u16>().is_ok()).then(|| address.to_owned())
}
