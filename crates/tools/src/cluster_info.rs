//! `portcullis cluster-info`: the ConfigMap with which nodes that have a bootstrap token discover the cluster.

mod create;
mod verify;

use std::process::ExitCode;

use clap::Subcommand;

use super::token::{finish, in_runtime};

/// The examples of `portcullis cluster-info --help`.
pub const EXAMPLE: &str = "\
Examples:
  portcullis cluster-info create --server https://gateway.example.com:6443
  portcullis cluster-info verify --server gateway.example.com:6443 --token-file token \\
    --discovery-token-ca-cert-hash sha256:…";

/// The commands of `portcullis cluster-info`.
#[derive(Debug, Clone, Subcommand)]
pub enum ClusterInfoCommand {
    /// Create the ConfigMap kube-public/cluster-info, and allow anonymous clients to read it.
    ///
    /// It contains a kubeconfig with the address of the cluster and its CA, without a credential. kubeadm's Role and
    /// RoleBinding allow system:anonymous to read it. The controller bootstrapsigner signs it with every token that has
    /// the usage signing.
    #[command(
        after_help = "Example:\n  portcullis cluster-info create --server https://gateway.example.com:6443"
    )]
    Create(create::ClusterInfoCreateFlags),
    /// Discover the cluster as a joining node does, and verify each step.
    ///
    /// Reads the ConfigMap anonymously over unverified TLS, checks its signature by the token and the pin of its CA,
    /// and reads it again over TLS verified with that CA: both must be the same. Exits 0 if a node would join, 1 if
    /// not.
    #[command(
        after_help = "Example:\n  portcullis cluster-info verify --server gateway.example.com:6443 --token-file token"
    )]
    Verify(verify::ClusterInfoVerifyFlags),
}

/// Runs `portcullis cluster-info`.
pub fn run(command: &ClusterInfoCommand) -> ExitCode {
    finish(in_runtime(async {
        match command {
            ClusterInfoCommand::Create(flags) => create::run(flags).await,
            ClusterInfoCommand::Verify(flags) => verify::run(flags).await,
        }
    }))
}

/// Parses the URL, or host and port, of an API server.
fn server(text: &str) -> Result<http::Uri, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let url: http::Uri = url.parse().map_err(|error| format!("not a URL: {error}"))?;
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
