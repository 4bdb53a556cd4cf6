//! The profile of a certificate to sign: built in, or a signer of a `SignerProfiles` file, which `--signer-profiles` of
//! the gateway reads too.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum as _;
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::authority::AuthorityKeySource;
use portcullis_pki::issuance::profile::{CertificateProfile, CustomRules, SignerName};
use portcullis_pki::issuance::subject::Subject;
use portcullis_pki::issuance::usage::CertificateUsage;

use super::authority::{CaRole, is_missing};
use super::error::CommandError;
use super::kind::CertificateKind;

/// One signer of a `SignerProfiles` file. Its CA has not been loaded.
#[derive(Debug, Clone)]
pub struct SignerProfile {
    /// The name of the signer.
    pub name: SignerName,
    /// The rules for its requests.
    pub rules: CustomRules,
    /// The key of the configuration that names the CA's certificate, and its file.
    pub certificate: (String, PathBuf),
    /// The key of the configuration that names the CA's key, and its file or URI.
    pub key: (String, AuthorityKeySource),
}

/// Reads a `SignerProfiles` file, which the flag of the first parameter names; the error has one line for each error of the
/// file. The gateway's configuration decides the format.
pub(crate) type ReadSignerProfiles = fn(&str, &Path) -> Result<Vec<SignerProfile>, String>;

/// The value of `--profile`: the name of a built-in profile, else a file.
#[derive(Debug, Clone)]
pub(super) enum ProfileSource {
    BuiltIn(CertificateKind),
    File(PathBuf),
}

impl FromStr for ProfileSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match CertificateKind::from_str(text, false) {
            Ok(kind) => Self::BuiltIn(kind),
            Err(_) => Self::File(PathBuf::from(text)),
        })
    }
}

/// The rules for a certificate, and the CA that signs it.
#[derive(Debug)]
pub(super) enum IssuanceProfile {
    BuiltIn(CertificateKind),
    File(Box<FileProfile>),
}

/// A signer, and the file that lists it.
#[derive(Debug)]
pub(super) struct FileProfile {
    pub(super) file: PathBuf,
    pub(super) signer: SignerProfile,
}

impl ProfileSource {
    /// Reads the profile. `signer` selects one of several in a file.
    pub(super) fn load(
        &self,
        signer: Option<&str>,
        read: ReadSignerProfiles,
    ) -> Result<IssuanceProfile, CommandError> {
        match self {
            Self::BuiltIn(kind) if signer.is_some() => Err(usage(
                &format!("--signer-name: --profile {} is built in and not a file", kind.name()),
                "remove --signer-name, or give a file with --profile",
            )),
            Self::BuiltIn(kind) => Ok(IssuanceProfile::BuiltIn(*kind)),
            Self::File(file) => FileProfile::load(file, signer, read),
        }
    }
}

impl FileProfile {
    fn load(
        file: &Path,
        signer: Option<&str>,
        read: ReadSignerProfiles,
    ) -> Result<IssuanceProfile, CommandError> {
        let name = file.display();
        if is_missing(file) {
            let built_in: Vec<&str> =
                CertificateKind::value_variants().iter().map(|kind| kind.name()).collect();
            return Err(usage(
                &format!("--profile {name}: neither a file nor a built-in profile"),
                &format!("give a file, or one of {}", built_in.join(", ")),
            ));
        }
        let mut signers = read("--profile", file).map_err(CommandError::Usage)?;
        let names: Vec<&str> = signers.iter().map(|signer| signer.name.as_str()).collect();
        let names = names.join(", ");
        if let Some(wanted) = signer {
            signers.retain(|signer| signer.name.as_str() == wanted);
        }
        match (signers.pop(), signers.is_empty()) {
            (Some(signer), true) => {
                Ok(IssuanceProfile::File(Box::new(Self { file: file.to_owned(), signer })))
            }
            (Some(_), false) => Err(usage(
                &format!("{name}: signers: lists several: {names}"),
                "choose one with --signer-name",
            )),
            (None, _) if names.is_empty() => Err(usage(
                &format!("{name}: signers: is empty"),
                "list a signer with signerName, certFile, keyFile and allowedUsages",
            )),
            (None, _) => Err(usage(
                &format!("--signer-name: {name}: there is no signer {:?}", signer.unwrap_or_default()),
                &format!("give one of {names}"),
            )),
        }
    }

