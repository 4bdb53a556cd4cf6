//! Everything in a kubeconfig survives a login.

use super::*;

pub(super) const EXISTING: &str = r#"
# a comment
apiVersion: v1
kind: Config
preferences: {colors: true}
extensions: [{name: other-tool, extension: {a: 1}}]
current-context: old
clusters:
- name: old
  cluster: {server: https://old.test, extensions: [{name: x, extension: {last-update: now}}]}
users:
- name: old
  user: {token: "secret", unknown-field: "0123"}
contexts:
- name: old
  context: {cluster: old, user: old, namespace: team}
- name: gateway
  context: {cluster: gateway, user: gateway-login, namespace: mine}
"#;

pub(super) fn target() -> KubeconfigTarget {
    KubeconfigTarget {
        context: "gateway".to_owned(),
        cluster_name: "gateway".to_owned(),
        cluster: json!({"server": "https://gateway.test"}),
        user_name: "gateway-login".to_owned(),
        user: exec_user("/usr/bin/portcullis", &["--issuer=https://issuer.test".to_owned()]),
    }
}

#[test]
fn a_merge_keeps_everything_else() {
    let before = KubeconfigFile::parse(EXISTING.as_bytes()).unwrap();
    let mut after = before.clone();
    after.merge(&target(), false).unwrap();
    after.set_current_context("gateway");
    let written = KubeconfigFile::parse(after.to_yaml().unwrap().as_bytes()).unwrap();
    assert_eq!(written, after, "what is written is what is read");
    for key in ["preferences", "extensions"] {
        assert_eq!(written.0[key], before.0[key]);
    }
    assert_eq!(written.target("old").unwrap(), before.target("old").unwrap());
    assert_eq!(written.target("gateway").unwrap(), target());
    assert_eq!(written.entry(CONTEXTS, "gateway").unwrap()["namespace"], "mine", "the namespace stays");
    // Again, with other flags: it is ours.
    let mut other = target();
    other.user = exec_user("/opt/portcullis", &["--issuer=https://other.test".to_owned()]);
    after.merge(&other, false).unwrap();
    assert_eq!(after.target("gateway").unwrap(), other);
    assert_eq!(after.0["users"].as_array().unwrap().len(), 2);
}

#[test]
fn a_user_keeps_what_its_owner_has_set() {
    let mut user = exec_user("/usr/bin/portcullis", &["--issuer=https://issuer.test".to_owned()]);
    user["as"] = json!("viewer");
    user["exec"]["env"] = json!([{"name": "XDG_CACHE_HOME", "value": "/cache"}]);
    user["exec"]["interactiveMode"] = json!("Never");
    let mut expected = user.clone();
    expected["exec"]["command"] = json!("/opt/portcullis");
    expected["exec"]["args"] = json!(["credential", "--issuer=https://other.test"]);
    assert_eq!(
        with_arguments(user, "/opt/portcullis", &["--issuer=https://other.test".to_owned()]),
        expected
    );
}

#[test]
fn entries_of_others_are_replaced_only_on_demand() {
    let before = KubeconfigFile::parse(EXISTING.as_bytes()).unwrap();
    let free = || KubeconfigTarget { context: "new".to_owned(), cluster_name: "new".to_owned(), ..target() };
    let cases = [
        ("user", KubeconfigTarget { user_name: "old".to_owned(), ..free() }),
        ("cluster", KubeconfigTarget { cluster_name: "old".to_owned(), ..free() }),
        ("context", KubeconfigTarget { context: "old".to_owned(), ..free() }),
    ];
    for (kind, target) in cases {
        let mut after = before.clone();
        let error = after.merge(&target, false).unwrap_err();
        assert!(
            error.starts_with(&format!("the {kind} \"old\"")) && error.contains("--overwrite"),
            "{error}"
        );
        assert_eq!(after, before);
        after.merge(&target, true).unwrap();
        assert_eq!(after.target(&target.context).unwrap(), target);
    }
}

#[test]
fn files_that_are_no_kubeconfig_are_refused() {
    for text in ["[]", "kind: Secret", "clusters: {}", "a: b: c", "users: text"] {
        assert!(KubeconfigFile::parse(text.as_bytes()).is_err(), "{text}");
    }
    for text in ["", "\n", "clusters: null", "{}"] {
        let mut file = KubeconfigFile::parse(text.as_bytes()).unwrap();
        file.merge(&target(), false).unwrap();
        assert_eq!(file.target("gateway").unwrap(), target(), "{text}");
    }
}

#[test]
fn only_users_of_this_program_are_its_own() {
    let user =
        |command: &str, first: &str| json!({"exec": {"command": command, "args": [first, "--issuer=x"]}});
    assert_eq!(
        credential_arguments(&user("/usr/bin/portcullis", "credential")),
        Some(vec!["--issuer=x".to_owned()])
    );
    for user in [
        user("portcullis", "serve"),
        user("kubelogin", "credential"),
        json!({"token": "x"}),
        json!({"exec": {"command": "portcullis"}}),
        json!({"exec": {"command": "portcullis", "args": ["credential", 7]}}),
    ] {
        assert_eq!(credential_arguments(&user), None, "{user}");
    }
}

#[test]
fn another_authority_for_a_known_server_is_a_conflict() {
    let mut file = KubeconfigFile::parse(
        br#"{"clusters": [{"name": "c", "cluster": {"server": "https://s", "certificate-authority-data": "T1dO"}}]}"#,
    )
    .unwrap();
    let target = |cluster: Value| KubeconfigTarget {
        context: "c".to_owned(),
        cluster_name: "c".to_owned(),
        cluster,
        user_name: "c-login".to_owned(),
        user: exec_user("portcullis", &[]),
    };
    for cluster in [
        json!({"server": "https://s", "certificate-authority-data": "RVZJTA=="}),
        json!({"server": "https://s", "certificate-authority-data": "T1dO", "proxy-url": "http://proxy"}),
        json!({"server": "https://s"}),
    ] {
        let refused = file.merge(&target(cluster), false).unwrap_err();
        assert!(
            refused.contains("exists with other settings") && refused.contains("--overwrite"),
            "{refused}"
        );
    }
    let same = json!({"server": "https://s", "certificate-authority-data": "T1dO"});
    file.merge(&target(same), false).unwrap();
}

#[test]
fn an_exec_plugin_with_another_environment_is_named() {
    let user = |env: Value| json!({"exec": {"command": "portcullis", "args": ["credential"], "env": env}});
    let own = |name: &str| (name == "XDG_CACHE_HOME").then(|| OsString::from("/cache"));
    for (env, expected) in [
        (json!(null), None),
        (json!([{"name": "LANG", "value": "C"}, {"name": "XDG_CACHE_HOME", "value": "/cache"}]), None),
        (json!([{"name": "XDG_CACHE_HOME", "value": "/other"}]), Some("XDG_CACHE_HOME")),
        (json!([{"name": "PORTCULLIS_CLIENT_SECRET", "value": "hunter2"}]), Some("PORTCULLIS_CLIENT_SECRET")),
        (json!([{"name": "XDG_RUNTIME_DIR", "value": "/other"}]), None),
    ] {
        let checked =
            check_environment(&user(env), &["HOME", "XDG_CACHE_HOME", "PORTCULLIS_CLIENT_SECRET"], own);
        let named = checked.as_ref().err().map(String::as_str).unwrap_or_default();
        assert_eq!(checked.is_err(), expected.is_some(), "{named}");
        assert!(named.contains(expected.unwrap_or_default()) && !named.contains("hunter2"), "{named}");
    }
}
