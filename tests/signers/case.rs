//! A test case with one certificate signing request: the requester, the steps after creation, and the expected outcome
//! on the reference.

use std::fs;
use std::path::Path;

use http::Method;
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::now;
use testkit::pki::Ca;

use crate::certificate::Certificate;
use crate::client::{Person, escaped};
use crate::clusters::{Cluster, Clusters, Side, unique};

pub(crate) const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
pub(crate) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(crate) const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(crate) const SERVING: &str = "kubernetes.io/kubelet-serving";
pub(crate) const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// Checks that `docs/conformance.md` has a heading for the difference.
pub(crate) fn explained(id: &str) -> Result<(), String> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/conformance.md");
    let declaration = format!("### {id}");
    let text = fs::read_to_string(&document).unwrap_or_default();
    if text.lines().any(|line| line == declaration) {
        return Ok(());
    }
    Err(format!("the difference {id} is not declared in {}", document.display()))
}

/// The expected outcome of a case on the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// The signer issues a certificate.
    Issued,
    /// The signer adds a condition `Failed`.
    Failed,
    /// A controller approves the request and no certificate is issued.
    Approved,
    /// The controllers leave the request unchanged, and have signed a request that was created later.
    Nothing,
}

/// A change by the test after the request's creation.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Adds a condition through the subresource `approval`.
    Approval(Value),
    /// Adds a condition through the subresource `status`.
    Status(Value),
    /// Sets the certificate through the subresource `status`.
    Certificate(String),
    /// Waits until a controller has approved the request.
    UntilApproved,
    /// Binds this cluster role to the requester.
    Grant(&'static str),
}

/// An intended difference from Kubernetes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declared {
    /// Its heading in `docs/conformance.md`.
    pub(crate) id: &'static str,
    /// The outcome on the gateway's side.
    pub(crate) expect: Expect,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    /// The upstream test or rule that the case reproduces.
    pub(crate) from: &'static str,
    /// The suffix of the object's name.
    pub(crate) name_suffix: &'static str,
    pub(crate) request: String,
    pub(crate) signer: &'static str,
    pub(crate) usages: Vec<&'static str>,
    pub(crate) expiration: Option<i64>,
    pub(crate) by: Person,
    /// Whether the test writes the object to etcd, because the API server would reject it.
    pub(crate) stored: bool,
    /// Conditions of a stored request.
    pub(crate) conditions: Vec<Value>,
    pub(crate) steps: Vec<Step>,
    pub(crate) expect: Expect,
    pub(crate) declared: Option<Declared>,
}

/// The status of a request at the end of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Conditions, with times replaced by a placeholder.
    pub(crate) conditions: Vec<Value>,
    pub(crate) certificate: Option<Result<Certificate, String>>,
}

/// An approved request for `kubernetes.io/kube-apiserver-client`.
pub(crate) fn case(group: &'static str, name: &'static str, from: &'static str, csr: &Csr) -> Case {
    Case {
        group,
        name,
        from,
        name_suffix: "",
        request: csr.pem(),
        signer: CLIENT,
        usages: vec!["client auth"],
        expiration: None,
        by: Person::new("someone", &["testers"]),
        stored: false,
        conditions: Vec::new(),
        steps: vec![approved()],
        expect: Expect::Issued,
        declared: None,
    }
}

pub(crate) fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "reason": format!("Test{kind}"), "message": "by the test"})
}

pub(crate) fn approved() -> Step {
    Step::Approval(condition("Approved", "True"))
}

impl Case {
    pub(crate) fn name_suffix(mut self, suffix: &'static str) -> Self {
        self.name_suffix = suffix;
        self
    }

    /// Makes it a kubelet's request for a client certificate.
    pub(crate) fn kubelet(mut self) -> Self {
        self.signer = KUBELET;
        self.usages = vec!["digital signature", "key encipherment", "client auth"];
        self
    }

    pub(crate) fn serving(mut self) -> Self {
        self.signer = SERVING;
        self.usages = vec!["digital signature", "key encipherment", "server auth"];
        self
    }

    pub(crate) fn signer(mut self, signer: &'static str) -> Self {
        self.signer = signer;
        self
    }

