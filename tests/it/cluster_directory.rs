//! Clusters that come, change and go with the files of a directory: a mistake in one file concerns one cluster.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::StatusCode;
use portcullis::internal::{ClusterOrigin, ConfigSource, EffectiveConfig};
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::pki::{Ca, Key, KeyKind};
use testkit::{FakeBackend, Gateway, Pki, in_time, kubeconfig, text, until};

use crate::gateway::{InProcess as _, parse, resolved};

const HEAD: &str = "apiVersion: portcullis.dev/v1alpha1\nkind: ClusterConfiguration\n";

/// Keys of a cluster whose audit log cannot be opened.
const UNBUILDABLE: &str = "authentication: {tokenAuthFile: a.csv}
audit: {auditPolicyFile: policy, auditLogPath: a.csv/audit.log}
";

/// The authentication of a cluster of the configuration file.
const OWN_TOKEN: &str = "authentication: {tokenAuthFile: own.csv}";

/// A gateway's configuration with an empty cluster directory.
pub(crate) struct Directory {
    pub(crate) pki: Pki,
    pub(crate) path: PathBuf,
}

impl Directory {
    pub(crate) fn new() -> Self {
        let pki = Pki::new();
        pki.write_pair("gateway", &pki.servers.server(&["localhost", "*.example.com"]));
        pki.write(
            "gateway.yaml",
            "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}
operation: {metricsBindAddress: '127.0.0.1:0', workers: 1}
authentication: {anonymousAuth: false}
clusterDirectory: clusters.d
",
        );
        let path = pki.directory.path().join("clusters.d");
        std::fs::create_dir(&path).unwrap();
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";
        // No file of a cluster.
        std::fs::write(path.join("policy"), policy).unwrap();
        Self { pki, path }
    }

    pub(crate) fn flags(&self) -> Vec<String> {
        vec![format!("--config={}", self.pki.directory.path().join("gateway.yaml").display())]
    }

    /// Writes what the file of a cluster names: its kubeconfig, and the token `NAME-token` of the user `user-of-NAME`.
    pub(crate) fn prepare(&self, name: &str, backend: &FakeBackend, pki: &Pki) {
        let file = |suffix: &str| self.path.join(format!("{name}{suffix}"));
        let front = pki.front.leaf().cn("portcullis").issue();
        std::fs::write(file(".crt"), front.cert_pem()).unwrap();
        std::fs::write(file(".key"), front.key_pem()).unwrap();
        std::fs::write(file(".ca"), pki.servers.cert_pem()).unwrap();
        let config = kubeconfig(backend.address, &file(".ca"), &file(".crt"), &file(".key"));
        std::fs::write(file(".kubeconfig"), config).unwrap();
        std::fs::write(file(".csv"), format!("{name}-token,user-of-{name},7\n")).unwrap();
    }

    /// Writes the file of a cluster: its routes, and further keys.
    pub(crate) fn put(&self, file: &str, name: &str, routes: &str, more: &str) {
        replace(&self.path.join(file), cluster(name, routes, more));
    }

    fn remove(&self, file: &str) {
        std::fs::remove_file(self.path.join(file)).unwrap();
    }
}

fn cluster(name: &str, routes: &str, more: &str) -> String {
    let authentication = format!("authentication: {{tokenAuthFile: {name}.csv}}\n");
    let more = if more.is_empty() { &authentication } else { more };
    format!("{HEAD}name: {name}\nkubeconfig: {name}.kubeconfig\nmatch: {routes}\n{more}")
}

/// A directory, and a gateway with the clusters a and b of it, whose routes are `/a` and `/b`.
struct Two {
    directory: Directory,
    backends: [FakeBackend; 2],
    gateway: Gateway,
}

impl Two {
    async fn start() -> Self {
        let directory = Directory::new();
        let backends = [FakeBackend::plain(&directory.pki).await, FakeBackend::plain(&directory.pki).await];
        for (name, backend) in ["a", "b"].into_iter().zip(&backends) {
            directory.prepare(name, backend, &directory.pki);
            directory.put(&format!("{name}.yaml"), name, &format!("{{pathPrefix: /{name}}}"), "");
        }
        let gateway = Gateway::with(directory.flags());
        let two = Self { directory, backends, gateway };
        two.trusted(["a", "b"]).await;
        two
    }

    async fn trusted<const N: usize>(&self, names: [&str; N]) {
        for name in names {
            let cluster = format!("portcullis_endpoint_trusted{{cluster=\"{name}\"");
            self.gateway
                .until_counted_as(&cluster, |line| line.starts_with(&cluster) && line.ends_with(" 1"))
                .await;
        }
    }

