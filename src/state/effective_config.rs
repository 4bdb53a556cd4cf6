//! The configuration that takes effect: the settings of the gateway with the clusters that are served. Of a cluster whose
//! settings in the configuration are refused, those in force.

use std::sync::Arc;

use super::cluster_claims::decide_clusters;
use super::cluster_outcome::{ClusterOutcomes, RefusedCluster, UnbuildableClusters};
use crate::config::ConfigErrors;
use crate::config::flags::ServeFlags;
use crate::config::inputs::InputReader;
use crate::config::resolve::{ResolvedConfig, page_host_conflict, resolve, unknown_issuer_warning};
use crate::config::settings::Settings;

/// The configuration that takes effect.
#[derive(Debug)]
pub struct EffectiveConfig {
    /// The settings of the gateway, with all clusters that are served.
    pub settings: Settings,
    /// Warnings, which `check` prints and `serve` logs.
    pub warnings: Vec<String>,
    pub(super) separate: ClusterOutcomes,
}

impl EffectiveConfig {
    /// The configuration of a gateway that starts with these flags.
    pub fn load(flags: &ServeFlags) -> Result<Self, ConfigErrors> {
        Self::at_start(&resolve(flags, &mut InputReader::default())?)
    }

    /// The configuration of a gateway that starts, with nothing in force.
    pub fn at_start(config: &ResolvedConfig) -> Result<Self, ConfigErrors> {
        Self::decide(config, &ClusterOutcomes::default(), &UnbuildableClusters::default())
    }

    /// Decides which clusters of `config` are served, where those of `before` are in force.
    pub(super) fn decide(
        config: &ResolvedConfig,
        before: &ClusterOutcomes,
        unbuildable: &UnbuildableClusters,
    ) -> Result<Self, ConfigErrors> {
        let separate = decide_clusters(config, before, unbuildable)?;
        let ResolvedConfig { settings, warnings, .. } = config;
        let (mut settings, mut warnings) = (settings.clone(), warnings.clone());
        let served: Vec<_> = separate.served().map(|(_, resolved)| Arc::clone(&resolved.cluster)).collect();
        if let Some(error) = settings.page.as_ref().and_then(|page| page_host_conflict(page, &served)) {
            let mut errors = vec![error];
            config.locate(&mut errors);
            return Err(ConfigErrors(errors));
        }
        settings.clusters.extend(served);
        let page = settings.page.as_ref();
        warnings.extend(page.and_then(|page| unknown_issuer_warning(page, &settings.clusters)));
        Ok(Self { settings, warnings, separate })
    }

    /// The clusters whose settings in the configuration are refused.
    pub fn refused(&self) -> impl Iterator<Item = RefusedCluster<'_>> {
        self.separate.refused()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    use clap::{Args as _, FromArgMatches as _};
    use portcullis_system::clock::Clock;
    use testkit::Pki;
    use testkit::pki::NOT_AFTER;

    use super::*;
    use crate::config::management_cluster::{ManagementSettings, SecretData};
    use crate::config::source::ConfigSource;

    const FILE: &str = "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}
authentication: {anonymousAuth: false}
";
    const CLUSTER: &str = "apiVersion: portcullis.dev/v1alpha1
kind: ClusterConfiguration
identity: impersonate
authentication: {tokenAuthFile: tokens}
";

    /// A configuration file, and the clusters that are in force.
    struct Loads {
        pki: Pki,
        file: String,
        source: ConfigSource,
        in_force: ClusterOutcomes,
        management: Option<Arc<ManagementSettings>>,
        /// That of the Secrets that are read next.
        uid: String,
    }

    fn flags(pki: &Pki) -> ServeFlags {
        let flag = format!("--config={}", pki.directory.path().join("gateway.yaml").display());
        let command = ServeFlags::augment_args(clap::Command::new("serve").no_binary_name(true));
        ServeFlags::from_arg_matches(&command.try_get_matches_from([flag]).unwrap()).unwrap()
    }

    impl Loads {
        fn new() -> Self {
            let pki = Pki::new();
            pki.write_pair("gateway", &pki.servers.server(&["localhost"]));
            pki.write("tokens", "one,carol,7\n");
            let source = ConfigSource::new(flags(&pki));
            Self {
                pki,
                file: FILE.to_owned(),
                source,
                in_force: ClusterOutcomes::default(),
                management: None,
                uid: "one".to_owned(),
            }
        }

        fn kubeconfig(&self, server: &str) -> String {
            use base64::Engine as _;
            let ca = base64::engine::general_purpose::STANDARD.encode(self.pki.servers.cert_pem());
            format!(
                "{{apiVersion: v1, kind: Config, current-context: c, \
                 clusters: [{{name: b, cluster: {{server: 'https://{server}', certificate-authority-data: {ca}}}}}], \
                 users: [{{name: u, user: {{token: secret}}}}], \
                 contexts: [{{name: c, context: {{cluster: b, user: u}}}}]}}"
            )
        }

