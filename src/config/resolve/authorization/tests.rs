//! Resolves `--authorization-*` flags and files. The cases are those of
//! `k8s.io/kubernetes/pkg/kubeapiserver/options/authorization_test.go`, and more.

use clap::{Args as _, Command, FromArgMatches as _};
use portcullis_kubernetes::release::Release;

use super::*;
use crate::config::sections::GivenFlags;

type Resolved = Result<(Option<Arc<Authorization>>, Vec<String>), Vec<ConfigError>>;

/// Flags, and their errors, each with its flag.
type Mistake<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// A directory with the kubeconfig of a webhook.
struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new([]).unwrap().self_signed(&key).unwrap();
        std::fs::write(directory.path().join("ca.crt"), certificate.pem()).unwrap();
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "b", "cluster": {"server": "https://webhook.test/authorize", "certificate-authority": "ca.crt"}}],
            "users": [{"name": "u", "user": {"token": "s3cr3t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "b", "user": "u"}}],
        });
        std::fs::write(directory.path().join("webhook.kubeconfig"), text.to_string()).unwrap();
        Self(directory)
    }

    fn filled(&self, text: &str) -> String {
        text.replace("DIR", &self.0.path().display().to_string())
    }

    /// Writes a file of authorizers; returns its flag.
    fn configuration(&self, authorizers: &str) -> String {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthorizationConfiguration\n{}",
            self.filled(authorizers)
        );
        std::fs::write(self.0.path().join("authorizers.yaml"), text).unwrap();
        self.filled("--authorization-config=DIR/authorizers.yaml")
    }

    /// The authorizers of these flags and the warnings, or the errors.
    fn resolve(&self, flags: &[&str], inputs: &mut InputReader) -> Resolved {
        self.resolve_leaving(flags, inputs, false)
    }

    /// The same; what only the backend has is left to it if `leaves_to_backend`.
    fn resolve_leaving(&self, flags: &[&str], inputs: &mut InputReader, leaves_to_backend: bool) -> Resolved {
        let command = GivenFlags::<AuthorizationFlags>::augment_args(Command::new("").no_binary_name(true));
        let matches = command.try_get_matches_from(flags.iter().map(|flag| self.filled(flag))).unwrap();
        let given = GivenFlags::<AuthorizationFlags>::from_arg_matches(&matches).unwrap();
        let mut unread = Vec::new();
        let section = MergedSection::read([given.layer()], &mut unread).unwrap();
        assert_eq!(unread, []);
        let mut resolver =
            ConfigResolver { unread, ..ConfigResolver::new(inputs, leaves_to_backend, Release::default()) };
        let resolved = resolver.authorization(&section);
        let ConfigResolver { errors, warnings, .. } = resolver;
        assert!(
            errors.iter().all(|error| error.fix.as_ref().is_some_and(|fix| !fix.is_empty())),
            "{errors:?}"
        );
        if errors.is_empty() { Ok((resolved, warnings)) } else { Err(errors) }
    }

    /// The authorizers, without warnings.
    fn authorizers(&self, flags: &[&str]) -> Option<Arc<Authorization>> {
        let (resolved, warnings) = self.resolve(flags, &mut InputReader::default()).unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        resolved
    }

    /// The errors, each with its flag.
    fn errors(&self, flags: &[&str]) -> Vec<(String, String)> {
        let errors = self.resolve(flags, &mut InputReader::default()).expect_err("no error");
        errors.into_iter().map(|error| (error.key, error.problem)).collect()
    }
}

/// The gateway's authorizers and the warnings of a chain whose other members are left to the backend.
fn left_to_backend(directory: &Directory, flags: &[&str]) -> (Vec<String>, Vec<String>) {
    let (found, warnings) = directory
        .resolve_leaving(flags, &mut InputReader::default(), true)
        .unwrap_or_else(|errors| panic!("{errors:?}"));
    let name = |authorizer: &AuthorizerSettings| match authorizer {
        AuthorizerSettings::AlwaysAllow => "AlwaysAllow".to_owned(),
        AuthorizerSettings::AlwaysDeny => "AlwaysDeny".to_owned(),
        AuthorizerSettings::Webhook(webhook) => webhook.name.clone(),
    };
    let authorizers = found.iter().flat_map(|found| &found.authorizers).map(name).collect();
    (authorizers, warnings)
}

