//! The rules between the flags and files of admission. Manifests, `AdmissionConfiguration`s and credentials are compared
//! with kube-apiserver's own code in `tests/it/compared_admission.rs`.

use clap::{Args, Command, FromArgMatches};
use portcullis_kubernetes::release::Release;
use serde_json::json;

use super::*;
use crate::admission::settings::AdmissionMode;
use crate::authn::BearerToken;
use crate::config::inputs::InputReader;
use crate::config::sections::GivenFlags;

type Resolved = Result<(Option<Arc<AdmissionSettings>>, Vec<String>), Vec<ConfigError>>;

/// The settings, the errors and the warnings.
type Found = (Option<Arc<AdmissionSettings>>, Vec<ConfigError>, Vec<String>);

struct Directory(tempfile::TempDir);

const FILE: &str = "--admission-control-config-file=DIR/admission.yaml";
const MODE_FLAG: &str = "--admission-mode=pinnedDryRun";

impl Directory {
    /// A folder for each plugin, with one webhook in each.
    fn new() -> Self {
        let directory = Self(tempfile::tempdir().unwrap());
        for (kind, folder) in [("Mutating", "mutating"), ("Validating", "validating")] {
            std::fs::create_dir(directory.path(folder)).unwrap();
            directory
                .write(&format!("{folder}/a.yaml"), &configuration(kind, "a", "https://a.example.com/v"));
        }
        directory.write(
            "kubeconfig",
            &json!({
                "apiVersion": "v1", "kind": "Config",
                "users": [{"name": "*.example.com", "user": {"token": "s3cr3t"}}, {"name": "x.test", "user": {"exec": {"command": "a"}}}],
            })
            .to_string(),
        );
        directory.write(
            "admission.yaml",
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n\
             - name: MutatingAdmissionWebhook\n  path: mutating.yaml\n\
             - name: ValidatingAdmissionWebhook\n  configuration:\n    apiVersion: apiserver.config.k8s.io/v1\n    \
             kind: WebhookAdmissionConfiguration\n    staticManifestsDir: DIR/validating\n",
        );
        directory.write(
            "mutating.yaml",
            "apiVersion: apiserver.config.k8s.io/v1\nkind: WebhookAdmissionConfiguration\n\
             kubeConfigFile: DIR/kubeconfig\nstaticManifestsDir: DIR/mutating\n",
        );
        directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), self.filled(text)).unwrap();
    }

    fn filled(&self, text: &str) -> String {
        text.replace("DIR", &self.0.path().display().to_string())
    }

    fn with(&self, flags: &[&str], inputs: &mut InputReader) -> Found {
        self.with_leaving(flags, inputs, false)
    }

    /// The same; what only the backend has is left to it if `leaves_to_backend`.
    fn with_leaving(&self, flags: &[&str], inputs: &mut InputReader, leaves_to_backend: bool) -> Found {
        let command = GivenFlags::<AdmissionFlags>::augment_args(Command::new("").no_binary_name(true));
        let matches = command.try_get_matches_from(flags.iter().map(|flag| self.filled(flag))).unwrap();
        let given = GivenFlags::<AdmissionFlags>::from_arg_matches(&matches).unwrap();
        let mut unread = Vec::new();
        let section = MergedSection::read([given.layer()], &mut unread).unwrap();
        assert_eq!(unread, []);
        let mut resolver =
            ConfigResolver { unread, ..ConfigResolver::new(inputs, leaves_to_backend, Release::default()) };
        let found = resolver.admission(&section);
        let ConfigResolver { errors, warnings, .. } = resolver;
        assert!(
            errors.iter().all(|error| error.fix.as_ref().is_some_and(|fix| !fix.is_empty())),
            "{errors:?}"
        );
        (found, errors, warnings)
    }

    fn resolve(&self, flags: &[&str], inputs: &mut InputReader) -> Resolved {
        let (found, errors, warnings) = self.with(flags, inputs);
        if errors.is_empty() {
            return Ok((found, warnings));
        }
        assert_eq!(found, None, "settings in spite of errors");
        Err(errors)
    }

    fn settings(&self, flags: &[&str]) -> Option<Arc<AdmissionSettings>> {
        self.resolve(flags, &mut InputReader::default()).unwrap().0
    }

    /// Each error as `KEY: PROBLEM`.
    fn errors(&self, flags: &[&str]) -> Vec<String> {
        let errors = self.resolve(flags, &mut InputReader::default()).expect_err("no error");
        errors.into_iter().map(|error| format!("{}: {}", error.key, error.problem)).collect()
    }

    fn error(&self, flags: &[&str]) -> String {
        let errors = self.errors(flags);
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].clone()
    }
}

