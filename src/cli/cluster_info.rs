//! `portcullis cluster-info`: the ConfigMap by which nodes that know a token come to know the cluster.

mod create;
mod verify;

use std::process::ExitCode;

use clap::Subcommand;

use super::token::{finish, in_runtime};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis cluster-info create --server https://gateway.example.com:6443 --certificate-authority ca.crt
  portcullis cluster-info verify --server gateway.example.com:6443 --token-file token \\
    --discovery-token-ca-cert-hash sha256:…";

/// What is done with cluster-info.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum ClusterInfoCommand {
    /// Create the ConfigMap kube-public/cluster-info, and let everybody read it.
    ///
    /// In it is a kubeconfig with the address of the cluster and its CA, and no credential. The role and the binding
    /// that let system:anonymous read it are those of kubeadm. The controller bootstrapsigner signs it with every token
    /// that may sign.
    Create(create::ClusterInfoCreateFlags),
    /// Do what a joining node does to know its cluster, and say whether it would believe it.
    ///
    /// Reads the ConfigMap anonymously and over unverified TLS, checks that the token has signed it and that the CA is
    /// pinned, and reads it again over TLS verified with that CA: both must be the same. Exits 0 if a node would join, 1
    /// if not.
    Verify(verify::ClusterInfoVerifyFlags),
}

pub(super) fn run(command: &ClusterInfoCommand) -> ExitCode {
    finish(in_runtime(async {
        match command {
            ClusterInfoCommand::Create(flags) => create::run(flags).await,
            ClusterInfoCommand::Verify(flags) => verify::run(flags).await,
        }
    }))
}

/// A URL of an API server: host and port will do.
fn server(text: &str) -> Result<http::Uri, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let url: http::Uri = url.parse().map_err(|error| format!("it is no URL: {error}"))?;
    match (url.scheme_str(), url.authority(), url.query()) {
        (Some("https"), Some(authority), None) if !authority.as_str().contains('@') => Ok(url),
        (Some("https"), ..) => Err("must be host, port and at most a path".to_owned()),
        _ => Err("must be an https URL".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_or_a_url() {
        for (text, url) in [
            ("gateway.test:6443", Some("https://gateway.test:6443/")),
            ("[::1]:6443", Some("https://[::1]:6443/")),
            ("https://gateway.test", Some("https://gateway.test/")),
            ("https://gateway.test/prod", Some("https://gateway.test/prod")),
            ("http://gateway.test", None),
            ("https://alice@gateway.test", None),
            ("https://gateway.test?x=y", None),
            ("https://", None),
            ("", None),
            ("a b", None),
        ] {
            assert_eq!(server(text).ok().map(|url| url.to_string()).as_deref(), url, "{text:?}");
        }
    }
}