const WEBHOOK: &str = "--authorization-webhook-config-file=DIR/webhook.kubeconfig";

#[test]
fn mistakes_have_the_texts_of_kube_apiserver() {
    let directory = Directory::new();
    let mode = "--authorization-mode";
    let file = "--authorization-webhook-config-file";
    let cases: &[Mistake<'_>] = &[
        (
            &["--authorization-mode=DoesNotExist"],
            &[(mode, "authorization-mode \"DoesNotExist\" is not a valid mode")],
        ),
        (
            &["--authorization-mode=AlwaysDeny,AlwaysDeny"],
            &[(mode, "authorization-mode [\"AlwaysDeny\" \"AlwaysDeny\"] has mode specified more than once")],
        ),
        (
            &["--authorization-mode=Webhook"],
            &[(file, "authorization-mode Webhook's authorization config file not passed")],
        ),
        (
            &["--authorization-mode=AlwaysDeny", WEBHOOK],
            &[(file, "cannot specify --authorization-webhook-config-file without mode Webhook")],
        ),
        (&[WEBHOOK], &[(file, "cannot specify --authorization-webhook-config-file without mode Webhook")]),
        (
            &["--authorization-mode=Webhook", WEBHOOK, "--authorization-webhook-version=v2"],
            &[(
                "--authorization-webhook-version",
                "unsupported webhook authorizer version \"v2\", supported versions are \"v1\", \"v1beta1\"",
            )],
        ),
        (
            &[
                "--authorization-mode=Webhook",
                WEBHOOK,
                "--authorization-webhook-cache-authorized-ttl=1",
                "--authorization-webhook-cache-unauthorized-ttl=-1s",
            ],
            &[
                ("--authorization-webhook-cache-authorized-ttl", "time: missing unit in duration \"1\""),
                ("--authorization-webhook-cache-unauthorized-ttl", "must not be negative"),
            ],
        ),
        (
            &["--authorization-mode=Node,RBAC"],
            &[(mode, "the backend decides by Node and RBAC, after the gateway")],
        ),
        (
            &["--authorization-mode=AlwaysAllow,ABAC,Foo,Foo"],
            &[
                (mode, "authorization-mode \"Foo\" is not a valid mode"),
                (mode, "authorization-mode \"Foo\" is not a valid mode"),
                (
                    mode,
                    "authorization-mode [\"AlwaysAllow\" \"ABAC\" \"Foo\" \"Foo\"] has mode specified more than once",
                ),
                (mode, "the backend decides by ABAC, after the gateway"),
            ],
        ),
    ];
    for (flags, expected) in cases {
        let expected: Vec<_> =
            expected.iter().map(|(key, problem)| ((*key).to_owned(), (*problem).to_owned())).collect();
        assert_eq!(directory.errors(flags), expected, "{flags:?}");
    }
}

#[test]
fn the_backend_alone_decides_by_default() {
    let directory = Directory::new();
    let file = directory.configuration("authorizers: [{type: AlwaysAllow, name: alwaysallow}]\n");
    for flags in [&[][..], &["--authorization-mode="], &["--authorization-mode=AlwaysAllow"], &[&file]] {
        assert_eq!(directory.authorizers(flags), None, "{flags:?}");
    }
    let unused = ["--authorization-webhook-version=v9", "--authorization-webhook-cache-authorized-ttl=1m"];
    let (_, warnings) = directory.resolve(&unused, &mut InputReader::default()).unwrap();
    let expected = unused.map(|flag| {
        let (name, _) = flag.split_once('=').unwrap();
        format!("{name} has no effect without --authorization-webhook-config-file")
    });
    assert_eq!(warnings, expected);
}

