//! Revocation: a denied or revoked credential is refused on connections that are open, whatever was cached before, and
//! nobody else notices.

use std::path::PathBuf;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use rustls::HandshakeKind;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::crl::CrlBuilder;
use testkit::issuer::{Issuer, SigningKey};
use testkit::pki::{self, Ca, Issued};
use testkit::self_check::{self, respond};
use testkit::{FakeBackend, Gateway, H2, Pki, cluster_flags, flags, full, in_time, now, text, tls_client};

use crate::gateway::{InProcess as _, start_process};

/// Both versions of HTTP, as `http2` flags.
const VERSIONS: [bool; 2] = [false, true];
const CAROL: (&str, &str) = ("authorization", "Bearer good-token");

struct Setup {
    pki: Pki,
    backend: FakeBackend,
    gateway: Gateway,
}

impl Setup {
    /// A gateway with an empty deny list and further flags.
    async fn start(further: &[String]) -> Self {
        let pki = Pki::new();
        let backend = FakeBackend::plain(&pki).await;
        Self::with(pki, backend, further)
    }

    fn with(pki: Pki, backend: FakeBackend, further: &[String]) -> Self {
        let denied = pki.write("denied", "# empty\n");
        let given = flags(&pki, backend.address).into_iter().chain(further.iter().cloned());
        let gateway = Gateway::with(
            given.chain([format!("--credential-deny-list-file={}", denied.display())]).collect(),
        );
        Self { pki, backend, gateway }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.pki.directory.path().join(name)
    }

    fn deny(&self, lines: &str) {
        replace(&self.file("denied"), lines);
    }

    async fn denials(&self) -> u64 {
        self.gateway.count("portcullis_revoked_credentials_total{source=\"deny_list\"}").await
    }
}

/// `X509SHA256=…` of the leaf.
fn credential_id(issued: &Issued) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, issued.leaf());
    let digits: Vec<String> = digest.as_ref().iter().map(|octet| format!("{octet:02x}")).collect();
    format!("X509SHA256={}", digits.concat())
}

/// Sends requests on one connection until the response is 401; all before are 200.
async fn until_refused(client: &mut Client, headers: &[(&str, &str)], case: &str) {
    in_time(async {
        loop {
            match client.code(headers).await {
                StatusCode::UNAUTHORIZED => return,
                code => assert_eq!(code, StatusCode::OK, "{case}"),
            }
        }
    })
    .await;
}

/// Sends requests, each on a connection of its own, until the response is 200.
async fn until_accepted(gateway: &Gateway, identity: Option<&Issued>, headers: &[(&str, &str)]) {
    let accepted =
        async || Client::connect(gateway, false, identity).await.code(headers).await == StatusCode::OK;
    in_time(async { while !Box::pin(accepted()).await {} }).await;
}

#[tokio::test]
async fn a_denied_certificate_is_refused_on_open_connections_and_no_other_client_notices() {
    for http2 in VERSIONS {
        let setup = Setup::start(&[]).await;
        let [alice, bob] = ["alice", "bob"].map(|name| setup.pki.clients.leaf().cn(name).issue());
        let mut of_alice = Client::connect(&setup.gateway, http2, Some(&alice)).await;
        let mut of_bob = Client::connect(&setup.gateway, http2, Some(&bob)).await;
        assert_eq!(of_alice.code(&[]).await, 200);
        assert_eq!(of_bob.code(&[]).await, 200);
        let generation = setup.gateway.generation().await;

        setup.deny(&format!("user=somebody\n{} # left\n", credential_id(&alice)));
        until_refused(&mut of_alice, &[], &format!("http2={http2}")).await;
        assert_eq!(of_bob.code(&[]).await, 200, "http2={http2}");
        let mut new = Client::connect(&setup.gateway, http2, Some(&alice)).await;
        assert_eq!(new.code(&[]).await, 401, "http2={http2}");
        assert_eq!(setup.gateway.generation().await, generation, "nothing else was loaded");
        assert_eq!(setup.denials().await, 2);
        // As any bad credential: another one of the same client may be good.
        let mut both = Client::connect(&setup.gateway, http2, Some(&alice)).await;
        assert_eq!(both.code(&[CAROL]).await, 200);

        setup.deny("");
        until_accepted(&setup.gateway, Some(&alice), &[]).await;
        assert_eq!(of_bob.code(&[]).await, 200, "http2={http2}");
    }
}

