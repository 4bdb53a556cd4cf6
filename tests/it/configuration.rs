//! The configuration file: what it says counts as flags do, and what is wrong with it is told in an operator's words.

use std::net::SocketAddr;

use portcullis::config::settings::{Cluster, IdentityMode, Routes, Settings};

use crate::support::{Pki, flags, resolved};

const HEAD: &str = "apiVersion: portcullis.dev/v1alpha1\nkind: GatewayConfiguration\n";

/// A directory with everything that a configuration may name, and a file in it.
struct Directory {
    pki: Pki,
}

impl Directory {
    fn new() -> Self {
        let pki = Pki::new();
        flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
        Self { pki }
    }

    /// Resolves a file beside flags.
    fn resolve(&self, yaml: &str, flags: &[&str]) -> Result<Settings, String> {
        let file = self.pki.write("gateway.yaml", yaml);
        let config = format!("--config={}", file.display());
        let arguments = flags.iter().map(|flag| self.filled(flag)).chain([config]);
        match resolved(arguments) {
            Ok(resolved) if resolved.warnings.is_empty() => Ok(resolved.settings),
            Ok(resolved) => Err(format!("warnings: {:#?}", resolved.warnings)),
            Err(errors) => Err(errors.to_string()),
        }
        .map_err(|said| said.replace(&self.pki.directory.path().display().to_string(), "DIR"))
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

fn cluster<'a>(settings: &'a Settings, name: &str) -> &'a Cluster {
    settings.clusters.iter().find(|cluster| cluster.name == name).unwrap()
}

#[test]
fn several_clusters_come_of_one_file() {
    let directory = Directory::new();
    let settings = directory.resolve(&format!("{HEAD}{SERVING}{CLUSTERS}"), &[]).unwrap();
    assert_eq!(settings.serving.address, "0.0.0.0:6443".parse().unwrap(), "the flags' defaults count");
    assert_eq!(settings.operation.request_timeout.as_secs(), 5);
    assert_eq!(settings.operation.verbosity, 3);

    let prod = cluster(&settings, "prod");
    let endpoints = prod.backend.endpoints.iter().map(|endpoint| endpoint.address.to_string());
    assert_eq!(endpoints.collect::<Vec<_>>(), ["10.0.0.1:6443", "10.0.0.2:6443"]);
    assert!(prod.authentication.client_ca.is_some() && prod.authentication.static_tokens.is_none());
    assert!(!prod.authentication.anonymous);
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
    assert!(staging.authentication.anonymous);
}

#[test]
fn a_flag_wins_over_the_file() {
    let directory = Directory::new();
    let yaml = format!("{HEAD}{SERVING}{CLUSTERS}");
    let settings = directory
        .resolve(&yaml, &["--secure-port=1", "--anonymous-auth=false", "--token-auth-file=DIR/tokens.csv"])
        .unwrap();
    assert_eq!(settings.serving.address.port(), 1);
    for cluster in &settings.clusters {
        assert!(!cluster.authentication.anonymous, "{}", cluster.name);
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
