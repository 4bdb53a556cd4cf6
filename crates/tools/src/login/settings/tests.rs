//! Flags, and the way through a kubeconfig.

use clap::Parser as _;

use super::*;
use crate::login::command::ParsedProvider;

const DEFAULTS: [&str; 3] = ["credential", "--issuer=https://issuer.test", "--client-id=kubernetes"];

pub(in crate::login) fn flags(more: &[&str]) -> ProviderFlags {
    // A flag given twice is an error: those of the test replace the defaults.
    let name = |flag: &str| flag.split('=').next().unwrap().to_owned();
    let defaults = DEFAULTS.iter().filter(|flag| !more.iter().any(|given| name(given) == name(flag)));
    ParsedProvider::try_parse_from(defaults.chain(more)).unwrap().provider
}

pub(in crate::login) fn settings(more: &[&str]) -> ClientSettings {
    flags(more).settings(None).unwrap()
}

#[test]
fn invalid_flags_are_named() {
    let cases: [(&[&str], &str); 20] = [
        (&["--issuer=http://issuer.test"], "must be an https:// URL"),
        (&["--issuer=issuer"], "must be an https:// URL"),
        (&["--issuer=https://a@issuer.test"], "no user name, query or fragment"),
        (&["--issuer=https://issuer.test?x=y"], "no user name, query or fragment"),
        (&["--client-id="], "give --client-id"),
        (&["--flow=client-credentials"], "PORTCULLIS_CLIENT_SECRET"),
        (&["--client-secret-from-environment"], "PORTCULLIS_CLIENT_SECRET"),
        (&["--scope=a b"], "has no blanks"),
        (&["--extra-parameter=state=x"], "sets this parameter itself"),
        (&["--extra-parameter=audience"], "give NAME=VALUE"),
        (&["--extra-parameter=prompt=login"], "give --prompt VALUES"),
        (
            &["--extra-parameter=a=1", "--extra-parameter=a=2"],
            "--extra-parameter a: the parameter would be sent twice",
        ),
        (&["--user=alice", "--extra-parameter=login_hint=bob"], "sent twice; --user sends it, too"),
        (&["--prompt="], "--prompt: give values such as"),
        (&["--prompt=login,consent"], "separated by blanks"),
        (&["--prompt=login&x=y"], "separated by blanks"),
        (&["--prompt=none login"], "none excludes other values"),
        (&["--issuer-certificate-authority-data=?"], "must be base64"),
        (&["--issuer-certificate-authority-data=YQ=="], "the CAs of the provider"),
        (&["--client-secret-file=/nowhere/secret"], "--client-secret-file /nowhere/secret"),
    ];
    for (more, part) in cases {
        let error = flags(more).settings(None).unwrap_err().to_string();
        assert!(error.contains(part), "{more:?}: {error}");
    }
}

#[test]
fn the_secret_comes_from_a_file_or_the_environment_and_is_never_shown() {
    use secrecy::ExposeSecret as _;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    std::fs::write(&file, "from-file\n").unwrap();
    let of_file = flags(&[&format!("--client-secret-file={}", file.display())]);
    let variable = Some("from-variable".to_owned());
    let secret = |flags: &ProviderFlags| flags.settings(variable.clone()).unwrap().secret.unwrap();
    assert_eq!(secret(&of_file).expose_secret(), "from-file");
    for reads in ["--client-secret-from-environment", "--flow=client-credentials"] {
        assert_eq!(secret(&flags(&[reads])).expose_secret(), "from-variable");
        assert!(flags(&[reads]).settings(None).is_err(), "{reads}: the variable is not set");
    }
    for other in ["--flow=auto", "--flow=browser", "--flow=device"] {
        let secret = flags(&[other]).settings(variable.clone()).unwrap().secret;
        assert!(secret.is_none(), "{other}: the variable may be of another issuer's client");
    }
    let shown = format!("{:?} {:?}", of_file.settings(None).unwrap(), of_file.arguments().unwrap());
    assert!(!shown.contains("from-file"), "{shown}");
}

#[test]
fn a_refresh_token_is_asked_for_only_by_default() {
    let these =
        |scopes: &[&str]| ScopeChoice::These(scopes.iter().map(|scope| (*scope).to_owned()).collect());
    for (more, expected) in [
        (&[][..], ScopeChoice::Offline),
        (&["--scope=openid"], these(&[])),
        (&["--scope=groups,openid,email"], these(&["email", "groups"])),
        (&["--no-cache"], these(&[])),
        (&["--no-cache", "--scope=offline_access"], these(&["offline_access"])),
    ] {
        assert_eq!(settings(more).client().scopes, expected, "{more:?}");
    }
}

