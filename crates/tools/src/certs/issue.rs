//! `portcullis certs issue`: generates a key and issues its certificate. The certificate passes the same steps as any
//! other: a request signed by the key, a profile, lints, then the CA's signature.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use portcullis_pki::issuance::request;
use portcullis_pki::issuance::signer::PemKey;
use portcullis_system::clock::Clock;
use secrecy::ExposeSecret as _;

use super::authority::{AuthorityFlags, ROOT};
use super::error::CommandError;
use super::files::NewFiles;
use super::flags::{KeyType, NameFlags, life};
use super::kind::CertificateKind;
use super::kubeconfig::{self, KubeconfigFlags};
use super::log::LogFlags;
use super::profile::{ProfileSource, ReadSignerProfiles, usage};
use super::progress::with_spinner;
use super::signing::SigningOrder;
use crate::output::{Output, print};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs issue client --common-name alice --organization developers --out alice
  portcullis certs issue client --common-name alice \\
    --kubeconfig-out alice.kubeconfig --server https://gateway.example.com:6443
  portcullis certs issue serving --common-name gateway --dns gateway.example.com --out gateway
  portcullis certs issue front-proxy --common-name front-proxy-client --out gateway-front \\
    --ca-cert /etc/kubernetes/pki/front-proxy-ca.crt --ca-key /etc/kubernetes/pki/front-proxy-ca.key
  portcullis certs issue kubelet-client --common-name worker-1 --out kubelet-client
  portcullis certs issue --profile certs/client.yaml --common-name alice --out alice";

/// The flags of `portcullis certs issue`.
#[derive(Debug, Clone, Args)]
pub struct IssueFlags {
    /// The kind of the certificate: a built-in profile, which selects the CA of --dir that signs it.
    #[arg(value_enum, value_name = "KIND")]
    kind: Option<CertificateKind>,
    /// Instead of KIND, a SignerProfiles file with the CA and its rules, as --signer-profiles of `serve` reads it; or a
    /// KIND.
    #[arg(long, value_name = "KIND|FILE", conflicts_with = "kind")]
    profile: Option<ProfileSource>,
    /// The signer, if the file of --profile lists several.
    #[arg(long, value_name = "NAME", requires = "profile")]
    signer_name: Option<String>,
    #[command(flatten)]
    names: NameFlags,
    /// The validity, limited by that of the CA and by maxDuration of a profile file. Default: that of the file, or 90d
    /// for clients, which kube-apiserver cannot revoke, else 365d.
    #[arg(long, value_name = "DURATION", value_parser = life, help_heading = "Certificate")]
    duration: Option<Duration>,
    /// The type of the key.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KeyType::EcdsaP256, help_heading = "Certificate")]
    key_type: KeyType,
    #[command(flatten)]
    authority: AuthorityFlags,
    /// Write the certificate with its intermediate to NAME.crt, and the unencrypted key to NAME.key. The extension .crt
    /// or .key of NAME does not count.
    #[arg(long, value_name = "NAME", help_heading = "Output", required_unless_present = "kubeconfig_out")]
    out: Option<PathBuf>,
    /// Replace existing files.
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
    #[command(flatten)]
    log: LogFlags,
    #[command(flatten)]
    kubeconfig: KubeconfigFlags,
}

/// The files of a certificate and its key: `alice.crt` and `alice.key` for `alice`, and for either of them.
fn pair(out: &Path) -> Result<[PathBuf; 2], CommandError> {
    if out.as_os_str() == "-" {
        return Err(usage(
            "--out -: a certificate and a key are two files, and a key is never printed",
            "give a name; `certs sign --out -` prints the certificate of a request",
        ));
    }
    let is_one = out.extension().is_some_and(|extension| extension == "crt" || extension == "key");
    let name = if is_one { out.with_extension("") } else { out.to_owned() };
    Ok(["crt", "key"].map(|extension| name.with_added_extension(extension)))
}

pub(super) fn run(flags: &IssueFlags, read_profiles: ReadSignerProfiles) -> Result<ExitCode, CommandError> {
    let source = flags.profile.clone().or(flags.kind.map(ProfileSource::BuiltIn)).ok_or_else(|| {
        usage("KIND or --profile is required", "give a kind such as client, or --profile FILE")
    })?;
    let profile = source.load(flags.signer_name.as_deref(), read_profiles)?;
    let (subject, names) = (profile.complete(flags.names.subject()), flags.names.alt_names());
    if let Some(missing) = profile.lacks(&names) {
        return Err(CommandError::Usage(missing.to_owned()));
    }
    let out = flags.out.as_deref().map(pair).transpose()?;
    let server = flags.kubeconfig.server(&flags.authority.dir.join(ROOT).with_extension("crt"))?;
    let issuing = flags.authority.open(&profile)?;
    let now = Clock::system().now();
    let key = with_spinner("generating the key", || PemKey::generate(flags.key_type.kind()))
        .map_err(|error| CommandError::about("generating the key", error))?;
    let request = request::build(&subject, &names, &key)
        .map_err(|error| CommandError::about("building the request", error))?;
    let order = SigningOrder {
        profile: &profile,
        request: &request,
        usages: &[],
        duration: flags.duration,
        system_masters: true,
    };
    let mut signed = order.sign(&issuing, now)?;

    let (certificate, key) = (signed.chain(&issuing), key.to_pem());
    let mut files = NewFiles::new(flags.force);
    if let Some([certificate_file, key_file]) = out {
        files.stage_public(&certificate_file, certificate.as_bytes())?;
        files.stage(&key_file, key.expose_secret().as_bytes())?;
        signed.report.certificate_file = Some(certificate_file);
        signed.report.key_file = Some(key_file);
    }
    if let Some((file, server)) = server {
        let config = kubeconfig::render(&server, &subject.common_name, &certificate, &key)?;
        files.stage(&file, config.expose_secret().as_bytes())?;
        signed.report.kubeconfig = Some(file);
    }
    let report = signed.hand_out(&issuing, files, &flags.log, now)?;
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_the_extension_of_one_file_is_that_of_both() {
        for (out, certificate) in [
            ("alice", "alice.crt"),
            ("alice.crt", "alice.crt"),
            ("dir/alice.key", "dir/alice.crt"),
            ("gateway.example.com", "gateway.example.com.crt"),
            (".crt", ".crt.crt"),
        ] {
            let [found, key] = pair(Path::new(out)).unwrap();
            assert_eq!(found, Path::new(certificate), "{out}");
            assert_eq!(key, found.with_extension("key"), "{out}");
        }
        assert!(pair(Path::new("-")).is_err());
    }
}
