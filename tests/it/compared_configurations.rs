//! Random files with an `AuthorizationConfiguration`, compared with kube-apiserver's own code: both must accept the same
//! files, with the same errors. `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` change the seed and the number of files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis::internal::authorization_configuration_error;
use serde_json::{Map, Value, json};
use testkit::comparison::Compared;
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

/// The values of a key, valid ones first. `null` leaves the key out.
type Choices = &'static [(&'static str, &'static [&'static str])];

const WEBHOOK: Choices = &[
    ("timeout", &["3s", "30s", "1ns", "30.000000001s", "-1s", "0", "1h0.5s", "-1.5us"]),
    ("authorizedTTL", &["", "5m", "0s", "1ns", "-1m0.25s"]),
    ("unauthorizedTTL", &["", "30s", "0", "-30s"]),
    ("subjectAccessReviewVersion", &["v1", "v1beta1", "", "v2\"", "V1"]),
    ("matchConditionSubjectAccessReviewVersion", &["v1", "", "v1beta1", "é"]),
    ("failurePolicy", &["NoOpinion", "Deny", "", "Allow", "deny\n"]),
];
const CONNECTIONS: &[&str] =
    &["KubeConfigFile", "InClusterConfig", "", "KubeConfig", "<\u{2028}&>", "a\u{8}\\"];
const MODES: &[&str] = &["RBAC", "Node", "AlwaysAllow", "AlwaysDeny", "ABAC", "", "webhook", "Foo\t"];
const NAMES: &[&str] = &["a", "policy.example.com", "", "A", "a_b", "-a", "a..b", "rbac", "é"];
// Without syntax errors: the gateway reports only the first of an expression.
const EXPRESSIONS: &[&str] = &[
    "true",
    "has(request.resourceAttributes)",
    "request.user == 'a'",
    "'system:masters' in request.groups",
    "has(request.nonResourceAttributes) && request.nonResourceAttributes.path.startsWith('/api')",
    "request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'a')",
    "request.extra['a'].exists(v, v == 'b')",
    "",
    " \t\u{a0}",
    "request.user",
    "request.none",
    "request.groups",
    "test",
    "1 + 'a' == 2",
    "'<>' == request.uid",
];

/// Files for connections.
struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("kubeconfig"), "").unwrap();
        std::os::unix::fs::symlink("kubeconfig", directory.path().join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", directory.path().join("dangling")).unwrap();
        std::os::unix::fs::symlink("loop", directory.path().join("loop")).unwrap();
        Self { directory }
    }

    fn any(&self, rng: &mut Rng) -> Value {
        let name = *rng.pick(&["kubeconfig", "link", "none", "kubeconfig/none", "dangling", "loop", "", "."]);
        match rng.below(8) {
            0 => Value::Null,
            1 => "".into(),
            2 => "kubeconfig".into(),
            3 => "/dev/null".into(),
            4 => format!("/{}", "a".repeat(300)).into(),
            _ => self.directory.path().join(name).display().to_string().into(),
        }
    }
}

/// The first value in most cases, so that many files have few errors.
fn pick<'a>(rng: &mut Rng, list: &[&'a str]) -> &'a str {
    if rng.one_in(6) { *rng.pick(list) } else { list[0] }
}

fn put(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    let value = value.into();
    if !value.is_null() && value != "" {
        map.insert(key.to_owned(), value);
    }
}

fn webhook(rng: &mut Rng, files: &Files) -> Value {
    let mut webhook = Map::new();
    for (key, values) in WEBHOOK {
        put(&mut webhook, key, pick(rng, values));
    }
    for key in ["cacheAuthorizedRequests", "cacheUnauthorizedRequests"] {
        put(&mut webhook, key, if rng.one_in(3) { Value::from(rng.one_in(2)) } else { Value::Null });
    }
    let mut connection = Map::new();
    let mode = pick(rng, CONNECTIONS);
    put(&mut connection, "type", mode);
    let file = match (mode, rng.below(4)) {
        ("KubeConfigFile", 1..) => files.directory.path().join("kubeconfig").display().to_string().into(),
        ("InClusterConfig", 1..) => Value::Null,
        _ => files.any(rng),
    };
    if !file.is_null() {
        connection.insert("kubeConfigFile".to_owned(), file);
    }
    put(&mut webhook, "connectionInfo", connection);
    if rng.one_in(3) {
        let count = if rng.one_in(20) { 65 } else { rng.below(4) };
        let mut condition = || json!({"expression": rng.pick(EXPRESSIONS)});
        webhook.insert("matchConditions".to_owned(), (0..count).map(|_| condition()).collect());
    }
    webhook.into()
}

