//! The configuration file: its keys have the effect of flags, and its errors name key and fix.

use std::net::SocketAddr;

use portcullis::internal::AnonymousAuth;
use portcullis::internal::{ClusterSettings, IdentityMode, Routes, Settings};
use serde_json::json;
use testkit::{Pki, flags};

use crate::gateway::resolved;

const HEAD: &str = "apiVersion: portcullis.dev/v1alpha1\nkind: GatewayConfiguration\n";

/// A directory with the files that a configuration may name, and a configuration file.
struct Directory {
    pki: Pki,
}

impl Directory {
    fn new() -> Self {
        let pki = Pki::new();
        flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
        Self { pki }
    }

    /// Resolves a configuration file together with flags.
    fn resolve(&self, yaml: &str, flags: &[&str]) -> Result<Settings, String> {
        let file = self.pki.write("gateway.yaml", yaml);
        let config = format!("--config={}", file.display());
        let arguments = std::iter::once(config).chain(flags.iter().map(|flag| self.filled(flag)));
        match resolved(arguments) {
            Ok(resolved) if resolved.warnings.is_empty() => Ok(resolved.settings),
            Ok(resolved) => Err(format!("warnings: {:#?}", resolved.warnings)),
            Err(errors) => Err(errors.to_string()),
        }
        .map_err(|error| error.replace(&self.pki.directory.path().display().to_string(), "DIR"))
    }

    fn filled(&self, flag: &str) -> String {
        flag.replace("DIR", &self.pki.directory.path().display().to_string())
    }
}

const SERVING: &str = "serving: {tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}\n";

const CLUSTERS: &str = "\
authentication:
  clientCAFile: clients-ca.crt
  anonymousAuth: false
clusters:
- name: prod
  kubeconfig: backend.kubeconfig
  endpoints: [https://10.0.0.1:6443, https://10.0.0.2:6443]
  match: {serverNames: [Prod.Example.COM, '*.prod.example.com'], pathPrefix: /clusters/prod}
- name: staging
  kubeconfig: backend.kubeconfig
  context: c
  identity: impersonate
  match: {pathPrefix: /clusters/prod/staging}
  authentication: {clientCAFile: null, tokenAuthFile: tokens.csv, anonymousAuth: true}
operation: {requestTimeout: 5s, v: 3, metricsBindAddress: '0'}
";

fn cluster<'a>(settings: &'a Settings, name: &str) -> &'a ClusterSettings {
    settings.clusters.iter().find(|cluster| cluster.name == name).unwrap()
}

#[test]
fn a_file_may_have_several_clusters() {
    let directory = Directory::new();
    let settings = directory.resolve(&format!("{HEAD}{SERVING}{CLUSTERS}"), &[]).unwrap();
    assert_eq!(settings.serving.address, "0.0.0.0:6443".parse().unwrap(), "the flags' defaults count");
    assert_eq!(settings.operation.request_timeout.as_secs(), 5);
    assert_eq!(settings.operation.verbosity, 3);

    let prod = cluster(&settings, "prod");
    let endpoints = prod.backend.endpoints.iter().map(|endpoint| endpoint.address.to_string());
    assert_eq!(endpoints.collect::<Vec<_>>(), ["10.0.0.1:6443", "10.0.0.2:6443"]);
    assert!(prod.authentication.client_ca.is_some() && prod.authentication.static_tokens.is_none());
    assert_eq!(prod.authentication.anonymous, AnonymousAuth::Disabled);
    assert_eq!(
        prod.routes,
        Routes::Matching {
            server_names: vec!["prod.example.com".to_owned(), "*.prod.example.com".to_owned()],
            path_prefix: Some("/clusters/prod".to_owned()),
        }
    );

    let staging = cluster(&settings, "staging");
    assert_eq!(staging.backend.identity, IdentityMode::Impersonate);
    assert!(staging.authentication.client_ca.is_none(), "null turns off what the template has on");
    assert_eq!(staging.authentication.static_tokens.as_ref().unwrap().count(), 3);
    assert_eq!(staging.authentication.anonymous, AnonymousAuth::AllPaths);
}

