//! Certificates of pods: the user of a token that is bound to the pod, and never a plain user.

use std::net::{Ipv4Addr, SocketAddr};

use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::pod_identity::{POD_IDENTITY, PodIdentity};
use testkit::pki::{Builder, Ca, Issued, SERVER_AUTH, seq, tlv};

use super::super::pod_certificate::PodCertificateAuthenticator;
use super::*;
use crate::authn::x509::{FrontProxyVerifier, PodIdentities, UnverifiedChain, X509Authenticator};
use crate::authn::{AuthnInput, AuthnMethod, ConnInfo, RequestAuthenticator};
use crate::request::credentials::Credentials;

const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

fn bundle(ca: &Ca) -> Arc<CaBundle> {
    Arc::new(CaBundle::from_pem(ca.cert_pem().as_bytes()).unwrap())
}

/// The objects of [`identity_of_pod`].
fn cluster() -> FakeApiServer {
    FakeApiServer {
        accounts: BTreeMap::from([("ns/saname".to_owned(), account("sauid"))]),
        pods: BTreeMap::from([("ns/podname".to_owned(), identity("poduid"))]),
        nodes: BTreeMap::from([("nodename".to_owned(), identity("nodeuid"))]),
        ..FakeApiServer::default()
    }
}

fn identity_of_pod() -> PodIdentity {
    let [namespace, namespace_uid, service_account_name, service_account_uid] =
        ["ns", "nsuid", "saname", "sauid"].map(str::to_owned);
    let [pod_name, pod_uid, node_name, node_uid] =
        ["podname", "poduid", "nodename", "nodeuid"].map(str::to_owned);
    PodIdentity {
        namespace,
        namespace_uid,
        service_account_name,
        service_account_uid,
        pod_name,
        pod_uid,
        node_name,
        node_uid,
    }
}

/// A certificate with the subject of the service account and no extension.
fn named(ca: &Ca) -> Builder {
    let builder = ca.leaf().org("system:serviceaccounts").org("system:serviceaccounts:ns");
    builder.cn("system:serviceaccount:ns:saname")
}

fn certificate(ca: &Ca, is_critical: bool) -> Issued {
    named(ca).extension(POD_IDENTITY, is_critical, identity_of_pod().to_der().unwrap()).issue()
}

fn authenticator(pods: &Ca, users: Option<&Ca>, lookup: Arc<dyn TokenGetter>) -> PodCertificateAuthenticator {
    let users = users.map(|users| X509Authenticator::new(bundle(users), PodIdentities::Refused));
    PodCertificateAuthenticator::new(bundle(pods), users, lookup, false, &CacheShare::UNBOUNDED)
}

fn connection(issued: Issued) -> ConnInfo {
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000));
    ConnInfo::new(peer, None, UnverifiedChain::new(issued.chain))
}

async fn verdict_on(
    authenticator: &dyn RequestAuthenticator,
    conn: &ConnInfo,
    trace: &AuthnTrace,
) -> AuthnVerdict {
    let input = AuthnInput {
        conn,
        credentials: &Credentials::default(),
        path: "/",
        audiences: &[],
        generation: 1,
        now: seconds(NOW),
        trace,
    };
    authenticator.authenticate(&input).await
}

fn verdict(authenticator: &dyn RequestAuthenticator, issued: Issued) -> AuthnVerdict {
    let conn = connection(issued);
    verdict_on(authenticator, &conn, &AuthnTrace::default()).now_or_never().expect("does not wait")
}

fn user(verdict: AuthnVerdict) -> UserInfo {
    UserInfo::clone(&verdict.unwrap().expect("a user").user)
}

/// The user without the ID of the credential, which is returned beside it.
fn split(mut user: UserInfo) -> (UserInfo, String) {
    let credential = user.extra.remove(CREDENTIAL_ID).unwrap_or_default().concat();
    (user, credential)
}

