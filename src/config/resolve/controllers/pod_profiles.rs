//! Resolves the signers of a `PodSignerProfiles` file, for the certificates of pods. Compiles their expressions, so that
//! a mistake is found when the configuration is loaded and not by a pod.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_cel::{Expression, ResultType};
use portcullis_kubernetes::yaml::KeyLines;
use portcullis_pki::issuance::pod::{
    MAX_LIFETIME, MIN_LIFETIME, PodCertificateProfile, PodIdentityMode, PodKeyType,
};
use portcullis_pki::issuance::profile::SignerName;
use portcullis_pki::issuance::usage::CertificateUsage;

use super::authority::AuthorityFiles;
use super::pod_records::{ReadRecords, RecordsOfAuthorities};
use crate::config::cluster_authorities::SigningCa;
use crate::config::error::{ConfigError, FilePosition};
use crate::config::file::FileEnvelope;
use crate::config::flags::{ControllerFlags, PodRuleKeys, PodSignerKeys};
use crate::config::resolve::ConfigResolver;
use crate::config::sections::{KeyLocation, MergedSection};
use crate::controllers::pod_certificates::rules::ENVIRONMENT;
use crate::controllers::settings::{PodRule, PodSignerRules, PodSignerSettings};

pub(super) const FLAG: &str = "pod-signer-profiles";
const PROFILES: FileEnvelope = [("apiVersion", "portcullis.dev/v1alpha1"), ("kind", "PodSignerProfiles")];
const NO_DOMAIN: &str = "give a name with a domain before it, such as example.com/purpose";

/// A signer as far as its keys are valid.
struct ReadPodSigner {
    name: Option<SignerName>,
    profile: Option<PodCertificateProfile>,
    rules: PodSignerRules,
    files: Option<AuthorityFiles>,
    /// The file of further trust anchors.
    anchors: Option<(KeyLocation, PathBuf)>,
    records: Option<ReadRecords>,
    usages_key: String,
}

