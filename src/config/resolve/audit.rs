//! Resolves the audit of a cluster: its policy, and the backends that store events. The rules between flags and their
//! error texts are kube-apiserver's.
//!
//! Follows `k8s.io/apiserver/pkg/server/options/audit.go`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use portcullis_audit::policy::{Policy, PolicyError};
use portcullis_audit::sink::{
    BatchOptions, Format, LogOptions, Mode, RotationOptions, STANDARD_OUTPUT, ThrottleOptions,
    TruncateOptions, WebhookOptions,
};
use portcullis_go::quote::Quoted;
use portcullis_http::client_tls::PlainHttp;
use portcullis_kubernetes::yaml;

use super::ConfigResolver;
use crate::audit::settings::{AuditSettings, WebhookSettings};
use crate::config::error::ConfigError;
use crate::config::flags::AuditFlags;
use crate::config::kubeconfig::{WebhookServer, load_remote};
use crate::config::sections::{KeyLocation, MergedSection};

const POLICY: &str = "audit-policy-file";
const LOG: &str = "audit-log-path";
const WEBHOOK: &str = "audit-webhook-config-file";
const VERSION: &str = "audit.k8s.io/v1";

/// The options of a backend as given.
struct GivenBackend<'a> {
    /// `log` or `webhook`, as in flags and errors.
    name: &'static str,
    mode: &'a str,
    version: &'a str,
    buffer_size: usize,
    max_size: usize,
    max_wait: &'a str,
    throttle: Option<ThrottleOptions>,
    truncate: TruncateOptions,
    truncates: bool,
}

impl GivenBackend<'_> {
    fn key(&self, given: &MergedSection<AuditFlags>, flag: &str) -> String {
        given.key(&format!("audit-{}-{flag}", self.name))
    }
}