#[test]
fn the_user_is_that_of_a_token_that_is_bound_to_the_pod() {
    let ca = Ca::new("pods");
    let bed = TestBed::new(cluster());
    let bound = json!({
        "iss": "iss", "sub": "system:serviceaccount:ns:saname", "aud": ["api"], "exp": NOW, "nbf": 0, "jti": "id",
        "kubernetes.io": {
            "namespace": "ns", "serviceaccount": {"name": "saname", "uid": "sauid"},
            "pod": {"name": "podname", "uid": "poduid"}, "node": {"name": "nodename", "uid": "nodeuid"},
        },
    });
    let of_token = bed.authenticate(&bed.bound(), &bed.token(&bound)).identity.unwrap();
    let (of_token, credential) = split(of_token.in_authenticated_group());
    assert_eq!(credential, "JTI=id");
    assert_eq!((of_token.uid.as_deref(), of_token.extra.len()), (Some("sauid"), 4));
    for is_critical in [true, false] {
        let authenticator = authenticator(&ca, None, Arc::new(cluster()));
        let found = verdict(&authenticator, certificate(&ca, is_critical)).unwrap().unwrap();
        assert_eq!(found.method, AuthnMethod::PodCertificate);
        assert!(found.certificates.is_some(), "a CRL and the deny list name certificates");
        let (of_certificate, credential) = split(UserInfo::clone(&found.user));
        assert_eq!(of_certificate, of_token, "critical: {is_critical}");
        assert!(credential.starts_with("X509SHA256=") && credential.len() == 11 + 64, "{credential}");
    }
}

#[test]
fn pod_service_account_and_node_must_exist_with_their_uids() {
    type Edit = fn(&mut FakeApiServer);
    let cases: &[(&str, Edit, &str)] = &[
        ("all exist", |_| {}, ""),
        ("no service account", |all| all.accounts.clear(), "serviceaccounts \"saname\" not found"),
        ("no pod", |all| all.pods.clear(), "service account token has been invalidated"),
        ("no node", |all| all.nodes.clear(), "service account token has been invalidated"),
        (
            "the service account was created again",
            |all| drop(all.accounts.insert("ns/saname".to_owned(), account("other"))),
            "service account UID (other) does not match claim (sauid)",
        ),
        (
            "the pod was created again",
            |all| drop(all.pods.insert("ns/podname".to_owned(), identity("other"))),
            "pod UID (other) does not match service account pod ref claim (poduid)",
        ),
        (
            "the node was created again",
            |all| drop(all.nodes.insert("nodename".to_owned(), identity("other"))),
            "node UID (other) does not match service account node ref claim (nodeuid)",
        ),
        (
            "the pod ends within its grace period",
            |all| {
                let pod = ObjectIdentity { deleted: Some(seconds(NOW - 60)), ..identity("poduid") };
                all.pods.insert("ns/podname".to_owned(), pod);
            },
            "",
        ),
        (
            "the pod ended a minute ago",
            |all| {
                let pod = ObjectIdentity { deleted: Some(seconds(NOW - 61)), ..identity("poduid") };
                all.pods.insert("ns/podname".to_owned(), pod);
            },
            "service account token has been invalidated",
        ),
        ("the API server is away", |all| all.away = "pod", "unavailable: cannot ask for ns/podname"),
    ];
    let ca = Ca::new("pods");
    for (name, edit, expected) in cases {
        let mut api_server = cluster();
        edit(&mut api_server);
        let authenticator = authenticator(&ca, None, Arc::new(api_server));
        let verdict = verdict(&authenticator, certificate(&ca, true));
        let text = if verdict.is_ok() { String::new() } else { describe(&verdict) };
        assert_eq!(text, *expected, "{name}");
    }
}

