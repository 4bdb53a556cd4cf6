//! Resolves the custom signers of a `SignerProfiles` file.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::yaml::KeyLines;
use portcullis_pki::issuance::profile::{CertificateProfile, CustomRules, SignerName};
use portcullis_pki::issuance::usage::CertificateUsage;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::authority::AuthorityFiles;
use crate::config::cluster_authorities::SigningCa;
use crate::config::error::{ConfigError, ConfigErrors, FilePosition};
use crate::config::file::{FileEnvelope, document};
use crate::config::flags::{ControllerFlags, SignerProfileKeys};
use crate::config::inputs::InputReader;
use crate::config::resolve::ConfigResolver;
use crate::config::sections::{ConfigLayer, KeyLocation, MergedSection, ValueOrigin};
use crate::controllers::settings::SignerSettings;

const FLAG: &str = "signer-profiles";
const PROFILES: FileEnvelope = [("apiVersion", "portcullis.dev/v1alpha1"), ("kind", "SignerProfiles")];
const LIST: &str = "signers";

/// One signer of a `SignerProfiles` file. Its CA has not been loaded.
#[derive(Debug, Clone)]
pub(crate) struct SignerProfile {
    /// The name of the signer.
    pub name: SignerName,
    /// The rules for its requests.
    pub rules: CustomRules,
    /// The CA that signs.
    pub authority: AuthorityFiles,
}

/// A signer as far as its keys are valid.
struct ReadProfile {
    name: Option<SignerName>,
    rules: CustomRules,
    authority: Option<AuthorityFiles>,
    /// The file of further trust anchors.
    anchors: Option<(KeyLocation, PathBuf)>,
}

/// Reads a `SignerProfiles` file without the files of its CAs. `key` is the flag that names the file, for errors.
pub(crate) fn signer_profiles(key: &str, file: &Path) -> Result<Vec<SignerProfile>, ConfigErrors> {
    let mut inputs = InputReader::default();
    let mut resolver = ConfigResolver::new(&mut inputs, false, Release::default());
    let read = resolver.profiles(key, file);
    let errors = resolver.into_errors();
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    let profiles = read.into_iter().flat_map(|(profiles, _)| profiles).filter_map(|read| {
        Some(SignerProfile { name: read.name?, rules: read.rules, authority: read.authority? })
    });
    Ok(profiles.collect())
}