fn configuration(kind: &str, name: &str, url: &str) -> String {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
        "metadata": {"name": format!("{name}.static.k8s.io")},
        "webhooks": [{
            "name": format!("{}.{name}.example.com", kind.to_lowercase()), "clientConfig": {"url": url},
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        }],
    })
    .to_string()
}

/// The rows of kube-apiserver's own test.
// kubernetes: pkg/apis/admissionregistration/validation/warnings_test.go
#[test]
fn rules_for_reviews_are_warned_about() {
    let token = "tokenreviews.authentication.k8s.io is excluded from admission webhooks; this rule will have no effect";
    let access = "subjectaccessreviews.authorization.k8s.io is excluded from admission webhooks; this rule will have no effect";
    let rule = |groups: &[&str], resources: &[&str]| json!({"operations": ["CREATE"], "apiGroups": groups, "apiVersions": ["v1"], "resources": resources});
    let (authentication, authorization) = ("authentication.k8s.io", "authorization.k8s.io");
    for (rules, expected) in [
        (vec![rule(&[""], &["pods"])], vec![]),
        (vec![rule(&[authentication], &["tokenreviews"])], vec![(0, token)]),
        (vec![rule(&[""], &["pods"]), rule(&[authorization], &["subjectaccessreviews"])], vec![(1, access)]),
        (vec![rule(&["*"], &["tokenreviews"])], vec![]),
        (vec![rule(&[authentication], &["*"])], vec![]),
        (vec![rule(&[authentication, authentication], &["tokenreviews", "tokenreviews"])], vec![(0, token)]),
        (
            vec![rule(&[authentication, authorization], &["tokenreviews", "subjectaccessreviews"])],
            vec![(0, token), (0, access)],
        ),
        (vec![rule(&[""], &["serviceaccounts/token"])], vec![]),
    ] {
        let directory = Directory::new();
        let mut manifest: Value =
            serde_json::from_str(&configuration("Validating", "b", "https://a.example.com/v")).unwrap();
        manifest["webhooks"][0]["rules"] = json!(rules);
        directory.write("validating/b.yaml", &manifest.to_string());
        let (_, warnings) = directory.resolve(&[FILE, MODE_FLAG], &mut InputReader::default()).unwrap();
        let file = directory.path("validating/b.yaml");
        let expected: Vec<String> = expected
            .into_iter()
            .map(|(number, text)| {
                format!(
                    "{}: {}: line 1: webhooks[0].rules[{number}]: {text}",
                    "--admission-control-config-file",
                    file.display()
                )
            })
            .collect();
        assert_eq!(warnings, expected, "{rules:?}");
    }
}

