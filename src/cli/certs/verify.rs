//! `portcullis certs verify`: authenticates a client certificate with the gateway's own authenticator, and prints the
//! output of `explain`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use portcullis_http::identity::IdentityMode;
use portcullis_pki::x509::CaBundle;
use portcullis_system::clock::Clock;
use portcullis_tools::output::runtime;
use portcullis_tools::output::{Output, print};

use super::super::explain::{Credential, Explainer, Kind};
use super::super::{failed, misconfigured, print_error};
use crate::authn::chain::AuthnChain;
use crate::authn::revocation::watch::RevocationWatch;
use crate::authn::revocation::{ClusterRevocation, RevocationSettings};
use crate::authn::settings::Authentication;
use crate::authn::x509::{PodIdentities, X509Authenticator};
use crate::config::{ConfigError, ConfigErrors};
use crate::metrics::Metrics;
use crate::state::effective_config::EffectiveConfig;

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs verify alice.crt --client-ca-file pki/client-ca.crt
  portcullis certs verify alice.crt --config gateway.yaml --cluster prod";

/// The flags of `portcullis certs verify`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct CertificateVerifyFlags {
    /// The certificate, PEM, followed by its intermediates, as the client presents it.
    #[arg(value_name = "FILE")]
    certificate: PathBuf,
    /// The CAs of the gateway's clients, PEM.
    #[arg(long, value_name = "FILE", required_unless_present = "config")]
    client_ca_file: Option<PathBuf>,
    /// The gateway's configuration file, YAML, to take the CAs from.
    #[arg(long, value_name = "FILE", conflicts_with = "client_ca_file")]
    config: Option<PathBuf>,
    /// The cluster in the configuration; required if there are several.
    #[arg(long, value_name = "NAME", requires = "config")]
    cluster: Option<String>,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

pub(super) fn run(flags: &CertificateVerifyFlags) -> ExitCode {
    let credential = match Credential::certificate(&flags.certificate) {
        Ok(credential) => credential,
        Err(problem) => return failed(&problem),
    };
    let kind = credential.kind();
    let (cluster, identity, bundle, revocation) = match trusted(flags, &kind) {
        Ok(trusted) => trusted,
        Err(errors) => return misconfigured(&errors),
    };
    if kind == Kind::PodCertificate && flags.client_ca_file.is_some() {
        print_error(
            "the certificate names a pod: a gateway with podClientCAFile looks the pod up, see portcullis explain",
        );
    }
    let settings = Authentication { client_ca: Some(Arc::clone(&bundle)), ..Authentication::default() };
    let (watch, metrics) = (RevocationWatch::new(), Arc::new(Metrics::new()));
    let revocation = ClusterRevocation::new(&revocation, &watch, &metrics);
    let chain = match AuthnChain::new(
        vec![Box::new(X509Authenticator::new(bundle, PodIdentities::Ignored))],
        None,
        revocation,
    ) {
        Ok(chain) => chain,
        Err(error) => return failed(&error.to_string()),
    };
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let explainer = Explainer {
        cluster: &cluster,
        chain: &chain,
        settings: &settings,
        identity,
        audiences: &[],
        generation: 0,
    };
    let explanation = runtime.block_on(explainer.explain(credential, Clock::system().now()));
    let printed = print(&flags.output.rendered(&explanation).unwrap_or_else(|| explanation.text(false)));
    if explanation.authenticated { printed } else { ExitCode::FAILURE }
}

/// The name of the cluster, its identity mode, the CAs of its clients, and what revokes certificates.
type Trusted = (String, IdentityMode, Arc<CaBundle>, RevocationSettings);

fn trusted(flags: &CertificateVerifyFlags, kind: &Kind) -> Result<Trusted, ConfigErrors> {
    let wrong = |error: ConfigError| ConfigErrors(vec![error]);
    if let Some(file) = &flags.client_ca_file {
        let read = std::fs::read(file).map_err(|error| error.to_string());
        let bundle = read.and_then(|pem| CaBundle::from_pem(&pem).map_err(|error| error.to_string()));
        let unreadable = |problem: String| {
            ConfigError::new("client-ca-file", problem).in_file(file).fix("give the CAs of clients, PEM")
        };
        return bundle
            .map(|bundle| {
                (
                    "default".to_owned(),
                    IdentityMode::RequestHeader,
                    Arc::new(bundle),
                    RevocationSettings::default(),
                )
            })
            .map_err(|problem| wrong(unreadable(problem)));
    }
    let config = flags.config.iter().map(|file| file.as_os_str().to_owned());
    let arguments = config.flat_map(|file| ["--config".into(), file]);
    let serve = super::super::serve::flags::<OsString>(arguments)
        .map_err(|error| wrong(ConfigError::new("config", error.to_string())))?;
    let settings = EffectiveConfig::load(&serve)?.settings;
    let names: Vec<_> = settings.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let index = match &flags.cluster {
        Some(name) => names.iter().position(|known| known == name),
        None if names.len() == 1 => Some(0),
        None => None,
    };
    let Some(cluster) = index.and_then(|index| settings.clusters.get(index)) else {
        let problem = "is not a cluster of the configuration";
        return Err(wrong(
            ConfigError::new("cluster", problem).fix(format!("give one of {}", names.join(", "))),
        ));
    };
    let (name, authentication) = (&cluster.name, &cluster.authentication);
    let refused = |problem: String, fix: String| wrong(ConfigError::new("client-ca-file", problem).fix(fix));
    if *kind == Kind::PodCertificate && authentication.pod_client_ca.is_some() {
        let problem = "does not decide on the certificate of a pod: its objects must exist at the API server";
        let fix = format!(
            "look them up: portcullis explain --config {} --cluster {name} --certificate {}",
            flags.config.as_deref().unwrap_or(Path::new("FILE")).display(),
            flags.certificate.display()
        );
        return Err(refused(problem.to_owned(), fix));
    }
    let Some(bundle) = &authentication.client_ca else {
        let fix = match (kind, &authentication.pod_client_ca) {
            (Kind::PodCertificate, _) => "set podClientCAFile for the certificates of pods",
            (_, Some(_)) => "set clientCAFile: the cluster accepts client certificates of pods alone",
            (_, None) => "set clientCAFile",
        };
        return Err(refused(
            format!("cluster {name} does not accept client certificates of users"),
            fix.to_owned(),
        ));
    };
    let revocation = cluster.authentication.revocation.clone();
    Ok((name.clone(), cluster.backend.identity, Arc::clone(bundle), revocation))
}
