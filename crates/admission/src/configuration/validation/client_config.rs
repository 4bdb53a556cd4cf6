//! The `clientConfig` of a webhook.
//!
//! Follows `k8s.io/apiserver/pkg/util/webhook/validation.go`.

use portcullis_go::url::{Part, Url, unescape};
use portcullis_kubernetes::field::FieldError;
use portcullis_kubernetes::names::dns_subdomain_problems;

use super::Validator;
use crate::configuration::wire::{ClientConfig, ServiceReference};

const URL_FORM: &str = "; desired format: https://host[/path]";
const URL_FIX: &str = "give https://HOST[:PORT][/PATH]";
const DEFAULT_SERVICE_PORT: i32 = 443;

impl Validator<'_> {
    /// The URL; empty for a Service, which the rules of manifests refuse.
    pub(super) fn client_config(&mut self, config: &ClientConfig, field: &str) -> Option<String> {
        match (&config.url, &config.service) {
            (Some(url), None) => self.url(url, &format!("{field}.url")).then(|| url.clone()),
            (None, Some(service)) => {
                self.service(service, &format!("{field}.service"));
                Some(String::new())
            }
            _ => {
                let error = FieldError::required(field, "exactly one of url or service is required");
                self.fail(error.fix("give url, and no service"))
            }
        }
    }

    // ValidateWebhookURL
    fn url(&mut self, url: &str, field: &str) -> bool {
        let before = self.errors.len();
        let mut invalid = |value: &str, problem: &str| {
            self.errors.push(FieldError::invalid(field, value, problem).fix(URL_FIX));
        };
        match Url::parse(url) {
            Ok(url) => {
                if url.scheme != "https" {
                    let problem = format!("'https' is the only allowed URL scheme{URL_FORM}");
                    invalid(&url.scheme, &problem);
                }
                if url.host.is_empty() {
                    invalid("", &format!("host must be specified{URL_FORM}"));
                }
                if let Some(user) = &url.user {
                    invalid(user, "user information is not permitted in the URL");
                }
                if !url.fragment.is_empty() {
                    let fragment = unescape(&url.fragment, Part::Fragment).unwrap_or_default();
                    invalid(&fragment, "fragments are not permitted in the URL");
                }
                if let Some(query) = url.query.filter(|query| !query.is_empty()) {
                    invalid(&query, "query parameters are not permitted in the URL");
                }
            }
            Err(error) => {
                let problem = format!("url must be a valid URL: {error}{URL_FORM}");
                self.errors.push(FieldError::required(field, &problem).fix(URL_FIX));
            }
        }
        self.errors.len() == before
    }

    // ValidateWebhookService
    fn service(&mut self, service: &ServiceReference, field: &str) {
        let ServiceReference { namespace, name, path, port } = service;
        // As upstream, whose callers pass name and namespace in the other order.
        for (field_name, value) in [("name", namespace), ("namespace", name)] {
            if value.is_empty() {
                let error = FieldError::required(format!("{field}.{field_name}"), "");
                self.errors.push(error.fix("give name and namespace of the Service"));
            }
        }
        let port = port.unwrap_or(DEFAULT_SERVICE_PORT);
        if !(1..=65535).contains(&port) {
            let problem = "port is not valid: must be between 1 and 65535, inclusive";
            let error = FieldError::invalid_json(format!("{field}.port"), &port.to_string(), problem);
            self.errors.push(error.fix("give a port from 1 to 65535"));
        }
        if let Some(path) = path {
            self.service_path(path, &format!("{field}.path"));
        }
    }

    fn service_path(&mut self, path: &str, field: &str) {
        let mut invalid = |problem: &str| {
            self.errors.push(FieldError::invalid(field, path, problem).fix("give a path such as /validate"));
        };
        match path {
            "" | "/" => return,
            "//" => return invalid("segment[0] may not be empty"),
            path if !path.starts_with('/') => invalid("must start with a '/'"),
            _ => {}
        }
        // As upstream: the first byte is left out also if it is no slash.
        let rest = path.as_bytes().get(1..).unwrap_or_default();
        let rest = String::from_utf8_lossy(rest.strip_suffix(b"/").unwrap_or(rest));
        for (index, segment) in rest.split('/').enumerate() {
            if segment.is_empty() {
                invalid(&format!("segment[{index}] may not be empty"));
                continue;
            }
            for problem in dns_subdomain_problems(segment) {
                invalid(&format!("segment[{index}]: {problem}"));
            }
        }
    }
}