/// Also if the CA is one of users, which the configuration refuses.
#[test]
fn a_certificate_of_the_pod_ca_that_is_not_sound_is_refused_and_no_plain_user() {
    let ca = Ca::new("pods");
    let good = || identity_of_pod().to_der().unwrap();
    let with = |edit: &dyn Fn(&mut PodIdentity)| {
        let mut identity = identity_of_pod();
        edit(&mut identity);
        named(&ca).extension(POD_IDENTITY, true, identity.to_der().unwrap())
    };
    let content = |content: Vec<u8>| named(&ca).extension(POD_IDENTITY, false, content);
    let other_name = |name: &str| {
        let groups = ca.leaf().org("system:serviceaccounts").org("system:serviceaccounts:ns");
        groups.cn(name).extension(POD_IDENTITY, true, good())
    };
    let cases: Vec<(&str, Builder)> = vec![
        ("no extension", named(&ca)),
        ("no extension, a user", ca.leaf().cn("alice")),
        ("an empty extension", content(Vec::new())),
        ("no DER", content(b"x".to_vec())),
        ("data after it", content([good(), vec![5, 0]].concat())),
        ("a ninth element", content(tlv(0x30, &[&good()[2..], &tlv(0x88, b"x")].concat()))),
        ("an empty sequence", content(seq(&[]))),
        ("the extension twice", content(good()).extension(POD_IDENTITY, false, good())),
        ("another user", other_name("alice")),
        ("an administrator", other_name("system:serviceaccount:kube-system:admin")),
        ("another account", with(&|identity| identity.service_account_name = "other".to_owned())),
        ("another namespace", with(&|identity| identity.namespace = "other".to_owned())),
        ("no pod name", with(&|identity| identity.pod_name.clear())),
        ("no pod UID", with(&|identity| identity.pod_uid.clear())),
        ("no account UID", with(&|identity| identity.service_account_uid.clear())),
        ("no node name", with(&|identity| identity.node_name.clear())),
        ("no node UID", with(&|identity| identity.node_uid.clear())),
        ("no namespace UID", with(&|identity| identity.namespace_uid.clear())),
        ("system:masters", named(&ca).org("system:masters").extension(POD_IDENTITY, true, good())),
        ("a UID of a user", named(&ca).uid("1").extension(POD_IDENTITY, true, good())),
        ("alternative names", named(&ca).san_dns("a.example").extension(POD_IDENTITY, true, good())),
        ("another unknown critical extension", content(good()).unknown_critical()),
        ("expired", content(good()).expired(NOW)),
        ("not valid yet", content(good()).not_yet_valid(NOW)),
        ("of a server", content(good()).eku(&[SERVER_AUTH])),
        ("another signature", content(good()).corrupt_signature()),
        ("of another CA of this name", {
            let other = Ca::new("pods");
            named(&other).extension(POD_IDENTITY, false, good())
        }),
    ];
    // Each alone differs from this one, which is good.
    assert!(verdict(&authenticator(&ca, Some(&ca), Arc::new(cluster())), certificate(&ca, false)).is_ok());
    for (name, builder) in cases {
        // Chains that do not lead to the pod CA are left to the CA of users, which is another one here.
        let users = Ca::new("users");
        for users in [None, Some(&users)] {
            let verdict = verdict(&authenticator(&ca, users, Arc::new(cluster())), builder.clone().issue());
            assert!(matches!(verdict, Err(AuthnError::Invalid(_))), "{name}: {verdict:?}");
        }
    }
    let issued = ca.leaf().cn("alice").issue();
    let verdict = verdict(&authenticator(&ca, Some(&ca), Arc::new(cluster())), issued);
    assert!(matches!(verdict, Err(AuthnError::Invalid(_))), "{verdict:?}");
}

#[test]
fn the_extension_of_another_ca_makes_neither_a_pod_nor_a_user() {
    let (pods, users) = (Ca::new("pods"), Ca::new("users"));
    let authenticator = authenticator(&pods, Some(&users), Arc::new(cluster()));
    let claimed = verdict(&authenticator, certificate(&users, false)).unwrap_err().to_string();
    assert!(claimed.ends_with("its chain leads to no CA of pods"), "{claimed}");
    let critical = verdict(&authenticator, certificate(&users, true)).unwrap_err().to_string();
    assert!(critical.ends_with("x509: unhandled critical extension"), "{critical}");
    assert_eq!(user(verdict(&authenticator, users.leaf().cn("alice").issue())).name, "alice");
    let ended =
        pods.leaf().cn("x").extension(POD_IDENTITY, false, identity_of_pod().to_der().unwrap()).expired(NOW);
    let ended = verdict(&authenticator, ended.issue()).unwrap_err().to_string();
    assert!(ended.contains("certificate has expired"), "{ended}");
    let stranger = verdict(&authenticator, certificate(&Ca::new("strangers"), false));
    assert!(matches!(stranger, Err(AuthnError::Invalid(_))), "{stranger:?}");
}

#[test]
fn a_pod_below_an_intermediate_is_a_pod_and_the_intermediate_has_no_critical_extension() {
    let root = Ca::new("pods");
    let authenticator = authenticator(&root, None, Arc::new(cluster()));
    let middle = root.intermediate("middle");
    let found = verdict(&authenticator, certificate(&middle, true)).unwrap().unwrap();
    assert_eq!(found.method, AuthnMethod::PodCertificate);
    let claiming = root.build_intermediate("claiming").extension(
        POD_IDENTITY,
        true,
        identity_of_pod().to_der().unwrap(),
    );
    let error = verdict(&authenticator, certificate(&claiming.issue_ca(), true)).unwrap_err().to_string();
    assert!(error.contains("unhandled critical extension"), "{error}");
}

/// Where no pods authenticate by certificates, the extension means nothing, as at kube-apiserver.
#[test]
fn without_a_ca_of_pods_the_extension_means_nothing() {
    let ca = Ca::new("users");
    let users = X509Authenticator::new(bundle(&ca), PodIdentities::Ignored);
    let plain = verdict(&users, certificate(&ca, false)).unwrap().unwrap();
    assert_eq!((plain.method, plain.user.uid.as_deref()), (AuthnMethod::X509, None));
    assert_eq!(plain.user.extra.keys().collect::<Vec<_>>(), [CREDENTIAL_ID]);
}