#[test]
fn the_arguments_of_the_kubeconfig_mean_the_same() {
    let all: [&str; 20] = [
        "--scope=groups,email",
        "--extra-parameter=audience=https://api.test/?a=b",
        "--extra-parameter=x=y",
        "--flow=device",
        "--token=access",
        "--user=alice",
        "--prompt=login consent",
        "--open-browser=terminal",
        "--browser-command=firefox -P work",
        "--callback-port=8000,18000",
        "--callback-host=localhost",
        "--login-timeout=90s",
        "--cache-dir=/tmp/c",
        "--credential-store=keyring",
        "--no-cache",
        "--client-secret-file=/etc/secret",
        "--client-certificate",
        "--signer-name=example.com/people",
        "--certificate-duration=8h",
        "--certificate-timeout=90s",
    ];
    for more in [&all[..], &["--client-secret-from-environment"], &[]] {
        let first = flags(more);
        let arguments = first.arguments().unwrap();
        let parsed =
            ParsedProvider::try_parse_from(std::iter::once("credential".to_owned()).chain(arguments.clone()));
        let second = parsed.unwrap().provider;
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
    assert_eq!(flags(&[]).arguments().unwrap(), DEFAULTS[1..]);
}

#[test]
fn invalid_flags_of_certificates_are_named() {
    let cases: [(&[&str], &str); 4] = [
        (&["--certificate-duration=9m"], "at least 10m"),
        (&["--certificate-duration=70y"], "at most 68 years"),
        (&["--no-cache"], "each command would create a request"),
        (&["--flow=token-file", "--token-file=t"], "not with --flow token-file"),
    ];
    for (more, part) in cases {
        let all: Vec<&str> = more.iter().copied().chain(["--client-certificate"]).collect();
        let error = flags(&all).certificate().unwrap_err().to_string();
        assert!(error.contains(part), "{more:?}: {error}");
    }
    let settings = flags(&["--client-certificate"]).certificate().unwrap().unwrap();
    assert_eq!(
        (settings.signer_name.as_str(), settings.expiration_seconds, settings.timeout),
        ("kubernetes.io/kube-apiserver-client", 86_400, Duration::from_mins(5))
    );
    assert!(flags(&[]).certificate().unwrap().is_none(), "opt-in");
    // The other flags mean nothing alone.
    for alone in ["--signer-name=a.b/c", "--certificate-duration=8h", "--certificate-timeout=1m"] {
        assert!(ParsedProvider::try_parse_from(["credential", alone]).is_err(), "{alone}");
    }
}

#[test]
fn a_cluster_fills_absent_flags_only() {
    let config = || -> ClusterConfig {
        serde_json::from_str(r#"{"issuer":"https://cluster.test","clientID":"c","scopes":["groups"]}"#)
            .unwrap()
    };
    let given = flags(&["--scope=email"]).or(config());
    assert_eq!((given.issuer.as_deref(), given.scopes.len()), (Some("https://issuer.test"), 1));
    let empty = ParsedProvider::try_parse_from(["credential"]).unwrap().provider.or(config());
    assert_eq!(empty.settings(None).unwrap().issuer, "https://cluster.test");
}

#[test]
fn the_store_of_a_context_stays_unless_another_is_given() {
    for (own, given, expected) in [
        (&[][..], &[][..], None),
        (&["--credential-store=keyring"], &[], Some(CredentialStoreKind::Keyring)),
        (&[], &["--credential-store=keyring"], Some(CredentialStoreKind::Keyring)),
        (&["--credential-store=keyring"], &["--credential-store=file"], Some(CredentialStoreKind::File)),
    ] {
        assert_eq!(flags(own).with_login_of(&flags(given)).credential_store, expected, "{own:?} {given:?}");
    }
}

#[test]
fn a_parameter_may_be_given_once_but_several_resources() {
    let extra = |more: &[&str]| settings(more).extra.len();
    assert_eq!(extra(&["--extra-parameter=resource=a", "--extra-parameter=resource=b"]), 2);
    assert_eq!(extra(&["--extra-parameter=login_hint=bob", "--extra-parameter=audience=a"]), 2);
    assert_eq!(settings(&["--prompt= login  consent "]).prompt.as_deref(), Some("login consent"));
    assert_eq!(settings(&[]).prompt, None, "the provider decides");
}

#[test]
fn a_context_keeps_when_a_browser_is_opened_unless_told() {
    for (own, given, expected) in [
        (&[][..], &[][..], OpenBrowser::Auto),
        (&["--open-browser=never"], &[], OpenBrowser::Never),
        (&["--open-browser=never"], &["--open-browser=auto"], OpenBrowser::Auto),
        (&[], &["--open-browser=terminal"], OpenBrowser::Terminal),
    ] {
        let flags = flags(own).with_login_of(&flags(given));
        assert_eq!(flags.settings(None).unwrap().open_browser, expected, "{own:?} {given:?}");
    }
    let prompt = flags(&["--prompt=login"]).with_login_of(&flags(&["--prompt=consent"]));
    assert_eq!(prompt.settings(None).unwrap().prompt.as_deref(), Some("consent"));
}
