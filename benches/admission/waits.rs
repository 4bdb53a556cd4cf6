//! How long another user waits beside writes that take long to review: the longest of its reads, through kube-apiserver, which calls
//! the webhooks itself, and through the gateway, in one run.

use std::fmt::Write as _;

use super::*;

/// The requests of the user with the large objects: so many at once, and so many times.
const AT_ONCE: usize = 3;
const TIMES: usize = 2;
const WAIT_ROUNDS: usize = 5;
const WIDGETS: &str = "/apis/bench.test/v1/namespaces/default/widgets";
const INSERTIONS: usize = 20_000;

/// Objects that take long, and how they are written.
#[derive(Clone, Copy)]
struct Input {
    name: &'static str,
    label: &'static str,
    /// Makes the part `spec`.
    spec: fn() -> String,
    /// Whether the object is stored, and patched; else it is created, in dry runs.
    is_patched: bool,
}

fn list(element: &str, bytes: usize) -> String {
    let elements = vec![element; bytes / (element.len() + 1)];
    format!("{{\"a\":[{}]}}", elements.join(","))
}

const INPUTS: [Input; 6] = [
    Input {
        name: "patches of an object of 0.95 MiB",
        label: "validating",
        spec: || list("{\"name\":\"an ordinary field\",\"value\":\"of some length\"}", 950 << 10),
        is_patched: true,
    },
    Input {
        name: "the same in 110 levels",
        label: "validating",
        spec: || {
            let inner = list("{\"name\":\"an ordinary field\",\"value\":\"of some length\"}", 950 << 10);
            format!("{}{inner}{}", "{\"a\":".repeat(110), "}".repeat(110))
        },
        is_patched: true,
    },
    Input {
        name: "patches of 0.95 MiB of objects with one field",
        label: "validating",
        spec: || list("{\"a\":1}", 950 << 10),
        is_patched: true,
    },
    Input {
        name: "dry runs of 2.9 MiB of empty objects",
        label: "validating",
        spec: || list("{}", 2900 << 10),
        is_patched: false,
    },
    Input {
        name: "dry runs of 300 KiB with a match condition",
        label: "condition",
        spec: || list("{\"a\":1}", 300 << 10),
        is_patched: false,
    },
    Input {
        name: "a webhook's patch of 20,000 insertions",
        label: "insert",
        spec: || list("1", 40_000),
        is_patched: false,
    },
];

/// The configurations of the webhooks, mutating and validating.
pub(super) fn webhooks(webhook: impl Fn(&str, &str) -> Value) -> [Vec<Value>; 2] {
    let of_widgets = |path: &str, label: &str| {
        let mut webhook = webhook(path, label);
        webhook["name"] = json!(format!("widgets-{label}.bench.test"));
        webhook["rules"] = json!([{"operations": ["*"], "apiGroups": ["bench.test"], "apiVersions": ["v1"], "resources": ["widgets"]}]);
        webhook
    };
    let mut condition = of_widgets("validate", "condition");
    condition["matchConditions"] = json!([{"name": "all", "expression": "object.spec.a.all(x, x.a == 1)"}]);
    // An expression that costs more than its budget is no reason to fail here.
    condition["failurePolicy"] = json!("Ignore");
    [vec![of_widgets("insert", "insert")], vec![of_widgets("validate", "validating"), condition]]
}

/// The response to a review of the webhook that inserts.
pub(super) fn insertions() -> Value {
    let mut patch = String::from("[");
    for number in 0..INSERTIONS {
        let comma = if number == 0 { "" } else { "," };
        write!(patch, "{comma}{{\"op\":\"add\",\"path\":\"/spec/a/0\",\"value\":1}}").unwrap();
    }
    patch.push(']');
    json!(base64::engine::general_purpose::STANDARD.encode(patch))
}

async fn post(server: SocketAddr, admin: &Issued, path: &str, object: &Value) -> StatusCode {
    let request = Request::post(path).header("content-type", "application/json");
    let mut client = Gateway::at(server, None).http1(Some(admin)).await;
    let response = client.send(request.body(full(object.to_string())).unwrap()).await.unwrap();
    let code = response.status();
    response.into_body().collect().await.unwrap();
    code
}

