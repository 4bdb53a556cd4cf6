//! Several kubeconfigs, and those of someone else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_http::https_client::testing::{H1, TestServer};
use serde_json::json;
use testkit::pki::Ca;

use crate::machine::{Machine, PROGRAM, cluster, provider, read, text};

async fn machine() -> (TestServer, TestServer, Machine) {
    let ca = Ca::new("servers");
    let provider = TestServer::of(&ca, H1, provider).await;
    let machine = Machine::new(&ca, provider.url("").trim_end_matches('/'));
    (provider, TestServer::of(&ca, H1, cluster).await, machine)
}

/// `$KUBECONFIG` with these files.
fn list(machine: &mut Machine, names: &[&str]) {
    let paths = std::env::join_paths(names.iter().map(|name| machine.file(name))).unwrap();
    machine.variables = vec![("KUBECONFIG", paths.into_string().unwrap())];
}

#[tokio::test]
async fn a_context_of_the_second_file_is_logged_in_to_and_out_of() {
    let (_provider, cluster, mut machine) = machine().await;
    list(&mut machine, &["absent", "first", "second"]);
    machine.write("first", &json!({"kind": "Config", "current-context": "c"}));
    let server = json!({"server": cluster.url("").trim_end_matches('/')});
    machine.write("second", &machine.kubeconfig("c", &server));
    let first = read(&machine.file("first"));
    for arguments in [&["login"][..], &["login", "--context=c"]] {
        let login = machine.run(arguments).await;
        assert!(login.status.success() && text(&login).contains("system:authenticated"), "{}", text(&login));
        assert!(!machine.file("absent").exists() && read(&machine.file("first")) == first);
    }
    let unknown = machine.run(&["login", "--context=d"]).await;
    assert!(
        text(&unknown).contains("second: there is no context \"d\"; the contexts are c"),
        "{}",
        text(&unknown)
    );
    let logout = machine.run(&["logout"]).await;
    assert!(logout.status.success() && text(&logout).contains("logged out of"), "{}", text(&logout));
}

/// A name so long that no lock file can be beside it stands for a directory that the user cannot write, since root can write each.
#[tokio::test]
async fn a_context_of_a_file_that_cannot_be_written_is_logged_in_to() {
    let (provider, cluster, mut machine) = machine().await;
    let company = "c".repeat(255);
    list(&mut machine, &[&company]);
    let server = json!({"server": cluster.url("").trim_end_matches('/')});
    let mut file = machine.kubeconfig("c", &server);
    let exec = &mut file["users"][0]["user"]["exec"];
    exec["command"] = json!("/opt/company/portcullis");
    exec["args"].as_array_mut().unwrap()[1..].reverse();
    machine.write(&company, &file);
    let before = read(&machine.file(&company));
    for arguments in [&["login"][..], &["login", "--context=c"]] {
        let login = machine.run(arguments).await;
        assert!(login.status.success() && !text(&login).contains("warning"), "{}", text(&login));
    }
    assert_eq!(read(&machine.file(&company)), before);
    // What would change is found before the login.
    provider.take();
    let refused = machine.run(&["login", "--user=alice"]).await;
    assert!(!refused.status.success() && text(&refused).contains("cannot lock"), "{}", text(&refused));
    assert!(provider.take().is_empty(), "the user is not asked");
    file["current-context"] = json!("another");
    machine.write(&company, &file);
    let login = machine.run(&["login", "--context=c"]).await;
    assert!(login.status.success(), "{}", text(&login));
    assert!(
        text(&login).contains("warning: the current context stays as it is: cannot lock"),
        "{}",
        text(&login)
    );
    assert!(read(&machine.file(&company)).contains("another"));
}

#[tokio::test]
async fn a_kubeconfig_that_is_locked_is_found_before_the_login() {
    let (provider, cluster, mut machine) = machine().await;
    list(&mut machine, &["first", "second"]);
    machine.write("second", &json!({"kind": "Config"}));
    std::fs::write(machine.file("second.lock"), "").unwrap();
    let server = format!("--server={}", cluster.url(""));
    let login = ["login", "--name=c", "--no-review", server.as_str()];
    let locked = machine.run_with_flags(&login).await;
    assert!(!locked.status.success() && text(&locked).contains("second.lock"), "{}", text(&locked));
    assert!(provider.take().is_empty(), "the user is not asked");
    std::fs::remove_file(machine.file("second.lock")).unwrap();
    let done = machine.run_with_flags(&login).await;
    assert!(done.status.success(), "{}", text(&done));
    assert!(read(&machine.file("second")).contains("current-context: c") && !machine.file("first").exists());
}