#[test]
fn json_is_yaml_too() {
    let json = serde_json::json!({
        "apiVersion": "portcullis.dev/v1alpha1",
        "kind": "GatewayConfiguration",
        "serving": {"tlsCertFile": "gateway.crt", "tlsPrivateKeyFile": "gateway.key"},
        "clusters": [{"name": "a", "kubeconfig": "backend.kubeconfig"}],
    });
    let settings = Directory::new().resolve(&json.to_string(), &[]).unwrap();
    assert_eq!(settings.clusters.len(), 1);
}

#[test]
fn a_flag_wins_over_the_file() {
    let directory = Directory::new();
    let serving = SERVING.replace('{', "{securePort: 2, ");
    let yaml = format!("{HEAD}{serving}{CLUSTERS}");
    assert_eq!(directory.resolve(&yaml, &[]).unwrap().serving.address.port(), 2);
    let settings = directory
        .resolve(&yaml, &["--secure-port=1", "--anonymous-auth=false", "--token-auth-file=DIR/tokens.csv"])
        .unwrap();
    assert_eq!(settings.serving.address.port(), 1);
    for cluster in &settings.clusters {
        assert_eq!(cluster.authentication.anonymous, AnonymousAuth::Disabled, "{}", cluster.name);
        assert!(cluster.authentication.static_tokens.is_some(), "{}", cluster.name);
    }
}

#[test]
fn one_cluster_may_come_from_flags_beside_a_file() {
    let directory = Directory::new();
    let yaml = format!("{HEAD}{SERVING}");
    let settings = directory
        .resolve(&yaml, &["--backend-kubeconfig=DIR/backend.kubeconfig", "--identity=impersonate"])
        .unwrap();
    let [only] = settings.clusters.as_slice() else { panic!("{:?}", settings.clusters) };
    assert_eq!(only.backend.identity, IdentityMode::Impersonate);
    assert_eq!(only.routes, Routes::Everything);
}

const ISSUER: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}]}
jwt:
- issuer: {url: https://idp.test, audiences: [gateway]}
  claimMappings: {username: {claim: sub, prefix: ''}}
";

#[test]
fn issuers_of_a_cluster_may_come_from_an_authentication_configuration() {
    let directory = Directory::new();
    std::fs::create_dir(directory.pki.directory.path().join("below")).unwrap();
    directory.pki.write("below/authentication.yaml", ISSUER);
    let yaml = format!("{HEAD}{SERVING}{CLUSTERS}").replace(
        "tokenAuthFile: tokens.csv, anonymousAuth: true",
        "authenticationConfig: below/authentication.yaml, oidcIssuerURL: null, oidcClientID: null, anonymousAuth: null",
    );
    let yaml = yaml.replace(
        "  anonymousAuth: false\n",
        "  anonymousAuth: false\n  oidcIssuerURL: https://other.test\n  oidcClientID: c\n",
    );
    let settings = directory.resolve(&yaml, &[]).unwrap();
    let issuers = |name: &str| {
        let issuers = cluster(&settings, name).authentication.jwt.iter();
        issuers.map(|issuer| issuer.issuer.url.clone()).collect::<Vec<_>>()
    };
    assert_eq!(issuers("prod"), ["https://other.test"]);
    assert_eq!(issuers("staging"), ["https://idp.test"]);
    let paths = ["/livez", "/readyz"].map(str::to_owned);
    assert_eq!(cluster(&settings, "staging").authentication.anonymous, AnonymousAuth::Paths(paths.into()));
    assert_eq!(cluster(&settings, "prod").authentication.anonymous, AnonymousAuth::Disabled);
}

const MISTAKEN_AUTHORIZERS: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: RBAC, name: RBAC}
- type: Webhook
  name: policy
  webhook:
    timeout: 60s
    failurePolicy: Allow
    subjectAccessReviewVersion: v1
    matchConditions: [{expression: request.usr == 'a'}, {expression: ''}]
    connectionInfo: {type: InClusterConfig}
- type: Webhook
  name: policy
  webhook: {connectionInfo: {type: KubeConfigFile, kubeConfigFile: webhook.kubeconfig}}
- type: webhook
";