/// Makes the resource, and the rights of the users.
pub(super) async fn prepare(server: SocketAddr, admin: &Issued) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.bench.test"}, "spec": {"group": "bench.test", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"}, "versions": [version]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(post(server, admin, definitions, &definition).await, StatusCode::CREATED);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "bench"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "cluster-admin"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "bench"}]});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(post(server, admin, bindings, &binding).await, StatusCode::CREATED);
    eventually("the resource", async || {
        let mut client = Gateway::at(server, None).http1(Some(admin)).await;
        let response = client.get(WIDGETS, &[]).await;
        let is_served = response.status() == StatusCode::OK;
        response.into_body().collect().await.map_err(|error| error.to_string())?;
        Ok(is_served)
    })
    .await
    .expect("widgets are served");
    for (number, input) in INPUTS.iter().enumerate().filter(|(_, input)| input.is_patched) {
        let request = Request::post(WIDGETS).header("content-type", "application/json");
        let mut client = Gateway::at(server, None).http1(Some(admin)).await;
        let body = full(widget(number, "", input));
        let response = client.send(request.body(body).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED, "{}", input.name);
    }
}

fn widget(number: usize, label: &str, input: &Input) -> String {
    let metadata = json!({"name": format!("widget-{number}"), "labels": {"bench": label}});
    format!(
        r#"{{"apiVersion":"bench.test/v1","kind":"Widget","metadata":{metadata},"spec":{}}}"#,
        (input.spec)()
    )
}

/// The longest read of one user beside the writes of another, and the codes of these.
async fn longest(
    server: SocketAddr,
    users: [&Issued; 2],
    (number, input): (usize, &Input),
) -> (Duration, String) {
    let [heavy, calm] = users;
    let (method, target, content_type, body) = if input.is_patched {
        let labels = json!({"metadata": {"labels": {"bench": input.label}}}).to_string();
        let target = format!("{WIDGETS}/widget-{number}?dryRun=All");
        (http::Method::PATCH, target, "application/merge-patch+json", labels)
    } else {
        let body = widget(100 + number, input.label, input);
        (http::Method::POST, format!("{WIDGETS}?dryRun=All"), "application/json", body)
    };
    let is_over = AtomicUsize::new(0);
    let writes = async {
        let write = async || {
            let mut codes = Vec::new();
            for _ in 0..TIMES {
                let request = Request::builder().method(method.clone()).uri(&target);
                let request = request.header("content-type", content_type).body(full(body.clone())).unwrap();
                let response =
                    Gateway::at(server, None).http1(Some(heavy)).await.send(request).await.unwrap();
                codes.push(response.status().as_u16());
                response.into_body().collect().await.unwrap();
            }
            codes
        };
        let mut codes = join_all((0..AT_ONCE).map(|_| write())).await.concat();
        is_over.store(1, Ordering::Relaxed);
        codes.sort_unstable();
        codes.dedup();
        format!("{codes:?}")
    };
    let reads = async {
        let mut client = Gateway::at(server, None).http1(Some(calm)).await;
        let mut longest = Duration::ZERO;
        while is_over.load(Ordering::Relaxed) == 0 {
            let began = Instant::now();
            let response = client.get("/api/v1/namespaces/default", &[]).await;
            assert_eq!(response.status(), StatusCode::OK);
            response.into_body().collect().await.unwrap();
            longest = longest.max(began.elapsed());
        }
        longest
    };
    let (codes, longest) = tokio::join!(writes, reads);
    (longest, codes)
}

/// Prints the longest waits beside each input.
pub(super) async fn run(servers: [(&str, SocketAddr); 2], users: [&Issued; 2]) {
    println!(
        "\nthe longest read beside {AT_ONCE} × {TIMES} writes of another user, {WAIT_ROUNDS} rounds: median\n"
    );
    for (number, input) in INPUTS.iter().enumerate() {
        println!("{}", input.name);
        let mut waits = [Vec::new(), Vec::new()];
        let mut codes = [String::new(), String::new()];
        for round in 0..WAIT_ROUNDS {
            for turn in 0..servers.len() {
                let at = (round + turn) % servers.len();
                let (longest, answers) = longest(servers[at].1, users, (number, input)).await;
                waits[at].push(longest.as_secs_f64() * 1000.0);
                codes[at] = answers;
            }
        }
        let medians = waits.map(median);
        for at in 0..servers.len() {
            let (name, wait) = (servers[at].0, medians[at]);
            println!(
                "  {name:<26}{wait:>7.0} ms {:>5.2} of kube-apiserver   {}",
                wait / medians[0],
                codes[at]
            );
        }
    }
}