#[tokio::test]
async fn a_script_needs_yes_for_whatever_the_user_does_not_have() {
    let (provider, cluster, mut machine) = machine().await;
    list(&mut machine, &["mine"]);
    let server = cluster.url("").trim_end_matches('/').to_owned();
    machine.write("company", &machine.kubeconfig("c", &json!({"server": server})));
    // The user gives what the file may not choose.
    let login = ["login", "--from=company", "--client-secret-from-environment", "--flow=client-credentials"];
    let agreed = [&login[..], &["--yes"]].concat();
    let refused = machine.run(&login).await;
    assert_eq!(refused.status.code(), Some(64), "{}", text(&refused));
    assert!(text(&refused).contains("CONTEXT  SERVER") && text(&refused).contains("give --yes"));
    assert!(provider.take().is_empty() && !machine.file("mine").exists());
    let first = machine.run(&agreed).await;
    assert!(first.status.success() && text(&first).contains(&server), "{}", text(&first));
    let again = machine.run(&login).await;
    assert!(again.status.success() && !text(&again).contains("CONTEXT  SERVER"), "{}", text(&again));
    // The same login under another name.
    machine.write("company", &machine.kubeconfig("named", &json!({"server": server})));
    let named = machine.run(&login).await;
    assert!(named.status.success(), "{}", text(&named));
    // Another server, and the same one that another program may answer for, with the issuer and the client of the login.
    let authority = STANDARD.encode(Ca::new("other").cert_pem());
    for (fields, reason) in [
        (
            json!({"server": server.replace("127.0.0.1", "localhost"), "tls-server-name": "127.0.0.1"}),
            "the new server \"https://localhost",
        ),
        (json!({"server": server, "tls-server-name": "evil.test"}), "another TLS server name"),
        (json!({"server": server, "proxy-url": "http://127.0.0.1:1"}), "through the proxy"),
        (json!({"server": server, "certificate-authority-data": authority}), "WARNING: the same URL"),
    ] {
        provider.take();
        cluster.take();
        machine.write("company", &machine.kubeconfig("new", &fields));
        let refused = machine.run(&login).await;
        assert_eq!(refused.status.code(), Some(64), "{}", text(&refused));
        for part in [reason, "your context \"c\"", "give --yes"] {
            assert!(text(&refused).contains(part), "{}", text(&refused));
        }
        assert!(provider.take().is_empty() && cluster.take().is_empty(), "nothing is sent");
    }
    let other = json!({"server": server.replace("127.0.0.1", "localhost"), "tls-server-name": "127.0.0.1"});
    machine.write("company", &machine.kubeconfig("new", &other));
    let given = machine.run(&agreed).await;
    assert!(given.status.success(), "{}", text(&given));
}

/// krew puts each version into a directory of its own, removes it at an upgrade, and has a link in the `PATH`.
#[cfg(unix)]
#[tokio::test]
async fn a_login_of_the_kubectl_plugin_names_what_an_upgrade_keeps() {
    let (_provider, cluster, mut machine) = machine().await;
    list(&mut machine, &["config"]);
    for directory in ["bin", "store", "store/v1"] {
        std::fs::create_dir(machine.file(directory)).unwrap();
    }
    std::fs::copy(PROGRAM, machine.file("store/v1/portcullis-login")).unwrap();
    let plugin = machine.file("bin/kubectl-portcullis");
    std::os::unix::fs::symlink(machine.file("store/v1/portcullis-login"), &plugin).unwrap();
    machine.variables.push(("PATH", machine.file("bin").display().to_string()));
    let server = format!("--server={}", cluster.url(""));
    let flags = machine.flags();
    let given = ["login", "--name=c", "--no-review", server.as_str()];
    let given: Vec<&str> = given.into_iter().chain(flags.iter().map(String::as_str)).collect();
    // The second one is for the user that the first has written.
    for arguments in [&given[..], &["login", "--no-review"]] {
        let login = machine.run_program(&plugin, arguments).await;
        assert!(login.status.success(), "{}", text(&login));
        let config = read(&machine.file("config"));
        assert!(config.contains("command: kubectl-portcullis\n"), "{config}");
    }
}
