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

    use clap::{Args as _, FromArgMatches as _};
    use testkit::Pki;

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
        source: ConfigSource,
        in_force: ClusterOutcomes,
        management: Option<Arc<ManagementSettings>>,
        /// That of the Secrets that are read next.
        uid: String,
    }

    impl Loads {
        fn new() -> Self {
            let pki = Pki::new();
            pki.write_pair("gateway", &pki.servers.server(&["localhost"]));
            pki.write("tokens", "one,carol,7\n");
            let flag = format!("--config={}", pki.directory.path().join("gateway.yaml").display());
            let command = ServeFlags::augment_args(clap::Command::new("serve").no_binary_name(true));
            let flags = ServeFlags::from_arg_matches(&command.try_get_matches_from([flag]).unwrap()).unwrap();
            let source = ConfigSource::new(flags);
            Self {
                pki,
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
            self.pki.write("gateway.yaml", format!("{FILE}{more}"));
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
