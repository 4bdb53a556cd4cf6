//! Names of requests with special characters of paths, selectors or terminals.

use serde_json::json;

use super::cluster::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approve_and_deny_change_only_the_named_request() {
    let cluster = Cluster::start().await;
    cluster.add("victim", "/O=kubeadm:cluster-admins/CN=victim");
    for (verb, name) in
        [("approve", "victim?x"), ("deny", "victim#x"), ("approve", "victim?x=1&y"), ("deny", "a b")]
    {
        cluster.add(name, "/CN=harmless");
        let output = cluster.run(&[verb, name, "--yes"]).await.succeeds();
        assert!(output.contains("CN=harmless") && !output.contains("victim:"), "{output}");
        assert!(cluster.found(name).unwrap()["status"]["conditions"].is_array(), "{name} has no condition");
        assert!(
            cluster.found("victim").unwrap().get("status").is_none(),
            "the command for {name} changed victim"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_request_name_is_an_error() {
    let cluster = Cluster::start().await;
    cluster.add("victim", "/CN=victim");
    let names = [
        ("x/../victim", "invalid resource name \"x/../victim\": [may not contain '/']"),
        ("victim/approval", "[may not contain '/']"),
        ("victim%3fx", "[may not contain '%']"),
        ("..", "[may not be '..']"),
        (".", "[may not be '.']"),
        ("", "resource name may not be empty"),
    ];
    for (name, problem) in names {
        cluster.run(&["approve", name, "--yes"]).await.fails(64, &[problem]);
        cluster.run(&["deny", "victim", name, "--yes"]).await.fails(64, &[problem]);
        let request = ["request", "--cn", "a", "--name", name, "--out-cert", "a.crt", "--out-key", "a.key"];
        cluster.run(&request).await.fails(64, &[problem]);
    }
    assert!(cluster.found("victim").unwrap().get("status").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_with_another_request_is_an_error() {
    let cluster = Cluster::start().await;
    cluster.add("victim", "/CN=victim");
    cluster.add("harmless", "/CN=harmless");
    cluster.answer_with("victim");
    let problem = "the API server answered with certificatesigningrequest \"victim\"";
    cluster.run(&["approve", "harmless", "--yes"]).await.fails(1, &[problem]);
    let taken_up =
        ["request", "--cn", "a", "--name", "harmless", "--out-cert", "a.crt", "--out-key", "a.key"];
    cluster.run(&taken_up).await.fails(1, &[problem]);
    assert!(cluster.found("victim").unwrap().get("status").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_name_is_escaped_in_the_field_selector() {
    let cluster = Cluster::start().await;
    let name = "a,metadata.name=b\\c";
    let request = ["request", "--cn", "a", "--name", name, "--out-cert", "a.crt", "--out-key", "a.key"];
    let child = cluster.begin(&request);
    testkit::until("the request", || cluster.found(name).is_some()).await;
    cluster.change(name, |request| {
        request["status"] = json!({"conditions": [{"type": "Denied", "status": "True", "reason": "No"}]});
    });
    let output = testkit::in_time(child.wait_with_output()).await.unwrap();
    let output = String::from_utf8(output.stderr).unwrap();
    assert!(output.contains("the request was denied: No"), "{output}");
}

/// Request contents beside the names and the key: a name, openssl's option, and the expected text in the output.
const CONTENTS: [(&str, &str, &str); 6] = [
    (
        "an authority",
        "-addext basicConstraints=critical,CA:TRUE,pathlen:1",
        "basicConstraints critical: CA:TRUE, pathlen:1",
    ),
    ("its keys' use", "-addext keyUsage=keyCertSign", "requests a CA certificate"),
    ("a purpose", "-addext extendedKeyUsage=clientAuth,1.2.3.4", "extendedKeyUsage: clientAuth, 1.2.3.4"),
    (
        "an extension of another's",
        "-addext 1.2.3.4.5=ASN1:UTF8String:admin",
        "extension 1.2.3.4.5: 0c0561646d696e",
    ),
    ("a domain", "-subj /CN=a/DC=example", "subject domainComponent=example"),
    ("a user id", "-subj /CN=a/UID=root", "subject uid=root"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extensions_that_another_signer_may_copy_are_shown_before_the_approval() {
    let cluster = Cluster::start().await;
    for (name, options, shown) in CONTENTS {
        cluster.add_with("one", "/CN=a", options);
        let output = cluster.run(&["approve", "one", "--yes"]).await.succeeds();
        assert!(output.contains(shown), "{name}: {output}");
        assert_eq!(
            output.contains("WARNING"),
            shown.contains("CA certificate") || shown.contains("CA:TRUE"),
            "{name}: {output}"
        );
    }
    cluster.add("two", "/CN=b");
    cluster.change("two", |request| {
        request["spec"]["uid"] = "uid-of-carol".into();
        request["spec"]["extra"] = json!({"example.com/scopes": ["all", "none "]});
    });
    let output = cluster.run(&["approve", "two", "--yes"]).await.succeeds();
    for shown in ["uid        uid-of-carol", "example.com/scopes=all", "example.com/scopes=\"none \""] {
        assert!(output.contains(shown), "{shown}: {output}");
    }
}