#[test]
fn webhooks_have_their_connections() {
    let directory = Directory::new();
    let shadow = "--admission-shadow-webhooks=mutating.a.example.com";
    let settings = directory.settings(&[FILE, MODE_FLAG, shadow]).unwrap();
    assert_eq!(settings.mode, AdmissionMode::PinnedDryRun);
    let ([mutating], [validating]) =
        (settings.webhooks.mutating.as_slice(), settings.webhooks.validating.as_slice())
    else {
        panic!("{settings:?}")
    };
    assert!(settings.is_shadow(mutating) && !settings.is_shadow(validating));
    let token = |webhook| {
        let connection = settings.connections.of(webhook).unwrap();
        assert_eq!((connection.url.as_str(), connection.http2), ("https://a.example.com/v", false));
        connection.bearer_token.as_ref().map(BearerToken::expose).map(str::to_owned)
    };
    assert_eq!(token(mutating).as_deref(), Some("s3cr3t"));
    assert_eq!(token(validating), None, "a kubeconfig is that of one plugin");
    let again = directory.settings(&[FILE, MODE_FLAG, shadow]).unwrap();
    assert_eq!(settings, again);
    assert_ne!(Some(settings), directory.settings(&[FILE, MODE_FLAG]));
}

#[test]
fn webhooks_are_in_the_order_of_their_configurations() {
    let directory = Directory::new();
    directory.write("mutating/0.YML", &configuration("Mutating", "b", "https://localhost:8443"));
    directory.write(
        "mutating/z.json",
        &configuration("Mutating", "B", "https://x.example.com")
            .replace("B.static", "0.static")
            .replace(".B.", ".c."),
    );
    let settings = directory.settings(&[FILE, MODE_FLAG]).unwrap();
    let names: Vec<&str> =
        settings.webhooks.mutating.iter().map(|webhook| webhook.configuration.as_str()).collect();
    assert_eq!(names, ["0.static.k8s.io", "a.static.k8s.io", "b.static.k8s.io"]);
    let local = settings.connections.of(&settings.webhooks.mutating[2]).unwrap();
    assert_eq!((local.url.as_str(), local.http2), ("https://localhost:8443/", true));
}

#[test]
fn a_mode_is_required_with_webhooks_and_only_then() {
    let directory = Directory::new();
    let error = directory.error(&[FILE]);
    for part in ["--admission-mode: is required", "pinnedDryRun", "requestLevel", "no default"] {
        assert!(error.contains(part), "{error}");
    }
    let unused = "--admission-mode: is given, but no admission webhooks or policies are";
    assert_eq!(directory.error(&[MODE_FLAG]), unused);
    let disabled = "--disable-admission-plugins=MutatingAdmissionWebhook,ValidatingAdmissionWebhook";
    assert_eq!(directory.error(&[FILE, MODE_FLAG, disabled]), unused);
    assert_eq!(directory.settings(&[FILE, disabled]), None);
    assert_eq!(directory.settings(&[]), None);
    assert_eq!(
        directory.error(&["--admission-shadow-webhooks=a"]),
        "--admission-shadow-webhooks: is given, but no admission webhooks or policies are"
    );
    for folder in ["mutating", "validating"] {
        std::fs::remove_file(directory.path(&format!("{folder}/a.yaml"))).unwrap();
    }
    assert_eq!(directory.settings(&[FILE, MODE_FLAG]), None, "empty folders are valid");
    assert!(directory.error(&[FILE]).contains("is required"), "a file may appear");
}

#[test]
fn a_disabled_plugin_has_no_webhooks() {
    let directory = Directory::new();
    directory.write("mutating/a.yaml", "not: [valid");
    let disabled = "--disable-admission-plugins=MutatingAdmissionWebhook";
    let settings = directory.settings(&[FILE, MODE_FLAG, disabled]).unwrap();
    assert_eq!((settings.webhooks.mutating.len(), settings.webhooks.validating.len()), (0, 1));
}