#[test]
fn a_cluster_may_have_authorizers_of_its_own() {
    let directory = Directory::new();
    let yaml = format!("{HEAD}{SERVING}authorization: {{authorizationMode: [AlwaysDeny]}}\n{CLUSTERS}");
    let modes = |yaml: &str| {
        let settings = directory.resolve(yaml, &[]).unwrap();
        ["prod", "staging"].map(|name| cluster(&settings, name).authorization.is_some())
    };
    assert_eq!(modes(&yaml), [true, true]);
    let own = |keys: &str| {
        yaml.replace(
            "  authentication: {clientCAFile: null",
            &format!("  authorization: {{{keys}}}\n  authentication: {{clientCAFile: null"),
        )
    };
    assert_eq!(modes(&own("authorizationMode: null")), [true, false]);
    assert_eq!(modes(&own("authorizationMode: [AlwaysAllow]")), [true, false]);
    let flag = ["--authorization-mode=AlwaysAllow"];
    assert!(directory.resolve(&yaml, &flag).unwrap().clusters.iter().all(|one| one.authorization.is_none()));
}

/// Each kind of mistake, with its complete error message.
#[test]
fn mistakes_are_reported_with_key_and_fix() {
    let directory = Directory::new();
    let full = |rest: &str| format!("{HEAD}{SERVING}{rest}");
    let two = |one: &str, other: &str| {
        full(&format!(
            "clusters:\n- {{name: a, kubeconfig: backend.kubeconfig, {one}}}\n\
             - {{name: b, kubeconfig: backend.kubeconfig, {other}}}\n"
        ))
    };
    let only =
        |keys: &str| full(&format!("clusters:\n- name: a\n  kubeconfig: backend.kubeconfig\n  {keys}\n"));
    let bomb = |levels: u32| {
        let lists = (1..levels).map(|level| {
            let before = format!("*l{}", level - 1);
            format!("l{level}: &l{level} [{}]\n", [before.as_str(); 9].join(", "))
        });
        format!("l0: &l0 [x, x, x, x, x, x, x, x, x]\n{}", lists.collect::<String>())
    };
    let cases: &[(&str, String, &[&str])] = &[
        ("no file", String::new(), &["--config=DIR/none.yaml"]),
        ("an empty file", String::new(), &[]),
        ("comments alone", "# nothing\n".to_owned(), &[]),
        ("a list", "- a\n".to_owned(), &[]),
        ("text", "hello".to_owned(), &[]),
        ("not UTF-8 or binary", "\u{0}\u{1}".to_owned(), &[]),
        ("two documents", format!("{HEAD}---\n{HEAD}"), &[]),
        ("no apiVersion", "kind: GatewayConfiguration\n".to_owned(), &[]),
        ("another version", "apiVersion: portcullis.dev/v2\nkind: GatewayConfiguration\n".to_owned(), &[]),
        ("a kubeconfig", "apiVersion: v1\nkind: Config\nclusters: []\n".to_owned(), &[]),
        ("a kind that is a list", "apiVersion: portcullis.dev/v1alpha1\nkind: [a]\n".to_owned(), &[]),
        ("a tab", format!("{HEAD}serving:\n\tsecurePort: 1\n"), &[]),
        ("an open bracket", format!("{HEAD}clusters: [\n"), &[]),
        ("a key twice", format!("{HEAD}{SERVING}{SERVING}"), &[]),
        ("a key twice, further in", only("context: c\n  context: d"), &[]),
        ("an alias to nothing", format!("{HEAD}serving: *nothing\n"), &[]),
        ("an anchor bomb", format!("{HEAD}{}", bomb(9)), &[]),
        ("a merge key", format!("{HEAD}serving: {{<<: {{securePort: 1}}}}\n"), &[]),
        ("a deep document", format!("{HEAD}serving: {}\n", "[".repeat(40) + &"]".repeat(40)), &[]),
        ("no clusters", full(""), &[]),
        ("an empty list of clusters", full("clusters: []\n"), &[]),
        ("clusters as a map", full("clusters: {prod: {}}\n"), &[]),
        ("clusters that are none", full("clusters:\n- prod\n-\n"), &[]),
        ("a section that is a list", format!("{HEAD}serving: []\noperation: 5\nclusters: []\n"), &[]),
        (
            "keys that are unknown",
            format!(
                "{HEAD}servng: {{}}\nsecurePort: 1\nserving:\n  tlsCertFile: gateway.crt\n  \
                 tlsPrivateKeyFile: gateway.key\n  secure-port: 1\n  port: 2\nauthentication: {{clientCaFile: \
                 x, etcdServers: y}}\nclusters:\n- name: a\n  kubeconfig: backend.kubeconfig\n  backend: x\n  \
                 match: {{hosts: [a], pathPrefix: /a}}\n  clientCAFile: x\n  authentication: {{tokens: x}}\n"
            ),
            &[],
        ),
        (
            "values of the wrong kind",
            format!(
                "{HEAD}serving:\n  tlsCertFile: [gateway.crt]\n  tlsPrivateKeyFile: {{a: b}}\n  securePort: \
                 '6443'\n  bindAddress: here\n  permitPortSharing: yes\n  tlsCipherSuites: \
                 TLS_AES_128_GCM_SHA256\n  http2MaxStreamsPerConnection: -1\nauthentication: {{anonymousAuth: \
                 'no', apiAudiences: [1]}}\nclusters:\n- name: 5\n  kubeconfig: backend.kubeconfig\n  identity: \
                 header\n  match: {{serverNames: a.test}}\noperation: {{metricsBindAddress: 0, requestTimeout: \
                 60, v: 300, workers: 1.5, loggingFormat: xml}}\n"
            ),
            &[],
        ),
        (
            "a port out of range",
            only("context: c").replace("serving: {", "serving: {securePort: 70000, "),
            &[],
        ),
        (
            "files that are missing",
            only("authentication: {clientCAFile: none.crt, tokenAuthFile: no/tokens.csv}")
                .replace("gateway.key", "none.key"),
            &[],
        ),
        (
            "a certificate file that holds something else",
            only("authentication: {clientCAFile: tokens.csv}"),
            &[],
        ),
        (
            "flags of a cluster beside clusters",
            only(""),
            &["--backend-kubeconfig=x", "--identity=impersonate"],
        ),
        (
            "flags beside a bad file",
            full("clusters: []\n"),
            &["--request-timeout=soon", "--client-ca-file=none.crt"],
        ),
        ("anonymous off", only("authentication: {anonymousAuth: false}"), &[]),
        (
            "overlapping CAs, one from the template",
            full(
                "authentication: {clientCAFile: clients-ca.crt}\nclusters:\n- name: a\n  kubeconfig: \
                 backend.kubeconfig\n  authentication: {requestheaderClientCAFile: clients-ca.crt, \
                 requestheaderUsernameHeaders: [X-Remote-User]}\n",
            ),
            &[],
        ),
        (
            "front proxies without headers",
            only(
                "authentication:\n    requestheaderClientCAFile: client-front-ca.crt\n    requestheaderUIDHeaders: [X-Id]",
            ),
            &[],
        ),
        (
            "an issuer with mistakes",
            only(
                "authentication: {oidcIssuerURL: 'http://a', oidcClientID: c, oidcSigningAlgs: [HS256], oidcRequiredClaim: [hd]}",
            ),
            &[],
        ),
        (
            "another issuer with mistakes",
            only(
                "authentication:\n    oidcClientID: c\n    oidcUsernameClaim: ''\n    oidcIssuerURL: 'https://u:p@a/?b'",
            ),
            &[],
        ),
        ("half an issuer", only("authentication: {oidcClientID: c}"), &[]),
        (
            "issuers twice, and anonymous requests",
            only(
                "authentication: {authenticationConfig: issuers.yaml, oidcClientID: c, anonymousAuth: false}",
            ),
            &[],
        ),
        (
            "files of issuers that are missing, or none",
            only("authentication: {authenticationConfig: tokens.csv}"),
            &["--authentication-config=DIR/none.yaml"],
        ),
        (
            "a file of issuers that is none",
            only("authentication: {authenticationConfig: backend.kubeconfig}"),
            &[],
        ),
        (
            "a file of issuers with an unknown key",
            only("authentication: {authenticationConfig: unknown.yaml}"),
            &[],
        ),
        (
            "a file of issuers with mistakes",
            only(
                "authentication: {authenticationConfig: mistaken.yaml, serviceAccountIssuer: ['https://b']}",
            ),
            &[],
        ),
        (
            "a way to an issuer that there is not",
            only("authentication: {authenticationConfig: egress.yaml}"),
            &[],
        ),
        ("anonymous off, by file", only("authentication: {authenticationConfig: nobody.yaml}"), &[]),
        (
            "authorizers that are none",
            only("authorization: {authorizationMode: [Node, RBAC, Foo, Webhook]}"),
            &["--authorization-webhook-cache-authorized-ttl=5"],
        ),
        (
            "a webhook that is not asked",
            only("authorization: {authorizationWebhookConfigFile: webhook.kubeconfig}"),
            &["--authorization-webhook-version=v3"],
        ),
        (
            "a webhook with an unknown version, and without a kubeconfig",
            only("authorization: {authorizationMode: [Webhook], authorizationWebhookConfigFile: none}"),
            &["--authorization-webhook-version=v3"],
        ),
        (
            "authorizers twice",
            two("match: {pathPrefix: /a}", "match: {pathPrefix: /b}")
                + "authorization: {authorizationMode: [AlwaysDeny], authorizationConfig: allow.yaml}\n",
            &[],
        ),
        (
            "a file of authorizers with mistakes",
            only("authorization: {authorizationConfig: authorizers.yaml}"),
            &[],
        ),
        (
            "a file of authorizers that is none",
            only("authorization: {authorizationConfig: issuers.yaml}"),
            &["--authorization-config=DIR/unknown-authorizers.yaml"],
        ),
        (
            "a file of other authorizers that is none",
            only("authorization: {authorizationConfig: issuers.yaml}"),
            &[],
        ),
        (
            "impersonation by the backend behind authorizers",
            only("impersonation: backend\n  authorization: {authorizationMode: [AlwaysDeny]}"),
            &[],
        ),
        (
            "impersonation by the backend of a gateway that impersonates, behind authorizers",
            only("impersonation: backend\n  identity: impersonate"),
            &["--authorization-mode=AlwaysDeny"],
        ),
        (
            "authorizers that are never asked",
            only("authorization: {authorizationMode: [AlwaysAllow, AlwaysDeny]}"),
            &[],
        ),
        (
            "what has no effect",
            only("authentication: {requestheaderAllowedNames: [a], serviceAccountLookup: true}"),
            &[
                "--authentication-token-webhook-version=v1",
                "--authentication-token-webhook-cache-ttl=1m",
                "--oidc-issuer-url=https://issuer.test",
                "--oidc-client-id=client",
                "--oidc-groups-prefix=oidc:",
            ],
        ),
        (
            "a template's mistake is told once",
            two("match: {pathPrefix: /a}", "match: {pathPrefix: /b}")
                + "authentication: {clientCAFile: none.crt}\n",
            &[],
        ),
        ("no name, no kubeconfig", full("clusters:\n- {match: {pathPrefix: /a}}\n"), &[]),
        (
            "names that are not labels",
            full(
                "clusters:\n- {name: Prod, kubeconfig: backend.kubeconfig, match: {pathPrefix: /a}}\n- {name: '', kubeconfig: backend.kubeconfig, match: {pathPrefix: /b}}\n",
            ),
            &[],
        ),
        (
            "one name twice",
            two("match: {pathPrefix: /a}", "match: {pathPrefix: /b}").replace("name: b", "name: a"),
            &[],
        ),
        ("no match", two("match: {pathPrefix: /a}", "context: c"), &[]),
        ("a match of nothing", two("match: {}", "match: {serverNames: []}"), &[]),
        (
            "a server name twice",
            two("match: {serverNames: [a.test, '*.a.test', A.test]}", "match: {serverNames: ['*.A.test']}"),
            &[],
        ),
        (
            "server names that are none",
            two(
                "match: {serverNames: ['a b', '*', 'a.*.test', '*.*.test', '10.0.0.1', 'a.test.', 'https://a.test', '']}",
                "match: {pathPrefix: /b}",
            ),
            &[],
        ),
        ("a prefix twice", two("match: {pathPrefix: /a/b}", "match: {pathPrefix: /a/b}"), &[]),
        ("prefixes that are none", two("match: {pathPrefix: clusters}", "match: {pathPrefix: /a/}"), &[]),
        (
            "prefixes with odd segments",
            two("match: {pathPrefix: /a//b}", "match: {pathPrefix: /a/../b}"),
            &[],
        ),
        (
            "prefixes that are escaped",
            two("match: {pathPrefix: '/a%2fb'}", "match: {pathPrefix: '/a?b'}"),
            &[],
        ),
        ("prefixes of API servers", two("match: {pathPrefix: /}", "match: {pathPrefix: /apis/prod}"), &[]),
        (
            "endpoints that are none",
            only("endpoints: ['http://10.0.0.1', 'https://10.0.0.1/k8s', 10.0.0.1]"),
            &[],
        ),
        (
            "addresses to resolve",
            only("endpointDiscovery: dns, endpoints: ['https://10.0.0.1', 'https://[fd00::1]']"),
            &[],
        ),
        ("a discovery that is none", only("endpointDiscovery: srv"), &[]),
        ("a context that is missing", only("context: prod"), &[]),
    ];
    let issuer = "- issuer: {url: https://idp.test, audiences: [gateway]}";
    directory.pki.write("authorizers.yaml", MISTAKEN_AUTHORIZERS);
    let head = MISTAKEN_AUTHORIZERS.split("- ").next().unwrap();
    directory.pki.write("allow.yaml", format!("{head}- {{type: AlwaysAllow, name: alwaysallow}}\n"));
    directory
        .pki
        .write("unknown-authorizers.yaml", MISTAKEN_AUTHORIZERS.replace("failurePolicy", "failure_policy"));
    directory.pki.write("issuers.yaml", ISSUER);
    directory.pki.write("unknown.yaml", ISSUER.replace("audiences:", "clients:"));
    directory.pki.write("egress.yaml", ISSUER.replace("url:", "egressSelectorType: cluster, url:"));
    directory.pki.write(
        "mistaken.yaml",
        ISSUER.replace(", prefix: ''", "").replace("{enabled: true", "{enabled: false").replace(
            issuer,
            "- issuer:\n    url: http://a?b\n    audiences: [a, '']\n    certificateAuthority: a\n- issuer: {url: \
             https://b, audiences: [b]}\n  claimValidationRules: [{claim: a, expression: b}, {claim: c, message: d}]",
        ),
    );
    directory
        .pki
        .write("nobody.yaml", ISSUER.split("anonymous").next().unwrap().to_owned() + "anonymous: {}\n");
    let messages = cases.iter().map(|(name, yaml, flags)| {
        let errors = directory.resolve(yaml, flags).expect_err(name);
        format!("## {name}\n{errors}\n")
    });
    insta::assert_snapshot!("mistakes", messages.collect::<Vec<_>>().join("\n"));
}