// wolfSSL before 5.6 ends the connection at a ticket whose nonce has more than 8 bytes.
#[tokio::test]
async fn a_client_of_tls_1_3_gets_no_ticket() {
    let setup = Setup::start(&[]).await;
    let mut config = tls_client(&[&rustls::version::TLS13]).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    for _ in 0..2 {
        let name = ServerName::try_from("localhost").unwrap();
        let stream = setup.gateway.tls_with(name, Arc::clone(&config)).await;
        let kind = stream.get_ref().1.handshake_kind();
        // A ticket would come before the response.
        Client::over(&setup.gateway, stream).await.code(&[]).await;
        assert!(
            matches!(kind, Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest)),
            "{kind:?}"
        );
    }
}

#[tokio::test]
async fn a_denied_certificate_is_refused_in_resumed_sessions() {
    let setup = Setup::start(&[]).await;
    setup.gateway.checked().await;
    let alice = setup.pki.clients.leaf().cn("alice").issue();
    let mut config = tls_client(&[&rustls::version::TLS12])
        .with_client_auth_cert(alice.chain.clone(), alice.key.clone_key())
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let connect = async || {
        let name = ServerName::try_from("localhost").unwrap();
        let stream = setup.gateway.tls_with(name, Arc::clone(&config)).await;
        let kind = stream.get_ref().1.handshake_kind();
        (Client::over(&setup.gateway, stream).await, kind)
    };
    let (mut first, _) = connect().await;
    assert_eq!(first.code(&[]).await, 200);
    let (mut unused, kind) = connect().await;
    assert_eq!(kind, Some(HandshakeKind::Resumed));
    setup.deny(&credential_id(&alice));
    until_refused(&mut first, &[], "open").await;
    assert_eq!(unused.code(&[]).await, 401, "resumed before the change");
    let (mut later, kind) = connect().await;
    assert_eq!(kind, Some(HandshakeKind::Resumed));
    assert_eq!(later.code(&[]).await, 401, "resumed after the change");
}

#[tokio::test]
async fn a_token_is_denied_by_its_id_although_it_is_cached() {
    let (pki, key) = (Pki::new(), SigningKey::new("k"));
    let issuer = Issuer::start(&pki, &[&key]).await;
    let backend = FakeBackend::plain(&pki).await;
    flags(&pki, backend.address);
    let further = [
        format!("--oidc-issuer-url={}", issuer.url),
        "--oidc-client-id=here".to_owned(),
        "--oidc-signing-algs=ES256".to_owned(),
        format!("--oidc-ca-file={}", pki.directory.path().join("servers-ca.crt").display()),
    ];
    let setup = Setup::with(pki, backend, &further);
    let bearer = |id: &str| {
        let claims = json!({"iss": issuer.url, "aud": "here", "sub": "dave", "jti": id, "exp": now() + 3600});
        format!("Bearer {}", key.sign(&claims))
    };
    let [stolen, other] = ["stolen id", "other"].map(bearer);
    let [stolen, other] = [&stolen, &other].map(|token| [("authorization", token.as_str())]);
    until_accepted(&setup.gateway, None, &stolen).await;
    for http2 in VERSIONS {
        setup.deny("# nothing\n");
        until_accepted(&setup.gateway, None, &stolen).await;
        let mut client = Client::connect(&setup.gateway, http2, None).await;
        let mut calm = Client::connect(&setup.gateway, http2, None).await;
        assert_eq!(client.code(&stolen).await, 200);
        assert_eq!(calm.code(&other).await, 200);
        setup.deny("JTI=\"stolen id\"\n");
        until_refused(&mut client, &stolen, &format!("http2={http2}")).await;
        assert_eq!(calm.code(&other).await, 200, "another token of the same user, http2={http2}");
    }
}