#[test]
fn other_plugins_run_in_the_backend() {
    let directory = Directory::new();
    let flags = [
        "--enable-admission-plugins=PodSecurity,Foo,MutatingAdmissionWebhook",
        "--disable-admission-plugins=MutatingAdmissionWebhook,AlwaysDeny",
    ];
    let expected = [
        "--enable-admission-plugins: enable-admission-plugins plugin \"PodSecurity\" runs in the backend",
        "--enable-admission-plugins: enable-admission-plugins plugin \"Foo\" is unknown",
        "--disable-admission-plugins: disable-admission-plugins plugin \"AlwaysDeny\" runs in the backend",
        "--disable-admission-plugins: [MutatingAdmissionWebhook] in enable-admission-plugins and \
         disable-admission-plugins overlapped",
    ];
    assert_eq!(directory.errors(&flags), expected);
    let text = std::fs::read_to_string(directory.path("admission.yaml")).unwrap();
    directory
        .write("admission.yaml", &(text + "- name: ImagePolicyWebhook\n- name: MutatingAdmissionWebhook\n"));
    let errors = directory.resolve(&[FILE, MODE_FLAG], &mut InputReader::default()).unwrap_err();
    let [error] = errors.as_slice() else { panic!("{errors:?}") };
    assert_eq!(error.problem, "plugins[2].name: plugin \"ImagePolicyWebhook\" runs in the backend");
    assert!(error.fix.as_ref().unwrap().starts_with("line 11: "), "{error}");
}

#[test]
fn other_plugins_are_left_to_the_backend_when_asked_to() {
    let directory = Directory::new();
    let text = std::fs::read_to_string(directory.path("admission.yaml")).unwrap();
    directory.write(
        "admission.yaml",
        &(text + "- name: PodSecurity\n  configuration: {kind: PodSecurityConfiguration, any: [field]}\n- name: EventRateLimit\n  path: none\n"),
    );
    let flags = [
        FILE,
        MODE_FLAG,
        "--enable-admission-plugins=NodeRestriction,ValidatingAdmissionWebhook,PodSecurity",
        "--disable-admission-plugins=DefaultStorageClass,MutatingAdmissionWebhook",
    ];
    let (settings, errors, warnings) = directory.with_leaving(&flags, &mut InputReader::default(), true);
    assert_eq!(errors, []);
    let webhooks = &settings.unwrap().webhooks;
    assert_eq!((webhooks.mutating.len(), webhooks.validating.len()), (0, 1), "those of webhooks apply");
    let file = directory.path("admission.yaml").display().to_string();
    let expected = [
        "--enable-admission-plugins: only the backend has NodeRestriction, PodSecurity: enable them there"
            .to_owned(),
        "--disable-admission-plugins: only the backend has DefaultStorageClass: disable them there"
            .to_owned(),
        format!(
            "--admission-control-config-file: {file}: line 11: the backend decides by PodSecurity, as it is configured there"
        ),
        format!(
            "--admission-control-config-file: {file}: line 13: the backend decides by EventRateLimit, as it is configured there"
        ),
    ];
    assert_eq!(warnings, expected);
    let flags =
        ["--enable-admission-plugins=PodSecurty,PodSecurity", "--disable-admission-plugins=PodSecurity"];
    let (_, errors, _) = directory.with_leaving(&flags, &mut InputReader::default(), true);
    let problems: Vec<&str> = errors.iter().map(|error| error.problem.as_str()).collect();
    let expected = [
        "enable-admission-plugins plugin \"PodSecurty\" is unknown",
        "[PodSecurity] in enable-admission-plugins and disable-admission-plugins overlapped",
    ];
    assert_eq!(problems, expected);
}

