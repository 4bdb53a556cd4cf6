//! `portcullis token create`.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use rustls_pki_types::CertificateDer;
use secrecy::ExposeSecret as _;

use super::super::cluster::{ClusterClient, ClusterFlags};
use super::{BootstrapError, duration, print_error, read_token, say, secrets};
use crate::clock::Clock;
use crate::pki::bootstrap_tokens::cluster_info::{self, ClusterLocation};
use crate::pki::bootstrap_tokens::pins::PublicKeyPins;
use crate::pki::bootstrap_tokens::secret::{NewToken, TokenUsage, is_group};
use crate::pki::bootstrap_tokens::token::BootstrapToken;

// kubeadm: apis/bootstraptoken/v1/defaults.go
const DEFAULT_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

/// The flags of `portcullis token create`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct TokenCreateFlags {
    /// The token, such as `portcullis token generate` prints one; - reads it from standard input. Default: a random one.
    ///
    /// A token on the command line is seen by everybody on the machine, in the list of processes, and stays in the
    /// history of the shell. The form is there since `kubeadm token create` has it; prefer - or none at all.
    #[arg(value_name = "TOKEN", hide_default_value = true)]
    token: Option<String>,
    /// How long it is good for, such as 90m or 2h; 0 is for ever.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = ttl, allow_hyphen_values = true)]
    ttl: Duration,
    /// What it may be used for, comma-separated: to sign cluster-info, and to authenticate.
    #[arg(long, value_name = "USAGES", value_delimiter = ',', default_value = "signing,authentication", value_parser = usage)]
    usages: Vec<TokenUsage>,
    /// The groups of those who authenticate with it, besides system:bootstrappers; comma-separated, and all of the form
    /// system:bootstrappers:NAME. Default, if it may authenticate: system:bootstrappers:kubeadm:default-node-token.
    #[arg(long, value_name = "GROUPS", value_delimiter = ',', value_parser = group)]
    groups: Vec<String>,
    /// What it is for, in your words.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    /// Print the whole `kubeadm join` command, not the token alone.
    #[arg(long, conflicts_with = "dry_run")]
    print_join_command: bool,
    /// Print the Secret that would be created, and ask no cluster.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
}

// kubeadm takes a negative one for none: a token for ever by mistake.
fn ttl(text: &str) -> Result<Duration, String> {
    duration(text).map_err(|problem| format!("{problem}; 0 is for ever"))
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
    // Asked for before there is a token that nobody would be told.
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
            let fix = format!("take another, or delete that one: portcullis token delete {id}");
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

/// What a node is told to join with.
struct JoinCommand {
    endpoint: String,
    pins: Vec<String>,
}

impl JoinCommand {
    /// What joining nodes are told by the cluster itself; without that, what the kubeconfig says of it.
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
            "warning: no node can join yet: there is no ConfigMap {}/{} with a kubeconfig in it\n  fix: portcullis \
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
        // It is to be pasted into a shell.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:[]/".contains(&byte);
        if endpoint.is_empty() || !endpoint.bytes().all(plain) {
            let problem = format!("no join command: {server:?} is no address of a server");
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
    fn a_join_command_holds_nothing_that_a_shell_would_do() {
        let ca = include_bytes!("../../pki/bootstrap_tokens/cluster_info/pinned.pem");
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
