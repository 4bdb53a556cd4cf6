//! kubectl behind admission webhooks: their warnings and refusals on standard error.

use super::{Case, kubectl};

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