    pub(crate) fn usages(mut self, usages: &[&'static str]) -> Self {
        self.usages = usages.to_vec();
        self
    }

    pub(crate) fn expiration(mut self, seconds: i64) -> Self {
        self.expiration = Some(seconds);
        self
    }

    pub(crate) fn by(mut self, person: Person) -> Self {
        self.by = person;
        self
    }

    pub(crate) fn stored(mut self) -> Self {
        self.stored = true;
        self
    }

    /// Changes the signer to `kubernetes.io/legacy-unknown`, which the v1 API rejects.
    pub(crate) fn legacy(self) -> Self {
        self.signer(LEGACY).stored()
    }

    pub(crate) fn request(mut self, request: String) -> Self {
        self.request = request;
        self
    }

    pub(crate) fn steps(mut self, steps: &[Step]) -> Self {
        self.steps = steps.to_vec();
        self
    }

    pub(crate) fn conditions(mut self, conditions: &[Value]) -> Self {
        self.conditions = conditions.to_vec();
        self
    }

    pub(crate) fn fails(mut self) -> Self {
        self.expect = Expect::Failed;
        self
    }

    pub(crate) fn nothing(mut self) -> Self {
        self.expect = Expect::Nothing;
        self
    }

    pub(crate) fn expect(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }

    pub(crate) fn declared(mut self, id: &'static str, expect: Expect) -> Self {
        self.declared = Some(Declared { id, expect });
        self
    }

    /// The expected outcome on a side.
    pub(crate) fn expected_on(&self, side: Side) -> Expect {
        self.declared.filter(|_| side == Side::Gateway).map_or(self.expect, |declared| declared.expect)
    }

    fn object(&self, name: &str) -> Value {
        use base64::Engine as _;
        let request = base64::engine::general_purpose::STANDARD.encode(&self.request);
        let mut object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"request": request, "signerName": self.signer, "usages": self.usages},
        });
        if let Some(seconds) = self.expiration {
            object["spec"]["expirationSeconds"] = seconds.into();
        }
        if self.stored {
            object["metadata"]["uid"] = format!("00000000-0000-4000-8000-{:012}", unique()).into();
            object["metadata"]["creationTimestamp"] = timestamp(now()).into();
            object["spec"]["username"] = self.by.name.clone().into();
            object["spec"]["groups"] = self.by.groups.clone().into();
            object["status"] = json!({"conditions": self.conditions});
        }
        object
    }

    /// Runs the case on one cluster.
    pub(crate) async fn play(&self, clusters: &Clusters, cluster: &Cluster) -> Result<Outcome, String> {
        let _signing = crate::authorities::use_default(clusters, cluster).await?;
        let ca = clusters
            .authorities
            .signing(self.signer)
            .map_or(&clusters.authorities.clients, |signing| &signing.ca);
        self.play_with(clusters, cluster, ca).await
    }

    /// Runs the case while the caller holds the lock of the signing CAs.
    pub(crate) async fn play_with(
        &self,
        clusters: &Clusters,
        cluster: &Cluster,
        ca: &Ca,
    ) -> Result<Outcome, String> {
        let start = now();
        let name = self.create(clusters, cluster).await?;
        let path = format!("{CSRS}/{}", escaped(&name));
        let expect = self.expected_on(cluster.side);
        if cluster.side != Side::Bare {
            cluster.check()?;
            // The approver has seen a request that it does not approve once it approves a later one.
            let fence_signer = if self.group == "approval" { KUBELET } else { self.signer };
            if expect == Expect::Nothing {
                // The queue has several workers: the second fence is created after the first is complete.
                fence(cluster, fence_signer).await?;
                fence(cluster, fence_signer).await?;
            } else {
                let settled =
                    |object: Option<&Value>| object.is_some_and(|object| self.settled(expect, object));
                cluster.api.until(CSRS, &name, settled).await?;
            }
            if expect == Expect::Approved {
                fence(cluster, fence_signer).await?;
            }
        }
        let object = cluster.api.get(&path).await?.ok()?;
        Ok(Outcome::of(&object, ca, (start, now())))
    }

    /// Creates the request and runs the steps. Returns the name of the object.
    pub(crate) async fn create(&self, clusters: &Clusters, cluster: &Cluster) -> Result<String, String> {
        let name = format!("case-{}{}", unique(), self.name_suffix);
        let object = self.object(&name);
        if self.stored {
            clusters.store(cluster.side, &name, &object).await?;
        } else {
            cluster.api.send(Some(&self.by), Method::POST, CSRS, Some(&object)).await?.ok()?;
        }
        for step in &self.steps {
            self.step(cluster, &name, step).await?;
        }
        Ok(name)
    }

    /// Whether the expected outcome or another final outcome has occurred.
    fn settled(&self, expect: Expect, object: &Value) -> bool {
        let has = |kind: &str| conditions(object).any(|condition| condition["type"] == kind);
        let failed_by_case = self.steps.iter().any(
            |step| matches!(step, Step::Status(condition) | Step::Approval(condition) if condition["type"] == "Failed"),
        );
        object["status"]["certificate"].is_string()
            || (has("Failed") && !failed_by_case)
            || (expect == Expect::Approved && has("Approved"))
    }

    async fn step(&self, cluster: &Cluster, name: &str, step: &Step) -> Result<(), String> {
        let path = format!("{CSRS}/{}", escaped(name));
        let (subresource, change): (&str, &dyn Fn(&mut Value)) = match step {
            Step::Approval(condition) => ("approval", &|object| add(object, condition)),
            Step::Status(condition) => ("status", &|object| add(object, condition)),
            Step::Certificate(certificate) => {
                ("status", &|object| object["status"]["certificate"] = certificate.clone().into())
            }
            Step::UntilApproved => {
                if cluster.side != Side::Bare {
                    let approved = |object: Option<&Value>| {
                        object.is_some_and(|object| conditions(object).any(|each| each["type"] == "Approved"))
                    };
                    cluster.api.until(CSRS, name, approved).await?;
                }
                return Ok(());
            }
            Step::Grant(role) => return self.grant(cluster, role).await,
        };
        loop {
            let mut object = cluster.api.get(&path).await?.ok()?;
            change(&mut object);
            let answer = cluster.api.put(&format!("{path}/{subresource}"), &object).await?;
            // Conflict with a write of a controller: retry with the new version.
            if answer.status != 409 {
                return answer.ok().map(drop).map_err(|error| format!("{step:?}: {error}"));
            }
        }
    }

    async fn grant(&self, cluster: &Cluster, role: &str) -> Result<(), String> {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("granted-{}", unique())},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": format!("system:certificates.k8s.io:certificatesigningrequests:{role}")},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.by.name}],
        });
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        cluster.api.post(path, &binding).await?.ok().map(drop)
    }
}