fn authorizer(rng: &mut Rng, files: &Files) -> Value {
    let mut authorizer = Map::new();
    let mode = if rng.one_in(3) { *rng.pick(MODES) } else { "Webhook" };
    put(&mut authorizer, "type", mode);
    let usual = mode.to_lowercase();
    put(&mut authorizer, "name", if rng.one_in(3) { *rng.pick(NAMES) } else { usual.as_str() });
    if (mode == "Webhook") != rng.one_in(15) {
        authorizer.insert("webhook".to_owned(), webhook(rng, files));
    }
    authorizer.into()
}

/// A random file.
fn file(rng: &mut Rng, files: &Files) -> Vec<u8> {
    if rng.one_in(200) {
        return Vec::new();
    }
    let version = *rng.pick(&["v1", "v1beta1", "v1alpha1"]);
    let version = if rng.one_in(50) { "v2" } else { version };
    let mut document = json!({
        "apiVersion": format!("apiserver.config.k8s.io/{version}"), "kind": "AuthorizationConfiguration",
        "authorizers": (0..rng.below(4)).map(|_| authorizer(rng, files)).collect::<Value>(),
    });
    // An error of decoding: an unknown field, or a value of another type.
    if rng.one_in(15) {
        let (key, value) = rng
            .pick(&[
                ("/webhooks", json!(1)),
                ("/authorizers/0/Name", json!("a")),
                ("/authorizers/0/webhook/ttl", json!({})),
                ("/authorizers/0/webhook/timeout", json!("3")),
                ("/authorizers/0/webhook/timeout", json!(3)),
                ("/authorizers/0/webhook/authorizedTTL", json!("5 m")),
                ("/authorizers/0/webhook/cacheAuthorizedRequests", json!("true")),
                ("/authorizers/0/webhook/connectionInfo", json!("KubeConfigFile")),
                ("/authorizers/0/webhook/connectionInfo/kubeconfigFile", json!("/a")),
                ("/authorizers/0/webhook/matchConditions", json!({"expression": "true"})),
                ("/authorizers/0/name", json!(5)),
            ])
            .clone();
        let (map, key) = key.rsplit_once('/').unwrap();
        if let Some(map) = document.pointer_mut(map).and_then(Value::as_object_mut) {
            map.insert(key.to_owned(), value);
        }
    }
    document.to_string().into_bytes()
}

/// A word for the statistics, or the difference.
fn compare(ours: Option<&str>, expected: &str) -> Compared {
    const DECODE: &str = "failed to load AuthorizationConfiguration from file: ";
    let ours = ours.unwrap_or_default();
    let is_unknown = |text: &str| text.starts_with("strict decoding error: unknown field");
    let decode = |text: &str| text.strip_prefix(DECODE).map(str::to_owned);
    match (decode(ours), decode(expected)) {
        (Some(one), Some(other)) if is_unknown(&one) && one == other => Ok("unknown field"),
        // Both refuse the type of a value, each with the text of its decoder.
        (Some(one), Some(other)) if !is_unknown(&one) && !is_unknown(&other) => Ok("decoding"),
        (None, None) if ours == expected => Ok(match ours {
            "" => "accepted",
            several if several.starts_with('[') => "several errors",
            name if name.starts_with("expected name") => "name",
            _ => "one error",
        }),
        _ => Err(format!("ours:     {ours}\n  expected: {expected}")),
    }
}

#[test]
fn authorization_configurations_are_judged_as_by_kube_apiserver() {
    let Some(program) = GoProgram::build("configurations") else { return };
    let (mut rng, files) = (Rng(seed()), Files::new());
    let all: Vec<Vec<u8>> = (0..inputs(3_000)).map(|_| file(&mut rng, &files)).collect();
    let question = |data: &Vec<u8>| json!({"kind": "Authorization", "data": STANDARD.encode(data)});
    let show = |data: &Vec<u8>| String::from_utf8_lossy(data).into_owned();
    let words = program.compare("files", &all, question, show, |data, answer| {
        let ours = authorization_configuration_error(data);
        compare(ours.as_deref(), answer["error"].as_str().unwrap())
    });
    words.occurred(&["accepted", "one error", "several errors", "name", "unknown field", "decoding"]);
}