#[test]
fn flags_give_one_webhook() {
    let directory = Directory::new();
    let found = directory.authorizers(&["--authorization-mode=Webhook,AlwaysAllow", WEBHOOK]).unwrap();
    let [AuthorizerSettings::Webhook(webhook), AuthorizerSettings::AlwaysAllow] =
        found.authorizers.as_slice()
    else {
        panic!("{found:?}")
    };
    let AuthorizationWebhook { name, url, bearer_token, version, timeout, failure_policy, .. } = &**webhook;
    assert_eq!((name.as_str(), url.as_str()), ("default", "https://webhook.test:443/authorize"));
    assert!(bearer_token.is_some());
    assert_eq!((*version, *failure_policy), (SubjectAccessReviewVersion::V1Beta1, FailurePolicy::NoOpinion));
    assert_eq!(timeout.as_secs(), 30);
    assert_eq!((webhook.authorized_ttl.as_secs(), webhook.unauthorized_ttl.as_secs()), (300, 30));
    assert_eq!(webhook.match_conditions, []);
    let found = directory.authorizers(&[
        "--authorization-mode=Webhook",
        WEBHOOK,
        "--authorization-webhook-version=v1",
        "--authorization-webhook-cache-authorized-ttl=0",
        "--authorization-webhook-cache-unauthorized-ttl=0s",
    ]);
    let found = found.unwrap();
    let [AuthorizerSettings::Webhook(webhook)] = found.authorizers.as_slice() else { panic!("{found:?}") };
    assert!(webhook.authorized_ttl.is_zero() && webhook.unauthorized_ttl.is_zero());
    assert_eq!(webhook.version, SubjectAccessReviewVersion::V1);
}

#[test]
fn authorizers_behind_always_allow_are_warned_of() {
    let directory = Directory::new();
    let warned = |modes: &str| {
        let mode = format!("--authorization-mode={modes}");
        directory.resolve(&[&mode, WEBHOOK], &mut InputReader::default()).unwrap().1
    };
    assert_eq!(warned("Webhook,AlwaysDeny,AlwaysAllow"), Vec::<String>::new());
    let expected = "--authorization-mode: AlwaysAllow leaves every request to the backend, so the authorizers behind it \
                    are never asked; move it to the end";
    assert_eq!(warned("AlwaysAllow,Webhook"), [expected]);
    assert_eq!(warned("Webhook,AlwaysAllow,AlwaysDeny"), [expected]);
}

#[test]
fn modes_of_the_backend_are_left_to_it_when_asked_to() {
    let directory = Directory::new();
    let decides = |names: &str, verb: &str| {
        format!(
            "--authorization-mode: the backend decides by {names}, after the gateway; {verb} must be among its own authorizers"
        )
    };
    let overtakes = |before: &str| {
        format!(
            "--authorization-mode: Webhook is asked about every request and can refuse it, also one that {before} before it \
             would allow: only the backend knows what {before} decides"
        )
    };
    let behind = |names: &str, of_backend: &str| {
        format!(
            "--authorization-mode: the gateway does not ask {names}, behind {of_backend}: a request that only {names} would \
             allow needs the same authorizer at the backend"
        )
    };
    let both = decides("Node and RBAC", "they");
    let cases: &[(&str, &[&str], Vec<String>)] = &[
        ("Node,RBAC", &[], vec![both.clone()]),
        ("RBAC", &[], vec![decides("RBAC", "it")]),
        ("Node,RBAC,ABAC", &[], vec![decides("Node and RBAC and ABAC", "they")]),
        ("Node,RBAC,Webhook", &[], vec![both.clone(), behind("Webhook", "Node and RBAC")]),
        ("Webhook,Node,RBAC", &["default", "AlwaysAllow"], vec![both.clone()]),
        ("Node,Webhook,RBAC", &["default", "AlwaysAllow"], vec![both.clone(), overtakes("Node")]),
        ("AlwaysDeny,Node,RBAC", &["AlwaysDeny", "AlwaysAllow"], vec![both.clone()]),
        ("AlwaysAllow,Node,RBAC", &[], vec![both.clone()]),
        ("Node,RBAC,AlwaysAllow", &[], vec![both.clone(), behind("AlwaysAllow", "Node and RBAC")]),
        ("Webhook,AlwaysAllow", &["default", "AlwaysAllow"], vec![]),
    ];
    for (modes, expected, warnings) in cases {
        let mode = format!("--authorization-mode={modes}");
        let flags: Vec<&str> =
            std::iter::once(mode.as_str()).chain(modes.contains("Webhook").then_some(WEBHOOK)).collect();
        let found = left_to_backend(&directory, &flags);
        assert_eq!(
            (&found.0, &found.1),
            (&expected.iter().map(|&name| name.to_owned()).collect(), warnings),
            "{modes}"
        );
    }
    let errors = |modes: &str| {
        let mode = format!("--authorization-mode={modes}");
        let errors = directory.resolve_leaving(&[&mode], &mut InputReader::default(), true).unwrap_err();
        errors.into_iter().map(|error| error.problem).collect::<Vec<_>>()
    };
    assert_eq!(errors("Node,RBAC,Foo"), ["authorization-mode \"Foo\" is not a valid mode"]);
    assert_eq!(
        errors("Node,Node"),
        ["authorization-mode [\"Node\" \"Node\"] has mode specified more than once"]
    );
    assert_eq!(errors("Node,Webhook"), ["authorization-mode Webhook's authorization config file not passed"]);
}

