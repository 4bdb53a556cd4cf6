//! Names of requests that a path, a selector or a terminal could take for something else.

use serde_json::json;

use super::cluster::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_is_about_the_request_that_was_named_and_no_other() {
    let cluster = Cluster::start().await;
    cluster.add("victim", "/O=kubeadm:cluster-admins/CN=victim");
    for (verb, name) in
        [("approve", "victim?x"), ("deny", "victim#x"), ("approve", "victim?x=1&y"), ("deny", "a b")]
    {
        cluster.add(name, "/CN=harmless");
        let said = cluster.run(&[verb, name, "--yes"]).await.good();
        assert!(said.contains("CN=harmless") && !said.contains("victim:"), "{said}");
        assert!(cluster.found(name).unwrap()["status"]["conditions"].is_array(), "{name} is not decided on");
        assert!(cluster.found("victim").unwrap().get("status").is_none(), "{name} decided on victim");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_no_request_can_have_is_an_error() {
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
        cluster.run(&["approve", name, "--yes"]).await.bad(64, &[problem]);
        cluster.run(&["deny", "victim", name, "--yes"]).await.bad(64, &[problem]);
        let request = ["request", "--cn", "a", "--name", name, "--out-cert", "a.crt", "--out-key", "a.key"];
        cluster.run(&request).await.bad(64, &[problem]);
    }
    assert!(cluster.found("victim").unwrap().get("status").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_about_another_request_is_an_error() {
    let cluster = Cluster::start().await;
    cluster.add("victim", "/CN=victim");
    cluster.add("harmless", "/CN=harmless");
    cluster.answer_with("victim");
    let problem = "the API server answered with certificatesigningrequest \"victim\"";
    cluster.run(&["approve", "harmless", "--yes"]).await.bad(1, &[problem]);
    let taken_up =
        ["request", "--cn", "a", "--name", "harmless", "--out-cert", "a.crt", "--out-key", "a.key"];
    cluster.run(&taken_up).await.bad(1, &[problem]);
    assert!(cluster.found("victim").unwrap().get("status").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_name_reads_as_a_selector_is_waited_for() {
    let cluster = Cluster::start().await;
    let name = "a,metadata.name=b\\c";
    let request = ["request", "--cn", "a", "--name", name, "--out-cert", "a.crt", "--out-key", "a.key"];
    let child = cluster.begin(&request);
    testkit::until("the request", || cluster.found(name).is_some()).await;
    cluster.change(name, |request| {
        request["status"] = json!({"conditions": [{"type": "Denied", "status": "True", "reason": "No"}]});
    });
    let output = testkit::in_time(child.wait_with_output()).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the request was denied: No"), "{said}");
}

/// What a request may hold beside the names and the key, as openssl's options write it, and what of it is shown.
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
async fn what_another_signer_may_copy_is_shown_before_it_is_approved() {
    let cluster = Cluster::start().await;
    for (what, options, shown) in CONTENTS {
        cluster.add_with("one", "/CN=a", options);
        let said = cluster.run(&["approve", "one", "--yes"]).await.good();
        assert!(said.contains(shown), "{what}: {said}");
        assert_eq!(
            said.contains("WARNING"),
            shown.contains("CA certificate") || shown.contains("CA:TRUE"),
            "{what}: {said}"
        );
    }
    cluster.add("two", "/CN=b");
    cluster.change("two", |request| {
        request["spec"]["uid"] = "uid-of-carol".into();
        request["spec"]["extra"] = json!({"example.com/scopes": ["all", "none "]});
    });
    let said = cluster.run(&["approve", "two", "--yes"]).await.good();
    for shown in ["uid        uid-of-carol", "example.com/scopes=all", "example.com/scopes=\"none \""] {
        assert!(said.contains(shown), "{shown}: {said}");
    }
}