#[tokio::test]
async fn a_denied_user_is_refused_with_every_credential_and_nobody_may_name_it() {
    let setup = Setup::start(&[]).await;
    let proxy = setup.pki.client_front.leaf().cn("proxy").issue();
    let carol = setup.pki.clients.leaf().cn("carol").issue();
    let mut of_token = Client::connect(&setup.gateway, false, None).await;
    let mut of_certificate = Client::connect(&setup.gateway, false, Some(&carol)).await;
    let mut of_proxy = Client::connect(&setup.gateway, false, Some(&proxy)).await;
    let named = [("x-remote-user", "carol")];
    assert_eq!(of_token.code(&[CAROL]).await, 200);
    assert_eq!(of_certificate.code(&[]).await, 200);
    assert_eq!(of_proxy.code(&named).await, 200);
    setup.deny("user=carol");
    until_refused(&mut of_token, &[CAROL], "token").await;
    assert_eq!(of_certificate.code(&[]).await, 401);
    assert_eq!(of_proxy.code(&named).await, 401);
    assert_eq!(of_proxy.code(&[("x-remote-user", "dave")]).await, 200);
    // A credential that the front proxy has authenticated.
    setup.deny("JTI=7fb8");
    let with_id = [
        ("x-remote-user", "dave"),
        ("x-remote-extra-authentication.kubernetes.io%2fcredential-id", "JTI=7fb8"),
    ];
    until_refused(&mut of_proxy, &with_id, "credential of a front proxy's user").await;
    assert_eq!(of_proxy.code(&[("x-remote-user", "dave")]).await, 200);
}

#[tokio::test]
async fn a_denied_front_proxy_asserts_no_user() {
    for http2 in VERSIONS {
        let setup = Setup::start(&[]).await;
        let [proxy, other] = [(); 2].map(|()| setup.pki.client_front.leaf().cn("proxy").issue());
        let mut client = Client::connect(&setup.gateway, http2, Some(&proxy)).await;
        let mut calm = Client::connect(&setup.gateway, http2, Some(&other)).await;
        let named = [("x-remote-user", "dave")];
        assert_eq!(client.code(&named).await, 200);
        setup.deny(&credential_id(&proxy));
        until_refused(&mut client, &named, &format!("http2={http2}")).await;
        assert_eq!(calm.code(&named).await, 200, "http2={http2}");
        assert!(setup.backend.pending() > 0);
    }
}

/// A backend that allows every impersonation.
async fn permissive(pki: &Pki) -> FakeBackend {
    const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let self_check = |request: &Request<Incoming>| {
        if request.uri().path() == REVIEWS { None } else { self_check::answer(request) }
    };
    FakeBackend::with_self_check(pki, H2, self_check, |request| {
        Box::pin(async move {
            if request.uri().path() != REVIEWS {
                return Response::new(full("ok"));
            }
            respond(StatusCode::CREATED, &json!({"status": {"allowed": true}}))
        })
    })
    .await
}

#[tokio::test]
async fn a_denied_user_cannot_be_impersonated() {
    for mode in ["gateway", "backend"] {
        let pki = Pki::new();
        let backend = permissive(&pki).await;
        let setup = Setup::with(pki, backend, &[format!("--impersonation={mode}")]);
        let mut client = Client::connect(&setup.gateway, false, None).await;
        let id = "impersonate-extra-authentication.kubernetes.io%2fcredential-id";
        let alice = [CAROL, ("impersonate-user", "alice"), (id, "JTI=7fb8")];
        assert_eq!(client.code(&alice).await, 200, "{mode}");
        for line in ["user=alice", "JTI=7fb8"] {
            setup.deny(line);
            let denied = async {
                loop {
                    let response = client.get("/api", &alice).await;
                    let code = response.status();
                    let body = text(response).await;
                    if code != StatusCode::OK {
                        return (code, serde_json::from_str::<Value>(&body).unwrap());
                    }
                }
            };
            let (code, body) = in_time(denied).await;
            assert_eq!((code, &body["reason"]), (StatusCode::FORBIDDEN, &json!("Forbidden")), "{mode}");
            let message = "forbidden: the user or credential to impersonate is on this gateway's deny list";
            assert_eq!(body["message"], message, "{mode}");
            assert_eq!(client.code(&[CAROL, ("impersonate-user", "bob")]).await, 200, "{mode}");
            setup.deny("");
            in_time(async { while client.code(&alice).await != StatusCode::OK {} }).await;
        }
    }
}