        /// Writes the configuration file, with a management cluster at this address, and puts it in force.
        fn managed(&mut self, server: &str, keys: &str, more: &str) -> Result<Vec<String>, String> {
            self.pki.write("management", self.kubeconfig(server));
            let section = format!("managementCluster: {{kubeconfig: management, namespace: t, {keys}}}\n");
            self.put(&format!("{section}{more}"))
        }

        fn put(&mut self, more: &str) -> Result<Vec<String>, String> {
            self.pki.write("gateway.yaml", format!("{}{more}", self.file));
            self.load()
        }

        /// Puts the configuration in force. Returns the clusters that are served; `=` marks those that are refused.
        fn load(&mut self) -> Result<Vec<String>, String> {
            let config = self.source.load().map_err(|errors| errors.to_string())?;
            let decided = EffectiveConfig::decide(&config, &self.in_force, &UnbuildableClusters::default());
            let EffectiveConfig { separate, .. } = decided.map_err(|errors| errors.to_string())?;
            self.management.clone_from(&config.settings.management);
            let served = separate.served().map(|(origin, resolved)| {
                let mark = if separate.is_stale(origin) { "=" } else { "" };
                format!("{}{mark}", resolved.cluster.name)
            });
            let served = served.collect();
            self.in_force = separate;
            Ok(served)
        }

        /// The management cluster has these Secrets, each with a document.
        fn read(&self, secrets: &[(&str, &str)]) {
            let management = self.management.as_ref().unwrap();
            let secret = |(name, document): &(&str, &str)| {
                let kubeconfig = self.kubeconfig("192.0.2.9:6443");
                let keys = [("kubeconfig", &*kubeconfig), ("cluster", document), ("tokens", "one,carol,7\n")];
                let keys = keys.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
                ((*name).to_owned(), Arc::new(SecretData::new(self.uid.clone(), keys.into())))
            };
            management.store.replace(management.scope(), secrets.iter().map(secret).collect());
        }
    }

    const KEYS: &str = "domain: one.test, allowLocalAddresses: true";

