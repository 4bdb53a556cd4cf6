//! `portcullis token create`.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use portcullis_pki::bootstrap_tokens::cluster_info::{self, ClusterLocation};
use portcullis_pki::bootstrap_tokens::pins::PublicKeyPins;
use portcullis_pki::bootstrap_tokens::secret::{NewToken, TokenUsage, is_group};
use portcullis_pki::bootstrap_tokens::token::BootstrapToken;
use portcullis_system::clock::Clock;
use rustls_pki_types::CertificateDer;
use secrecy::ExposeSecret as _;

use super::super::cluster::{ClusterClient, ClusterFlags};
use super::{BootstrapError, duration, print_error, read_token, say, secrets};

// kubeadm: apis/bootstraptoken/v1/defaults.go
const DEFAULT_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

/// The flags of `portcullis token create`.
#[derive(Debug, Clone, Args)]
pub struct TokenCreateFlags {
    /// The token, as `portcullis token generate` prints it; - reads it from standard input. Default: a random token.
    ///
    /// Every user of the machine can read a token on the command line in the list of processes, and it stays in the
    /// shell history. Supported for compatibility with `kubeadm token create`; prefer - or the default.
    #[arg(value_name = "TOKEN", hide_default_value = true)]
    token: Option<String>,
    /// How long the token is valid, such as 90m or 2h; 0 means that it never expires.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = ttl, allow_hyphen_values = true)]
    ttl: Duration,
    /// The allowed usages, comma-separated: signing of cluster-info, authentication.
    #[arg(long, value_name = "USAGES", value_delimiter = ',', default_value = "signing,authentication", value_parser = usage)]
    usages: Vec<TokenUsage>,
    /// Extra groups of clients that authenticate with the token, comma-separated, each of the form
    /// system:bootstrappers:NAME. Default, if authentication is allowed:
    /// system:bootstrappers:kubeadm:default-node-token.
    #[arg(long, value_name = "GROUPS", value_delimiter = ',', value_parser = group)]
    groups: Vec<String>,
    /// A human-readable description of the token.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    /// Print the complete `kubeadm join` command instead of the token.
    #[arg(long, conflicts_with = "dry_run")]
    print_join_command: bool,
    /// Print the Secret without creating it; contacts no cluster.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
}

// kubeadm takes a negative duration for none: a token that never expires, by mistake.
fn ttl(text: &str) -> Result<Duration, String> {
    duration(text).map_err(|problem| format!("{problem}; 0 means that it never expires"))
}

// cluster-bootstrap: token/util/helpers.go, ValidateUsages
fn usage(text: &str) -> Result<TokenUsage, String> {
    let found = TokenUsage::ALL.into_iter().find(|usage| usage.name() == text);
    found.ok_or_else(|| format!("must be {}", TokenUsage::ALL.map(TokenUsage::name).join(" or ")))
}

fn group(text: &str) -> Result<String, String> {
    let problem =
        "must be system:bootstrappers: and a name of a-z, 0-9, : and -, which does not end in : or -";
    if is_group(text) { Ok(text.to_owned()) } else { Err(problem.to_owned()) }
}

pub(super) async fn run(flags: &TokenCreateFlags, clock: &Clock) -> Result<(), BootstrapError> {
    let new = new_token(flags, clock)?;
    let secret = new.secret();
    if flags.dry_run {
        let manifest = serde_saphyr::to_string(&secret).map_err(BootstrapError::cluster)?;
        return say(&manifest);
    }
    let cluster = flags.cluster.connect().await.map_err(BootstrapError::cluster)?;
    // Read before the token exists: a failure here must not leave a token that was never printed.
    let join = if flags.print_join_command { Some(JoinCommand::of(&cluster).await?) } else { None };
    let id = &new.token.id;
    let doing = format!("create the bootstrap token {id}");
    let (secrets, options) = (secrets(&cluster.client), PostParams::default());
    cluster
        .ask(&doing, async {
            match secrets.create(&options, &secret).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
                created => created.map(|_| true),
            }
        })
        .await
        .map_err(BootstrapError::Cluster)
        // kubeadm: phases/bootstraptoken/node/token.go, UpdateOrCreateTokens
        .and_then(|created| {
            let fix = format!("use another, or delete that one: portcullis token delete {id}");
            created.then_some(()).ok_or_else(|| {
                BootstrapError::Cluster(format!("a token with id \"{id}\" already exists\n  fix: {fix}"))
            })
        })?;
    let token = new.token.expose();
    match join {
        Some(join) => say(&join.command(token.expose_secret())),
        None => say(&format!("{}\n", token.expose_secret())),
    }
}