impl ConfigResolver<'_> {
    /// The signers and their CAs. Errors go to `self.errors`, each with its line in the file.
    pub(super) fn pod_signers(
        &mut self,
        given: &MergedSection<ControllerFlags>,
    ) -> (Vec<PodSignerSettings>, Vec<SigningCa>) {
        let (mut signers, mut authorities) = (Vec::new(), Vec::new());
        let Some(file) = &given.values.pod_signer_profiles else { return (signers, authorities) };
        let place = given.place(FLAG);
        let file = place.path(file);
        let first = self.errors.len();
        let Some((read, lines)) = self.read_pod_signers(&place.key, &file) else {
            return (signers, authorities);
        };
        let errors = self.errors.len();
        let mut of_authorities = RecordsOfAuthorities::default();
        for ReadPodSigner { name, profile, rules, files, anchors, records, usages_key } in read {
            let Some(files) = files else { continue };
            let Some((authority, digest)) = self.authority(&files) else { continue };
            let names_accounts = profile.as_ref().is_some_and(|profile| profile.identity.is_some());
            let mut signing = SigningCa::of_pods(files.certificate(), &authority, names_accounts);
            signing.is_at(FilePosition { line: lines.of(&signing.key), file: file.clone() });
            authorities.push(signing);
            let anchors = anchors.and_then(|(place, file)| self.trust_anchors(&place, &file));
            let (Some(name), Some(profile)) = (name, profile) else { continue };
            if rules.rules.is_empty() {
                let name = name.as_str();
                self.warnings
                    .push(format!("{name} has no rules: each pod of the cluster gets a certificate"));
            }
            if let Err(limit) = authority.is_fit_for_pods(&profile) {
                let error = ConfigError::new(&usages_key, format!("{}: {limit}", name.as_str()));
                self.errors.push(error.fix(
                    "give this signer a CA certificate for these usages, or one without extended key usages",
                ));
                continue;
            }
            let anchors = anchors.unwrap_or_default();
            let records = self.checked_records(records, &authority, &name, &mut of_authorities);
            signers.push(PodSignerSettings { name, profile, rules, authority, digest, anchors, records });
        }
        self.sort_by_line([first, errors], &lines, &file);
        (signers, authorities)
    }

    /// The signers that a file lists, and the line of each key. Errors have their lines.
    fn read_pod_signers(&mut self, key: &str, file: &Path) -> Option<(Vec<ReadPodSigner>, KeyLines)> {
        let keys = "give signerName, certFile, keyFile, usages";
        self.signers_of(key, file, (PROFILES, keys), Self::pod_signer)
    }

    fn pod_signer(
        &mut self,
        given: &MergedSection<PodSignerKeys>,
        names: &mut BTreeSet<String>,
    ) -> ReadPodSigner {
        let keys = &given.values;
        let name = self.signer_name(given.key("signer-name"), keys.signer_name.as_deref(), names);
        let files = self.authority_files(given, (keys.cert_file.as_ref(), keys.key_file.as_ref()));
        let (usages, key_types) = (self.pod_usages(given), self.pod_key_types(given));
        let max_duration = self.pod_duration(given);
        let errors = self.errors.len();
        let identity = self.pod_identity(given);
        let is_identity_valid = self.errors.len() == errors;
        let profile = usages.zip(key_types).zip(max_duration).filter(|_| is_identity_valid);
        let profile = profile.map(|((usages, key_types), max_duration)| PodCertificateProfile {
            usages,
            key_types,
            max_duration,
            identity,
        });
        let rules = self.pod_rules(given);
        let anchors = keys.trust_anchors_file.clone().map(|file| (given.place("trust-anchors-file"), file));
        let records = self.pod_records(given);
        ReadPodSigner { name, profile, rules, files, anchors, records, usages_key: given.key("usages") }
    }

    /// Whether the certificates are those of service accounts. They then have no other names, and are for clients alone.
    fn pod_identity(&mut self, given: &MergedSection<PodSignerKeys>) -> Option<PodIdentityMode> {
        let keys = &given.values;
        let key = given.key("pod-identity");
        let text = keys.pod_identity.as_deref()?;
        let names = [
            ("common-name", &keys.common_name),
            ("organizations", &keys.organizations),
            ("dns-names", &keys.dns_names),
            ("uris", &keys.uris),
        ];
        for (flag, _) in names.into_iter().filter(|(_, expression)| expression.is_some()) {
            let problem = format!("must not be given with {key}, which sets all names of a certificate");
            self.errors.push(ConfigError::new(given.key(flag), problem).fix("remove it, or podIdentity"));
        }
        let usages = &keys.usages;
        if !usages.iter().any(|usage| usage == CertificateUsage::ClientAuth.word()) {
            let problem = format!("has no client auth, which {key} is for");
            self.errors.push(
                ConfigError::new(given.key("usages"), problem).fix("give digital signature and client auth"),
            );
        }
        let parsed = text.parse::<PodIdentityMode>();
        self.ok(parsed
            .map_err(|error| ConfigError::new(key, error.to_string()).fix("give Critical, or NonCritical")))
    }

    fn pod_usages(&mut self, given: &MergedSection<PodSignerKeys>) -> Option<BTreeSet<CertificateUsage>> {
        let key = given.key("usages");
        let errors = self.errors.len();
        let usages = self.usages(given, "usages", &given.values.usages);
        if self.errors.len() > errors {
            return None;
        }
        let is_extended = usages.iter().any(|usage| usage.is_extended());
        let (problem, fix) = if usages.contains(&CertificateUsage::CertSign) {
            ("cert sign is reserved for CAs and never signed", "remove it")
        } else if usages.is_empty() {
            (
                "is required: requests have no usages of their own",
                "give digital signature and client auth, for example",
            )
        } else if !is_extended {
            (
                "has no extended usage: a certificate without one is valid for every purpose, and is not signed",
                "add one, such as client auth or server auth",
            )
        } else {
            return Some(usages);
        };
        self.fail(ConfigError::new(key, problem).fix(fix))
    }

    fn pod_key_types(&mut self, given: &MergedSection<PodSignerKeys>) -> Option<BTreeSet<PodKeyType>> {
        let errors = self.errors.len();
        let known: Vec<&str> = PodKeyType::ALL.iter().map(|key_type| key_type.name()).collect();
        let fix = format!("give some of: {}", known.join(", "));
        let types = self.parsed(given, "key-types", &given.values.key_types, &fix);
        let mut types: BTreeSet<PodKeyType> = types.into_iter().collect();
        if types.is_empty() {
            types = PodKeyType::ALL.into();
        }
        (self.errors.len() == errors).then_some(types)
    }

    fn pod_duration(&mut self, given: &MergedSection<PodSignerKeys>) -> Option<Duration> {
        let key = given.key("max-duration");
        let duration = self.duration(&key, &given.values.max_duration)?;
        // The API server accepts no other lifetimes.
        if (MIN_LIFETIME..=MAX_LIFETIME).contains(&duration) {
            return Some(duration);
        }
        self.fail(ConfigError::new(key, "must be between 1h and 2184h").fix("give 24h, for example"))
    }

    /// The expressions and the annotations.
    fn pod_rules(&mut self, given: &MergedSection<PodSignerKeys>) -> PodSignerRules {
        let keys = &given.values;
        let annotations = given.key("user-annotations");
        for (index, key) in keys.user_annotations.iter().enumerate() {
            // kubernetes: pkg/apis/core/validation/validation.go, ValidateUserAnnotations
            if !key.split_once('/').is_some_and(|(domain, name)| !domain.is_empty() && !name.is_empty()) {
                let error =
                    ConfigError::new(format!("{annotations}[{index}]"), format!("{key:?} has no domain"));
                self.errors.push(error.fix(NO_DOMAIN));
            }
        }
        let mut rules = Vec::new();
        for (index, values) in keys.rules.iter().enumerate() {
            let layer = given.below(&format!("rules[{index}]"), values);
            let Some(rule) = self.section::<PodRuleKeys>([Some(layer)]) else { continue };
            let key = rule.key("expression");
            let Some(text) = &rule.values.expression else {
                let error = ConfigError::new(key, "is required");
                self.errors.push(
                    error.fix("give a CEL expression that is true for pods that may have a certificate"),
                );
                continue;
            };
            let Some(expression) = self.pod_expression(key, text, ResultType::Bool) else { continue };
            rules.push(PodRule { expression, message: rule.values.message.clone() });
        }
        let errors = self.errors.len();
        let mut name = |flag: &str, text: &Option<String>, result| {
            text.as_ref().and_then(|text| self.pod_expression(given.key(flag), text, result))
        };
        let rules = PodSignerRules {
            user_annotations: keys.user_annotations.iter().cloned().collect(),
            rules,
            common_name: name("common-name", &keys.common_name, ResultType::DynamicString),
            organizations: name("organizations", &keys.organizations, ResultType::DynamicStrings),
            dns_names: name("dns-names", &keys.dns_names, ResultType::DynamicStrings),
            uris: name("uris", &keys.uris, ResultType::DynamicStrings),
        };
        let names = [&rules.common_name, &rules.organizations, &rules.dns_names, &rules.uris];
        let has_names = keys.pod_identity.is_some() || names.iter().any(|name| name.is_some());
        if self.errors.len() == errors && !has_names {
            let error = ConfigError::new(given.key("uris"), "is required: a certificate needs a name");
            self.errors.push(error.fix("give uris, dnsNames, commonName or organizations, or podIdentity"));
        }
        rules
    }

    fn pod_expression(&mut self, key: String, text: &str, result: ResultType) -> Option<Expression> {
        let compiled = Expression::compile(text.trim(), ENVIRONMENT, result).map_err(|error| {
            let fix = error.fix().map_or("correct the CEL expression", |fix| fix).to_owned();
            ConfigError::new(key, error.to_string()).fix(fix)
        });
        self.ok(compiled)
    }
}