    #[test]
    fn clusters_of_a_scope_stay_while_a_third_one_is_read() {
        let mut loads = Loads::new();
        loads.managed("192.0.2.1:6443", KEYS, "").unwrap();
        loads.read(&[("prod", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["prod"]);
        assert_eq!(loads.managed("192.0.2.2:6443", KEYS, "").unwrap(), ["prod"]);
        // They are read, but the load fails.
        loads.read(&[("second", CLUSTER)]);
        loads.put("unknown: 1\n").unwrap_err();
        assert_eq!(loads.managed("192.0.2.3:6443", KEYS, "").unwrap(), ["prod="]);
        loads.read(&[("third", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["third"]);
        // A Secret that goes while a new scope is read is gone.
        loads.read(&[]);
        assert_eq!(loads.managed("192.0.2.1:6443", KEYS, "").unwrap(), [""; 0]);
    }

    #[test]
    fn a_broken_secret_keeps_nothing_that_the_operator_has_withdrawn() {
        let broken = format!("{CLUSTER}colour: red\n");
        let changes = [
            ("domain: one.test, allowLocalAddresses: false", "", [""; 0].as_slice()),
            ("domain: two.test, allowLocalAddresses: true", "", &[]),
            ("pathPrefix: /one, allowLocalAddresses: true", "", &[]),
            (KEYS, "limits: {maxRequestsInflight: 7}\n", &[]),
            // What no cluster inherits.
            (KEYS, "operation: {requestTimeout: 7s}\n", &["prod="]),
            ("domain: one.test, allowLocalAddresses: true, labelSelector: other", "", &["prod="]),
        ];
        for (keys, more, expected) in changes {
            let mut loads = Loads::new();
            loads.managed("192.0.2.1:6443", KEYS, "").unwrap();
            loads.read(&[("prod", CLUSTER)]);
            assert_eq!(loads.load().unwrap(), ["prod"]);
            loads.read(&[("prod", &broken)]);
            assert_eq!(loads.load().unwrap(), ["prod="]);
            assert_eq!(loads.managed("192.0.2.1:6443", keys, more).unwrap(), expected, "{keys} {more}");
        }
    }

    #[test]
    fn a_secret_that_was_created_again_keeps_nothing_of_its_predecessor() {
        let mut loads = Loads::new();
        loads.managed("192.0.2.1:6443", KEYS, "").unwrap();
        loads.read(&[("prod", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["prod"]);
        let broken = [("prod", "{")];
        loads.read(&broken);
        assert_eq!(loads.load().unwrap(), ["prod="]);
        loads.uid = "two".to_owned();
        loads.read(&broken);
        assert_eq!(loads.load().unwrap(), [""; 0]);
        loads.read(&[("prod", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["prod"]);
    }

    #[test]
    fn a_broken_secret_keeps_nothing_of_a_file_that_the_operator_has_changed() {
        let broken = format!("{CLUSTER}colour: red\n");
        let mut loads = Loads::new();
        let bundle = |one: &str| format!("{}{one}", loads.pki.servers.cert_pem());
        let [both, one] = [bundle(&loads.pki.clients.cert_pem()), bundle("")];
        loads.file = FILE.replace("false}", "false, clientCAFile: ca.pem}");
        loads.pki.write("ca.pem", &both);
        loads.managed("192.0.2.1:6443", KEYS, "").unwrap();
        loads.read(&[("prod", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["prod"]);
        loads.read(&[("prod", &broken)]);
        assert_eq!(loads.load().unwrap(), ["prod="]);
        assert!(!loads.source.changed());
        loads.pki.write("ca.pem", &one);
        assert!(loads.source.changed(), "the file of a broken Secret is watched");
        assert_eq!(loads.load().unwrap(), [""; 0]);
        loads.read(&[("prod", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["prod"]);
        // Half of a file is a fault of the operator: a tenant who has changed nothing keeps the cluster.
        loads.pki.write("ca.pem", "half of a");
        assert_eq!(loads.load().unwrap(), ["prod="]);
        loads.read(&[("prod", &broken)]);
        assert_eq!(loads.load().unwrap(), [""; 0]);
    }

    #[test]
    fn clusters_of_a_selector_stay_while_a_third_one_is_read() {
        let mut loads = Loads::new();
        let selected = |selector: &str| format!("{KEYS}, labelSelector: {selector}");
        loads.managed("192.0.2.1:6443", &selected("one"), "").unwrap();
        loads.read(&[("prod", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["prod"]);
        assert_eq!(loads.managed("192.0.2.1:6443", &selected("two"), "").unwrap(), ["prod"]);
        // They are read, but the load fails.
        loads.read(&[("second", CLUSTER)]);
        loads.put("unknown: 1\n").unwrap_err();
        assert_eq!(loads.managed("192.0.2.1:6443", &selected("three"), "").unwrap(), ["prod="]);
        assert_eq!(loads.load().unwrap(), ["prod="]);
        loads.read(&[("third", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["third"]);
    }

    #[test]
    fn a_file_that_gets_no_route_withholds_no_signing_ca() {
        let mut loads = Loads::new();
        let directory = loads.pki.directory.path().join("clusters.d");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("kubeconfig"), loads.kubeconfig("192.0.2.9:6443")).unwrap();
        loads.pki.write("ca.crt", loads.pki.clients.cert_pem());
        loads.pki.write("ca.key", loads.pki.clients.key_pem());
        let put = |name: &str, route: &str, authentication: &str, more: &str| {
            let keys =
                format!("name: {name}\nkubeconfig: kubeconfig\nmatch: {{pathPrefix: /{route}}}\n{more}");
            let document = CLUSTER.replace("tokens", &format!("../tokens{authentication}"));
            std::fs::write(directory.join(format!("{name}.yaml")), format!("{document}{keys}")).unwrap();
        };
        put("a", "a", "", "");
        put("b", "a", ", clientCAFile: ../ca.crt", "");
        let signing = "controllerManager: {controllers: [csrsigning], clusterSigningCertFile: ../ca.crt, \
                       clusterSigningKeyFile: ../ca.key}\n";
        put("c", "c", "", signing);
        assert_eq!(loads.put("clusterDirectory: clusters.d\n").unwrap(), ["a", "c"]);
        // While it has its route, it does.
        put("b", "b", ", clientCAFile: ../ca.crt", "");
        loads.in_force = ClusterOutcomes::default();
        assert_eq!(loads.load().unwrap(), ["a", "b"]);
    }

    #[test]
    fn warnings_of_an_unchanged_cluster_change_with_the_time() {
        let pki = Pki::new();
        pki.write_pair("gateway", &pki.servers.server(&["localhost"]));
        pki.write("ca.crt", pki.clients.cert_pem());
        let directory = pki.directory.path().join("clusters.d");
        std::fs::create_dir(&directory).unwrap();
        pki.write("gateway.yaml", format!("{FILE}clusterDirectory: clusters.d\n"));
        let loads = Loads::new();
        std::fs::write(directory.join("kubeconfig"), loads.kubeconfig("192.0.2.9:6443")).unwrap();
        let keys = "name: a\nkubeconfig: kubeconfig\nmatch: {pathPrefix: /a}\n";
        let document = CLUSTER.replace("tokenAuthFile: tokens", "clientCAFile: ../ca.crt");
        std::fs::write(directory.join("a.yaml"), format!("{document}{keys}")).unwrap();
        let seconds = Arc::new(AtomicI64::new(NOT_AFTER));
        let now = Arc::clone(&seconds);
        let clock =
            Clock::from_fn(move || Duration::from_secs(now.load(Ordering::Relaxed).try_into().unwrap()));
        let (flags, mut inputs) = (flags(&pki), InputReader::new(clock));
        let mut load = || EffectiveConfig::at_start(&resolve(&flags, &mut inputs).unwrap()).unwrap();
        let mut is_warned = |time: i64| {
            seconds.store(time, Ordering::Relaxed);
            let loaded = load();
            let has = |warning: &String| warning.contains("clientCAFile") && warning.contains("expired");
            (loaded.warnings.iter().any(has), loaded)
        };
        let (before, first) = is_warned(NOT_AFTER);
        let (same, second) = is_warned(NOT_AFTER);
        let (after, _) = is_warned(NOT_AFTER + 1);
        assert_eq!([before, same, after], [false, false, true]);
        let [first, second] = [&first, &second].map(|loaded| loaded.settings.clusters.first().unwrap());
        assert!(Arc::ptr_eq(first, second), "it is resolved again only for the time");
    }

    #[cfg(feature = "page")]
    #[test]
    fn no_secret_gets_the_host_under_which_others_are_reached() {
        let mut loads = Loads::new();
        let cases = [("test", Some("api.test")), ("api.test", None), ("one.test", None)];
        for (domain, refused) in cases {
            let served = loads.managed("192.0.2.1:6443", &format!("domain: {domain}"), &page("page.example"));
            let error = served.err().unwrap_or_default();
            let problem = refused.map(|host| format!("{host} is a name in managementCluster.domain"));
            assert_eq!(error.is_empty(), problem.is_none(), "{domain}: {error}");
            assert!(error.contains(&problem.unwrap_or_default()), "{domain}: {error}");
            assert!(error.is_empty() || error.contains("page.apiServerURL"), "{domain}: {error}");
        }
    }

    #[cfg(feature = "page")]
    fn page(host: &str) -> String {
        format!(
            "page: {{bindAddress: '127.0.0.1:0', url: 'https://{host}', tlsCertFile: gateway.crt, \
             tlsPrivateKeyFile: gateway.key, oidcIssuerURL: 'https://issuer.test', oidcClientID: page, \
             apiServerURL: 'https://api.test'}}\n"
        )
    }

    #[cfg(feature = "page")]
    #[test]
    fn a_broken_secret_does_not_keep_the_host_name_of_the_page() {
        let mut loads = Loads::new();
        loads.managed("192.0.2.1:6443", KEYS, "").unwrap();
        loads.read(&[("portal", CLUSTER), ("prod", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["portal", "prod"]);
        loads.read(&[("portal", "{"), ("prod", CLUSTER)]);
        assert_eq!(loads.load().unwrap(), ["portal=", "prod"]);
        let served = loads.managed("192.0.2.1:6443", "domain: two.test", &page("portal.one.test"));
        assert_eq!(served.unwrap(), ["prod"]);
    }

    #[cfg(feature = "page")]
    #[test]
    fn a_file_in_force_keeps_the_host_name_that_the_page_wants() {
        let mut loads = Loads::new();
        let directory = loads.pki.directory.path().join("clusters.d");
        std::fs::create_dir(&directory).unwrap();
        let own = |name: &str, server_name: &str| {
            let kubeconfig = loads.kubeconfig("192.0.2.9:6443");
            std::fs::write(directory.join("kubeconfig"), kubeconfig).unwrap();
            let keys =
                format!("name: {name}\nkubeconfig: kubeconfig\nmatch: {{serverNames: ['{server_name}']}}\n");
            let document = CLUSTER.replace("tokens", "../tokens");
            std::fs::write(directory.join(format!("{name}.yaml")), format!("{document}{keys}")).unwrap();
        };
        own("a", "a.example");
        own("b", "*.test");
        let directory = "clusterDirectory: clusters.d\n";
        assert_eq!(loads.put(directory).unwrap(), ["a", "b"]);
        let wanted = format!("{directory}{}", page("portal.test"));
        let error = loads.put(&wanted).unwrap_err();
        assert!(error.contains("portal.test is also the server name *.test of a cluster"), "{error}");
        // Of one that is not in force, only the file is refused.
        loads.in_force = ClusterOutcomes::default();
        assert_eq!(loads.load().unwrap(), ["a"]);
    }
}
