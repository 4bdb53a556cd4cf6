//! kubectl behind admission webhooks: their warnings and refusals on standard error.

use super::{CSR, Case, SIGNING_REQUEST, kubectl};
use crate::case::Declared;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, asks, code, prints) in [
        ("allowed", "", 0, "{unique}"),
        ("warned of", "m1=warn;v1=warn-odd;", 0, "Warning: "),
        ("changed", "m1=label;m2=annotation;", 0, "{unique}"),
        ("denied", "v1=deny;", 1, "denied the request"),
        ("not reviewed", "m1=code-500;", 1, "failed calling webhook"),
    ] {
        let name = |command: &str| format!("admission: {command}: {what}");
        let map = |data: &str| {
            format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{{unique}}","annotations":{{"asks":"{asks}"}}}},"data":{data}}}"#
            )
        };
        let on_input = |command: &str, body: &str| {
            kubectl(&name(command), "admin", &format!("{command} -f -")).stdin(body)
        };
        let ends = |case: Case| {
            let case = case.exits(code);
            let prints = if prints == "{unique}" { case } else { case.prints(prints) };
            prints.by_admission()
        };
        let created =
            |command: &str| kubectl(&name(command), "admin", "create cm {unique} --from-literal=a=1");
        cases.push(ends(on_input("create", &map(r#"{"a":"1"}"#))));
        cases.push(ends(on_input("apply", &map(r#"{"a":"1"}"#))));
        cases.push(ends(on_input("apply --server-side", &map(r#"{"a":"1"}"#))));
        cases.push(ends(created("replace").then("replace -f -").stdin(&map(r#"{"b":"1"}"#))));
        cases.push(ends(created("annotate").then("annotate cm {unique}").argument(&format!("asks={asks}"))));
        cases.push(ends(created("patch").then("patch cm {unique} --type=merge -p").argument(&format!(
            r#"{{"data":{{"b":"1"}},"metadata":{{"annotations":{{"asks":"{asks}"}}}}}}"#
        ))));
    }
    cases.extend(forms());
    cases.extend(managers());
    cases.extend(commands());
    let deployed = |name: &str| {
        kubectl(&format!("admission: {name}"), "admin", "create deployment {unique} --image=x").by_admission()
    };
    cases.extend([
        deployed("scale").then("scale deployment {unique} --replicas=2"),
        deployed("label").then("label deployment {unique} a=b"),
        deployed("set image").then("set image deployment/{unique} x=y"),
        deployed("delete").then("delete deployment {unique}"),
        deployed("delete with a denial")
            .then("annotate deployment {unique} asks=vdelete=deny;")
            .then("delete deployment {unique}")
            .exits(1)
            .prints("denied the request"),
        kubectl(
            "admission: exec that is denied",
            "admin",
            "exec -n twin-fixed placed -- echo v1=deny; {unique}",
        )
        .exits(1)
        .prints("denied the request")
        .by_admission(),
        kubectl(
            "admission: exec that is changed",
            "admin",
            "exec -n twin-fixed placed -- echo m1=command; {unique}",
        )
        .prints("more words")
        .by_admission(),
    ]);
    cases
}

/// The forms in which kubectl writes, to webhooks that allow and that change every write, and what is stored of them.
fn forms() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, asks) in [("reviewed", ""), ("stamped", "m1=label;m2=annotation;")] {
        let map = |data: &str| {
            format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{{unique}}","annotations":{{"asks":"{asks}"}}}},"data":{data}}}"#
            )
        };
        let begin =
            |name: &str, command: &str| kubectl(&format!("admission: {name}: {what}"), "admin", command);
        let ends = |case: Case, object: &str| {
            // Managers are in the order of time, in whole seconds.
            case.then(&format!("get {object} -o yaml --show-managed-fields")).unordered().by_admission()
        };
        let own = "cm {unique}";
        let applied = begin("apply, then apply --server-side", "apply -f -")
            .stdin(&map(r#"{"a":"1"}"#))
            .then("apply --server-side -f -")
            .stdin(&map(r#"{"a":"2"}"#))
            .then("apply --server-side -f -")
            .stdin(&map(r#"{"b":"1"}"#))
            .then("apply -f -")
            .stdin(&map(r#"{"c":"1"}"#));
        cases.push(ends(applied, own));
        let managed = begin("two managers apply", "apply --server-side --field-manager one -f -")
            .stdin(&map(r#"{"a":"1"}"#))
            .then("apply --server-side --field-manager two -f -")
            .stdin(&map(r#"{"b":"1"}"#))
            .then("apply --server-side --field-manager one -f -")
            .stdin(&map(r#"{"a":"1"}"#));
        cases.push(ends(managed, own));
        for patch in ["merge", "strategic"] {
            let patched = begin(&format!("patch --type={patch}"), "create -f -")
                .stdin(&map(r#"{"a":"1"}"#))
                .then(&format!("patch cm {{unique}} --type={patch} -p"))
                .argument(r#"{"data":{"a":null,"b":"1"}}"#);
            cases.push(ends(patched, own));
        }
        let patched = begin("patch --type=json", "create -f -")
            .stdin(&map(r#"{"a":"1"}"#))
            .then("patch cm {unique} --type=json -p")
            .argument(r#"[{"op":"add","path":"/data/b","value":"1"},{"op":"remove","path":"/data/a"}]"#);
        cases.push(ends(patched, own));
        let job = format!(
            r#"{{"apiVersion":"batch/v1","kind":"CronJob","metadata":{{"name":"{{unique}}"}},"spec":{{"schedule":"@daily","jobTemplate":{{"metadata":{{"annotations":{{"asks":"{asks}"}}}},"spec":{{"template":{{"spec":{{"restartPolicy":"Never","containers":[{{"name":"c","image":"x"}}]}}}}}}}}}}}}"#
        );
        let job = begin("create job --from", "create -f -")
            .stdin(&job)
            .then("create job {unique} --from=cronjob/{unique}")
            .then("get job {unique} -o jsonpath={.metadata.labels.added}{.spec.template.spec.containers[*].name}");
        // Webhooks see the labels that the API server generates.
        let declared =
            Declared { id: "D-admission-prepared", status: 0, only_reviews: true, only_by_decision: false };
        cases.push(Case { declared: Some(declared), ..job.by_admission() });
        let labelled = format!(
            r#"{{"apiVersion":"batch/v1","kind":"Job","metadata":{{"name":"{{unique}}","annotations":{{"asks":"{asks}"}}}},"spec":{{"template":{{"metadata":{{"labels":{{"a":"b"}}}},"spec":{{"restartPolicy":"Never","containers":[{{"name":"c","image":"x"}}]}}}}}}}}"#
        );
        let labelled = begin("a job with labels of its pods", "create -f -")
            .stdin(&labelled)
            .then("get job {unique} -o yaml --show-managed-fields")
            .unordered();
        cases.push(Case { declared: Some(declared), ..labelled.by_admission() });
        let deployment = format!(
            r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"name":"{{unique}}","annotations":{{"asks":"{asks}"}}}},"spec":{{"selector":{{"matchLabels":{{"a":"b"}}}},"template":{{"metadata":{{"labels":{{"a":"b"}}}},"spec":{{"containers":[{{"name":"c","image":"x"}}]}}}}}}}}"#
        );
        let rolled = begin("a deployment is rolled out", "apply -f -")
            .stdin(&deployment)
            .then("rollout restart deployment {unique}")
            .then("scale deployment {unique} --replicas=2")
            .then("set image deployment/{unique} c=y");
        cases.push(ends(rolled, "deployment {unique}"));
    }
    cases
}

/// Two managers that apply overlapping and disjoint fields, of which only the first asks for changes of webhooks.
fn managers() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, asks) in [("reviewed", ""), ("stamped", "m1=label;m2=annotation;")] {
        let one = |data: &str| {
            format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{{unique}}","annotations":{{"asks":"{asks}"}}}},"data":{data}}}"#
            )
        };
        let two = |data: &str| {
            format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{{unique}}"}},"data":{data}}}"#
            )
        };
        let apply = |manager: &str| format!("apply --server-side --field-manager={manager} -f -");
        let force =
            |manager: &str| format!("apply --server-side --field-manager={manager} --force-conflicts -f -");
        let show = "get cm {unique} -o yaml --show-managed-fields";
        let overlapping =
            kubectl(&format!("admission: two managers apply the same field: {what}"), "admin", &apply("one"))
                .stdin(&one(r#"{"a":"1"}"#))
                .then(&apply("two"))
                .stdin(&two(r#"{"a":"1","b":"1"}"#))
                .then(show)
                .unordered()
                .then(&apply("two"))
                .stdin(&two(r#"{"a":"2","b":"1"}"#))
                .exits(1)
                .prints("conflict with \"one\"")
                .then(&force("two"))
                .stdin(&two(r#"{"a":"2","b":"1"}"#))
                .then(show)
                .unordered()
                .then(&apply("one"))
                .stdin(&one(r#"{"a":"1"}"#))
                .exits(1)
                .prints("conflict with \"two\"")
                // The second manager keeps the field.
                .then(&apply("one"))
                .stdin(&one(r#"{"c":"1"}"#))
                .then(show)
                .unordered()
                // No manager keeps it.
                .then(&apply("two"))
                .stdin(&two(r#"{"b":"1"}"#))
                .then(show)
                .unordered()
                .prints("manager: two");
        cases.push(overlapping.by_admission());
        let beside = kubectl(
            &format!("admission: a manager applies what another one has patched: {what}"),
            "admin",
            "create -f -",
        )
        .stdin(&one(r#"{"a":"1"}"#))
        .then(&apply("two"))
        .stdin(&two(r#"{"a":"2"}"#))
        .exits(1)
        .prints("conflict with \"kubectl-create\"")
        .then(&force("two"))
        .stdin(&two(r#"{"a":"2"}"#))
        .then("patch cm {unique} --type=merge --field-manager=three -p")
        .argument(r#"{"data":{"a":"3","d":"1"}}"#)
        .then(show)
        .unordered()
        .then(&force("two"))
        .stdin(&two(r#"{"a":"2","d":"1"}"#))
        .then(show)
        .unordered()
        .prints("manager: three");
        cases.push(beside.by_admission());
    }
    cases
}

/// Other commands that write.
fn commands() -> Vec<Case> {
    let begin =
        |name: &str, command: &str| kubectl(&format!("admission: {name}"), "admin", command).by_admission();
    let deployed = |name: &str| begin(name, "create deployment {unique} --image=x");
    let declared = |case: Case, id: &'static str| Case {
        declared: Some(Declared { id, status: 0, only_reviews: true, only_by_decision: false }),
        ..case
    };
    let of_cascade = |cascade: &str| {
        deployed(&format!("delete --cascade={cascade}"))
            .then(&format!("delete deployment {{unique}} --cascade={cascade} --wait=false"))
            .prints("deleted")
            .then("get deployment {unique} -o yaml --ignore-not-found")
    };
    let map = |name: &str, data: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","labels":{{"set":"{{unique}}"}}}},"data":{data}}}"#
        )
    };
    let autoscaler = |asks: &str| {
        format!(
            r#"{{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{{"name":"{{unique}}","labels":{{"only":"mequivalent"}},"annotations":{{"asks":"{asks}"}}}},"spec":{{"maxReplicas":3,"scaleTargetRef":{{"kind":"Deployment","name":"x","apiVersion":"apps/v1"}},"metrics":[{{"type":"Resource","resource":{{"name":"memory","target":{{"type":"AverageValue","averageValue":"0.5Gi"}}}}}},{{"type":"Resource","resource":{{"name":"cpu","target":{{"type":"Utilization","averageUtilization":50}}}}}}]}}}}"#
        )
    };
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"{unique}"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#;
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"{unique}"},"spec":{"nodeName":"{unique}","automountServiceAccountToken":false,"containers":[{"name":"c","image":"x"}]}}"#;
    let drained = |name: &str, more: &str| {
        begin(name, "create -f -")
            .stdin(node)
            .then("create -f -")
            .stdin(pod)
            .then(&format!("drain {{unique}} --force --grace-period=0 --timeout=60s{more}"))
            .prints("drained")
            .then("get pod {unique}")
            .exits(1)
            .then("uncordon {unique}")
            .then("taint node {unique} a=b:NoSchedule")
            .then("delete node {unique}")
    };
    let role = r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"{unique}","namespace":"twin"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["VERB"]}]}"#;
    vec![
        of_cascade("background"),
        of_cascade("foreground").prints("foregroundDeletion"),
        of_cascade("orphan").prints("- orphan"),
        // Webhooks see the finalizer that the API server sets.
        declared(
            begin("delete --all", "create ns {unique}")
                .then("create cm one -n {unique}")
                .then("create cm two -n {unique}")
                .then("delete cm --all -n {unique}")
                .prints("\"two\" deleted"),
            "D-admission-prepared",
        ),
        begin("delete by a label", "create -f -")
            .stdin(&map("{unique}", "{}"))
            .then("delete cm -l set={unique}")
            .prints("deleted"),
        // Webhooks see the status of the new pod.
        declared(drained("drain", ""), "D-admission-prepared"),
        declared(drained("drain without evictions", " --disable-eviction"), "D-admission-prepared"),
        declared(
            begin("run", "run {unique} --image=x").then("get pod {unique} -o name"),
            "D-admission-prepared",
        ),
        declared(
            begin("create token", "create sa {unique}")
                .then("create token {unique} --duration=1h")
                .prints("<token>"),
            "D-admission-tokens",
        ),
        begin("edit", "create -f -")
            .stdin(&map("{unique}", r#"{"a":"before"}"#))
            .then("edit cm {unique}")
            .environment("KUBE_EDITOR", "/bin/sed -i s/before/after/")
            .prints("edited")
            .then("get cm {unique} -o yaml")
            .prints("after"),
        begin("replace --force", "create -f -")
            .stdin(&map("{unique}", r#"{"a":"1"}"#))
            .then("replace --force -f -")
            .stdin(&map("{unique}", r#"{"a":"2"}"#))
            .prints("replaced"),
        begin("apply --prune", "apply -f -")
            .stdin(&[map("{unique}", "{}"), map("{unique}-b", "{}")].join("\n"))
            .then("apply --prune -l set={unique} --prune-allowlist=core/v1/ConfigMap -f -")
            .stdin(&map("{unique}", r#"{"a":"1"}"#))
            .prints("pruned"),
        // Webhooks see what the API server prepares.
        declared(
            deployed("expose").then("expose deployment {unique} --port=80 --cluster-ip=None"),
            "D-admission-prepared",
        ),
        deployed("autoscale").then("autoscale deployment {unique} --min=1 --max=3"),
        begin("an autoscaler and a webhook of another version", "create -f -")
            .stdin(&autoscaler("mequivalent=annotation;"))
            .then("get hpa.v2.autoscaling {unique} -o yaml")
            .prints("added: ")
            .then("get hpa.v1.autoscaling {unique} -o yaml"),
        begin("an autoscaler and a webhook of another version that refuses it", "apply --server-side -f -")
            .stdin(&autoscaler("mequivalent=deny;"))
            .exits(1)
            .prints("denied the request"),
        deployed("set env, resources and an account")
            .then("set env deployment/{unique} A=b")
            .then("set resources deployment {unique} --limits=cpu=1")
            .then("set serviceaccount deployment {unique} other")
            .then("get deployment {unique} -o yaml"),
        deployed("rollout pause and resume")
            .then("rollout pause deployment/{unique}")
            .then("rollout resume deployment/{unique}"),
        deployed("patch --subresource=status")
            .then("patch deployment {unique} --subresource=status --type=merge -p")
            .argument(r#"{"status":{"replicas":1}}"#)
            .then("get deployment {unique} -o yaml --show-managed-fields")
            .unordered(),
        begin("create other kinds", "create secret generic {unique} --from-literal=a=1")
            .then("create role {unique} --verb=get --resource=configmaps")
            .then("create rolebinding {unique} --role={unique} --user=someone")
            .then("create pdb {unique} --selector=a={unique} --min-available=1")
            .then("create ingress {unique} --rule=example.com/=svc:80")
            .then("create cronjob {unique} --image=x --schedule=@daily"),
        begin("auth reconcile", "auth reconcile -f -")
            .stdin(&role.replace("VERB", "get"))
            .then("auth reconcile -f -")
            .stdin(&role.replace("VERB", "list"))
            .prints("reconciled"),
        declared(
            begin("certificate approve", "create -f -")
                .stdin(&SIGNING_REQUEST.replace("{csr}", &CSR.concat()))
                .then("certificate approve {unique}")
                .prints("approved"),
            "D-admission-prepared",
        ),
    ]
}