#[test]
fn authorizers_of_the_backend_in_a_file_are_left_to_it_when_asked_to() {
    let directory = Directory::new();
    let (node, rbac) = ("- {type: Node, name: node}\n", "- {type: RBAC, name: rbac}\n");
    let webhooks = TWO_WEBHOOKS.replace("- {type: AlwaysAllow, name: alwaysallow}\n", "");
    let webhooks = webhooks.strip_prefix("authorizers:\n").unwrap();
    let warns = |chain: &[&str]| {
        let file = directory.configuration(&format!("authorizers:\n{}", chain.concat()));
        left_to_backend(&directory, &[&file])
    };
    let decides = "--authorization-config: the backend decides by Node and RBAC, after the gateway; they must be among its own \
                   authorizers";
    assert_eq!(warns(&[node, rbac]), (vec![], vec![decides.to_owned()]));
    let asked: Vec<String> = ["policy", "other", "AlwaysAllow"].map(str::to_owned).to_vec();
    assert_eq!(warns(&[webhooks, node, rbac]), (asked.clone(), vec![decides.to_owned()]));
    let (found, warnings) = warns(&[node, webhooks, rbac]);
    assert_eq!(found, asked);
    let [first, policy, other] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert_eq!(first, decides);
    for (warning, name) in [(policy, "policy"), (other, "other")] {
        let expected = format!(
            "--authorization-config: Webhook \"{name}\" is asked about every request and can refuse it"
        );
        assert!(warning.starts_with(&expected), "{warning}");
    }
    let (found, warnings) = warns(&[node, rbac, webhooks]);
    assert_eq!(found, [""; 0]);
    assert!(
        warnings[1].contains(
            "the gateway does not ask Webhook \"policy\" and Webhook \"other\", behind Node and RBAC"
        ),
        "{warnings:?}"
    );
    // A webhook that is not asked must be valid, too.
    let broken = webhooks.replace("kubeConfigFile: DIR/webhook.kubeconfig", "kubeConfigFile: DIR/none");
    let file = directory.configuration(&format!("authorizers:\n{node}{rbac}{broken}"));
    assert!(directory.resolve_leaving(&[&file], &mut InputReader::default(), true).is_err());
}

#[test]
fn the_file_excludes_flags() {
    let directory = Directory::new();
    let file = directory.configuration("authorizers: [{type: AlwaysDeny, name: alwaysdeny}]\n");
    assert!(directory.authorizers(&[&file]).is_some());
    let problem = "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* \
                   flags are defined";
    for flag in [
        "--authorization-mode=AlwaysAllow",
        "--authorization-mode=",
        WEBHOOK,
        "--authorization-webhook-version=v1beta1",
        "--authorization-webhook-cache-authorized-ttl=5m",
        "--authorization-webhook-cache-unauthorized-ttl=30s",
    ] {
        let (name, _) = flag.split_once('=').unwrap();
        assert_eq!(directory.errors(&[&file, flag]), [(name.to_owned(), problem.to_owned())], "{flag}");
    }
}

const TWO_WEBHOOKS: &str = "\
authorizers:
- type: Webhook
  name: policy
  webhook:
    timeout: 3s
    failurePolicy: Deny
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: DIR/webhook.kubeconfig}
    matchConditions:
    - expression: has(request.resourceAttributes)
    - expression: \"!('system:masters' in request.groups)\"
- type: Webhook
  name: other
  webhook:
    timeout: 30s
    failurePolicy: NoOpinion
    cacheAuthorizedRequests: false
    unauthorizedTTL: 10s
    subjectAccessReviewVersion: v1beta1
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: DIR/webhook.kubeconfig}
- {type: AlwaysAllow, name: alwaysallow}
";

