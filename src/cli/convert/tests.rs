//! Manifests that cannot be read, wrappers, volumes, authorizers, and hostile values. Whole command lines of distributions
//! are in `tests/it/distributions.rs`.

use serde_json::json;

use super::*;

fn read(manifest: &Value, chosen: Option<&str>) -> Result<ApiServerContainer, ConfigError> {
    ApiServerContainer::read(manifest.to_string().as_bytes(), Path::new("pod.yaml"), chosen)
}

fn pod(containers: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kube-apiserver", "namespace": "kube-system"},
        "spec": {"containers": containers, "volumes": [
            {"name": "pki", "hostPath": {"path": "/etc/pki/"}},
            {"name": "root", "hostPath": {"path": "/srv"}},
            {"name": "map", "configMap": {"name": "x"}},
        ]},
    })
}

fn report(flags: &[&str]) -> ConversionReport {
    ConversionReport::of("a test", flags.iter().map(|&flag| flag.to_owned()).collect(), None)
}

#[test]
fn what_is_no_manifest_of_an_api_server_is_refused() {
    let one = |container: Value| pod(&json!([container]));
    let api = |name: &str| json!({"name": name, "command": ["kube-apiserver"]});
    let cases = [
        ("[]".to_owned(), "is not the manifest of a Pod: it is not a map"),
        ("a: 1".to_owned(), "is not the manifest of a Pod: it has no kind"),
        (
            "{kind: Deployment, apiVersion: apps/v1}".to_owned(),
            "is the manifest of a Deployment, not of a Pod",
        ),
        ("{kind: List, apiVersion: v1, items: []}".to_owned(), "is the manifest of a List, not of a Pod"),
        ("{kind: Pod, apiVersion: v1, spec: 1}".to_owned(), "is not the manifest of a Pod: invalid type"),
        ("{kind: Pod, apiVersion: v1, metadata: {}}".to_owned(), "has no containers"),
        ("a: [".to_owned(), ""),
        (
            one(json!({"name": "etcd", "command": ["etcd"]})).to_string(),
            "has no container that runs kube-apiserver; its containers are etcd",
        ),
        (
            pod(&json!([api("a"), {"name": "x"}, api("b")])).to_string(),
            "has several containers that run kube-apiserver: a, b",
        ),
        (
            one(json!({"name": "a", "command": ["/bin/sh", "-c", "exec kube-apiserver --v=2"]})).to_string(),
            "container a runs kube-apiserver by a shell script",
        ),
    ];
    for (text, expected) in cases {
        let error = ApiServerContainer::read(text.as_bytes(), Path::new("pod.yaml"), None).unwrap_err();
        assert!(error.problem.starts_with(expected), "{text}: {error}");
        assert!(error.fix.is_some() && error.file.is_some(), "{error}");
    }
    let several = pod(&json!([api("a"), {"name": "x"}, api("b")]));
    assert_eq!(
        read(&several, Some("b")).unwrap().description,
        "container b of pod kube-system/kube-apiserver"
    );
    assert_eq!(read(&several, Some("c")).unwrap_err().problem, "has no container \"c\"");
    assert_eq!(read(&several, Some("x")).unwrap().flags, [""; 0]);
}

#[test]
fn flags_are_found_behind_wrappers() {
    let cases = [
        json!({"name": "a", "command": ["kube-apiserver", "--v=2"], "args": ["--x"]}),
        json!({"name": "a", "command": ["/go-runner"], "args": ["--log-file=y", "/usr/local/bin/kube-apiserver", "--v=2", "--x"]}),
        json!({"name": "a", "command": ["/hyperkube", "kube-apiserver", "--v=2", "--x"]}),
        json!({"name": "kube-apiserver", "args": ["--v=2", "--x"]}),
    ];
    for container in cases {
        assert_eq!(read(&pod(&json!([container])), None).unwrap().flags, ["--v=2", "--x"], "{container}");
    }
}

#[test]
fn files_are_where_the_innermost_mount_has_them() {
    let container = read(
        &pod(&json!([{"name": "a", "command": ["kube-apiserver"], "volumeMounts": [
            {"name": "root", "mountPath": "/"},
            {"name": "pki", "mountPath": "/etc/kubernetes/pki"},
            {"name": "pki", "mountPath": "/one.crt", "subPath": "a/b.crt"},
            {"name": "pki", "mountPath": "/by-name", "subPathExpr": "$(NODE)"},
            {"name": "map", "mountPath": "/config/"},
            {"name": "gone", "mountPath": "/gone"},
        ]}])),
        None,
    )
    .unwrap();
    let node = |path: &str| FileLocation::Node(path.to_owned());
    let cases = [
        ("/etc/kubernetes/pki/ca.crt", node("/etc/pki/ca.crt")),
        ("/etc/kubernetes/pki", node("/etc/pki")),
        ("/etc/kubernetes/pki2/ca.crt", node("/srv/etc/kubernetes/pki2/ca.crt")),
        ("/one.crt", node("/etc/pki/a/b.crt")),
        ("/by-name/x", FileLocation::Volume("hostPath with subPathExpr")),
        ("/config/x", FileLocation::Volume("configMap")),
        ("/gone/x", FileLocation::Volume("unknown")),
    ];
    for (path, expected) in cases {
        assert_eq!(container.locate(path), expected, "{path}");
    }
    let bare = read(&pod(&json!([{"name": "kube-apiserver"}])), None).unwrap();
    assert_eq!(bare.locate("/x"), FileLocation::Image);
}