    /// Applies a change of files, and waits until the gateway has read it.
    async fn change(&self, change: impl FnOnce(&Directory)) {
        let before = self.gateway.generation().await;
        change(&self.directory);
        self.gateway.reloaded(before).await;
    }

    /// Waits for a response: the first reload after a change of two files may have read one of them before.
    async fn serves(&self, path: &str, token: &str) {
        in_time(async { while Box::pin(self.code(path, token)).await != StatusCode::OK {} }).await;
    }

    async fn code(&self, path: &str, token: &str) -> StatusCode {
        let mut client = Client::connect(&self.gateway, false, None).await;
        client.code_at(path, &[("authorization", &format!("Bearer {token}"))]).await
    }

    async fn rebuilt(&self) -> u64 {
        self.gateway.count("portcullis_clusters_rebuilt_total").await
    }

    async fn refused(&self) -> u64 {
        self.gateway.count("portcullis_clusters_refused").await
    }
}

#[tokio::test]
async fn a_change_of_one_file_rebuilds_one_cluster() {
    let two = Two::start().await;
    assert_eq!(
        (two.code("/a/api", "a-token").await, two.code("/b/api", "b-token").await),
        (200.try_into().unwrap(), StatusCode::OK)
    );
    assert_eq!(two.code("/a/api", "b-token").await, StatusCode::UNAUTHORIZED);
    let built = two.rebuilt().await;
    assert_eq!(built, 2);

    // Another route.
    two.change(|files| files.put("b.yaml", "b", "{pathPrefix: /second}", "")).await;
    assert_eq!(two.rebuilt().await, built + 1);
    assert_eq!(two.code("/second/api", "b-token").await, StatusCode::OK);
    assert_eq!(two.code("/b/api", "b-token").await, StatusCode::NOT_FOUND);

    // A file that the file of the cluster names.
    two.change(|files| replace(&files.path.join("a.csv"), "new-token,user-of-a,7\n")).await;
    assert_eq!(two.rebuilt().await, built + 2);
    assert_eq!(two.code("/a/api", "new-token").await, StatusCode::OK);
    assert_eq!(two.code("/a/api", "a-token").await, StatusCode::UNAUTHORIZED);

    // A new cluster with the backend of a, and a file that is none.
    two.change(|files| {
        files.prepare("c", &two.backends[0], &files.pki);
        std::fs::write(files.path.join(".c.yaml"), "half of").unwrap();
        std::fs::write(files.path.join("README"), "the clusters").unwrap();
        files.put("c.yaml", "c", "{pathPrefix: /c}", "");
    })
    .await;
    two.trusted(["c"]).await;
    assert_eq!(two.rebuilt().await, built + 3);
    assert_eq!(two.code("/c/api", "c-token").await, StatusCode::OK);
    assert_eq!(two.gateway.count("portcullis_clusters").await, 3);

    // A cluster that goes.
    two.change(|files| files.remove("a.yaml")).await;
    assert_eq!(two.code("/a/api", "new-token").await, StatusCode::NOT_FOUND);
    assert_eq!(two.code("/c/api", "c-token").await, StatusCode::OK);
    assert_eq!((two.rebuilt().await, two.refused().await), (built + 3, 0));
    let metrics = two.gateway.metrics("/metrics").await;
    assert!(!metrics.contains("portcullis_endpoint_trusted{cluster=\"a\""), "{metrics}");
}

#[tokio::test]
async fn what_every_cluster_inherits_rebuilds_all() {
    let two = Two::start().await;
    let built = two.rebuilt().await;
    two.change(|files| {
        let main = files.pki.directory.path().join("gateway.yaml");
        let text = std::fs::read_to_string(&main).unwrap();
        replace(&main, text.replace("anonymousAuth: false", "anonymousAuth: true"));
    })
    .await;
    assert_eq!(two.rebuilt().await, built + 2);
    let mut client = Client::connect(&two.gateway, false, None).await;
    assert_eq!(client.code_at("/a/api", &[]).await, StatusCode::OK);
}