#[tokio::test]
async fn a_broken_line_keeps_the_list_in_force_and_is_logged_once() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let denied = pki.write("denied", "user=alice\n");
    let process = start_process(
        flags(&pki, backend.address)
            .into_iter()
            .chain([format!("--credential-deny-list-file={}", denied.display())]),
    )
    .await;
    let [alice, bob] = ["alice", "bob"].map(|name| pki.clients.leaf().cn(name).issue());
    let code = async |identity: &Issued| {
        Client::connect(&process.gateway, false, Some(identity)).await.code(&[]).await
    };
    assert_eq!(code(&alice).await, 401);
    replace(&denied, "user=bob\nuser carol\n");
    testkit::until("the error", || !process.said("the old one stays in force: line 2: ").is_empty()).await;
    process
        .gateway
        .until_counted("portcullis_credential_deny_list_reloads_total{result=\"failure\"} 1")
        .await;
    assert_eq!(code(&alice).await, 401, "the old list stays");
    assert_eq!(code(&bob).await, 200);
    replace(&denied, "user=bob\n");
    process
        .gateway
        .until_counted("portcullis_credential_deny_list_reloads_total{result=\"success\"} 1")
        .await;
    assert_eq!(code(&alice).await, 200);
    assert_eq!(code(&bob).await, 401);
    assert_eq!(process.said("the old one stays in force").len(), 1);
    let (_, log) = process.end().await;
    assert!(log.contains("the credential is on the deny list, line 1"), "{log}");
}

#[tokio::test]
async fn a_deny_list_is_of_its_cluster() {
    let pki = Pki::new();
    let [one, two] = [FakeBackend::plain(&pki).await, FakeBackend::plain(&pki).await];
    pki.write("clients-ca.crt", pki.clients.cert_pem());
    pki.write("denied", "user=alice\n");
    let clusters = "- {name: one, kubeconfig: one.kubeconfig, match: {serverNames: [one.test]}, \
                       authentication: {clientCAFile: clients-ca.crt, credentialDenyListFile: denied}}\n\
                    - {name: two, kubeconfig: two.kubeconfig, match: {serverNames: [two.test]}, \
                       authentication: {clientCAFile: clients-ca.crt}}\n";
    let backends = [("one", one.address.to_string()), ("two", two.address.to_string())];
    let gateway = Gateway::with(cluster_flags(&pki, &["one.test", "two.test"], &backends, clusters));
    for (name, address) in &backends {
        let line = format!("portcullis_endpoint_trusted{{cluster=\"{name}\",endpoint=\"{address}\"}} 1");
        gateway.until_counted(&line).await;
    }
    let alice = pki.clients.leaf().cn("alice").issue();
    for (name, expected) in [("one.test", 401), ("two.test", 200), ("one.test", 401)] {
        let name = ServerName::try_from(name).unwrap();
        let host = name.to_str().into_owned();
        let stream = gateway.tls_as(name, b"http/1.1", Some(&alice)).await;
        let mut client = Client::over(&gateway, stream).await;
        assert_eq!(client.code(&[("host", &host)]).await, expected, "{host}");
    }
}

