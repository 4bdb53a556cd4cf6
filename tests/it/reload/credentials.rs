//! A credential is valid from the reload that adds it until the reload that removes it, also on open connections: their
//! next request is authenticated by the new configuration.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::HandshakeKind;
use rustls::version::TLS12;
use rustls_pki_types::ServerName;
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::pki::Ca;
use testkit::{FakeBackend, Gateway, Pki, flags, tls_client};

use super::reload;
use crate::gateway::InProcess as _;

/// Both versions of HTTP, as `http2` flags.
const VERSIONS: [bool; 2] = [false, true];

struct Setup {
    pki: Pki,
    backend: FakeBackend,
    gateway: Gateway,
}

impl Setup {
    async fn start() -> Self {
        let pki = Pki::new();
        let backend = FakeBackend::plain(&pki).await;
        let gateway = Gateway::with(flags(&pki, backend.address));
        Self { pki, backend, gateway }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.pki.directory.path().join(name)
    }

    async fn replace(&self, name: &str, content: impl AsRef<[u8]>) {
        replace(&self.file(name), content);
        reload(&self.gateway).await;
    }

    /// The user of the last request that the backend received.
    fn user(&self) -> String {
        let last = std::iter::from_fn(|| self.backend.take()).last().expect("the backend received a request");
        last.all("x-remote-user").join(",")
    }
}

const OLD: (&str, &str) = ("authorization", "Bearer good-token");
const NEW: (&str, &str) = ("authorization", "Bearer new-token");

#[tokio::test]
async fn tokens_are_added_and_removed_on_open_connections() {
    for http2 in VERSIONS {
        let setup = Setup::start().await;
        let mut client = Client::connect(&setup.gateway, http2, None).await;
        assert_eq!(client.code(&[OLD]).await, 200);
        setup.replace("tokens.csv", "new-token,dave,9\n").await;
        assert_eq!(client.code(&[NEW]).await, 200, "http2={http2}");
        assert_eq!(setup.user(), "dave");
        assert_eq!(client.code(&[OLD]).await, 401, "http2={http2}");
    }
}

#[tokio::test]
async fn anonymous_requests_are_accepted_on_the_paths_of_the_file() {
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
    let conditions =
        |path: &str| format!("{head}anonymous: {{enabled: true, conditions: [{{path: {path}}}]}}\n");
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let file = pki.write("authentication.yaml", conditions("/version"));
    let config = format!("--authentication-config={}", file.display());
    let mut given = flags(&pki, backend.address);
    given.retain(|flag| !flag.starts_with("--anonymous-auth"));
    let gateway = Gateway::with(given.into_iter().chain([config]).collect());
    let setup = Setup { pki, backend, gateway };
    for http2 in VERSIONS {
        let codes = async |paths: [&str; 4]| {
            let mut codes = Vec::new();
            for path in paths {
                // A refused anonymous request closes its HTTP/2 connection.
                let mut client = Client::connect(&setup.gateway, http2, None).await;
                codes.push(client.code_at(path, &[]).await.as_u16());
            }
            codes
        };
        let paths = ["/version", "/%76ersion?a=b", "/version/", "/openapi"];
        setup.replace("authentication.yaml", conditions("/version")).await;
        assert_eq!(codes(paths).await, [200, 200, 401, 401], "http2={http2}");
        assert_eq!(setup.user(), "system:anonymous");
        setup.replace("authentication.yaml", conditions("/openapi")).await;
        assert_eq!(codes(paths).await, [401, 401, 401, 200], "http2={http2}");
        setup.replace("authentication.yaml", head.to_owned() + "anonymous: {}\n").await;
        assert_eq!(codes(paths).await, [401; 4], "http2={http2}");
    }
}

#[tokio::test]
async fn a_token_that_is_reassigned_authenticates_the_new_user_at_once() {
    for http2 in VERSIONS {
        let setup = Setup::start().await;
        let mut client = Client::connect(&setup.gateway, http2, None).await;
        client.code(&[OLD]).await;
        assert_eq!(setup.user(), "carol");
        setup.replace("tokens.csv", "good-token,dave,9\n").await;
        client.code(&[OLD]).await;
        assert_eq!(setup.user(), "dave");
    }
}

#[tokio::test]
async fn client_cas_are_added_and_removed_on_open_connections() {
    let other = Ca::new("other clients");
    let carl = other.leaf().cn("carl").issue();
    for http2 in VERSIONS {
        let setup = Setup::start().await;
        let alice = setup.pki.clients.leaf().cn("alice").issue();
        let mut of_alice = Client::connect(&setup.gateway, http2, Some(&alice)).await;
        assert_eq!(of_alice.code(&[]).await, 200);
        // The certificate is refused, and the result is cached; the token is valid, so the connection stays open.
        let mut of_carl = Client::connect(&setup.gateway, http2, Some(&carl)).await;
        assert_eq!(of_carl.code(&[OLD]).await, 200);
        assert_eq!(setup.user(), "carol");
        setup.replace("clients-ca.crt", other.cert_pem()).await;
        assert_eq!(of_carl.code(&[]).await, 200, "http2={http2}");
        assert_eq!(setup.user(), "carl");
        assert_eq!(of_alice.code(&[]).await, 401, "http2={http2}");
    }
}