#[tokio::test]
async fn a_broken_file_keeps_its_cluster_and_others_change() {
    const STALE: &str = "portcullis_cluster_stale{cause=\"refused\",cluster=\"a\"}";
    // Each breaks the cluster a in another way.
    let broken = [
        "{".to_owned(),
        String::new(),
        cluster("a", "{pathPrefix: /a}", "colour: red\n"),
        cluster("a", "{pathPrefix: /a}", "authentication: {tokenAuthFile: missing.csv}\n"),
        cluster("other", "{pathPrefix: /a}", ""),
        // Nobody could authenticate.
        cluster("a", "{pathPrefix: /a}", "limits: {}\n"),
        // Valid, but it cannot be built.
        cluster("a", "{pathPrefix: /a}", UNBUILDABLE),
    ];
    let two = Two::start().await;
    for (round, content) in broken.iter().enumerate() {
        two.change(|files| {
            std::fs::write(files.path.join("a.yaml"), content).unwrap();
            files.put("b.yaml", "b", &format!("{{pathPrefix: /b{round}}}"), "");
        })
        .await;
        two.gateway.until_counted("portcullis_clusters_refused 1").await;
        two.gateway.until_counted(&format!("{STALE} 1")).await;
        assert_eq!(two.code("/a/api", "a-token").await, StatusCode::OK, "{content}");
        two.serves(&format!("/b{round}/api"), "b-token").await;
        two.change(|files| files.put("a.yaml", "a", "{pathPrefix: /a}", "")).await;
        two.gateway.until_counted("portcullis_clusters_refused 0").await;
        assert!(!two.gateway.metrics("/metrics").await.contains(STALE));
    }
    // A cluster that is broken and then removed is gone.
    two.change(|files| std::fs::write(files.path.join("a.yaml"), "{").unwrap()).await;
    two.change(|files| files.remove("a.yaml")).await;
    assert_eq!(two.code("/a/api", "a-token").await, StatusCode::NOT_FOUND);
    assert_eq!(two.refused().await, 0);
}

#[tokio::test]
async fn at_the_start_a_broken_file_leaves_out_its_cluster() {
    let directory = Directory::new();
    let backend = FakeBackend::plain(&directory.pki).await;
    for name in ["a", "unbuildable"] {
        directory.prepare(name, &backend, &directory.pki);
    }
    directory.put("a.yaml", "a", "{pathPrefix: /a}", "");
    directory.put("unbuildable.yaml", "unbuildable", "{pathPrefix: /u}", UNBUILDABLE);
    std::fs::write(directory.path.join("broken.yaml"), "{").unwrap();
    let gateway = Gateway::with(directory.flags());
    let mut client = Client::connect(&gateway, true, None).await;
    assert_eq!(client.code_at("/a/api", &[("authorization", "Bearer a-token")]).await, StatusCode::OK);
    assert_eq!(
        client.code_at("/u/api", &[("authorization", "Bearer unbuildable-token")]).await,
        StatusCode::NOT_FOUND
    );
    gateway.until_counted("portcullis_clusters_refused 2").await;
    assert_eq!(gateway.count("portcullis_clusters").await, 1);
}

#[tokio::test]
async fn no_file_takes_the_name_or_the_route_of_a_cluster_in_force() {
    let two = Two::start().await;
    let attempts = [
        ("a", "{pathPrefix: /other}", "name \"a\" is already used by"),
        ("thief", "{pathPrefix: /a}", "prefix \"/a\" is already used by"),
        ("thief", "{serverNames: [thief.example.com], pathPrefix: /b}", "prefix \"/b\" is already used by"),
    ];
    two.directory.prepare("thief", &two.backends[1], &two.directory.pki);
    for (name, routes, problem) in attempts {
        // The first of the directory, in the order of names.
        two.change(|files| files.put("0.yaml", name, routes, "authentication: {tokenAuthFile: thief.csv}\n"))
            .await;
        two.gateway.until_counted("portcullis_clusters_refused 1").await;
        assert_eq!(two.code("/a/api", "a-token").await, StatusCode::OK, "{problem}");
        assert_eq!(two.code("/a/api", "thief-token").await, StatusCode::UNAUTHORIZED, "{problem}");
        assert_eq!(two.code("/b/api", "b-token").await, StatusCode::OK, "{problem}");
        let status = two.gateway.metrics("/clusters").await;
        assert!(status.contains(&problem.replace('"', "\\\"")), "{problem}: {status}");
    }
    // Nor while the file of its owner is broken.
    two.change(|files| {
        std::fs::write(files.path.join("a.yaml"), "{").unwrap();
        files.put("0.yaml", "thief", "{pathPrefix: /a}", "");
    })
    .await;
    two.gateway.until_counted("portcullis_clusters_refused 2").await;
    assert_eq!(two.code("/a/api", "a-token").await, StatusCode::OK);
    assert_eq!(two.code("/a/api", "thief-token").await, StatusCode::UNAUTHORIZED);
    two.change(|files| files.put("a.yaml", "a", "{pathPrefix: /a}", "")).await;
    // When the owner goes, the name is free.
    two.change(|files| {
        files.remove("b.yaml");
        files.put("0.yaml", "thief", "{pathPrefix: /b}", "");
    })
    .await;
    two.trusted(["thief"]).await;
    assert_eq!(two.code("/b/api", "thief-token").await, StatusCode::OK);
    assert_eq!(two.refused().await, 0);
}

