//! Tests of single kubeconfig rules. `tests/it` covers whole configurations through `resolve`.

use portcullis_http::client_tls::PlainHttp;
use testkit::pki::Ca;

use super::*;

#[test]
fn servers_are_https_urls_with_a_host() {
    type Expected = Result<(&'static str, u16, &'static str), &'static str>;
    let cases: &[(&str, Expected)] = &[
        ("https://10.0.0.1:6443", Ok(("10.0.0.1", 6443, ""))),
        ("https://api.example.com", Ok(("api.example.com", 443, ""))),
        ("https://api.example.com/", Ok(("api.example.com", 443, ""))),
        ("https://[::1]:6443", Ok(("::1", 6443, ""))),
        ("https://r.example.com/k8s/clusters/c-1/", Ok(("r.example.com", 443, "/k8s/clusters/c-1"))),
        ("http://10.0.0.1", Err("http is not allowed")),
        ("10.0.0.1:6443", Err("not an https")),
        ("https://u:p@10.0.0.1", Err("user name")),
        ("https://10.0.0.1/?a=b", Err("query")),
        ("", Err("")),
    ];
    for (server, expected) in cases {
        match (parse_server(server), expected) {
            (Ok((address, prefix)), Ok((host, port, wanted))) => {
                assert_eq!((address.host.as_str(), address.port, prefix.as_str()), (*host, *port, *wanted));
            }
            (Err(error), Err(wanted)) => assert!(error.contains(wanted), "{server}: {error}"),
            (got, _) => panic!("{server}: {got:?}"),
        }
    }
}

#[test]
fn only_text_in_utf_8_is_a_kubeconfig() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for content in [b"\xff\xfea".as_slice(), b"\xfe\xffa", b"\xff\xfea\0", b"a: \xff"] {
        std::fs::write(file.path(), content).unwrap();
        let mut errors = Vec::new();
        let inputs = &mut InputReader::default();
        let loaded = load("key", file.path(), None, &[], IdentityMode::Impersonate, inputs, &mut errors);
        assert!(loaded.is_none());
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        assert!(error.to_string().contains("it is not valid UTF-8"), "{error}");
    }
}

// As client-go's loader.
#[test]
fn files_of_other_tools_are_read() {
    let pem = Ca::new("webhook").cert_pem();
    let data = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let lines: Vec<&str> = data.as_bytes().chunks(76).map(|line| str::from_utf8(line).unwrap()).collect();
    let block = format!("|\n      {}", lines.join("\n      "));
    let quoted = format!("\"{}\\r\\n\"", lines.join("\\r\\n"));
    for (end, data) in [("\n", &data), ("\n", &block), ("\n", &quoted), ("\r\n", &block)] {
        // aws-iam-authenticator writes a user without fields.
        let text = format!(
            "clusters:\n- name: hook\n  cluster:\n    server: https://hook.test\n    certificate-authority-data: {data}\n\
             users:\n- name: apiserver\ncurrent-context: webhook\ncontexts:\n- name: webhook\n  \
             context: {{cluster: hook, user: apiserver}}\n"
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text.replace('\n', end)).unwrap();
        let mut errors = Vec::new();
        let loaded =
            load_remote("key", file.path(), PlainHttp::Never, &mut InputReader::default(), &mut errors);
        let loaded = loaded.unwrap_or_else(|| panic!("{errors:?}\n{text}"));
        assert_eq!(loaded.tls.roots.len(), 1);
        assert!(loaded.bearer_token.is_none() && loaded.tls.client_certificate.is_none());
    }
}

type Environment = &'static [(&'static str, &'static str)];

const CLUSTER: [(&str, &str); 2] =
    [("KUBERNETES_SERVICE_HOST", "fd00::1"), ("KUBERNETES_SERVICE_PORT", "6443")];

fn in_a_pod(
    environment: &[(&str, &str)],
    directory: &Path,
    identity: IdentityMode,
    inputs: &mut InputReader,
) -> Result<Backend, String> {
    let mut errors = Vec::new();
    let variable = |name: &str| {
        environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let backend = in_cluster("--backend-kubeconfig", variable, directory, identity, inputs, &mut errors);
    backend.ok_or_else(|| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

#[test]
fn a_pods_service_account_is_used_and_its_rotated_token_taken() {
    let pod = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| std::fs::write(pod.path().join(name), content).unwrap();
    write("ca.crt", &Ca::new("cluster").cert_pem());
    write("token", "first\n");
    let mut inputs = InputReader::default();
    let read = |inputs: &mut InputReader| in_a_pod(&CLUSTER, pod.path(), IdentityMode::Impersonate, inputs);

    let first = read(&mut inputs).unwrap();
    assert_eq!(first.endpoints[0].address.to_string(), "[fd00::1]:6443");
    assert_eq!(first.bearer_token.as_ref().unwrap().expose(), "first");
    assert_eq!(first.roots.len(), 1);
    assert!(first.client_certificate.is_none());
    assert!(!inputs.changed());

    write("token", "second\n");
    assert!(inputs.changed());
    assert_eq!(read(&mut inputs).unwrap().bearer_token.unwrap().expose(), "second");

    write("token", "");
    let error = read(&mut inputs).unwrap_err();
    assert!(error.contains("/token is empty"), "{error}");
    std::fs::remove_file(pod.path().join("ca.crt")).unwrap();
    let error = read(&mut inputs).unwrap_err();
    assert!(error.contains("/ca.crt: No such file"), "the system's CAs must not replace it: {error}");
}

#[test]
fn without_a_kubeconfig_the_error_says_what_a_pod_could_do() {
    let nowhere = Path::new("/nonexistent");
    let cases: &[(Environment, IdentityMode, &str)] = &[
        (&[], IdentityMode::Impersonate, "is required\n      fix: give a kubeconfig"),
        (&CLUSTER[..1], IdentityMode::Impersonate, "is required\n"),
        (&[CLUSTER[0], ("KUBERNETES_SERVICE_PORT", "")], IdentityMode::Impersonate, "is required\n"),
        (&[], IdentityMode::RequestHeader, "is required\n"),
        (&CLUSTER, IdentityMode::RequestHeader, "no front-proxy certificate"),
        (&CLUSTER, IdentityMode::RequestHeader, "or use --identity=impersonate"),
    ];
    for (environment, identity, expected) in cases {
        let error = in_a_pod(environment, nowhere, *identity, &mut InputReader::default()).unwrap_err();
        assert!(error.contains(expected), "{environment:?} {identity:?}: {error}");
    }
}