#[tokio::test]
async fn front_proxies_are_added_and_removed_on_open_connections() {
    for http2 in VERSIONS {
        let setup = Setup::start().await;
        let directory = setup.pki.directory.path().display();
        let config = |allowed: &str| {
            format!(
                "apiVersion: portcullis.dev/v1alpha1\nkind: GatewayConfiguration\n\
                 serving: {{bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, \
                 tlsPrivateKeyFile: gateway.key}}\n\
                 operation: {{metricsBindAddress: '127.0.0.1:0', workers: 1}}\n\
                 clusters: [{{name: c, kubeconfig: backend.kubeconfig, match: {{serverNames: [localhost]}}}}]\n\
                 authentication: {{requestheaderClientCAFile: client-front-ca.crt, \
                 requestheaderUsernameHeaders: [X-Remote-User], requestheaderAllowedNames: [{allowed}]}}\n"
            )
        };
        setup.pki.write("gateway.yaml", config("one"));
        let gateway = Gateway::with(vec![format!("--config={directory}/gateway.yaml")]);
        let setup = Setup { gateway, ..setup };
        let [one, two] = ["one", "two"].map(|name| setup.pki.client_front.leaf().cn(name).issue());
        let named = [("x-remote-user", "dave")];
        let mut of_one = Client::connect(&setup.gateway, http2, Some(&one)).await;
        let mut another_of_one = Client::connect(&setup.gateway, http2, Some(&one)).await;
        let mut of_two = Client::connect(&setup.gateway, http2, Some(&two)).await;
        assert_eq!(of_one.code(&named).await, 200);
        setup.replace("gateway.yaml", config("two")).await;
        assert_eq!(of_one.code(&named).await, 401, "its name is no longer allowed, http2={http2}");
        assert_eq!(of_two.code(&named).await, 200, "http2={http2}");
        assert_eq!(setup.user(), "dave");
        setup.replace("gateway.yaml", config("one, two")).await;
        assert_eq!(another_of_one.code(&named).await, 200);
        setup.replace("client-front-ca.crt", setup.pki.clients.cert_pem()).await;
        assert_eq!(another_of_one.code(&named).await, 401, "its CA is gone, http2={http2}");
        assert_eq!(of_two.code(&named).await, 401, "its CA is gone, http2={http2}");
    }
}

/// A resumed session, which TLS 1.2 has here, carries the certificate of the first handshake, which the gateway verifies again.
#[tokio::test]
async fn a_removed_ca_is_removed_for_resumed_sessions_too() {
    for alpn in [&b"http/1.1"[..], b"h2"] {
        let setup = Setup::start().await;
        setup.gateway.checked().await;
        let alice = setup.pki.clients.leaf().cn("alice").issue();
        let mut config =
            tls_client(&[&TLS12]).with_client_auth_cert(alice.chain.clone(), alice.key.clone_key()).unwrap();
        config.alpn_protocols = vec![alpn.to_vec()];
        let config = Arc::new(config);
        let connect = async || {
            let name = ServerName::try_from("localhost").unwrap();
            let stream = setup.gateway.tls_with(name, Arc::clone(&config)).await;
            let kind = stream.get_ref().1.handshake_kind();
            (Client::over(&setup.gateway, stream).await, kind)
        };
        let case = format!("{alpn:?}");
        let (mut first, kind) = connect().await;
        assert_ne!(kind, Some(HandshakeKind::Resumed), "{case}");
        assert_eq!(first.code(&[]).await, 200, "{case}");
        let (mut resumed, kind) = connect().await;
        assert_eq!(kind, Some(HandshakeKind::Resumed), "{case}");
        assert_eq!(resumed.code(&[]).await, 200, "{case}");
        assert_eq!(setup.user(), "alice", "{case}");
        let (mut unused, kind) = connect().await;
        assert_eq!(kind, Some(HandshakeKind::Resumed), "{case}");

        setup.replace("clients-ca.crt", Ca::new("others").cert_pem()).await;
        assert_eq!(resumed.code(&[]).await, 401, "{case}");
        assert_eq!(unused.code(&[]).await, 401, "{case}: resumed before the reload, first request after it");
        let (mut later, _) = connect().await;
        assert_eq!(later.code(&[]).await, 401, "{case}: resumed after the reload");
    }
}
