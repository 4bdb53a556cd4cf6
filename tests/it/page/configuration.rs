//! Every error of the page's section at once, each with its fix; and the host names that the page must not have.

use super::*;
use crate::gateway::resolved;

fn errors(flags: Vec<String>) -> String {
    resolved(flags).unwrap_err().to_string()
}

#[tokio::test]
async fn a_host_name_of_the_api_is_refused() {
    let setup = start(&[("prod", only_alice), ("staging", only_alice)]).await;
    let with = |url: &str| {
        let mut flags = setup.flags.clone();
        flags.push(format!("--page-url={url}"));
        resolved(flags).map(drop).map_err(|errors| errors.to_string())
    };
    for url in
        ["https://prod.api.test", "https://PROD.api.test:8443", "https://api.test", "https://api.test:8443"]
    {
        let error = with(url).unwrap_err();
        assert!(error.contains("--page-url:") && error.contains("could read the page"), "{url}: {error}");
        assert!(error.contains("fix: give the page a host name of its own"), "{error}");
    }
    for url in [
        "http://clusters.test",
        "https://clusters.test/path",
        "https://u:p@clusters.test",
        "clusters.test",
        "https://clusters.test?x",
        "",
    ] {
        let error = with(url).unwrap_err();
        assert!(error.contains("is not an https:// URL without a path"), "{url}: {error}");
    }
    for url in ["https://127.0.0.1:8443", "https://[::1]"] {
        assert!(with(url).unwrap_err().contains("an address instead of a host name"), "{url}");
    }
    assert!(with("https://clusters.test.").unwrap_err().contains("clusters.test. ends with a dot"));
    for url in ["https://page.prod.api.test", "https://clusters.test:8443", "https://other.test"] {
        assert_eq!(with(url), Ok(()), "{url}");
    }
}

#[tokio::test]
async fn a_wildcard_name_of_a_cluster_covers_the_page_too() {
    let setup = start(&[("prod", only_alice)]).await;
    let file = setup.pki.directory.path().join("gateway.yaml");
    let text = std::fs::read_to_string(&file).unwrap().replace("prod.api.test", "prod.api.test, '*.test'");
    std::fs::write(&file, text).unwrap();
    assert!(
        errors(setup.flags.clone()).contains("clusters.test is also the server name *.test of a cluster")
    );
}

#[tokio::test]
async fn a_cluster_of_the_directory_covers_the_page_too() {
    let setup = start(&[("prod", only_alice)]).await;
    let directory = setup.pki.directory.path();
    std::fs::create_dir(directory.join("clusters.d")).unwrap();
    let file = directory.join("gateway.yaml");
    let text = std::fs::read_to_string(&file).unwrap() + "clusterDirectory: clusters.d\n";
    std::fs::write(&file, text).unwrap();
    let put = |name: &str| {
        let cluster = format!(
            "apiVersion: portcullis.dev/v1alpha1\nkind: ClusterConfiguration\nname: other\n\
             kubeconfig: ../prod.kubeconfig\nmatch: {{serverNames: ['{name}']}}\n\
             authentication: {{anonymousAuth: true}}\n"
        );
        std::fs::write(directory.join("clusters.d/other.yaml"), cluster).unwrap();
    };
    put("*.example");
    assert_eq!(resolved(setup.flags.clone()).unwrap().settings.clusters.len(), 2);
    put("*.test");
    let config = resolved(setup.flags.clone()).unwrap();
    assert_eq!(config.settings.clusters.len(), 1);
    let errors: Vec<_> =
        config.refused().flat_map(|refused| refused.errors).map(ToString::to_string).collect();
    let [error] = &errors[..] else { panic!("{errors:?}") };
    let expected = "match.serverNames[0]: ";
    assert!(
        error.contains(expected)
            && error.contains("\"*.test\" is also of clusters.test, the host name of the page"),
        "{error}"
    );
}

