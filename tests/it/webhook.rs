//! The flags of the token webhook, and its kubeconfig.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portcullis::internal::{BearerToken, ProxyChoice};
use portcullis::internal::{TokenReviewVersion, WebhookSettings};
use testkit::{Pki, flags};

use crate::gateway::resolved;

const KEY: &str = "--authentication-token-webhook";

/// The parts of a kubeconfig.
struct Parts<'a> {
    cluster: &'a str,
    user: Option<&'a str>,
}

impl Parts<'_> {
    fn kubeconfig(&self) -> String {
        let (user, of_context) = match self.user {
            Some(user) => (format!("users: [{{name: u, user: {{{user}}}}}]\n"), ", user: u"),
            None => (String::new(), ""),
        };
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n{user}\
             clusters: [{{name: b, cluster: {{{}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: b{of_context}}}}}]\n",
            self.cluster
        )
    }
}

/// Resolves the webhook of these flags; in errors, `DIR` replaces the directory.
fn webhook(pki: &Pki, parts: &Parts<'_>, more: &[&str]) -> Result<Arc<WebhookSettings>, String> {
    let file = pki.write("webhook.kubeconfig", parts.kubeconfig());
    let mut all = flags(pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
    all.push(format!("{KEY}-config-file={}", file.display()));
    all.extend(more.iter().map(|flag| format!("{KEY}-{flag}")));
    let directory = pki.directory.path().display().to_string();
    match resolved(all) {
        Ok(resolved) => Ok(resolved.settings.clusters[0].authentication.webhook.clone().unwrap()),
        Err(errors) => Err(errors.to_string().replace(&directory, "DIR")),
    }
}

#[test]
fn a_kubeconfig_has_the_url_and_the_credentials_of_the_webhook() {
    let pki = Pki::new();
    let cluster = "server: 'https://[::1]:8443/authenticate/', certificate-authority: servers-ca.crt";
    let plain = webhook(&pki, &Parts { cluster, user: None }, &[]).unwrap();
    assert_eq!(plain.url, "https://[::1]:8443/authenticate");
    assert_eq!((plain.version, plain.cache_ttl), (TokenReviewVersion::V1Beta1, Duration::from_mins(2)));
    assert_eq!(plain.tls.server_name, Some("::1".try_into().unwrap()));
    assert!(plain.tls.client_certificate.is_none() && plain.bearer_token.is_none());
    assert_eq!(plain.tls.roots.len(), 1);

    pki.write("own.token", "s3cr3t\n");
    let full = Parts {
        cluster: &format!("{cluster}, tls-server-name: hook.test"),
        user: Some("client-certificate: front.crt, client-key: front.key, tokenFile: own.token"),
    };
    let full = webhook(&pki, &full, &["version=v1", "cache-ttl=0s"]).unwrap();
    assert_eq!((full.version, full.cache_ttl), (TokenReviewVersion::V1, Duration::ZERO));
    assert_eq!(full.tls.server_name, Some("hook.test".try_into().unwrap()));
    assert_eq!(full.bearer_token, Some(BearerToken::new("s3cr3t")));
    assert!(full.tls.client_certificate.is_some());
    assert!(!format!("{full:?}").contains("s3cr3t"), "{full:?}");
}

#[test]
fn a_reload_detects_whether_the_webhook_changed() {
    let pki = Pki::new();
    pki.write("own.token", "first");
    let parts = Parts {
        cluster: "server: 'https://hook.test', certificate-authority: servers-ca.crt",
        user: Some("tokenFile: own.token"),
    };
    let before = webhook(&pki, &parts, &[]).unwrap();
    assert_eq!(before, webhook(&pki, &parts, &[]).unwrap());
    assert_ne!(before, webhook(&pki, &parts, &["cache-ttl=3m"]).unwrap());
    pki.write("own.token", "second");
    assert_ne!(before, webhook(&pki, &parts, &[]).unwrap());
}

#[test]
fn a_webhook_suffices_as_the_only_authenticator() {
    let pki = Pki::new();
    let parts =
        Parts { cluster: "server: 'https://hook.test', certificate-authority: servers-ca.crt", user: None };
    let file = pki.write("webhook.kubeconfig", parts.kubeconfig());
    let own = [format!("{KEY}-config-file={}", file.display()), "--anonymous-auth=false".to_owned()];
    let others = ["--client-ca-file", "--token-auth-file", "--requestheader-"];
    let rest = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443))).into_iter();
    let rest = rest.filter(|flag| !others.iter().any(|other| flag.starts_with(other)));
    let settings = resolved(rest.chain(own)).unwrap().settings;
    assert!(settings.clusters[0].authentication.webhook.is_some());
}