fn add(object: &mut Value, condition: &Value) {
    match object["status"]["conditions"].as_array_mut() {
        Some(conditions) => conditions.push(condition.clone()),
        None => object["status"]["conditions"] = json!([condition]),
    }
}

fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object["status"]["conditions"].as_array().into_iter().flatten()
}

/// Whether an object from a watch or a list has a certificate.
pub(crate) fn is_signed(object: Option<&Value>) -> bool {
    object.is_some_and(|object| object["status"]["certificate"].is_string())
}

/// Creates a request as administrator and waits for its certificate. For the kubelet signer, the approver processes the
/// request too.
async fn fence(cluster: &Cluster, signer: &str) -> Result<(), String> {
    let fence = match signer {
        KUBELET => case("", "", "", &Csr::node("fence")).kubelet().steps(&[]),
        SERVING => case("", "", "", &Csr::node("fence").dns("fence")).serving(),
        _ => case("", "", "", &Csr::new().cn("fence")),
    };
    let name = format!("fence-{}", unique());
    cluster.api.post(CSRS, &fence.object(&name)).await?.ok()?;
    for step in &fence.steps {
        fence.step(cluster, &name, step).await?;
    }
    cluster.api.until(CSRS, &name, is_signed).await.map(drop).map_err(|error| format!("the fence: {error}"))
}

impl Outcome {
    pub(crate) fn of(object: &Value, ca: &Ca, signed: (i64, i64)) -> Self {
        let conditions = conditions(object)
            .map(|condition| {
                let mut condition = condition.clone();
                for time in ["lastUpdateTime", "lastTransitionTime"] {
                    if condition[time].is_string() {
                        condition[time] = "<time>".into();
                    }
                }
                condition
            })
            .collect();
        let certificate =
            object["status"]["certificate"].as_str().map(|status| Certificate::read(status, ca, signed));
        Self { conditions, certificate }
    }

    /// The outcome as an expectation.
    pub(crate) fn kind(&self, case: &Case) -> Expect {
        let has = |kind: &str| self.conditions.iter().any(|condition| condition["type"] == kind);
        let added_by_case = |kind: &str| {
            let in_steps = case.steps.iter().any(
                |step| matches!(step, Step::Approval(condition) | Step::Status(condition) if condition["type"] == kind),
            );
            in_steps || case.conditions.iter().any(|condition| condition["type"] == kind)
        };
        let set_by_case = case.steps.iter().any(|step| matches!(step, Step::Certificate(_)));
        if self.certificate.is_some() && !set_by_case {
            Expect::Issued
        } else if has("Failed") && !added_by_case("Failed") {
            Expect::Failed
        } else if has("Approved") && !added_by_case("Approved") {
            Expect::Approved
        } else {
            Expect::Nothing
        }
    }

    /// Describes how `other` differs.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.conditions != other.conditions {
            found.push(format!("conditions:\n    {:?}\n    {:?}", self.conditions, other.conditions));
        }
        match (&self.certificate, &other.certificate) {
            (None, None) => {}
            (Some(Ok(left)), Some(Ok(right))) => {
                for number in 0..left.lines.len().max(right.lines.len()) {
                    let (left, right) = (left.lines.get(number), right.lines.get(number));
                    if left != right {
                        found.push(format!("certificate:\n    {left:?}\n    {right:?}"));
                    }
                }
            }
            (Some(Err(left)), Some(Err(right))) if left == right => {}
            (left, right) => found.push(format!("certificate:\n    {left:?}\n    {right:?}")),
        }
        found
    }
}

/// RFC 3339.
pub(crate) fn timestamp(unix: i64) -> String {
    let time = time::OffsetDateTime::from_unix_timestamp(unix).unwrap();
    time.format(&time::format_description::well_known::Rfc3339).unwrap()
}
