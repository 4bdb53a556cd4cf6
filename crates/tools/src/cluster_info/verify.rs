//! `portcullis cluster-info verify`: kubeadm's token-based discovery, step by step.

use std::fs::File;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use clap::Args;
use http::Uri;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Config};
use portcullis_http::proxy::ProxyChoice;
use portcullis_pki::bootstrap_tokens::cluster_info::{
    ClusterInfoError, ClusterLocation, KUBECONFIG, NAME, NAMESPACE, verified_kubeconfig,
};
use portcullis_pki::bootstrap_tokens::pins::PublicKeyPins;
use rustls_pki_types::CertificateDer;
use tokio::time::{Instant, sleep};

use super::super::cluster::ClusterClient;
use super::super::kube_client;
use super::super::print_error;
use super::super::token::{BootstrapError, duration, read_token, say};

/// The flags of `portcullis cluster-info verify`.
#[derive(Debug, Clone, Args)]
pub struct ClusterInfoVerifyFlags {
    /// The server that nodes join: host and port, or a URL.
    #[arg(long, value_name = "URL", value_parser = super::server)]
    server: Uri,
    /// A file with the token; - is standard input. There is no flag for the token itself: every user of the machine can
    /// read command lines.
    #[arg(long, value_name = "FILE", default_value = "-")]
    token_file: PathBuf,
    /// Hashes of the CA's public key, sha256:HEX, as `token create --print-join-command` prints them; one must match.
    /// Default: trust the CA that the token has signed.
    #[arg(long, value_name = "HASH", value_delimiter = ',')]
    discovery_token_ca_cert_hash: Vec<String>,
    /// How long to wait for the signature of a token that was just created.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    timeout: Duration,
}

/// Interval between reads while the signature is missing.
const SIGNATURE_POLL_INTERVAL: Duration = Duration::from_millis(200);

// kubeadm: discovery/token/token.go, retrieveValidatedConfigInfo
pub(super) async fn run(flags: &ClusterInfoVerifyFlags) -> Result<(), BootstrapError> {
    let pins = PublicKeyPins::parse(flags.discovery_token_ca_cert_hash.iter().map(String::as_str))
        .map_err(|error| BootstrapError::Usage(format!("--discovery-token-ca-cert-hash: {error}")))?;
    let token = if flags.token_file.as_os_str() == "-" {
        let input = std::io::stdin();
        if input.is_terminal() {
            print_error("reading a token from standard input; end with Ctrl-D");
        }
        read_token(input)?
    } else {
        let bad =
            |error| BootstrapError::Usage(format!("--token-file {}: {error}", flags.token_file.display()));
        read_token(File::open(&flags.token_file).map_err(bad)?)?
    };

    // The server is unverified: send no credential.
    let unverified = AnonymousClient::of(&flags.server, None)?;
    let until = Instant::now() + flags.timeout;
    let kubeconfig = loop {
        let data = unverified.cluster_info().await?;
        match verified_kubeconfig(&data, &token) {
            Err(ClusterInfoError::NotSigned(_)) if Instant::now() < until => {
                sleep(SIGNATURE_POLL_INTERVAL).await;
            }
            found => break found.map_err(BootstrapError::cluster)?.to_owned(),
        }
    };
    let location = ClusterLocation::of(&kubeconfig).map_err(BootstrapError::cluster)?;
    say(&format!("signature  of the token {}, good\n", token.id))?;
    if pins.is_empty() {
        say("CA         signed by the token, not pinned\n")?;
    } else {
        location.is_pinned(&pins).map_err(BootstrapError::cluster)?;
        say("CA         pinned\n")?;
    }
    // kubeadm reads again only if there are pins; this command also checks TLS without them.
    let verified = AnonymousClient::of(&flags.server, Some(&location.authorities))?;
    let again = verified.cluster_info().await?;
    let again = again.get(KUBECONFIG).map(String::as_bytes).unwrap_or_default();
    verify_slices_are_equal(again, kubeconfig.as_bytes())
        .map_err(|_| BootstrapError::cluster(ClusterInfoError::Changed))?;
    say(&format!("TLS        verified with that CA\ncluster    {}\n", location.server))
}

/// A client without credentials.
struct AnonymousClient(ClusterClient);

impl AnonymousClient {
    /// Verifies the server with these CAs; with `None`, skips verification.
    fn of(server: &Uri, authorities: Option<&[CertificateDer<'_>]>) -> Result<Self, BootstrapError> {
        let mut config = Config::new(server.clone());
        config.accept_invalid_certs = authorities.is_none();
        // An empty list, not `None`, which would trust the system's CAs.
        config.root_cert = Some(authorities.unwrap_or_default().iter().map(|ca| ca.to_vec()).collect());
        let client = kube_client::client(&config, &ProxyChoice::default());
        let client = client.map_err(|problem| BootstrapError::Cluster(format!("{server}: {problem}")))?;
        Ok(Self(ClusterClient { client, config }))
    }

    async fn cluster_info(&self) -> Result<std::collections::BTreeMap<String, String>, BootstrapError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.0.client.clone(), NAMESPACE);
        let doing = format!("read the ConfigMap {NAMESPACE}/{NAME}");
        let map = self.0.ask(&doing, maps.get(NAME)).await.map_err(BootstrapError::Cluster)?;
        Ok(map.data.unwrap_or_default())
    }
}
