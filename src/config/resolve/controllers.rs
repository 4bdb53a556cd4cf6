//! Resolves the controllers of a cluster. The rules between flags and their error texts are kube-controller-manager's.

mod authority;
mod election;
mod pod_profiles;
mod pod_records;
mod profiles;
mod signing_log;
mod trust_bundles;

use std::path::Path;
use std::sync::Arc;

use portcullis_pki::issuance::profile::CertificateProfile;

use super::ConfigResolver;
use crate::config::cluster_authorities::SigningCa;
use crate::config::error::ConfigError;
use crate::config::flags::ControllerFlags;
use crate::config::sections::MergedSection;
use crate::controllers::selected;
use crate::controllers::settings::{ControllerName, ControllerSettings, PodSignerSettings, SignerSettings};
pub(crate) use authority::AuthorityFiles;
pub(crate) use profiles::signer_profiles;

/// The two flags of a CA, with its name in kube-controller-manager's errors and the signers that use it.
struct SigningFlagPair {
    name: &'static str,
    flags: [&'static str; 2],
    values: fn(&ControllerFlags) -> (Option<&Path>, Option<&str>),
    profiles: &'static [fn() -> CertificateProfile],
}

const GENERAL: SigningFlagPair = SigningFlagPair {
    name: "cluster-signing",
    flags: ["cluster-signing-cert-file", "cluster-signing-key-file"],
    values: |flags| (flags.cluster_signing_cert_file.as_deref(), flags.cluster_signing_key_file.as_deref()),
    profiles: &[
        CertificateProfile::kubelet_serving,
        CertificateProfile::kubelet_client,
        CertificateProfile::kube_apiserver_client,
        CertificateProfile::legacy_unknown,
    ],
};

// kubernetes: cmd/kube-controller-manager/app/options/csrsigningcontroller.go, Validate, where the names of two pairs
// differ from their flags
const SPECIFIC: [SigningFlagPair; 4] = [
    SigningFlagPair {
        name: "cluster-signing-kubelet-serving",
        flags: ["cluster-signing-kubelet-serving-cert-file", "cluster-signing-kubelet-serving-key-file"],
        values: |flags| {
            let cert = flags.cluster_signing_kubelet_serving_cert_file.as_deref();
            (cert, flags.cluster_signing_kubelet_serving_key_file.as_deref())
        },
        profiles: &[CertificateProfile::kubelet_serving],
    },
    SigningFlagPair {
        name: "cluster-signing-kube-apiserver-client",
        flags: ["cluster-signing-kubelet-client-cert-file", "cluster-signing-kubelet-client-key-file"],
        values: |flags| {
            let cert = flags.cluster_signing_kubelet_client_cert_file.as_deref();
            (cert, flags.cluster_signing_kubelet_client_key_file.as_deref())
        },
        profiles: &[CertificateProfile::kubelet_client],
    },
    SigningFlagPair {
        name: "cluster-signing-kube-apiserver",
        flags: [
            "cluster-signing-kube-apiserver-client-cert-file",
            "cluster-signing-kube-apiserver-client-key-file",
        ],
        values: |flags| {
            let cert = flags.cluster_signing_kube_apiserver_client_cert_file.as_deref();
            (cert, flags.cluster_signing_kube_apiserver_client_key_file.as_deref())
        },
        profiles: &[CertificateProfile::kube_apiserver_client],
    },
    SigningFlagPair {
        name: "cluster-signing-legacy-unknown",
        flags: ["cluster-signing-legacy-unknown-cert-file", "cluster-signing-legacy-unknown-key-file"],
        values: |flags| {
            let cert = flags.cluster_signing_legacy_unknown_cert_file.as_deref();
            (cert, flags.cluster_signing_legacy_unknown_key_file.as_deref())
        },
        profiles: &[CertificateProfile::legacy_unknown],
    },
];

impl ConfigResolver<'_> {
    /// The controllers and the CAs they sign with. `None` if there are errors, which go to `self.errors`, or if no
    /// controller is enabled. Reads the files of CAs only for controllers that sign.
    pub(super) fn controllers(
        &mut self,
        given: &MergedSection<ControllerFlags>,
    ) -> Option<(ControllerSettings, Vec<SigningCa>)> {
        let flags = &given.values;
        let errors = self.errors.len();
        let names = selected(&super::listed(&flags.controllers)).map_err(|unknown| {
            let known: Vec<&str> = ControllerName::ALL.iter().map(|name| name.alias()).collect();
            // controller-manager: options/generic.go, Validate
            let problems =
                unknown.iter().map(|name| format!("{name:?} is not in the list of known controllers"));
            ConfigError::new(given.key("controllers"), problems.collect::<Vec<_>>().join(", "))
                .fix(format!("give *, or some of {}", known.join(", ")))
        });
        let names = self.ok(names);
        let election = self.election(given);
        let duration_key = given.key("cluster-signing-duration");
        let signing_duration = self.duration(&duration_key, &flags.cluster_signing_duration);
        let pairs = self.pairs(given);
        let names = names?;
        let signs = names.contains(&ControllerName::CsrSigning);
        let (mut signers, mut authorities) = (Vec::new(), Vec::new());
        if signs {
            for (pair, files) in pairs {
                let Some((authority, digest)) = self.authority(&files) else { continue };
                authorities.push(SigningCa::of_kubernetes(files.certificate(), &authority));
                for profile in pair.profiles.iter().map(|profile| profile()) {
                    if self.fits(&files, &authority, &profile) {
                        signers.push(SignerSettings::kubernetes(
                            profile,
                            Arc::clone(&authority),
                            digest.clone(),
                        ));
                    }
                }
            }
            let (own, of_own) = self.signer_profiles(given);
            signers.extend(own);
            authorities.extend(of_own);
        } else {
            self.warn_of_unused_files(given);
        }
        let mut pod_signers = Vec::new();
        let profiles = given.key(pod_profiles::FLAG);
        if names.contains(&ControllerName::PodCertificateSigning) {
            let (own, of_own) = self.pod_signers(given);
            pod_signers = own;
            authorities.extend(of_own);
            if given.values.pod_signer_profiles.is_none() {
                let key = given.key("controllers");
                self.warnings
                    .push(format!("{key}: podcertificaterequest-signing signs nothing without {profiles}"));
            }
        } else if given.values.pod_signer_profiles.is_some() {
            let key = given.key("controllers");
            self.warnings
                .push(format!("{profiles} has no effect without podcertificaterequest-signing in {key}"));
        }
        let serving = self.serving_ca(given, &names);
        let log = self.signing_log(given, &names);
        if names.is_empty() || self.errors.len() != errors {
            return None;
        }
        if signs && signers.is_empty() {
            // kube-controller-manager skips the controller then, and logs it.
            let [key, cert, profiles] =
                ["controllers", "cluster-signing-cert-file", "signer-profiles"].map(|flag| given.key(flag));
            self.warnings.push(format!("{key}: csrsigning signs nothing without {cert} or {profiles}"));
        }
        let signing_duration = signing_duration?;
        let of_signers = signers.iter().map(|signer| signer.published(signing_duration));
        let of_signers = of_signers.chain(pod_signers.iter().map(PodSignerSettings::published));
        let published = self.published(given, &names, of_signers.collect(), serving);
        let election = election?;
        let controllers =
            ControllerSettings { names, signers, pod_signers, signing_duration, published, log, election };
        Some((controllers, authorities))
    }