/// The client chooses the intermediates: one that both the CA of pods and another have signed leads to the other, too.
#[test]
fn a_pod_becomes_no_user_and_no_front_proxy_by_another_chain() {
    let others = Ca::new("others");
    let conn = connection(certificate(&others, false));
    let input = AuthnInput {
        conn: &conn,
        credentials: &Credentials::default(),
        path: "/",
        audiences: &[],
        generation: 1,
        now: seconds(NOW),
        trace: &AuthnTrace::default(),
    };
    for (rule, is_accepted) in [(PodIdentities::Refused, false), (PodIdentities::Ignored, true)] {
        let proxies = FrontProxyVerifier::new(bundle(&others), Vec::new(), rule);
        assert_eq!(proxies.verify(&input).is_ok_and(|chain| chain.is_some()), is_accepted, "{rule:?}");
    }
}

/// One CA may be that of users in one cluster and of pods in another, and a connection may be for both.
#[test]
fn a_verdict_on_a_pod_is_not_one_on_a_user_over_the_same_connection() {
    let ca = Ca::new("both");
    let pods = authenticator(&ca, None, Arc::new(cluster()));
    let users = X509Authenticator::new(bundle(&ca), PodIdentities::Refused);
    for is_pod_first in [true, false] {
        let conn = connection(certificate(&ca, true));
        let of = |authenticator: &dyn RequestAuthenticator| {
            verdict_on(authenticator, &conn, &AuthnTrace::default()).now_or_never().unwrap()
        };
        let verdicts = if is_pod_first { [of(&pods), of(&users)] } else { [of(&users), of(&pods)] };
        let accepted = verdicts.map(|verdict| verdict.is_ok());
        assert_eq!(accepted, [is_pod_first, !is_pod_first]);
    }
}

/// The objects of a cluster whose watches are late: each lookup takes a second.
#[derive(Debug)]
struct Late(Arc<FakeApiServer>);

impl Late {
    async fn after<T>(&self, lookup: BoxFuture<'_, GetResult<T>>) -> GetResult<T> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        lookup.await
    }
}

impl TokenGetter for Late {
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, GetResult<ServiceAccount>> {
        Box::pin(self.after(self.0.service_account(namespace, name)))
    }
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<Secret>> {
        self.0.secret(namespace, name)
    }
    fn bootstrap_secret<'a>(&'a self, name: &'a str, owner: &'a Owner) -> BoxFuture<'a, GetResult<Secret>> {
        self.0.bootstrap_secret(name, owner)
    }
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        Box::pin(self.after(self.0.pod(namespace, name)))
    }
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        Box::pin(self.after(self.0.node(name)))
    }
    fn label_secret(&self, namespace: &str, name: &str, label: &'static str, value: String) {
        self.0.label_secret(namespace, name, label, value);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_share_live_lookups_whose_success_counts_for_ten_seconds_from_their_beginning() {
    let ca = Ca::new("pods");
    let api_server = Arc::new(cluster());
    let authenticator = authenticator(&ca, None, Arc::new(Late(Arc::clone(&api_server))));
    let conn = connection(certificate(&ca, true));
    let trace = AuthnTrace::default();
    let request = || verdict_on(&authenticator, &conn, &trace);
    let (first, second) = tokio::join!(request(), request());
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(api_server.lookups(), ["serviceaccount ns/saname", "pod ns/podname", "node nodename"]);
    // The lookups took three of the ten seconds.
    tokio::time::advance(Duration::from_millis(6_900)).await;
    assert!(request().await.is_ok());
    assert_eq!(api_server.lookups(), [""; 0]);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert!(request().await.is_ok());
    assert_eq!(api_server.lookups().len(), 3);
    // Another request takes over from one that was cancelled.
    tokio::time::advance(Duration::from_secs(11)).await;
    let cancelled = tokio::time::timeout(Duration::from_millis(1500), request());
    let (cancelled, other) = tokio::join!(cancelled, request());
    assert!(cancelled.is_err() && other.is_ok());
}

#[test]
fn what_the_watches_have_is_looked_up_for_each_request() {
    let ca = Ca::new("pods");
    let api_server = Arc::new(cluster());
    let authenticator = authenticator(&ca, None, Arc::<FakeApiServer>::clone(&api_server));
    let conn = connection(certificate(&ca, true));
    for _ in 0..2 {
        verdict_on(&authenticator, &conn, &AuthnTrace::default()).now_or_never().unwrap().unwrap();
        assert_eq!(api_server.lookups().len(), 3);
    }
}
