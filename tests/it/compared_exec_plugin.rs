//! `portcullis credential` as the exec plugin of client-go (`tests/go/execplugin`): every field of the exec stanza of a
//! kubeconfig and of `ExecCredential`, in both versions. What the command itself does with the request, its unit tests show.
// client-go: plugin/pkg/client/auth/exec/exec_test.go

use serde_json::{Value, json};
use testkit::go_program::GoProgram;

use crate::gateway::PORTCULLIS;

const V1: &str = "client.authentication.k8s.io/v1";
const V1BETA1: &str = "client.authentication.k8s.io/v1beta1";

/// A row: a name, the changes of the stanza, the tokens that the server gets, and parts of client-go's error and of what the
/// plugin prints.
struct Row {
    name: &'static str,
    stanza: Value,
    tokens: &'static [&'static str],
    error: &'static str,
    printed: &'static str,
}

fn rows(directory: &str) -> Vec<Row> {
    let row = |name, stanza, tokens, error, printed| Row { name, stanza, tokens, error, printed };
    let file =
        |name: &str| json!(["credential", "--flow=token-file", format!("--token-file={directory}/{name}")]);
    let code = json!(["credential", "--no-cache", "--flow=browser"]);
    let issuer = json!({"issuer": "https://issuer.test", "clientID": "kubernetes", "scopes": ["groups"]});
    let failed = "failed with exit code";
    let interactive = "must not ask for a login";
    vec![
        row("v1", json!({}), &["first"], "", ""),
        row("v1beta1", json!({"apiVersion": V1BETA1}), &["first"], "", ""),
        row(
            "a version that is gone",
            json!({"apiVersion": "client.authentication.k8s.io/v1alpha1"}),
            &[],
            "invalid apiVersion",
            "",
        ),
        row("Never", json!({"interactiveMode": "Never"}), &["first"], "", ""),
        row("IfAvailable on a pipe", json!({"interactiveMode": "IfAvailable"}), &["first"], "", ""),
        row(
            "Always on a pipe",
            json!({"interactiveMode": "Always"}),
            &[],
            "standard input is not a terminal",
            "",
        ),
        row("standard input is taken", json!({"stdinUnavailable": true}), &["first"], "", ""),
        row(
            "cluster information without an extension",
            json!({"provideClusterInfo": true}),
            &["first"],
            "",
            "",
        ),
        row(
            "cluster information that is not needed",
            json!({"provideClusterInfo": true, "config": issuer}),
            &["first"],
            "",
            "",
        ),
        row(
            "cluster information with the provider",
            json!({"provideClusterInfo": true, "config": issuer, "args": code}),
            &[],
            failed,
            interactive,
        ),
        row(
            "the same in v1beta1",
            json!({"apiVersion": V1BETA1, "provideClusterInfo": true, "config": issuer, "args": code}),
            &[],
            failed,
            interactive,
        ),
        row(
            "an extension that is not provided",
            json!({"config": issuer, "args": code}),
            &[],
            failed,
            "give --issuer URL",
        ),
        row(
            "an extension with a misspelled key",
            json!({"provideClusterInfo": true, "config": {"isuer": "x"}}),
            &[],
            failed,
            "unknown field `isuer`",
        ),
        row(
            "the environment of the stanza",
            json!({"env": [{"name": "PORTCULLIS_CLIENT_SECRET", "value": "secret"}], "provideClusterInfo": true,
                "config": {"issuer": "https://127.0.0.1:1", "clientID": "machine"},
                "args": ["credential", "--no-cache", "--flow=client-credentials"]}),
            &[],
            failed,
            "127.0.0.1:1",
        ),
        row("no token", json!({"args": file("empty")}), &[], failed, "has no token"),
        row("no file", json!({"args": file("none")}), &[], failed, "No such file"),
        row(
            "an unknown flag",
            json!({"args": ["credential", "--no-such-flag"]}),
            &[],
            failed,
            "--no-such-flag",
        ),
        row(
            "no such command",
            json!({"command": "no-such-portcullis", "installHint": "install portcullis"}),
            &[],
            "install portcullis",
            "",
        ),
        row(
            "a token that has expired is sent, and refused by the server",
            json!({"args": file("expired")}),
            &[EXPIRED],
            "",
            "",
        ),
        row(
            "a refused token is asked for again",
            json!({"args": file("rotated"), "rotatedFile": format!("{directory}/rotated"), "rotatedToken": "second\n"}),
            &["first", "second"],
            "",
            "",
        ),
    ]
}

/// `{"alg":"none"}.{"exp":1}.`
const EXPIRED: &str = "eyJhbGciOiJub25lIn0.eyJleHAiOjF9.";

#[test]
fn client_go_accepts_the_plugin() {
    let Some(program) = GoProgram::build("execplugin") else { return };
    let directory = tempfile::tempdir().unwrap();
    for (name, token) in [("token", "first\n"), ("rotated", "first"), ("empty", "\n"), ("expired", EXPIRED)] {
        std::fs::write(directory.path().join(name), token).unwrap();
    }
    let path = directory.path().display().to_string();
    let rows = rows(&path);
    // client-go shares the plugins of equal stanzas.
    let numbered: Vec<(usize, Row)> = rows.into_iter().enumerate().collect();
    let question = |(number, row): &(usize, Row)| {
        let mut stanza = json!({"command": PORTCULLIS, "apiVersion": V1, "interactiveMode": "IfAvailable",
            "args": ["credential", "--flow=token-file", format!("--token-file={path}/token")], "env": []});
        stanza.as_object_mut().unwrap().extend(row.stanza.as_object().unwrap().clone());
        stanza["env"].as_array_mut().unwrap().push(json!({"name": "ROW", "value": number.to_string()}));
        stanza
    };
    let show = |(_, row): &(usize, Row)| row.name.to_owned();
    program.compare("stanzas", &numbered, question, show, |(_, row), answer| {
        let Row { tokens, error, printed, .. } = row;
        let sent: Vec<String> = tokens.iter().map(|token| format!("Bearer {token}")).collect();
        let text = |field: &str| answer[field].as_str().unwrap().to_owned();
        let is_sent = answer["authorizations"] == json!(sent);
        let is_told = text("error").contains(error) && text("error").is_empty() == error.is_empty();
        let is_printed = text("printed").contains(printed) && !text("printed").contains("panicked");
        if is_sent && is_told && is_printed { Ok("as the row says") } else { Err(answer.to_string()) }
    });
}