    /// The certificate and the key of the signer's CA.
    pub(super) fn ca_files(&self) -> Result<(PathBuf, AuthorityKeySource), CommandError> {
        let (cert_key, certificate) = &self.signer.certificate;
        let (key_key, key) = &self.signer.key;
        let files = [Some((cert_key, certificate.as_path())), key.file().map(|file| (key_key, file))];
        if let Some((setting, missing)) = files.into_iter().flatten().find(|(_, file)| is_missing(file)) {
            return Err(CommandError::Failed(format!(
                "{}: there is no such file, which {setting} of {} names; create the CA with portcullis certs init, or give \
                 another one with --ca-cert and --ca-key",
                missing.display(),
                self.file.display()
            )));
        }
        Ok((certificate.to_owned(), key.clone()))
    }

    fn rules(&self) -> &CustomRules {
        &self.signer.rules
    }

    fn allows(&self, usage: CertificateUsage) -> bool {
        self.rules().allowed_usages.contains(&usage)
    }

    fn is_client(&self) -> bool {
        self.allows(CertificateUsage::ClientAuth) || self.allows(CertificateUsage::Any)
    }
}

/// An error of the command line, with its fix.
pub(super) fn usage(problem: &str, fix: &str) -> CommandError {
    CommandError::Usage(format!("{problem}\n      fix: {fix}"))
}

impl IssuanceProfile {
    /// The built-in name, or the name of the signer.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::BuiltIn(kind) => kind.name(),
            Self::File(profile) => profile.signer.name.as_str(),
        }
    }

    /// The rules, with `duration` as the default of requests.
    pub(super) fn rules(&self, duration: Duration) -> CertificateProfile {
        match self {
            Self::BuiltIn(kind) => kind.profile(),
            Self::File(profile) => {
                let rules = CustomRules { default_duration: Some(duration), ..profile.rules().clone() };
                CertificateProfile::custom(&profile.signer.name, rules)
            }
        }
    }

    /// The default validity.
    pub(super) fn duration(&self) -> Duration {
        match self {
            Self::BuiltIn(kind) => kind.duration(),
            Self::File(profile) => {
                let CustomRules { default_duration, max_duration, .. } = profile.rules();
                // The default of --cluster-signing-duration.
                default_duration.or(*max_duration).unwrap_or(Duration::from_hours(8760))
            }
        }
    }

    /// The file, if its maximum is shorter than `duration`.
    pub(super) fn shortens(&self, duration: Duration) -> Option<&Path> {
        match self {
            Self::File(profile) if profile.rules().max_duration.is_some_and(|max| max < duration) => {
                Some(&profile.file)
            }
            _ => None,
        }
    }

    /// The usages of its certificates: all that a file allows, but key encipherment only for RSA keys, as kubelets
    /// request it, or if the file requires it.
    pub(super) fn usages(&self, key: &str) -> Vec<String> {
        let profile = match self {
            Self::BuiltIn(kind) => return kind.usages(key),
            Self::File(profile) => profile.rules(),
        };
        let useless = |usage: &CertificateUsage| {
            *usage == CertificateUsage::KeyEncipherment
                && !key.starts_with("RSA")
                && !profile.required_usages.contains(usage)
        };
        let usages = profile.allowed_usages.iter().filter(|usage| !useless(usage));
        usages.map(|usage| usage.word().to_owned()).collect()
    }

    /// Whether clients present its certificates.
    pub(super) fn is_client(&self) -> bool {
        match self {
            Self::BuiltIn(kind) => kind.is_client(),
            Self::File(profile) => profile.is_client(),
        }
    }

    /// Whether the subject may be that of a user. Without a CommonName a file's client is none, such as a SPIFFE workload.
    pub(super) fn names_user(&self, subject: &Subject) -> bool {
        match self {
            Self::BuiltIn(kind) => kind.role() == CaRole::Client,
            Self::File(profile) => profile.is_client() && !subject.common_name.is_empty(),
        }
    }

    /// Completes the subject of a built-in profile; a file decides on the subject as given.
    pub(super) fn complete(&self, subject: Subject) -> Subject {
        match self {
            Self::BuiltIn(kind) => kind.complete(subject),
            Self::File(_) => subject,
        }
    }

    /// An error if clients could not use the certificate.
    pub(super) fn lacks(&self, names: &AltNames) -> Option<&'static str> {
        match self {
            Self::BuiltIn(kind) => kind.lacks(names),
            Self::File(profile) if profile.allows(CertificateUsage::ServerAuth) && !profile.is_client() => {
                CertificateKind::Serving.lacks(names)
            }
            Self::File(_) => None,
        }
    }
}