#[tokio::test]
async fn a_crl_that_changes_revokes_on_open_connections() {
    for http2 in VERSIONS {
        let pki = Pki::new();
        let backend = FakeBackend::plain(&pki).await;
        let crl = pki.write("clients.crl", CrlBuilder::new(&pki.clients).pem());
        let further = [format!("--client-ca-crl-file={}", crl.display())];
        let setup = Setup::with(pki, backend, &further);
        let [alice, bob] = ["alice", "bob"].map(|name| setup.pki.clients.leaf().cn(name).issue());
        let mut of_alice = Client::connect(&setup.gateway, http2, Some(&alice)).await;
        let mut of_bob = Client::connect(&setup.gateway, http2, Some(&bob)).await;
        assert_eq!(of_alice.code(&[]).await, 200);
        assert_eq!(of_bob.code(&[]).await, 200);
        let revoking = CrlBuilder::new(&setup.pki.clients).number(Some(2)).revoke_for(alice.leaf(), 1);
        replace(&setup.file("clients.crl"), revoking.der());
        until_refused(&mut of_alice, &[], &format!("http2={http2}")).await;
        assert_eq!(of_bob.code(&[]).await, 200, "http2={http2}");
        let counted = "portcullis_revoked_credentials_total{source=\"crl\"}";
        assert_eq!(setup.gateway.count(counted).await, 1);
    }
}

#[tokio::test]
async fn a_crl_revokes_front_proxies() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let [proxy, other] = [(); 2].map(|()| pki.client_front.leaf().cn("proxy").issue());
    let crl = pki.write("front.crl", CrlBuilder::new(&pki.client_front).revoke(proxy.leaf()).pem());
    let setup = Setup::with(pki, backend, &[format!("--client-ca-crl-file={}", crl.display())]);
    for (identity, expected) in [(&proxy, 401), (&other, 200)] {
        let mut client = Client::connect(&setup.gateway, false, Some(identity)).await;
        assert_eq!(client.code(&[("x-remote-user", "dave")]).await, expected);
    }
}

#[tokio::test]
async fn a_broken_or_foreign_crl_keeps_the_configuration_in_force() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let alice = pki.clients.leaf().cn("alice").issue();
    let crl =
        pki.write("clients.crl", CrlBuilder::new(&pki.clients).number(Some(5)).revoke(alice.leaf()).pem());
    let process = start_process(
        flags(&pki, backend.address).into_iter().chain([format!("--client-ca-crl-file={}", crl.display())]),
    )
    .await;
    let code = async || Client::connect(&process.gateway, false, Some(&alice)).await.code(&[]).await;
    assert_eq!(code().await, 401);
    let delta = CrlBuilder::new(&pki.clients).extension("2.5.29.27", true, vec![2, 1, 1]);
    let good = CrlBuilder::new(&pki.clients).number(Some(6)).pem();
    for (content, problem) in [
        (
            good.clone() + &CrlBuilder::new(&Ca::new("others")).pem(),
            "CRL 2 (issuer CN=others): the issuer is none of",
        ),
        (
            CrlBuilder::new(&Ca::new("clients")).pem(),
            "CRL 1 (issuer CN=clients): not signed by the CA of this name",
        ),
        (delta.pem(), "CRL 1: a delta CRL lists only changes"),
        // From before alice's certificate was revoked.
        (CrlBuilder::new(&pki.clients).number(Some(4)).pem(), "(number 4, of "),
        ("garbage".to_owned(), "neither PEM (X509 CRL) nor DER"),
    ] {
        replace(&crl, content);
        testkit::until(problem, || process.said(problem).iter().any(|line| line.contains("clients.crl")))
            .await;
        assert_eq!(code().await, 401, "{problem}");
    }
    replace(&crl, good);
    in_time(async { while Box::pin(code()).await != StatusCode::OK {} }).await;
}

