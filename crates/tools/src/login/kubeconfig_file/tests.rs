//! Everything in a kubeconfig survives a login.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

const EXISTING: &str = r#"
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

fn target() -> KubeconfigTarget {
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
fn a_link_is_locked_as_the_file_is() {
    let directory = tempfile::tempdir().unwrap();
    let [file, link] = ["file", "link"].map(|name| directory.path().join(name));
    fs::write(&file, EXISTING).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let before = KubeconfigFile::read(&link).unwrap();
    let mut after = before.clone();
    after.merge(&target(), false).unwrap();
    for locked in [&file, &link] {
        let lock = locked.with_added_extension("lock");
        fs::write(&lock, "").unwrap();
        let error = after.write(&link, &before).unwrap_err();
        assert!(error.to_string().contains(&format!("remove {}", lock.display())), "{error}");
        fs::remove_file(&lock).unwrap();
    }
    after.write(&link, &before).unwrap();
    assert!(link.is_symlink());
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 3, "the file, the link and the old content");
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
fn a_file_is_replaced_with_a_copy_of_the_old_one() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".kube/config");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let empty = KubeconfigFile::read(&path).unwrap();
    let mut first = empty.clone();
    first.merge(&target(), false).unwrap();
    assert_eq!(first.write(&path, &empty).unwrap(), None);
    assert_eq!((mode(&path), mode(&home.path().join(".kube"))), (0o600, 0o700));
    // A file that others can read becomes private; a symbolic link stays one.
    let real = home.path().join("real");
    fs::write(&real, EXISTING).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).unwrap();
    let link = home.path().join("link");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let before = KubeconfigFile::read(&link).unwrap();
    let mut after = before.clone();
    after.merge(&target(), false).unwrap();
    let backup = after.write(&link, &before).unwrap().unwrap();
    assert_eq!(fs::read_to_string(&backup).unwrap(), EXISTING);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!((mode(&real), mode(&backup)), (0o600, 0o600));
    assert_eq!(KubeconfigFile::read(&link).unwrap(), after);
    assert_eq!(after.write(&link, &after).unwrap(), None, "nothing to do");
    let names: Vec<_> = fs::read_dir(home.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "nothing else is left: {names:?}");
}

#[test]
fn kubectls_lock_and_changes_of_others_are_respected() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config");
    fs::write(&path, EXISTING).unwrap();
    let before = KubeconfigFile::read(&path).unwrap();
    let mut after = before.clone();
    after.merge(&target(), false).unwrap();
    fs::write(home.path().join("config.lock"), "").unwrap();
    let error = after.write(&path, &before).unwrap_err().to_string();
    assert!(error.contains("config.lock"), "{error}");
    fs::remove_file(home.path().join("config.lock")).unwrap();
    fs::write(&path, EXISTING.replace("team", "other")).unwrap();
    let error = after.write(&path, &before).unwrap_err().to_string();
    assert!(error.contains("changed it meanwhile"), "{error}");
    assert!(!home.path().join("config.lock").exists());
    assert_eq!(fs::read_to_string(&path).unwrap(), EXISTING.replace("team", "other"));
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
