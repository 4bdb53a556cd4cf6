//! `portcullis cluster-info verify`: a joining node's way to the cluster, step by step.

use std::fs::File;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use clap::Args;
use http::Uri;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, Config};
use rustls_pki_types::CertificateDer;
use tokio::time::{Instant, sleep};

use super::super::cluster::{Cluster, chain};
use super::super::complain;
use super::super::token::{Failure, duration, read_token, say};
use crate::pki::bootstrap_tokens::cluster_info::{Distrust, KUBECONFIG, Location, NAME, NAMESPACE, believed};
use crate::pki::bootstrap_tokens::pins::Pins;

/// The flags of `portcullis cluster-info verify`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct VerifyFlags {
    /// Where a node is told to join: host and port, or a URL.
    #[arg(long, value_name = "URL", value_parser = super::server)]
    server: Uri,
    /// A file with the token; - is standard input. There is no flag for the token itself: everybody on the machine sees
    /// command lines.
    #[arg(long, value_name = "FILE", default_value = "-")]
    token_file: PathBuf,
    /// The public key of the CA, sha256: and its hash, as `token create --print-join-command` prints it. One of several
    /// will do; without any, a CA that the token has signed is taken.
    #[arg(long, value_name = "HASH", value_delimiter = ',')]
    discovery_token_ca_cert_hash: Vec<String>,
    /// How long to wait for the signature of a token that was just created.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    timeout: Duration,
}

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(200);

// kubeadm: discovery/token/token.go, retrieveValidatedConfigInfo
pub(super) async fn run(flags: &VerifyFlags) -> Result<(), Failure> {
    let pins = Pins::parse(flags.discovery_token_ca_cert_hash.iter().map(String::as_str))
        .map_err(|error| Failure::Usage(format!("--discovery-token-ca-cert-hash: {error}")))?;
    let token = if flags.token_file.as_os_str() == "-" {
        let input = std::io::stdin();
        if input.is_terminal() {
            complain("reading a token from standard input; end with Ctrl-D");
        }
        read_token(input)?
    } else {
        let bad = |error| Failure::Usage(format!("--token-file {}: {error}", flags.token_file.display()));
        read_token(File::open(&flags.token_file).map_err(bad)?)?
    };

    // Nothing is known of the server yet: nothing is sent to it but the question.
    let unverified = Asked::of(&flags.server, None)?;
    let until = Instant::now() + flags.timeout;
    let kubeconfig = loop {
        let data = unverified.cluster_info().await?;
        match believed(&data, &token) {
            Err(Distrust::NotSigned(_)) if Instant::now() < until => sleep(INTERVAL).await,
            found => break found.map_err(Failure::cluster)?.to_owned(),
        }
    };
    let location = Location::of(&kubeconfig).map_err(Failure::cluster)?;
    say(&format!("signature  of the token {}, good\n", token.id))?;
    if pins.is_empty() {
        say("CA         signed by the token, not pinned\n")?;
    } else {
        location.is_pinned(&pins).map_err(Failure::cluster)?;
        say("CA         pinned\n")?;
    }
    // kubeadm reads again only if there are pins; who asks wants to know whether TLS will do.
    let verified = Asked::of(&flags.server, Some(&location.authorities))?;
    let again = verified.cluster_info().await?;
    let again = again.get(KUBECONFIG).map(String::as_bytes).unwrap_or_default();
    verify_slices_are_equal(again, kubeconfig.as_bytes()).map_err(|_| Failure::cluster(Distrust::Changed))?;
    say(&format!("TLS        verified with that CA\ncluster    {}\n", location.server))
}

/// A server that is asked anonymously.
struct Asked(Cluster);

impl Asked {
    /// Verified with these CAs, or not at all.
    fn of(server: &Uri, authorities: Option<&[CertificateDer<'_>]>) -> Result<Self, Failure> {
        let mut config = Config::new(server.clone());
        config.accept_invalid_certs = authorities.is_none();
        // An empty list, not none: the system's own CAs play no part.
        config.root_cert = Some(authorities.unwrap_or_default().iter().map(|ca| ca.to_vec()).collect());
        let client = Client::try_from(config.clone());
        let client = client.map_err(|error| Failure::Cluster(format!("{server}: {}", chain(&error))))?;
        Ok(Self(Cluster { client, config }))
    }

    async fn cluster_info(&self) -> Result<std::collections::BTreeMap<String, String>, Failure> {
        let maps: Api<ConfigMap> = Api::namespaced(self.0.client.clone(), NAMESPACE);
        let doing = format!("read the ConfigMap {NAMESPACE}/{NAME}");
        let map = self.0.ask(&doing, maps.get(NAME)).await.map_err(Failure::Cluster)?;
        Ok(map.data.unwrap_or_default())
    }
}
