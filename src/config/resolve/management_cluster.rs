//! Resolves the management cluster, and the clusters of its Secrets.

use std::sync::Arc;

use portcullis_http::identity::IdentityMode;
use portcullis_kubernetes::names::{is_dns_label, is_dns_subdomain};
use portcullis_kubernetes::yaml::KeyLines;
use serde_json::{Map, Value, json};

use super::ConfigResolver;
use super::clusters::checked_prefix;
use super::separate_clusters::ENVELOPE;
use crate::backend::settings::AddressPolicy;
use crate::config::error::ConfigError;
use crate::config::file::{FileSections, document};
use crate::config::inputs::{CredentialUser, InputReader};
use crate::config::kubeconfig;
use crate::config::management_cluster::{ManagementClusterKeys, ManagementSettings, directory};
use crate::config::sections::MergedSection;

/// The key of the cluster's document in a Secret.
const DOCUMENT: &str = "cluster";
/// The keys of the kubeconfig: our own, and that of Cluster API.
// cluster-api: util/secret/consts.go, KubeconfigDataName
const KUBECONFIGS: [&str; 2] = ["kubeconfig", "value"];
/// The keys of the document, beside `apiVersion` and `kind`.
const KEYS: [&str; 4] = ["authentication", "context", "endpoints", "identity"];
/// The keys of its authentication. Others name programs, URLs that the gateway calls, or files with paths in them.
const AUTHENTICATION_KEYS: [&str; 9] = [
    "anonymousAuth",
    "clientCAFile",
    "requestheaderAllowedNames",
    "requestheaderClientCAFile",
    "requestheaderExtraHeadersPrefix",
    "requestheaderGroupHeaders",
    "requestheaderUIDHeaders",
    "requestheaderUsernameHeaders",
    "tokenAuthFile",
];

impl ConfigResolver<'_> {
    /// The management cluster, if there is one.
    pub(super) fn management_cluster(
        &mut self,
        file: Option<&MergedSection<FileSections>>,
    ) -> Option<Arc<ManagementSettings>> {
        let file = file?;
        let keys = file.values.management_cluster.as_ref()?;
        let given = self.section::<ManagementClusterKeys>([Some(file.below("managementCluster", keys))])?;
        let ManagementClusterKeys {
            kubeconfig,
            namespace,
            label_selector,
            domain,
            path_prefix,
            allow_local_addresses,
        } = &given.values;
        let required = |name: &str| ConfigError::new(given.key(name), "is required");
        let namespace = match namespace {
            Some(namespace) if is_dns_label(namespace) => Some(namespace.clone()),
            Some(_) => self.fail(
                ConfigError::new(given.key("namespace"), "is not a DNS label")
                    .fix("give the name of a namespace"),
            ),
            None => self.fail(required("namespace").fix("give the namespace of the Secrets")),
        };
        if domain.as_deref().is_some_and(|domain| !is_dns_subdomain(domain)) {
            let error = ConfigError::new(given.key("domain"), "is not a DNS name");
            self.errors.push(error.fix("give a name such as clusters.example.com"));
        }
        if let Some(Err((problem, fix))) = path_prefix.as_deref().map(checked_prefix) {
            self.errors.push(ConfigError::new(given.key("path-prefix"), problem).fix(fix));
        }
        if domain.is_none() && path_prefix.is_none() {
            let error = ConfigError::new(given.key("domain"), "is required without pathPrefix");
            self.errors
                .push(error.fix("give domain, pathPrefix or both, under which the clusters are served"));
        }
        if label_selector.trim().is_empty() {
            let error =
                ConfigError::new(given.key("label-selector"), "is empty, and would select every Secret");
            self.errors.push(error.fix("give a label that only the Secrets of clusters have"));
        }
        let Some(kubeconfig) = kubeconfig else {
            return self.fail(required("kubeconfig").fix("give a kubeconfig for the management cluster"));
        };
        let place = given.place("kubeconfig");
        let (mode, path) = (IdentityMode::Impersonate, place.path(kubeconfig));
        self.inputs.set_credential_user(Some(CredentialUser::ManagementCluster));
        let backend = kubeconfig::load(&place.key, &path, None, &[], mode, self.inputs, &mut self.errors);
        self.inputs.set_credential_user(None);
        let backend = backend?;
        Some(Arc::new(ManagementSettings {
            backend,
            namespace: namespace?,
            label_selector: label_selector.clone(),
            domain: domain.as_ref().map(|domain| domain.to_lowercase()),
            path_prefix: path_prefix.clone(),
            addresses: if *allow_local_addresses { AddressPolicy::Any } else { AddressPolicy::NoLocal },
            store: Arc::clone(self.inputs.secrets()),
            read_scope: self.inputs.read_scope(),
        }))
    }
}

/// The keys of the cluster of a Secret, as an entry of `clusters` would have them, with their lines, or the error. Reads
/// optional keys of the Secret, too: one that appears later is a change.
// threat: secret-takes-route
pub(super) fn secret_cluster(
    management: &ManagementSettings,
    name: &str,
    inputs: &mut InputReader,
) -> Result<(Map<String, Value>, KeyLines), ConfigError> {
    let wrong = |key: &str, problem: String| ConfigError::new(key, problem);
    if !is_dns_label(name) {
        let error = wrong("metadata.name", format!("{name:?} is not a DNS label, and cannot name a cluster"));
        return Err(error.fix("give the Secret a name of at most 63 of a-z, 0-9 and -"));
    }
    let home = directory(name);
    let mut has = |key: &str| inputs.read(&home.join(key)).is_ok();
    let has_document = has(DOCUMENT);
    let [own, other] = KUBECONFIGS.map(|key| has(key).then_some(key));
    let Some(kubeconfig) = own.or(other) else {
        let error = wrong("data", "has no kubeconfig".to_owned());
        return Err(error.fix("give the kubeconfig of the cluster in the key kubeconfig or value"));
    };
    let (mut keys, lines) = if has_document {
        document("managementCluster", &home.join(DOCUMENT), ENVELOPE, inputs)?
    } else {
        Default::default()
    };
    let authentication = keys.get("authentication").and_then(Value::as_object);
    let inner = authentication.into_iter().flatten().map(|(key, _)| key);
    let unknown = keys.keys().find(|key| !KEYS.contains(&key.as_str())).cloned();
    let unknown = unknown.or_else(|| {
        let mut inner = inner.filter(|key| !AUTHENTICATION_KEYS.contains(&key.as_str()));
        inner.next().map(|key| format!("authentication.{key}"))
    });
    if let Some(key) = unknown {
        let error = wrong(&key, "cannot be set by a Secret".to_owned());
        return Err(error.fix("remove it; the operator of the gateway can set it for every cluster"));
    }
    let mut routes = Map::new();
    if let Some(domain) = &management.domain {
        routes.insert("serverNames".to_owned(), json!([format!("{name}.{domain}")]));
    }
    if let Some(prefix) = &management.path_prefix {
        routes.insert("pathPrefix".to_owned(), json!(format!("{prefix}/{name}")));
    }
    keys.insert("name".to_owned(), json!(name));
    keys.insert("match".to_owned(), Value::Object(routes));
    keys.insert("kubeconfig".to_owned(), json!(kubeconfig));
    Ok((keys, lines))
}