#[test]
fn a_file_has_several_webhooks() {
    let directory = Directory::new();
    let file = directory.configuration(TWO_WEBHOOKS);
    let found = directory.authorizers(&[&file]).unwrap();
    let [
        AuthorizerSettings::Webhook(policy),
        AuthorizerSettings::Webhook(other),
        AuthorizerSettings::AlwaysAllow,
    ] = found.authorizers.as_slice()
    else {
        panic!("{found:?}")
    };
    assert_eq!((policy.name.as_str(), policy.match_conditions.len()), ("policy", 2));
    assert_eq!((policy.failure_policy, policy.timeout.as_secs()), (FailurePolicy::Deny, 3));
    assert_eq!((other.name.as_str(), other.match_conditions.len()), ("other", 0));
    assert_eq!((other.authorized_ttl.as_secs(), other.unauthorized_ttl.as_secs()), (0, 10));
}

#[test]
fn mistakes_in_the_file_have_their_lines() {
    let directory = Directory::new();
    let text = TWO_WEBHOOKS
        .replace("    timeout: 3s\n", "")
        .replace("has(request.resourceAttributes)", "request.resourceAttribute")
        .replace("unauthorizedTTL: 10s", "unauthorizedTTL: -10s")
        .replace(
            "kubeConfigFile: DIR/webhook.kubeconfig}\n- {type: AlwaysAllow, name: alwaysallow}",
            "kubeConfigFile: DIR/none}\n- {type: RBAC, name: rbac}",
        );
    let file = directory.configuration(&text);
    let errors = directory.resolve(&[&file], &mut InputReader::default()).unwrap_err();
    let found: Vec<(&str, &str)> = errors
        .iter()
        .map(|error| {
            assert_eq!(error.key, "--authorization-config");
            let (problem, _) = error.problem.split_once('\n').unwrap_or((&error.problem, ""));
            (problem, error.fix.as_deref().unwrap().split_once(':').unwrap().0)
        })
        .collect();
    let missing = directory.filled(
        "authorizers[1].connectionInfo.kubeConfigFile: Invalid value: \"DIR/none\": error loading file: stat DIR/none: no \
         such file or directory",
    );
    let expected = [
        ("authorizers[0].timeout: Required value", "line 6"),
        (
            "authorizers[0].matchConditions[0].expression: Invalid value: \"request.resourceAttribute\": compilation \
             failed: ERROR: <input>:1:8: undefined field 'resourceAttribute'",
            "line 12",
        ),
        ("authorizers[1].unauthorizedTTL: Invalid value: \"-10s\": must be > 0s", "line 20"),
        (missing.as_str(), "line 22"),
        ("authorizers[2].type: Forbidden: the backend decides by RBAC, after the gateway", "line 23"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn files_that_cannot_be_decoded_are_refused() {
    let directory = Directory::new();
    let problem_of = |text: &str| {
        let path = directory.0.path().join("authorizers.yaml");
        std::fs::write(&path, text).unwrap();
        let errors = directory.errors(&["--authorization-config=DIR/authorizers.yaml"]);
        let [(_, problem)] = <[_; 1]>::try_from(errors).unwrap();
        problem
    };
    assert_eq!(
        problem_of(""),
        "authorizers: Required value: at least one authorization mode must be defined"
    );
    assert_eq!(
        problem_of("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"),
        "failed to load AuthorizationConfiguration from file: no kind \"AuthenticationConfiguration\" is registered for \
         version \"apiserver.config.k8s.io/v1\""
    );
    assert_eq!(
        directory.errors(&["--authorization-config=DIR/none"]),
        [("--authorization-config".to_owned(), "No such file or directory (os error 2)".to_owned())]
    );
}

#[test]
fn a_change_of_any_file_reloads_the_configuration() {
    let directory = Directory::new();
    let file = directory.configuration(TWO_WEBHOOKS);
    for name in ["authorizers.yaml", "webhook.kubeconfig", "ca.crt"] {
        let mut inputs = InputReader::default();
        directory.resolve(&[&file], &mut inputs).unwrap();
        assert!(!inputs.changed());
        let path = directory.0.path().join(name);
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, "changed").unwrap();
        assert!(inputs.changed(), "{name}");
        std::fs::write(&path, before).unwrap();
    }
    let kubeconfig = directory.0.path().join("webhook.kubeconfig");
    let content = std::fs::read(&kubeconfig).unwrap();
    std::fs::remove_file(&kubeconfig).unwrap();
    let mut inputs = InputReader::default();
    directory.resolve(&[&file], &mut inputs).unwrap_err();
    std::fs::write(&kubeconfig, content).unwrap();
    assert!(inputs.changed(), "a kubeconfig that appears");
}