fn new_token(flags: &TokenCreateFlags, clock: &Clock) -> Result<NewToken, BootstrapError> {
    let token = match flags.token.as_deref() {
        None => BootstrapToken::generate().map_err(BootstrapError::cluster)?,
        Some("-") => {
            let input = std::io::stdin();
            if input.is_terminal() {
                print_error("reading a token from standard input; end with Ctrl-D");
            }
            read_token(input)?
        }
        Some(text) => {
            BootstrapToken::parse(text).map_err(|error| BootstrapError::Usage(format!("TOKEN: {error}")))?
        }
    };
    let usages: BTreeSet<TokenUsage> = flags.usages.iter().copied().collect();
    let authenticates = usages.contains(&TokenUsage::Authentication);
    // kubeadm: apis/kubeadm/validation/validation.go, ValidateTokenGroups
    let groups = match (flags.groups.as_slice(), authenticates) {
        ([], true) => vec![DEFAULT_GROUP.to_owned()],
        ([], false) => Vec::new(),
        (groups, true) => groups.to_vec(),
        (_, false) => {
            let problem =
                "--groups: token groups cannot be specified unless --usages includes \"authentication\"";
            return Err(BootstrapError::Usage(problem.to_owned()));
        }
    };
    let expires = (!flags.ttl.is_zero()).then(|| clock.now().saturating_add(flags.ttl));
    Ok(NewToken { token, expires, description: flags.description.clone(), usages, groups })
}

/// The endpoint and CA pins of a `kubeadm join` command.
struct JoinCommand {
    endpoint: String,
    pins: Vec<String>,
}

impl JoinCommand {
    /// Reads them from cluster-info; without it, from the kubeconfig.
    // kubeadm: cmd/util/join.go, getJoinCommand; from the kubeconfig alone
    async fn of(cluster: &ClusterClient) -> Result<Self, BootstrapError> {
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), cluster_info::NAMESPACE);
        let doing = format!("read the ConfigMap {}/{}", cluster_info::NAMESPACE, cluster_info::NAME);
        let found =
            cluster.ask(&doing, maps.get_opt(cluster_info::NAME)).await.map_err(BootstrapError::Cluster)?;
        let kubeconfig = found.and_then(|map| map.data?.remove(cluster_info::KUBECONFIG));
        if let Some(kubeconfig) = kubeconfig {
            let ClusterLocation { server, authorities, .. } =
                ClusterLocation::of(&kubeconfig).map_err(BootstrapError::cluster)?;
            return Self::new(&server, &authorities);
        }
        print_error(&format!(
            "warning: nodes cannot join yet: there is no ConfigMap {}/{} with a kubeconfig in it\n  fix: portcullis \
             cluster-info create",
            cluster_info::NAMESPACE,
            cluster_info::NAME
        ));
        let roots = cluster.config.root_cert.iter().flatten();
        let roots: Vec<_> = roots.map(|root| CertificateDer::from(root.clone())).collect();
        Self::new(&cluster.server().to_string(), &roots)
    }

    fn new(server: &str, authorities: &[CertificateDer<'_>]) -> Result<Self, BootstrapError> {
        let pins: Option<Vec<_>> = authorities.iter().map(PublicKeyPins::of).collect();
        let pins = pins.filter(|pins| !pins.is_empty()).ok_or_else(|| {
            BootstrapError::Cluster(
                "no join command: there is no CA certificate in the kubeconfig".to_owned(),
            )
        })?;
        let endpoint = server.trim_start_matches("https://").trim_end_matches('/').to_owned();
        // Users paste the command into a shell.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:[]/".contains(&byte);
        if endpoint.is_empty() || !endpoint.bytes().all(plain) {
            let problem = format!("no join command: {server:?} is not a server address");
            return Err(BootstrapError::Cluster(problem));
        }
        Ok(Self { endpoint, pins })
    }

    fn command(&self, token: &str) -> String {
        let pins = self.pins.iter().map(|pin| format!(" --discovery-token-ca-cert-hash {pin}"));
        let pins: String = pins.collect();
        format!("kubeadm join {} --token {token}{pins}\n", self.endpoint)
    }
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn a_join_command_contains_no_shell_metacharacters() {
        let ca = include_bytes!("../../../pki/src/bootstrap_tokens/cluster_info/pinned.pem");
        let ca = CertificateDer::from_pem_slice(ca).unwrap();
        for (server, endpoint) in [
            ("https://gateway.test:6443", Some("gateway.test:6443")),
            ("https://[2001:db8::1]:6443/", Some("[2001:db8::1]:6443")),
            ("https://gateway.test/prod", Some("gateway.test/prod")),
            ("https://x;reboot", None),
            ("https://$(reboot)", None),
            ("https://x --token y", None),
            ("https://x\nreboot", None),
            ("https://", None),
        ] {
            let join = JoinCommand::new(server, std::slice::from_ref(&ca));
            assert_eq!(join.ok().map(|join| join.endpoint).as_deref(), endpoint, "{server:?}");
        }
    }
}