#[tokio::test]
async fn every_error_is_reported_at_once() {
    let setup = start(&[("prod", only_alice)]).await;
    let kept = |flag: &&String| !flag.starts_with("--page-");
    let mut flags: Vec<String> = setup.flags.iter().filter(kept).cloned().collect();
    flags.push("--page-bind-address=127.0.0.1:8443".to_owned());
    let all = errors(flags.clone());
    for key in [
        "url",
        "tls-cert-file",
        "tls-private-key-file",
        "oidc-issuer-url",
        "oidc-client-id",
        "api-server-url",
    ] {
        let camel = portcullis::internal::key_of(&format!("page-{key}"));
        assert!(all.contains(&format!("page.{camel}: is required")), "{key}: {all}");
    }
    let short = setup.pki.write("short.key", "abc");
    let empty = setup.pki.write("empty", "");
    let zero = setup.pki.write("zero.key", [0; 32]);
    for (flag, problem) in [
        ("--page-bind-address=nowhere".to_owned(), "--page-bind-address: \"nowhere\""),
        (format!("--page-cookie-key-file={}", short.display()), "does not have 32 random bytes"),
        (format!("--page-cookie-key-file={}", zero.display()), "does not have 32 random bytes"),
        (format!("--page-oidc-client-secret-file={}", empty.display()), "is empty, or no UTF-8 text"),
        (format!("--page-oidc-ca-file={}", empty.display()), "--page-oidc-ca-file"),
        ("--page-oidc-issuer-url=http://issuer.test".to_owned(), "is not an https:// URL"),
        ("--page-oidc-client-id=".to_owned(), "--page-oidc-client-id: is required"),
        ("--page-oidc-scopes=a b".to_owned(), "\"a b\" is not a scope"),
        ("--page-api-server-url=https://api.test/x".to_owned(), "--page-api-server-url"),
        ("--page-proxy-protocol=v2".to_owned(), "page.proxyProtocolTrustedNetworks: is required with"),
        (
            "--page-proxy-protocol-trusted-networks=10.0.0.0/8".to_owned(),
            "page.proxyProtocol: is required with",
        ),
        ("--page-bind-address=127.0.0.1:9094".to_owned(), ""),
    ] {
        let mut flags = setup.flags.clone();
        flags.push(flag.clone());
        match problem {
            "" => assert!(resolved(flags).is_ok()),
            problem => {
                let all = errors(flags);
                assert!(all.contains(problem) && all.contains("fix:"), "{flag}: {all}");
            }
        }
    }
    let mut flags = setup.flags.clone();
    flags.extend(["--secure-port=8443".to_owned(), "--page-bind-address=0.0.0.0:8443".to_owned()]);
    assert!(errors(flags).contains("is in use by --bind-address"));
    // A confidential client has no place in a kubeconfig.
    let secret = setup.pki.write("secret", "s3cret\n");
    let mut flags = setup.flags.clone();
    flags.push(format!("--page-oidc-client-secret-file={}", secret.display()));
    let all = errors(flags.clone());
    assert!(all.contains("a kubeconfig has no secret") && !all.contains("s3cret"), "{all}");
    flags.push("--page-kubeconfig-client-id=public".to_owned());
    assert!(resolved(flags).is_ok());
}

#[tokio::test]
async fn a_page_without_an_address_is_warned_about_and_one_of_an_unknown_client_too() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut flags = setup.flags.clone();
    flags.push("--page-oidc-client-id=unknown".to_owned());
    let warnings = resolved(flags).unwrap().warnings.join("\n");
    assert!(
        warnings.contains("no cluster accepts ID tokens of this issuer for the client \"unknown\""),
        "{warnings}"
    );
    let flags: Vec<_> =
        setup.flags.iter().filter(|flag| !flag.starts_with("--page-bind-address")).cloned().collect();
    let warnings = resolved(flags).unwrap().warnings.join("\n");
    assert!(warnings.contains("--page-url has no effect without"), "{warnings}");
}