#[test]
fn a_value_that_only_the_node_knows_is_an_error() {
    let container = read(
        &pod(&json!([{"name": "a",
            "command": ["kube-apiserver", "--bind-address=$(HOST_IP)", "--advertise-address=$(HOST_IP)", "--secure-port=$(PORT)"],
            "env": [{"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}, {"name": "PORT", "value": "7443"}],
        }])),
        None,
    )
    .unwrap();
    assert_eq!(container.flags[2], "--secure-port=7443");
    let report =
        ConversionReport::of("a test", vec!["--oidc-client-id=$(HOST_IP)".to_owned()], Some(&container));
    let problems: Vec<String> =
        report.errors.iter().map(|error| format!("{}: {}", error.key, error.problem)).collect();
    let expected =
        "--oidc-client-id: $(HOST_IP) has the value of the field status.hostIP, which only the node knows";
    assert!(problems.contains(&expected.to_owned()), "{problems:?}");
}

#[test]
fn the_gateway_asks_the_webhooks_before_the_last_authorizer_of_the_backend() {
    let webhook = "--authorization-webhook-config-file=w";
    let cases = [
        ("Node,RBAC", "", false),
        ("Node,RBAC,Webhook", "", false),
        ("Webhook,Node,RBAC", "Webhook,AlwaysAllow", true),
        ("Node,Webhook,RBAC", "Webhook,AlwaysAllow", true),
        ("AlwaysAllow", "AlwaysAllow", false),
        ("Webhook", "Webhook", true),
    ];
    for (modes, expected, asks) in cases {
        let report = report(&[&format!("--authorization-mode={modes}"), webhook]);
        let words = report.command.join(" ");
        let expected = match expected {
            "" => String::new(),
            modes => format!("--authorization-mode={modes}"),
        };
        assert_eq!(words.contains("--authorization-mode"), !expected.is_empty(), "{modes}: {words}");
        assert!(words.contains(&expected), "{modes}: {words}");
        assert_eq!(words.contains(webhook), asks, "{modes}: {words}");
        let notes = report.notes.join("\n");
        assert_eq!(notes.contains("is asked about every request"), modes == "Node,Webhook,RBAC", "{notes}");
    }
}

#[test]
fn identities_take_the_headers_that_the_api_server_reads() {
    let words = |flags: &[&str]| report(flags).command.join(" ");
    let trust = "--requestheader-client-ca-file=ca";
    let usual = [
        trust,
        "--requestheader-username-headers=x-remote-user",
        "--requestheader-group-headers=X-Remote-Group",
    ];
    assert!(!words(&usual).contains("--backend-requestheader"), "{}", words(&usual));
    let other = words(&[
        trust,
        "--requestheader-username-headers=X-User",
        "--requestheader-group-headers=X-Remote-Group",
    ]);
    let expected = "--backend-requestheader-username-headers=X-User --backend-requestheader-group-headers=X-Remote-Group";
    assert!(other.contains(expected), "{other}");
    assert!(words(&[]).contains("--identity=impersonate"));
    assert!(!words(&usual).contains("--identity"));
}

#[test]
fn unknown_flags_and_bad_values_are_errors() {
    let report =
        report(&["--tls-cert-fil=x", "--secure-port=x", "--tls-cert-file=y", "--tls-private-key-file=z"]);
    let keys: Vec<&str> = report.errors.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(keys, ["--tls-cert-fil", "--secure-port"]);
}

#[test]
fn the_address_of_the_backend_is_that_of_the_api_server() {
    let server = |flags: &[&str]| {
        report(flags).kubeconfig["clusters"][0]["cluster"]["server"].as_str().unwrap().to_owned()
    };
    assert_eq!(server(&[]), "https://127.0.0.1:6443");
    assert_eq!(
        server(&["--bind-address=0.0.0.0", "--advertise-address=10.0.0.1", "--secure-port=443"]),
        "https://10.0.0.1:443"
    );
    assert_eq!(
        server(&["--bind-address=fd00::1", "--advertise-address", "10.0.0.1"]),
        "https://[fd00::1]:6443"
    );
}

#[test]
fn no_value_of_a_manifest_leaves_its_word_or_comment() {
    for value in [
        "$(touch x)",
        "a'; touch x; '",
        "`touch x`",
        "a\ntouch x\n",
        "a b",
        "\u{1b}]0;x\u{7}",
        "EOF\nEOF\ntouch x",
    ] {
        let flags = [
            format!("--oidc-client-id={value}"),
            format!("--client-ca-file={value}"),
            format!("--requestheader-client-ca-file={value}"),
            format!("--requestheader-allowed-names={value}"),
            format!("--proxy-client-cert-file={value}"),
            format!("--advertise-address={value}"),
            format!("--{value}"),
            value.to_owned(),
        ];
        let directory = tempfile::tempdir().unwrap();
        let script = report(&flags.each_ref().map(String::as_str)).script();
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(!script.contains(is_control), "{script:?}");
        // The program is a function that does nothing.
        let script = format!("portcullis() {{ :; }}\n{script}");
        let status = std::process::Command::new("sh")
            .args(["-c", &script])
            .current_dir(directory.path())
            .status()
            .unwrap();
        assert!(status.success(), "{script}");
        let made: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(made, [KUBECONFIG], "{script}");
    }
}