/// Each sample configuration resolves unchanged once the files that it names exist.
#[test]
fn samples_resolve_unchanged() {
    let directory = Directory::new();
    let pki = &directory.pki;
    pki.write("front-proxy-ca.crt", pki.client_front.cert_pem());
    pki.write("clients-ca.key", pki.clients.key_pem());
    std::fs::create_dir(pki.directory.path().join("service")).unwrap();
    pki.write("service/serving-ca.crt", pki.clients.cert_pem());
    pki.write("service/serving-ca.key", pki.clients.key_pem());
    pki.write("signers.yaml", include_str!("../../certs/service.yaml"));
    pki.write_pair("staging", &pki.servers.server(&["staging.example.com"]));
    pki.write_pair("page", &pki.servers.server(&["clusters.example.com"]));
    pki.write("page-client.secret", "secret\n");
    pki.write("page-cookie.key", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n");
    pki.write("gateway-ca.crt", pki.servers.cert_pem());
    let jwt = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {"url": "https://login.example.com", "audiences": ["clusters-page", "kubernetes"],
                "audienceMatchPolicy": "MatchAny"},
            "claimMappings": {"username": {"claim": "email", "prefix": ""}},
        }],
    });
    pki.write("authentication.yaml", jwt.to_string());
    let kubeconfig = std::fs::read_to_string(pki.directory.path().join("backend.kubeconfig")).unwrap();
    pki.write("prod.kubeconfig", &kubeconfig);
    pki.write("staging.kubeconfig", kubeconfig.replace("contexts: [{name: c,", "contexts: [{name: staging,"));
    let admission = pki.directory.path().join("admission");
    std::fs::create_dir_all(admission.join("validating")).unwrap();
    let configuration = include_str!("../../config/admission/admission.yaml");
    // The format requires an absolute path.
    let configuration = configuration.replace("/etc/portcullis/admission", &admission.display().to_string());
    std::fs::write(admission.join("admission.yaml"), configuration).unwrap();
    let manifest = include_str!("../../config/admission/validating/labels.yaml");
    std::fs::write(admission.join("validating/labels.yaml"), manifest).unwrap();
    std::fs::create_dir_all(admission.join("policies")).unwrap();
    let policies = include_str!("../../config/admission/policies/replicas.yaml");
    std::fs::write(admission.join("policies/replicas.yaml"), policies).unwrap();
    std::fs::create_dir_all(admission.join("mutations")).unwrap();
    let mutations = include_str!("../../config/admission/mutations/pull-policy.yaml");
    std::fs::write(admission.join("mutations/pull-policy.yaml"), mutations).unwrap();
    std::fs::create_dir_all(pki.directory.path().join("audit")).unwrap();
    pki.write("audit/policy.yaml", include_str!("../../config/audit/policy.yaml"));
    let clusters = pki.directory.path().join("clusters.d");
    std::fs::create_dir(&clusters).unwrap();
    std::fs::write(clusters.join("prod.yaml"), include_str!("../../config/clusters.d/prod.yaml")).unwrap();
    pki.write("clusters.d/prod.kubeconfig", &kubeconfig);
    let mut samples = Vec::new();
    let entries = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/config")).unwrap();
    for path in entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let sample = std::fs::read_to_string(&path).unwrap();
        let settings = directory.resolve(&sample, &[]);
        let settings = settings.unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
        let signers: usize = settings
            .clusters
            .iter()
            .flat_map(|cluster| &cluster.controllers)
            .map(|each| each.signers.len())
            .sum();
        assert_eq!(signers, if path.ends_with("controllers.yaml") { 3 } else { 0 }, "{}", path.display());
        samples.push((path.file_name().unwrap().to_str().unwrap().to_owned(), settings.clusters.len()));
    }
    samples.sort();
    let expected = [
        ("admission.yaml", 1),
        ("audit.yaml", 1),
        ("clusters.yaml", 1),
        ("controllers.yaml", 1),
        ("ingress.yaml", 2),
        ("minimal.yaml", 1),
        ("page.yaml", 2),
        ("sidecar.yaml", 1),
    ];
    assert_eq!(samples, expected.map(|(name, clusters)| (name.to_owned(), clusters)));
}