#[test]
fn all_errors_are_reported_together() {
    let pki = Pki::new();
    let parts = Parts {
        cluster: "server: 'http://hook.test/?a=b', certificate-authority: none.crt, \
                  insecure-skip-tls-verify: true, proxy-url: 'ftp://me:s3cr3t@proxy.test'",
        user: Some("username: me, password: s3cr3t, client-certificate: front.crt"),
    };
    let errors = webhook(&pki, &parts, &["version=v2", "cache-ttl=soon"]).unwrap_err();
    for expected in [
        "--authentication-token-webhook-version: unsupported authentication webhook version \"v2\", \
         supported versions are \"v1\", \"v1beta1\"",
        "--authentication-token-webhook-cache-ttl: ",
        "--authentication-token-webhook-config-file: DIR/webhook.kubeconfig: server \"http://hook.test/?a=b\": \
         http is not allowed: credentials and identities would be sent in clear text",
        "insecure-skip-tls-verify is not allowed",
        "proxy-url: the scheme \"ftp\" of the proxy is not supported: it is http, https or socks5",
        "certificate-authority DIR/none.crt: ",
        "username and password were removed",
        "the user has a client-certificate but no client-key",
    ] {
        assert!(errors.contains(expected), "{expected} is not in\n{errors}");
    }
    assert!(!errors.contains("s3cr3t"), "{errors}");
    let negative = webhook(
        &pki,
        &Parts { cluster: "server: 'https://hook.test', certificate-authority: servers-ca.crt", user: None },
        &["cache-ttl=-1s"],
    );
    assert!(negative.unwrap_err().contains("must not be negative"));
}

#[test]
fn a_proxy_of_the_kubeconfig_replaces_that_of_the_environment() {
    let pki = Pki::new();
    let with = |more: &str| {
        let cluster = format!("server: 'https://hook.test', certificate-authority: servers-ca.crt{more}");
        webhook(&pki, &Parts { cluster: &cluster, user: None }, &[]).unwrap().tls.proxy.clone()
    };
    assert_eq!(with(""), ProxyChoice::Environment);
    let proxy = with(", proxy-url: 'http://me:s3cr3t@proxy.test:3128'");
    assert_eq!(format!("{proxy:?}"), "Fixed(ProxyUrl(http://proxy.test:3128))");
    assert_ne!(proxy, with(", proxy-url: 'http://me:other@proxy.test:3128'"), "a reload sees a new password");
}

#[test]
fn only_audit_events_are_sent_without_tls_and_only_to_loopback() {
    let pki = Pki::new();
    let audited = |server: &str, user: Option<&str>| {
        let cluster = format!("server: '{server}'");
        let file = pki.write("audit.kubeconfig", Parts { cluster: &cluster, user }.kubeconfig());
        let policy = pki
            .write("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n");
        let mut all = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
        all.push(format!("--audit-webhook-config-file={}", file.display()));
        all.push(format!("--audit-policy-file={}", policy.display()));
        resolved(all).map(drop).map_err(|errors| errors.to_string())
    };
    for server in ["http://127.0.0.1:8765/k8s-audit", "http://[::1]:8765", "http://127.1.2.3"] {
        assert_eq!(audited(server, None), Ok(()), "{server}");
        let parts = Parts { cluster: &format!("server: '{server}'"), user: None };
        let error = webhook(&pki, &parts, &[]).unwrap_err();
        assert!(error.contains("http is not allowed"), "{server}: {error}");
    }
    for server in
        ["http://localhost:8765", "http://10.0.0.1:8765", "http://collector.test", "http://127.0.0.1.test"]
    {
        let error = audited(server, None).unwrap_err();
        assert!(error.contains("http is not allowed"), "{server}: {error}");
    }
    let error = audited("http://127.0.0.1:8765", Some("token: s3cr3t")).unwrap_err();
    assert!(error.contains("in clear text") && !error.contains("s3cr3t"), "{error}");
}