#[test]
fn all_errors_of_manifests_are_reported_with_their_lines() {
    let directory = Directory::new();
    let service = configuration("Mutating", "b", "")
        .replace("\"url\":\"\"", "\"service\":{\"name\":\"a\",\"namespace\":\"b\"}");
    directory.write(
        "mutating/b.yaml",
        &format!("# one\n---\n{service}\n---\n{}\n", configuration("Mutating", "a", "https://b")),
    );
    directory.write("mutating/c.yaml", &configuration("Validating", "c", "https://c"));
    directory.write("mutating/d.yaml", "a: [1");
    let errors = directory.resolve(&[FILE, MODE_FLAG], &mut InputReader::default()).unwrap_err();
    let found: Vec<String> = errors
        .iter()
        .map(|error| {
            let fix = error.fix.as_deref().unwrap();
            let (line, _) = fix.split_once(": ").unwrap_or((fix, ""));
            format!(
                "{} {} {line}",
                error.file.as_ref().unwrap().file_name().unwrap().display(),
                error.problem
            )
        })
        .collect();
    let file = directory.filled("DIR/mutating/b.yaml");
    let first = directory.filled("DIR/mutating/a.yaml");
    for part in [
        "b.yaml Object 'Kind' is missing line 2".to_owned(),
        format!(
            "b.yaml webhook \"mutating.b.example.com\" in \"b.static.k8s.io\" (file \"{file}\"): clientConfig.service is not supported for static manifests; use clientConfig.url instead line 3"
        ),
        format!(
            "b.yaml duplicate name \"a.static.k8s.io\" found in file \"{file}\" (previously seen in \"{first}\") line 5"
        ),
        "c.yaml unsupported resource type *v1.ValidatingWebhookConfiguration line 1".to_owned(),
    ] {
        assert!(found.contains(&part), "{part} is not in {found:#?}");
    }
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn servers_that_cannot_be_reached_are_refused() {
    let directory = Directory::new();
    let cases = [
        ("https://kubernetes.default.svc/a", "kube-apiserver would call kubernetes.default.svc:443"),
        ("https://a_b c/", "invalid character"),
        ("https://a:99999/", "cannot request the URL"),
        ("https://a:0/", "cannot request the URL"),
        ("https://x.test/", "user \"x.test\": exec is not supported for admission webhooks"),
    ];
    for (url, expected) in cases {
        directory.write("mutating/a.yaml", &configuration("Mutating", "a", url));
        let error = directory.error(&[FILE, MODE_FLAG]);
        assert!(error.contains(expected), "{url}: {error}");
    }
    let unusable =
        configuration("Mutating", "a", "https://a").replace("\"url\"", "\"caBundle\":\"YQ==\",\"url\"");
    directory.write("mutating/a.yaml", &unusable);
    let error = directory.error(&[FILE, MODE_FLAG]);
    assert!(error.contains("clientConfig.caBundle: "), "{error}");
}

#[test]
fn an_unknown_shadow_is_an_error() {
    let directory = Directory::new();
    let shadow = "--admission-shadow-webhooks=a.static.k8s.io,validating.a.example.com";
    let expected = "--admission-shadow-webhooks: there is no webhook \"a.static.k8s.io\"";
    assert_eq!(directory.error(&[FILE, MODE_FLAG, shadow]), expected);
}

#[test]
fn thousands_of_webhooks_are_read() {
    let directory = Directory::new();
    let all: Vec<String> = (0..2_000)
        .map(|index| configuration("Mutating", &format!("w{index}"), "https://a.example.com"))
        .collect();
    directory.write("mutating/a.yaml", &all.join("\n---\n"));
    let settings = directory.settings(&[FILE, MODE_FLAG]).unwrap();
    assert_eq!(settings.webhooks.mutating.len(), 2_000);
}

#[test]
fn a_change_of_any_file_reloads_the_configuration() {
    let directory = Directory::new();
    for name in ["admission.yaml", "mutating.yaml", "kubeconfig", "mutating/a.yaml", "validating/a.yaml"] {
        let mut inputs = InputReader::default();
        directory.resolve(&[FILE, MODE_FLAG], &mut inputs).unwrap();
        assert!(!inputs.changed());
        let before = std::fs::read(directory.path(name)).unwrap();
        std::fs::write(directory.path(name), "changed").unwrap();
        assert!(inputs.changed(), "{name}");
        std::fs::remove_file(directory.path(name)).unwrap();
        assert!(inputs.changed(), "{name} is gone");
        std::fs::write(directory.path(name), before).unwrap();
    }
    let mut inputs = InputReader::default();
    directory.resolve(&[FILE, MODE_FLAG], &mut inputs).unwrap();
    directory.write("mutating/notes.txt", "");
    assert!(!inputs.changed(), "not a manifest");
    directory.write("mutating/new.yaml", "");
    assert!(inputs.changed(), "a manifest that appears");
    std::fs::remove_dir_all(directory.path("validating")).unwrap();
    let mut inputs = InputReader::default();
    directory.resolve(&[FILE, MODE_FLAG], &mut inputs).unwrap_err();
    std::fs::create_dir(directory.path("validating")).unwrap();
    assert!(inputs.changed(), "a folder that appears");
}

/// A plugin of policies alone: its own kind of configuration, its folder, and flags about it.
#[test]
fn policies_have_a_plugin_of_their_own() {
    const POLICY: &str = "replicas.static.k8s.io";
    let directory = Directory::new();
    let policies = include_str!("../../../../config/admission/policies/replicas.yaml");
    std::fs::create_dir(directory.path("policies")).unwrap();
    directory.write("policies/replicas.yaml", policies);
    let configure = |kind: &str, folder: &str, more: &str| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ValidatingAdmissionPolicy\n  \
             configuration:\n    apiVersion: apiserver.config.k8s.io/v1\n    kind: {kind}\n    staticManifestsDir: {folder}\n{more}"
        );
        directory.write("admission.yaml", &text);
    };
    let kind = "ValidatingAdmissionPolicyConfiguration";
    configure(kind, "DIR/policies", "");
    let shadow = format!("--admission-shadow-policies={POLICY}");
    let settings = directory.settings(&[FILE, MODE_FLAG, &shadow]).unwrap();
    let [policy] = settings.policies.validating.as_slice() else { panic!("{settings:?}") };
    assert_eq!((policy.scope.name.as_str(), policy.bindings.len()), (POLICY, 1));
    assert!(settings.is_shadow_policy(&policy.scope));
    assert!(!directory.settings(&[FILE, MODE_FLAG]).unwrap().is_shadow_policy(&policy.scope));
    assert!(directory.error(&[FILE]).contains("--admission-mode: is required"));
    let unknown = directory.error(&[FILE, MODE_FLAG, "--admission-shadow-policies=other"]);
    assert_eq!(unknown, "--admission-shadow-policies: there is no policy \"other\"");
    let disabled = "--disable-admission-plugins=ValidatingAdmissionPolicy";
    assert_eq!(directory.settings(&[FILE, disabled]), None, "its folder is not read");
    let init = "couldn't init admission plugin \"ValidatingAdmissionPolicy\": ";
    for (kind, folder, more, expected) in [
        ("WebhookAdmissionConfiguration", "DIR/policies", "", "WebhookAdmissionConfiguration"),
        (
            kind,
            "policies",
            "",
            "staticManifestsDir: Invalid value: \"policies\": must be an absolute file path",
        ),
        (
            kind,
            "/none",
            "",
            "staticManifestsDir: Invalid value: \"/none\": unable to read: stat /none: no such file or directory",
        ),
        (kind, "DIR/kubeconfig", "", "must be a directory"),
        (kind, "DIR/policies", "    kubeConfigFile: /a\n", "unknown field \"kubeConfigFile\""),
    ] {
        configure(kind, folder, more);
        let error = directory.error(&[FILE, MODE_FLAG]);
        assert!(error.contains(init) && error.contains(expected), "{kind} {folder} {more}: {error}");
    }
    configure(kind, "DIR/policies", "");
    directory.write("policies/more.yaml", &configuration("Validating", "a", "https://a.example.com"));
    let error = directory.error(&[FILE, MODE_FLAG]);
    assert!(error.contains("unsupported resource type *v1.ValidatingWebhookConfiguration"), "{error}");
    let mut inputs = InputReader::default();
    directory.resolve(&[FILE, MODE_FLAG], &mut inputs).unwrap_err();
    std::fs::remove_file(directory.path("policies/more.yaml")).unwrap();
    assert!(inputs.changed(), "a change of the folder reloads the configuration");
}