#[tokio::test]
async fn a_stale_crl_refuses_its_clients_unless_it_is_ignored() {
    for (policy, expected) in [(None, 401), (Some("Fail"), 401), (Some("Ignore"), 200)] {
        let pki = Pki::new();
        let backend = FakeBackend::plain(&pki).await;
        let [alice, bob] = ["alice", "bob"].map(|name| pki.clients.leaf().cn(name).issue());
        let stale = CrlBuilder::new(&pki.clients).revoke(bob.leaf()).times(now() - 200, Some(now() - 100));
        let crl = pki.write("clients.crl", stale.pem());
        let mut further = vec![format!("--client-ca-crl-file={}", crl.display())];
        further.extend(policy.map(|policy| format!("--client-ca-crl-failure-policy={policy}")));
        let setup = Setup::with(pki, backend, &further);
        for (identity, expected) in [(&alice, expected), (&bob, 401)] {
            let mut client = Client::connect(&setup.gateway, false, Some(identity)).await;
            assert_eq!(client.code(&[]).await, expected, "{policy:?}");
        }
        let mut of_token = Client::connect(&setup.gateway, false, None).await;
        assert_eq!(of_token.code(&[CAROL]).await, 200, "a token has no CRL");
        setup.gateway.until_counted("portcullis_client_crls_stale 1").await;
    }
}

/// The same certificate with the other signature that everyone can compute: (r, n-s) in the place of (r, s).
fn twin(issued: &Issued) -> rustls_pki_types::CertificateDer<'static> {
    const ORDER: &[u8] = b"ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";
    let content = |element: &[u8]| match element[1] {
        short @ ..=0x7f => element[2..2 + usize::from(short)].to_vec(),
        0x81 => element[3..3 + usize::from(element[2])].to_vec(),
        _ => element[4..4 + (usize::from(element[2]) << 8 | usize::from(element[3]))].to_vec(),
    };
    let length = |element: &[u8]| pki::tlv(element[0], &content(element)).len();
    let parts = content(issued.leaf());
    let tbs = length(&parts);
    let algorithm = length(&parts[tbs..]);
    // BIT STRING, no unused bits, SEQUENCE of two numbers.
    let pair = content(&content(&parts[tbs + algorithm..])[1..]);
    let r = length(&pair);
    let order = num_bigint::BigUint::parse_bytes(ORDER, 16).unwrap();
    let s = order - num_bigint::BigUint::from_bytes_be(&content(&pair[r..]));
    let mut octets = s.to_bytes_be();
    if octets[0] & 0x80 != 0 {
        octets.insert(0, 0);
    }
    let signature = pki::seq(&[pair[..r].to_vec(), pki::tlv(2, &octets)]);
    pki::seq(&[parts[..tbs + algorithm].to_vec(), pki::bits(&signature)]).into()
}

#[tokio::test]
async fn a_denied_certificate_does_not_return_in_another_encoding() {
    let setup = Setup::start(&[]).await;
    let alice = setup.pki.clients.leaf().cn("alice").issue();
    let twin =
        Issued { chain: vec![twin(&alice)], key: alice.key.clone_key(), private: Arc::clone(&alice.private) };
    assert_ne!(credential_id(&twin), credential_id(&alice));
    let longer = pki::seq(&[alice.leaf()[4..].to_vec(), pki::null()]);
    let longer = Issued {
        chain: vec![longer.into()],
        key: alice.key.clone_key(),
        private: Arc::clone(&alice.private),
    };
    let mut of_alice = Client::connect(&setup.gateway, false, Some(&alice)).await;
    let mut of_twin = Client::connect(&setup.gateway, false, Some(&twin)).await;
    assert_eq!(of_alice.code(&[]).await, 200);
    assert_eq!(of_twin.code(&[]).await, 200, "kube-apiserver accepts it too");
    let mut of_longer = Client::connect(&setup.gateway, false, Some(&longer)).await;
    assert_eq!(of_longer.code(&[]).await, 401, "a deny list could not name it");
    setup.deny(&credential_id(&alice));
    until_refused(&mut of_alice, &[], "alice").await;
    assert_eq!(of_twin.code(&[]).await, 401);
}