#[tokio::test]
async fn the_configuration_file_takes_nothing_that_a_file_keeps() {
    let two = Two::start().await;
    let main = two.directory.pki.directory.path().join("gateway.yaml");
    let base = std::fs::read_to_string(&main).unwrap();
    let own = "name: own, kubeconfig: clusters.d/a.kubeconfig";
    let wants = format!("{base}clusters: [{{{own}, match: {{pathPrefix: /a}}, {OWN_TOKEN}}}]\n");
    two.directory.pki.write("own.csv", "own-token,root,1\n");
    // What its own file still wants, and what it keeps because it does not get what it wants instead.
    for route in ["/a", "/b"] {
        if route != "/a" {
            two.change(|files| files.put("a.yaml", "a", &format!("{{pathPrefix: {route}}}"), "")).await;
            two.gateway.until_counted("portcullis_clusters_refused 1").await;
        }
        let before = two.gateway.generation().await;
        replace(&main, &wants);
        two.gateway.until_counted("portcullis_config_last_reload_successful 0").await;
        assert_eq!(two.code("/a/api", "a-token").await, StatusCode::OK, "{route}");
        assert_eq!(two.code("/a/api", "own-token").await, StatusCode::UNAUTHORIZED, "{route}");
        assert_eq!(two.gateway.generation().await, before, "{route}");
        replace(&main, &base);
        two.gateway.until_counted("portcullis_config_last_reload_successful 1").await;
    }
    // What it gives up is free.
    replace(&main, &wants);
    two.change(|files| files.put("a.yaml", "a", "{pathPrefix: /other}", "")).await;
    two.serves("/a/api", "own-token").await;
}

