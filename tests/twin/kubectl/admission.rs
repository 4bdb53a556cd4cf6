//! kubectl behind admission webhooks: their warnings and refusals on standard error.

use super::{Case, kubectl};
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
        let declared = Declared { id: "D-admission-prepared", status: 0, only_reviews: true };
        cases.push(Case { declared: Some(declared), ..job.by_admission() });
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