/// Clients could set an identity header that is missing from the list.
#[test]
fn identity_headers_of_the_backend_must_include_a_username_header() {
    let pki = Pki::new();
    let with = |more: &[&str]| {
        let all = flags(&pki, ([127, 0, 0, 1], 6443).into());
        resolved(all.into_iter().chain(more.iter().map(|&flag| flag.to_owned())))
            .map(|resolved| resolved.settings.clusters[0].backend.identity_headers.is_some())
            .map_err(|errors| errors.to_string())
    };
    assert_eq!(with(&[]), Ok(false));
    assert_eq!(with(&["--backend-requestheader-username-headers=X-User,X-Other"]), Ok(true));
    for (flag, problem) in [
        ("--backend-requestheader-group-headers=X-Group", "is required with the backend's other"),
        ("--backend-requestheader-uid-headers=X-Uid", "is required with the backend's other"),
        ("--backend-requestheader-extra-headers-prefix=X-Extra-", "is required with the backend's other"),
        ("--backend-requestheader-username-headers=X User", "cannot be the name of a header"),
    ] {
        let errors = with(&[flag]).unwrap_err();
        assert!(errors.contains("--backend-requestheader-username-headers"), "{errors}");
        assert!(errors.contains(problem), "{errors}");
    }
}

/// A client that sends such a header through a front would choose an attribute of itself.
#[test]
fn a_prefix_of_extra_attributes_that_matches_other_headers_is_warned_of() {
    let pki = Pki::new();
    let cases = [
        ("X-Remote-Extra-", None),
        ("X-Remote-", Some("the prefix x-remote- also matches x-remote-user")),
        ("X-", Some("the prefix x- also matches x-remote-user")),
        ("X-Forwarded-", Some("the prefix x-forwarded- also matches x-forwarded-for")),
    ];
    for (prefix, expected) in cases {
        let mut all = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
        all.retain(|flag| !flag.starts_with("--requestheader-extra-headers-prefix"));
        all.push(format!("--requestheader-extra-headers-prefix=X-Remote-Extra-,{prefix}"));
        let warnings = resolved(all).unwrap().warnings;
        let found: Vec<_> = warnings.iter().filter(|warning| warning.contains("also matches")).collect();
        assert_eq!(found.len(), usize::from(expected.is_some()), "{prefix}: {warnings:?}");
        assert!(found.iter().all(|warning| warning.contains(expected.unwrap())), "{prefix}: {found:?}");
    }
}