impl ConfigResolver<'_> {
    /// The signers and their CAs. Errors go to `self.errors`, each with its line in the file.
    pub(super) fn signer_profiles(
        &mut self,
        given: &MergedSection<ControllerFlags>,
    ) -> (Vec<SignerSettings>, Vec<SigningCa>) {
        let (mut signers, mut authorities) = (Vec::new(), Vec::new());
        let Some(file) = &given.values.signer_profiles else { return (signers, authorities) };
        let place = given.place(FLAG);
        let file = place.path(file);
        let first = self.errors.len();
        let Some((profiles, lines)) = self.profiles(&place.key, &file) else { return (signers, authorities) };
        let errors = self.errors.len();
        for ReadProfile { name, rules, authority: files, anchors } in profiles {
            let Some(files) = files else { continue };
            let Some((authority, digest)) = self.authority(&files) else { continue };
            let mut signing = SigningCa::of_own(files.certificate(), &authority);
            signing.is_at(FilePosition { line: lines.of(&signing.key), file: file.clone() });
            authorities.push(signing);
            let anchors = anchors.and_then(|(place, file)| self.trust_anchors(&place, &file));
            let Some(name) = name else { continue };
            if self.fits(&files, &authority, &CertificateProfile::custom(&name, rules.clone())) {
                let anchors = anchors.unwrap_or_default();
                signers.push(SignerSettings::custom(&name, rules, authority, digest, anchors));
            }
        }
        self.sort_by_line([first, errors], &lines, &file);
        (signers, authorities)
    }

    /// The signers that a file lists, and the line of each key. Errors have their lines.
    fn profiles(&mut self, key: &str, file: &Path) -> Option<(Vec<ReadProfile>, KeyLines)> {
        self.signers_of(key, file, (PROFILES, "give signerName, certFile, keyFile"), Self::profile)
    }

    /// Reads the signers in a file of this form with `read`, which gets the names of the ones before. Errors have their lines.
    pub(super) fn signers_of<K: Args + Serialize + DeserializeOwned, T>(
        &mut self,
        key: &str,
        file: &Path,
        (envelope, keys): (FileEnvelope, &str),
        read: impl Fn(&mut Self, &MergedSection<K>, &mut BTreeSet<String>) -> T,
    ) -> Option<(Vec<T>, KeyLines)> {
        let document = document(key, file, envelope, self.inputs);
        let (mut values, lines) = self.ok(document)?;
        let (errors, unread) = (self.errors.len(), self.unread.len());
        let mut listed = Vec::new();
        if let Value::Array(signers) = values.remove(LIST).unwrap_or_default() {
            listed = signers;
        } else {
            let error = ConfigError::new(LIST, "is not a list").fix("begin each signer with a dash");
            self.errors.push(error);
        }
        for key in values.keys() {
            self.errors.push(ConfigError::new(key, "unknown key").fix(format!("list signers below {LIST}")));
        }
        let mut names = BTreeSet::new();
        let mut signers = Vec::new();
        for (index, values) in listed.into_iter().enumerate() {
            let path = format!("{LIST}[{index}]");
            let Value::Object(values) = values else {
                self.errors.push(ConfigError::new(path, "is not a map").fix(keys));
                continue;
            };
            let directory = file.parent().unwrap_or(Path::new("")).to_owned();
            let layer = ConfigLayer { values, origin: ValueOrigin::File { path, directory } };
            let Some(given) = self.section::<K>([Some(layer)]) else { continue };
            signers.push(read(self, &given, &mut names));
        }
        let new = self.errors.iter_mut().skip(errors).chain(self.unread.iter_mut().skip(unread));
        locate(new, &lines, file);
        Some((signers, lines))
    }

    /// Gives the errors of a file's signers, from the `read`th on, their lines, and sorts all of the file, from the `first` on.
    pub(super) fn sort_by_line(&mut self, [first, read]: [usize; 2], lines: &KeyLines, file: &Path) {
        locate(self.errors.iter_mut().skip(read), lines, file);
        if let Some(new) = self.errors.get_mut(first..) {
            new.sort_by_key(|error| error.position.as_ref().map(|position| position.line));
        }
    }

    /// The files of a signer's CA, both of which are required.
    pub(super) fn authority_files<K>(
        &mut self,
        given: &MergedSection<K>,
        files: (Option<&PathBuf>, Option<&String>),
    ) -> Option<AuthorityFiles> {
        match files {
            (Some(cert), Some(key)) => {
                Some(AuthorityFiles::new(&given.place("cert-file"), cert, &given.place("key-file"), key))
            }
            (cert, _) => {
                let missing = if cert.is_none() { "cert-file" } else { "key-file" };
                let error = ConfigError::new(given.key(missing), "is required");
                self.fail(error.fix("give the PEM files of the signer's CA"))
            }
        }
    }

    fn profile(
        &mut self,
        given: &MergedSection<SignerProfileKeys>,
        names: &mut BTreeSet<String>,
    ) -> ReadProfile {
        let keys = &given.values;
        let name = self.signer_name(given.key("signer-name"), keys.signer_name.as_deref(), names);
        let authority = self.authority_files(given, (keys.cert_file.as_ref(), keys.key_file.as_ref()));
        let errors = self.errors.len();
        let patterns = "write a text with at most one *, at its beginning or its end";
        let rules = CustomRules {
            common_names: self.parsed(given, "common-names", &keys.common_names, patterns),
            require_common_name: keys.require_common_name,
            organizations: self.parsed(given, "organizations", &keys.organizations, patterns),
            dns_names: self.parsed(given, "dns-names", &keys.dns_names, patterns),
            allow_wildcards: keys.allow_wildcards,
            ip_ranges: self.parsed(given, "ip-ranges", &keys.ip_ranges, "write it as 10.0.0.0/8"),
            emails: self.parsed(given, "emails", &keys.emails, patterns),
            uris: self.parsed(given, "uris", &keys.uris, patterns),
            allowed_usages: self.usages(given, "allowed-usages", &keys.allowed_usages),
            required_usages: self.usages(given, "required-usages", &keys.required_usages),
            max_duration: self.validity(given, "max-duration", keys.max_duration.as_deref()),
            default_duration: self.validity(given, "default-duration", keys.default_duration.as_deref()),
        };
        if self.errors.len() == errors {
            self.check_consistency(given, &rules);
        }
        let anchors = keys.trust_anchors_file.clone().map(|file| (given.place("trust-anchors-file"), file));
        ReadProfile { name, rules, authority, anchors }
    }

    pub(super) fn signer_name(
        &mut self,
        key: String,
        text: Option<&str>,
        names: &mut BTreeSet<String>,
    ) -> Option<SignerName> {
        let fix = "give a domain you own and a name in it, such as example.com/service";
        let Some(text) = text else {
            return self.fail(ConfigError::new(key, "is required").fix(fix));
        };
        let name = text.parse::<SignerName>();
        let name = name.map_err(|error| ConfigError::new(&key, format!("{text:?}: {error}")).fix(fix));
        let name = self.ok(name)?;
        if !names.insert(text.to_owned()) {
            let error = ConfigError::new(key, format!("{text:?} is already used by another signer"));
            return self.fail(error.fix("give each signer its own name"));
        }
        Some(name)
    }

    /// Rejects rules that no request could satisfy.
    fn check_consistency(&mut self, given: &MergedSection<SignerProfileKeys>, rules: &CustomRules) {
        let allowed_key = given.key("allowed-usages");
        if rules.allowed_usages.is_empty() {
            let error =
                ConfigError::new(&allowed_key, "is required: without usages, no certificate can be signed");
            self.errors.push(error.fix("list the usages that requests may have, such as client auth"));
        } else if rules.allowed_usages.contains(&CertificateUsage::CertSign) {
            let error = ConfigError::new(&allowed_key, "cert sign is reserved for CAs and never signed");
            self.errors.push(error.fix("remove it"));
        } else if !rules.allowed_usages.iter().any(|usage| usage.is_extended()) {
            let problem = "has no extended usage: a certificate without one is valid for every purpose, and is not \
                           signed";
            self.errors
                .push(ConfigError::new(&allowed_key, problem).fix("add one, such as client auth, or any"));
        } else if let Some(usage) = rules.required_usages.difference(&rules.allowed_usages).next() {
            let problem = format!("{:?} is required but not allowed", usage.word());
            let error = ConfigError::new(given.key("required-usages"), problem);
            self.errors.push(error.fix(format!("list it in {allowed_key} too")));
        }
        if let (Some(max), Some(default)) = (rules.max_duration, rules.default_duration)
            && default > max
        {
            let [default, max] = ["default-duration", "max-duration"].map(|flag| given.key(flag));
            let error = ConfigError::new(default, format!("is longer than {max}"));
            self.errors.push(error.fix("give at most the maximum duration"));
        }
    }

    pub(super) fn usages<K>(
        &mut self,
        given: &MergedSection<K>,
        flag: &str,
        words: &[String],
    ) -> BTreeSet<CertificateUsage> {
        let known: Vec<&str> = CertificateUsage::all().iter().map(|usage| usage.word()).collect();
        let fix = format!("give some of: {}", known.join(", "));
        self.parsed(given, flag, words, &fix).into_iter().collect()
    }

    /// Parses each text; reports an error for each that is invalid.
    pub(super) fn parsed<K, T>(
        &mut self,
        given: &MergedSection<K>,
        flag: &str,
        texts: &[String],
        fix: &str,
    ) -> Vec<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let key = given.key(flag);
        let texts = texts.iter().enumerate();
        texts
            .filter_map(|(index, text)| {
                let parsed = text.parse::<T>();
                let parsed = parsed
                    .map_err(|error| ConfigError::new(format!("{key}[{index}]"), error.to_string()).fix(fix));
                self.ok(parsed)
            })
            .collect()
    }

    fn validity(
        &mut self,
        given: &MergedSection<SignerProfileKeys>,
        flag: &str,
        text: Option<&str>,
    ) -> Option<Duration> {
        let key = given.key(flag);
        let duration = self.duration(&key, text?)?;
        // kubernetes: pkg/apis/certificates/validation/validation.go: the minimum of spec.expirationSeconds
        if duration < Duration::from_mins(10) {
            return self.fail(ConfigError::new(key, "must be at least 10m").fix("give 1h, for example"));
        }
        Some(duration)
    }
}

/// Gives each error the line of its key.
fn locate<'a>(errors: impl Iterator<Item = &'a mut ConfigError>, lines: &KeyLines, file: &Path) {
    for error in errors {
        error.position = Some(FilePosition { line: lines.of(&error.key), file: file.to_owned() });
    }
}