impl ConfigResolver<'_> {
    /// The audit; `None` if nothing is audited. Leaves out invalid parts; `self.errors` has the errors, and the
    /// configuration then fails as a whole.
    pub(super) fn audit(&mut self, given: &MergedSection<AuditFlags>) -> Option<Arc<AuditSettings>> {
        let before = self.errors.len();
        let flags = &given.values;
        let log = flags.audit_log_path.as_deref().and_then(|path| self.audit_log(given, path));
        let webhook = flags.audit_webhook_config_file.as_deref();
        let webhook = webhook.and_then(|file| self.audit_webhook(given, file));
        let policy = match &flags.audit_policy_file {
            Some(file) => self.audit_policy(&given.place(POLICY), file),
            None => None,
        };
        if self.errors.len() > before {
            return None;
        }
        let has_backend = log.is_some() || webhook.is_some();
        if policy.is_none() && has_backend {
            let flag = if log.is_some() { LOG } else { WEBHOOK };
            self.warn_of_no_effect(given, flag, POLICY);
        } else if policy.is_some() && !has_backend {
            self.warn_of_no_effect(given, POLICY, LOG);
        }
        Some(Arc::new(AuditSettings { policy: policy.filter(|_| has_backend)?, log, webhook }))
    }

    // pkg/audit/policy/reader.go, LoadPolicyFromFile
    fn audit_policy(&mut self, place: &KeyLocation, file: &Path) -> Option<Policy> {
        let file = &place.path(file);
        let text = self.read(&place.key, file)?;
        let document = yaml::parse(&text).map_err(|problem| {
            let error = ConfigError::new(&place.key, format!("failed decoding: {problem}"));
            error.in_file(file).fix("give one YAML document; indent by spaces, write each key once")
        });
        let document = self.ok(document)?;
        match Policy::parse(&document.value) {
            Ok((policy, warning)) => {
                let warning = warning.map(|warning| format!("{}: {}: {warning}", place.key, file.display()));
                self.warnings.extend(warning);
                Some(policy)
            }
            Err(PolicyError::Undecodable(problem, fix)) => {
                self.fail(ConfigError::new(&place.key, problem).in_file(file).fix(fix))
            }
            Err(PolicyError::Fields(errors)) => {
                self.errors.extend(errors.iter().map(|error| {
                    let fix = format!("line {}: {}", document.lines.of(&error.field), error.fix);
                    ConfigError::new(&place.key, error.to_string()).in_file(file).fix(fix)
                }));
                None
            }
        }
    }

    // AuditLogOptions.Validate
    fn audit_log(&mut self, given: &MergedSection<AuditFlags>, path: &Path) -> Option<LogOptions> {
        let flags = &given.values;
        let backend = GivenBackend {
            name: "log",
            mode: &flags.audit_log_mode,
            version: &flags.audit_log_version,
            buffer_size: flags.audit_log_batch_buffer_size,
            max_size: flags.audit_log_batch_max_size,
            max_wait: &flags.audit_log_batch_max_wait,
            throttle: flags.audit_log_batch_throttle_enable.then_some(ThrottleOptions {
                qps: flags.audit_log_batch_throttle_qps,
                burst: flags.audit_log_batch_throttle_burst,
            }),
            truncate: TruncateOptions {
                max_event_size: flags.audit_log_truncate_max_event_size,
                max_batch_size: flags.audit_log_truncate_max_batch_size,
            },
            truncates: flags.audit_log_truncate_enabled,
        };
        let format = Format::ALL.into_iter().find(|format| format.as_str() == flags.audit_log_format);
        if format.is_none() {
            let names = Format::ALL.map(Format::as_str).join(",");
            let problem = format!(
                "invalid audit log format {}, allowed formats are {}",
                flags.audit_log_format,
                Quoted(&names)
            );
            let key = backend.key(given, "format");
            self.errors.push(ConfigError::new(key, problem).fix("give json or legacy"));
        }
        let common = self.audit_backend(given, &backend);
        let (mode, batch, truncate) = common?;
        let path =
            if path == Path::new(STANDARD_OUTPUT) { path.to_owned() } else { given.place(LOG).path(path) };
        Some(LogOptions {
            path,
            format: format?,
            mode,
            batch,
            truncate,
            rotation: RotationOptions {
                max_size: flags.audit_log_maxsize,
                max_age: flags.audit_log_maxage,
                max_backups: flags.audit_log_maxbackup,
                compress: flags.audit_log_compress,
            },
        })
    }

    // WebhookSettingsOptions.Validate
    fn audit_webhook(&mut self, given: &MergedSection<AuditFlags>, file: &Path) -> Option<WebhookSettings> {
        let flags = &given.values;
        let backend = GivenBackend {
            name: "webhook",
            mode: &flags.audit_webhook_mode,
            version: &flags.audit_webhook_version,
            buffer_size: flags.audit_webhook_batch_buffer_size,
            max_size: flags.audit_webhook_batch_max_size,
            max_wait: &flags.audit_webhook_batch_max_wait,
            throttle: flags.audit_webhook_batch_throttle_enable.then_some(ThrottleOptions {
                qps: flags.audit_webhook_batch_throttle_qps,
                burst: flags.audit_webhook_batch_throttle_burst,
            }),
            truncate: TruncateOptions {
                max_event_size: flags.audit_webhook_truncate_max_event_size,
                max_batch_size: flags.audit_webhook_truncate_max_batch_size,
            },
            truncates: flags.audit_webhook_truncate_enabled,
        };
        let common = self.audit_backend(given, &backend);
        let backoff = backend.key(given, "initial-backoff");
        let initial_backoff = self.duration(&backoff, &flags.audit_webhook_initial_backoff);
        let place = given.place(WEBHOOK);
        let file = place.path(file);
        let server = load_remote(&place.key, &file, PlainHttp::ToLoopback, self.inputs, &mut self.errors);
        let (mode, batch, truncate) = common?;
        let WebhookServer { url, tls, bearer_token } = server?;
        // The file is the webhook's identity: its buffer outlives a new address or credential.
        let name = file.display().to_string();
        let options = WebhookOptions { name, mode, batch, truncate, initial_backoff: initial_backoff? };
        Some(WebhookSettings { options, url, tls, bearer_token })
    }

    // validateBackendBatchOptions, AuditTruncateOptions.Validate
    fn audit_backend(
        &mut self,
        given: &MergedSection<AuditFlags>,
        backend: &GivenBackend<'_>,
    ) -> Option<(Mode, BatchOptions, Option<TruncateOptions>)> {
        let before = self.errors.len();
        let name = backend.name;
        let mode = Mode::ALL.into_iter().find(|mode| mode.as_str() == backend.mode);
        if mode.is_none() {
            let names = Mode::ALL.map(Mode::as_str);
            let problem = format!(
                "invalid audit {name} mode {}, allowed modes are {}",
                backend.mode,
                Quoted(&names.join(","))
            );
            let error = ConfigError::new(backend.key(given, "mode"), problem);
            self.errors.push(error.fix(format!("give {}", names.join(" or "))));
        }
        if mode == Some(Mode::Batch) {
            self.audit_batch(given, backend);
        }
        let max_wait = self.duration(&backend.key(given, "batch-max-wait"), backend.max_wait);
        let TruncateOptions { max_event_size, max_batch_size } = backend.truncate;
        if max_event_size == 0 {
            let problem = format!(
                "invalid audit truncate {name} max event size {max_event_size}, must be a positive number"
            );
            let error = ConfigError::new(backend.key(given, "truncate-max-event-size"), problem);
            self.errors.push(error.fix("give 102400"));
        } else if max_batch_size < max_event_size {
            let problem = format!(
                "invalid audit truncate {name} max batch size {max_batch_size}, must be greater than max event size \
                 ({max_event_size})"
            );
            let error = ConfigError::new(backend.key(given, "truncate-max-batch-size"), problem);
            self.errors.push(error.fix("give a larger batch size"));
        }
        if backend.version != VERSION {
            let problem = format!("invalid group version, allowed versions are [{}]", Quoted(VERSION));
            let error = ConfigError::new(backend.key(given, "version"), problem);
            self.errors.push(error.fix(format!("give {VERSION}")));
        }
        if self.errors.len() > before {
            return None;
        }
        let throttle = backend.throttle.filter(|_| mode == Some(Mode::Batch));
        let batch = BatchOptions {
            buffer_size: backend.buffer_size,
            max_size: backend.max_size,
            max_wait: max_wait.unwrap_or(Duration::ZERO),
            throttle,
        };
        Some((mode?, batch, backend.truncates.then_some(backend.truncate)))
    }

    fn audit_batch(&mut self, given: &MergedSection<AuditFlags>, backend: &GivenBackend<'_>) {
        let name = backend.name;
        let mut positive = |flag: &str, what: &str, value: String, is_positive: bool| {
            if !is_positive {
                let problem = format!("invalid audit batch {name} {what} {value}, must be a positive number");
                let error = ConfigError::new(backend.key(given, flag), problem);
                self.errors.push(error.fix("give a positive number"));
            }
        };
        let GivenBackend { buffer_size, max_size, throttle, .. } = *backend;
        positive("batch-buffer-size", "buffer size", buffer_size.to_string(), buffer_size > 0);
        positive("batch-max-size", "max batch size", max_size.to_string(), max_size > 0);
        if let Some(ThrottleOptions { qps, burst }) = throttle {
            positive("batch-throttle-qps", "throttle QPS", qps.to_string(), qps > 0.0);
            positive("batch-throttle-burst", "throttle burst", burst.to_string(), burst > 0);
        }
    }
}