#[tokio::test]
async fn the_configuration_file_signs_with_no_ca_that_a_file_in_force_trusts() {
    let two = Two::start().await;
    let pki = &two.directory.pki;
    let main = pki.directory.path().join("gateway.yaml");
    let base = std::fs::read_to_string(&main).unwrap();
    for file in [pki.directory.path(), &two.directory.path] {
        std::fs::write(file.join("ca.crt"), pki.clients.cert_pem()).unwrap();
        std::fs::write(file.join("ca.key"), pki.clients.key_pem()).unwrap();
    }
    let trusting = "authentication: {tokenAuthFile: a.csv, clientCAFile: ca.crt}\n";
    two.change(|files| files.put("a.yaml", "a", "{pathPrefix: /a}", trusting)).await;
    two.directory.pki.write("own.csv", "own-token,root,1\n");
    let signing = "controllerManager: {controllers: [csrsigning], clusterSigningCertFile: ca.crt, \
                   clusterSigningKeyFile: ca.key}";
    let own = "name: own, kubeconfig: clusters.d/a.kubeconfig, match: {pathPrefix: /own}";
    replace(&main, format!("{base}clusters: [{{{own}, {OWN_TOKEN}, {signing}}}]\n"));
    two.gateway.until_counted("portcullis_config_last_reload_successful 0").await;
    assert_eq!(two.code("/a/api", "a-token").await, StatusCode::OK);
    assert_eq!(two.code("/own/api", "own-token").await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_mounted_config_map_is_read() {
    let directory = Directory::new();
    let backend = FakeBackend::plain(&directory.pki).await;
    // As the kubelet mounts it: links through `..data`, which a rename replaces.
    let mount = |version: &str, names: &[&str]| {
        let data = directory.path.join(version);
        std::fs::create_dir(&data).unwrap();
        for name in names {
            let file = format!("{name}.yaml");
            std::fs::write(data.join(&file), cluster(name, &format!("{{pathPrefix: /{name}}}"), "")).unwrap();
            if directory.path.join(&file).symlink_metadata().is_err() {
                symlink(Path::new("..data").join(&file), directory.path.join(&file)).unwrap();
            }
        }
        symlink(version, directory.path.join("..tmp")).unwrap();
        std::fs::rename(directory.path.join("..tmp"), directory.path.join("..data")).unwrap();
    };
    for name in ["a", "b"] {
        directory.prepare(name, &backend, &directory.pki);
    }
    mount("..2026_01", &["a"]);
    let gateway = Gateway::with(directory.flags());
    let mut client = Client::connect(&gateway, false, None).await;
    assert_eq!(client.code_at("/a/api", &[("authorization", "Bearer a-token")]).await, StatusCode::OK);
    mount("..2026_02", &["a", "b"]);
    gateway.until_counted("portcullis_clusters 2").await;
    gateway.until_counted("portcullis_clusters_rebuilt_total 2").await;
}

#[test]
fn check_reports_every_broken_file_with_its_lines() {
    let directory = Directory::new();
    let write = |file: &str, text: String| std::fs::write(directory.path.join(file), text).unwrap();
    write("a.yaml", cluster("A_", "{}", ""));
    write("b.yaml", format!("{HEAD}name: b\nmatch: {{pathPrefix: /b}}\n"));
    write("c.yaml", "apiVersion: v1\nkind: Secret\n".to_owned());
    let loaded = resolved(directory.flags()).unwrap();
    assert!(loaded.settings.clusters.is_empty());
    let errors: Vec<String> =
        loaded.refused().flat_map(|refused| refused.errors).map(ToString::to_string).collect();
    let path = directory.path.display().to_string();
    let found: Vec<String> = errors.iter().map(|error| error.replace(&path, "DIR")).collect();
    let expected = [
        "DIR/a.yaml:3: name: \"A_\" is not a DNS label",
        "DIR/a.yaml:5: match: matches nothing",
        "DIR/a.yaml:4: kubeconfig: DIR/A_.kubeconfig: ",
        "DIR/a.yaml:6: authentication.tokenAuthFile: DIR/A_.csv: ",
        "DIR/b.yaml:1: kubeconfig: is required",
        "clusterDirectory: DIR/c.yaml: unknown apiVersion",
    ];
    for line in expected {
        assert!(found.iter().any(|error| error.contains(line)), "{line} is missing in {found:#?}");
    }
    let origin = ClusterOrigin::File(directory.path.join("a.yaml"));
    assert!(loaded.refused().any(|refused| *refused.origin == origin));
}

#[test]
fn a_directory_that_cannot_be_read_is_an_error() {
    let directory = Directory::new();
    std::fs::remove_dir_all(&directory.path).unwrap();
    let error = resolved(directory.flags()).unwrap_err().to_string();
    assert!(error.contains("gateway.yaml:6: clusterDirectory: ") && error.contains("fix: "), "{error}");
}

#[test]
fn a_load_resolves_only_what_has_changed() {
    let directory = Directory::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let backend = runtime.block_on(FakeBackend::plain(&directory.pki));
    for name in ["a", "b", "c"] {
        directory.prepare(name, &backend, &directory.pki);
        directory.put(&format!("{name}.yaml"), name, &format!("{{pathPrefix: /{name}}}"), "");
    }
    let mut source = ConfigSource::new(parse(directory.flags()));
    let load = |source: &mut ConfigSource| EffectiveConfig::at_start(&source.load().unwrap()).unwrap();
    let before = load(&mut source);
    let are_same = |now: &EffectiveConfig| -> Vec<bool> {
        let clusters = before.settings.clusters.iter().zip(&now.settings.clusters);
        clusters.map(|(before, now)| Arc::ptr_eq(before, now)).collect()
    };
    assert_eq!(are_same(&load(&mut source)), [true; 3]);
    assert!(!source.changed());
    directory.put("b.yaml", "b", "{pathPrefix: /second}", "");
    assert!(source.changed());
    assert_eq!(are_same(&load(&mut source)), [true, false, true]);
}

#[tokio::test]
async fn a_stale_cluster_does_not_stop_a_change_of_the_audit() {
    let two = Two::start().await;
    let main = two.directory.pki.directory.path().join("gateway.yaml");
    let text = std::fs::read_to_string(&main).unwrap();
    let audited = |size: u32| {
        let audit = "auditPolicyFile: clusters.d/policy, auditLogPath: audit.log";
        format!("{text}audit: {{{audit}, auditLogMaxsize: {size}}}\n")
    };
    two.change(|_| replace(&main, audited(100))).await;
    two.change(|files| {
        std::fs::write(files.path.join("a.yaml"), "{").unwrap();
        files.put("b.yaml", "b", "{pathPrefix: /b0}", "");
    })
    .await;
    two.gateway.until_counted("portcullis_clusters_refused 1").await;
    two.change(|_| replace(&main, audited(200))).await;
    assert_eq!(two.refused().await, 1);
    // Nor does it stop further changes, and it is served as before.
    two.change(|files| files.put("b.yaml", "b", "{pathPrefix: /b1}", "")).await;
    assert_eq!(two.code("/a/api", "a-token").await, StatusCode::OK);
    assert_eq!(two.code("/b1/api", "b-token").await, StatusCode::OK);
    two.change(|files| files.put("a.yaml", "a", "{pathPrefix: /a}", "")).await;
    assert_eq!(two.refused().await, 0);
}

#[tokio::test]
async fn a_cluster_whose_old_state_cannot_be_kept_is_not_served() {
    let two = Two::start().await;
    let logs = two.directory.pki.directory.path().join("logs");
    let audited = "authentication: {tokenAuthFile: a.csv}\n\
                   audit: {auditPolicyFile: policy, auditLogPath: ../logs/a.log}\n";
    std::fs::create_dir(&logs).unwrap();
    two.change(|files| files.put("a.yaml", "a", "{pathPrefix: /a}", audited)).await;
    two.change(|files| {
        // Its log is nowhere any more, and its file is broken.
        std::fs::remove_dir_all(&logs).unwrap();
        symlink("nowhere", &logs).unwrap();
        files.put("b.yaml", "b", "{pathPrefix: /b0}", "");
        std::fs::write(files.path.join("a.yaml"), "{").unwrap();
    })
    .await;
    two.gateway.until_counted("portcullis_clusters_refused 1").await;
    two.serves("/b0/api", "b-token").await;
    assert_eq!(two.code("/a/api", "a-token").await, StatusCode::NOT_FOUND);
    let status = two.gateway.metrics("/clusters").await;
    assert!(status.contains("cannot open the audit log"), "{status}");
    two.change(|files| files.put("b.yaml", "b", "{pathPrefix: /b1}", "")).await;
    two.change(|files| {
        std::fs::remove_file(&logs).unwrap();
        files.put("a.yaml", "a", "{pathPrefix: /a}", audited);
    })
    .await;
    two.trusted(["a"]).await;
    assert_eq!(two.code("/a/api", "a-token").await, StatusCode::OK);
}

#[tokio::test]
async fn a_cluster_stays_while_its_open_log_is_away() {
    let two = Two::start().await;
    let logs = two.directory.pki.directory.path().join("logs");
    let audited = "authentication: {tokenAuthFile: a.csv}\n\
                   audit: {auditPolicyFile: policy, auditLogPath: ../logs/a.log}\n";
    std::fs::create_dir(&logs).unwrap();
    two.change(|files| files.put("a.yaml", "a", "{pathPrefix: /a}", audited)).await;
    std::fs::remove_dir_all(&logs).unwrap();
    std::fs::write(&logs, "no directory").unwrap();
    two.change(|files| files.put("b.yaml", "b", "{pathPrefix: /b0}", "")).await;
    two.serves("/b0/api", "b-token").await;
    assert_eq!(two.refused().await, 0);
    assert_eq!(two.code("/a/api", "a-token").await, StatusCode::OK);
    // One whose log is not open yet does not get it.
    let other = audited.replace("a.csv", "b.csv").replace("a.log", "b.log");
    two.change(|files| files.put("b.yaml", "b", "{pathPrefix: /b1}", &other)).await;
    assert_eq!(two.refused().await, 1);
    assert_eq!(two.code("/b0/api", "b-token").await, StatusCode::OK);
}

#[tokio::test]
async fn clusters_with_other_audit_options_than_a_corrected_file_are_served_again() {
    let two = Two::start().await;
    let main = two.directory.pki.directory.path().join("gateway.yaml");
    let text = std::fs::read_to_string(&main).unwrap();
    let audit = "audit: {auditPolicyFile: clusters.d/policy, auditLogPath: audit.log}";
    two.change(|_| replace(&main, format!("{text}{audit}\n"))).await;
    let other = "authentication: {tokenAuthFile: a.csv}\naudit: {auditLogMaxsize: 7}\n";
    two.change(|files| files.put("a.yaml", "a", "{pathPrefix: /a}", other)).await;
    two.gateway.until_counted("portcullis_clusters_refused 1").await;
    assert_eq!(two.code("/b/api", "b-token").await, StatusCode::OK);
    two.change(|files| files.put("a.yaml", "a", "{pathPrefix: /a}", "")).await;
    assert_eq!(two.refused().await, 0);
}

#[tokio::test]
async fn settings_that_could_not_be_audited_are_tried_again_with_each_load() {
    let two = Two::start().await;
    let directory = two.directory.pki.directory.path();
    let (main, logs) = (directory.join("gateway.yaml"), directory.join("logs"));
    let base = std::fs::read_to_string(&main).unwrap();
    let audited = "authentication: {tokenAuthFile: a.csv}\n\
                   audit: {auditPolicyFile: policy, auditLogPath: ../logs/a.log}\n";
    two.directory.pki.write("own.csv", "own-token,root,1\n");
    std::fs::write(&logs, "no directory").unwrap();
    // The configuration file wants what the cluster gives up, which it keeps because its new settings cannot be built.
    two.directory.put("a.yaml", "a", "{pathPrefix: /other}", audited);
    let own = "name: own, kubeconfig: clusters.d/a.kubeconfig, match: {pathPrefix: /a}";
    replace(&main, format!("{base}clusters: [{{{own}, {OWN_TOKEN}}}]\n"));
    two.gateway.until_counted("portcullis_config_last_reload_successful 0").await;
    assert_eq!(two.code("/a/api", "a-token").await, StatusCode::OK);
    std::fs::remove_file(&logs).unwrap();
    std::fs::create_dir(&logs).unwrap();
    let before = two.gateway.generation().await;
    two.gateway.server().reload();
    two.gateway.reloaded(before).await;
    two.serves("/other/api", "a-token").await;
    two.serves("/a/api", "own-token").await;
}

#[test]
fn endpoints_are_bounded_for_a_cluster_and_for_all_together() {
    let directory = Directory::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let backend = runtime.block_on(FakeBackend::plain(&directory.pki));
    directory.prepare("a", &backend, &directory.pki);
    let put = |name: &str, count: u32| {
        let endpoints: Vec<String> =
            (0..count).map(|index| format!("'https://192.0.2.1:{}'", index + 1)).collect();
        let content = format!(
            "{HEAD}name: {name}\nkubeconfig: a.kubeconfig\nmatch: {{pathPrefix: /{name}}}\nendpoints: [{}]\n\
             authentication: {{tokenAuthFile: a.csv}}\n",
            endpoints.join(", ")
        );
        std::fs::write(directory.path.join(format!("{name}.yaml")), content).unwrap();
    };
    let refused = || {
        let config = resolved(directory.flags()).unwrap();
        config.refused().flat_map(|refused| refused.errors).map(ToString::to_string).collect::<Vec<_>>()
    };
    put("many", 65);
    let errors = refused();
    assert!(
        matches!(&errors[..], [error] if error.contains("endpoints: has 65 endpoints, more than 64")),
        "{errors:?}"
    );
    put("many", 64);
    for index in 1..128 {
        put(&format!("c{index:03}"), 64);
    }
    assert_eq!(refused(), [""; 0]);
    put("zz", 1);
    let errors = refused();
    assert!(
        matches!(&errors[..], [error] if error.contains("more than 8192 endpoints together")),
        "{errors:?}"
    );
}

/// The certificates of one cluster are not verified again for each other cluster.
#[test]
fn many_authorities_of_one_name_do_not_delay_a_load() {
    let directory = Directory::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let backend = runtime.block_on(FakeBackend::plain(&directory.pki));
    directory.prepare("a", &backend, &directory.pki);
    let write = |name: &str, text: String| std::fs::write(directory.path.join(name), text).unwrap();
    let signing = Ca::new("root").intermediate("signing");
    write("signing.crt", signing.cert_pem());
    write("signing.key", signing.key_pem());
    let root = || Ca::build("root").with_key(Key::generate(KeyKind::P521)).issue_ca().cert_pem();
    write("0.clients", (0..300).map(|_| root()).collect());
    write("1.clients", Ca::new("other").cert_pem());
    let put = |name: &str, clients: &str| {
        write(
            &format!("{name}.yaml"),
            format!(
                "{HEAD}name: {name}\nkubeconfig: a.kubeconfig\nmatch: {{pathPrefix: /{name}}}\n\
                 authentication: {{tokenAuthFile: a.csv, clientCAFile: {clients}}}\n"
            ),
        );
    };
    put("a", "0.clients");
    for index in 0..40 {
        put(&format!("b{index}"), "1.clients");
    }
    let main = directory.pki.directory.path().join("gateway.yaml");
    let base = std::fs::read_to_string(&main).unwrap();
    let load = || {
        let began = std::time::Instant::now();
        let config = resolved(directory.flags()).unwrap();
        assert_eq!(config.refused().count(), 0);
        began.elapsed()
    };
    let without = load();
    directory.pki.write("own.csv", "own-token,root,1\n");
    let signs = "controllerManager: {controllers: [csrsigning], clusterSigningCertFile: clusters.d/signing.crt, \
                 clusterSigningKeyFile: clusters.d/signing.key}";
    let own = "name: own, kubeconfig: clusters.d/a.kubeconfig, match: {pathPrefix: /own}";
    std::fs::write(&main, format!("{base}clusters: [{{{own}, {OWN_TOKEN}, {signs}}}]\n")).unwrap();
    let with = load();
    assert!(with < without + std::time::Duration::from_secs(3), "{without:?}, {with:?}");
}

/// Fifty clusters, each with authorities of its own: no credential, user or connection of one reaches another.
#[tokio::test]
async fn fifty_clusters_have_nothing_of_each_other() {
    const CLUSTERS: usize = 50;
    let directory = Directory::new();
    let mut clusters = Vec::new();
    for index in 0..CLUSTERS {
        let (name, pki) = (format!("c{index}"), Pki::new());
        let backend = FakeBackend::plain(&pki).await;
        directory.prepare(&name, &backend, &pki);
        std::fs::write(directory.path.join(format!("{name}.clients")), pki.clients.cert_pem()).unwrap();
        let own = format!("authentication: {{tokenAuthFile: {name}.csv, clientCAFile: {name}.clients}}\n");
        let routes = format!("{{serverNames: [{name}.example.com], pathPrefix: /clusters/{name}}}");
        directory.put(&format!("{name}.yaml"), &name, &routes, &own);
        clusters.push((name, pki, backend));
    }
    let gateway = Gateway::with(directory.flags());
    in_time(async {
        while gateway.count_all("portcullis_endpoint_trusted", &[]).await < 50 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();

    // A certificate of each cluster, and its token, at its own cluster and the next.
    for (index, (name, pki, backend)) in clusters.iter().enumerate() {
        let (other, _, other_backend) = &clusters[(index + 1) % CLUSTERS];
        let alice = pki.clients.leaf().cn(&format!("alice-of-{name}")).issue();
        let mut client = Client::connect(&gateway, true, Some(&alice)).await;
        let token = format!("Bearer {name}-token");
        let token = [("authorization", token.as_str())];
        let (own, foreign) = (format!("/clusters/{name}/api"), format!("/clusters/{other}/api"));
        assert_eq!(text(client.get(&own, &[]).await).await, "ok");
        assert_eq!(client.code_at(&foreign, &[]).await, StatusCode::UNAUTHORIZED, "{name} at {other}");
        let mut client = Client::connect(&gateway, false, None).await;
        assert_eq!(client.code_at(&own, &token).await, StatusCode::OK);
        assert_eq!(client.code_at(&foreign, &token).await, StatusCode::UNAUTHORIZED, "{name} at {other}");
        let seen: Vec<_> =
            std::iter::from_fn(|| backend.take()).map(|seen| seen.all("x-remote-user")).collect();
        assert_eq!(seen, [[format!("alice-of-{name}")], [format!("user-of-{name}")]]);
        assert!(other_backend.take().is_none(), "{name} reached {other}");
    }

    // One change builds one cluster, and no connection of another ends.
    let (before, built) =
        (gateway.generation().await, gateway.count("portcullis_clusters_rebuilt_total").await);
    assert_eq!(built, 50);
    let ended: Vec<usize> = clusters.iter().map(|(_, _, backend)| backend.ended()).collect();
    replace(&directory.path.join("c7.csv"), "c7-new,user-of-c7,7\n");
    gateway.reloaded(before).await;
    assert_eq!(gateway.count("portcullis_clusters_rebuilt_total").await, built + 1);
    assert_eq!(
        Client::connect(&gateway, false, None)
            .await
            .code_at("/clusters/c7/api", &[("authorization", "Bearer c7-new")])
            .await,
        StatusCode::OK
    );
    let after: Vec<usize> = clusters.iter().map(|(_, _, backend)| backend.ended()).collect();
    assert_eq!(ended, after);

    // A backend has the connection of the self-check, and one of requests, with two ends in this process. Other tests of the process
    // have files open for a while.
    let opened = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    until("no more open files than connections", || opened() <= open + CLUSTERS * 4 + 20).await;
}