    /// The configured pairs of files.
    fn pairs(
        &mut self,
        given: &MergedSection<ControllerFlags>,
    ) -> Vec<(&'static SigningFlagPair, AuthorityFiles)> {
        let is_given = |pair: &SigningFlagPair| {
            let (cert, key) = (pair.values)(&given.values);
            cert.is_some() || key.is_some()
        };
        if is_given(&GENERAL)
            && let Some([flag, _]) = SPECIFIC.iter().find(|pair| is_given(pair)).map(|pair| pair.flags)
        {
            let problem = "cannot specify --cluster-signing-{cert,key}-file and other \
                           --cluster-signing-*-file flags at the same time";
            let [cert, key] = GENERAL.flags.map(|flag| given.key(flag));
            self.errors.push(
                ConfigError::new(given.key(flag), problem)
                    .fix(format!("remove {cert} and {key}, or the files of single signers")),
            );
        }
        let all = std::iter::once(&GENERAL).chain(&SPECIFIC);
        all.filter_map(|pair| Some((pair, self.pair(given, pair)?))).collect()
    }

    fn pair(
        &mut self,
        given: &MergedSection<ControllerFlags>,
        pair: &SigningFlagPair,
    ) -> Option<AuthorityFiles> {
        let [cert_place, key_place] = pair.flags.map(|flag| given.place(flag));
        let (place, other, problem) = match (pair.values)(&given.values) {
            (None, None) => return None,
            (Some(cert), Some(key)) => return Some(AuthorityFiles::new(&cert_place, cert, &key_place, key)),
            (Some(_), None) => (cert_place, key_place, "cannot specify cert without key"),
            (None, Some(_)) => (key_place, cert_place, "cannot specify key without cert"),
        };
        let error = ConfigError::new(place.key, format!("{:?}: {problem}", pair.name));
        self.fail(error.fix(format!("give {} too", other.key)))
    }

    /// Warns about files that only csrsigning would use.
    fn warn_of_unused_files(&mut self, given: &MergedSection<ControllerFlags>) {
        let all = std::iter::once(&GENERAL).chain(&SPECIFIC);
        let certs = all.filter(|pair| (pair.values)(&given.values).0.is_some()).map(|pair| pair.flags[0]);
        let profiles = given.values.signer_profiles.as_ref().map(|_| "signer-profiles");
        for flag in certs.chain(profiles) {
            let (flag, controllers) = (given.key(flag), given.key("controllers"));
            self.warnings.push(format!("{flag} has no effect without csrsigning in {controllers}"));
        }
    }
}
