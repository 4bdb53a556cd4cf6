//! Kubeconfigs as other tools write them, compared with client-go's loader: the same server, credential and roots, or refused by
//! both. Stricter only as listed here, and never more lenient. `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` change the seed and the
//! number of files.
// client-go: tools/clientcmd/loader.go, client_config.go; apiserver: pkg/util/webhook/webhook.go, LoadKubeconfig

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis::internal::{BackendSettings, BearerToken, CertificateKeyPair, InputReader, resolve};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};
use testkit::{Pki, flags};

/// Values of another type, or none. Not those words that are booleans in YAML 1.1 alone, such as `yes` and `n`: here they are texts.
const ODD: &[&str] = &["null", "~", "", "5", "true", "[]", "{}", "\"\"", "1e3", "0x10", "2026-01-01", "'5'"];

struct Input {
    file: String,
    text: String,
}

/// Base64 as tools of other languages write it.
fn data(rng: &mut Rng, pem: &str, indent: usize) -> String {
    let plain = STANDARD.encode(pem);
    let lines: Vec<String> =
        plain.as_bytes().chunks(76).map(|line| String::from_utf8(line.to_vec()).unwrap()).collect();
    let pad = format!("\n{}", " ".repeat(indent + 2));
    match rng.below(10) {
        0 => format!("|{pad}{}", lines.join(&pad)),
        1 => format!(">-{pad}{}", lines.join(&pad)),
        2 => format!("\"{}\\n\"", lines.join("\\n")),
        3 => format!("\"{}\"", lines.join("\\r\\n")),
        4 => format!("!!binary {plain}"),
        5 => format!("'{plain}'"),
        6 => format!("{} ", &plain[..plain.len() - 4]),
        7 => format!("|-{pad}{}", lines.join(&format!(" {pad}"))),
        _ => plain,
    }
}

fn field(rng: &mut Rng, name: &str, value: &str) -> String {
    let value = if rng.one_in(25) { rng.pick(ODD).to_string() } else { value.to_owned() };
    let space = if value.is_empty() { "" } else { " " };
    format!("{name}:{space}{value}")
}

/// Fields, of which some are absent, repeated, unknown, or in another order.
fn fields(rng: &mut Rng, indent: usize, given: Vec<String>) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in given {
        if rng.one_in(40) {
            continue;
        }
        if rng.one_in(60) {
            lines.push(line.clone());
        }
        lines.push(line);
        if rng.one_in(30) {
            lines.push(
                rng.pick(&[
                    "unknown: 5",
                    "# a comment",
                    "extensions: null",
                    "Server: https://other",
                    "x: {y: [1]}",
                ])
                .to_string(),
            );
        }
    }
    let pad = " ".repeat(indent);
    lines.iter().flat_map(|line| [&pad, line.as_str(), "\n"]).collect()
}

/// The first line of an item begins with a dash.
fn item(text: &str, indent: usize) -> String {
    let pad = " ".repeat(indent);
    text.strip_prefix(&format!("{pad}  ")).map_or_else(|| text.to_owned(), |rest| format!("{pad}- {rest}"))
}

fn document(rng: &mut Rng, pki: &Pki, chain: &str, key: &str) -> String {
    let ca = pki.servers.cert_pem();
    let mut cluster = vec![field(rng, "server", "https://127.0.0.1:6443")];
    if rng.one_in(3) {
        cluster.push(field(rng, "certificate-authority", "servers-ca.crt"));
    }
    if !rng.one_in(3) {
        cluster.push(format!("certificate-authority-data: {}", data(rng, &ca, 4)));
    }
    if rng.one_in(4) {
        cluster.push(field(rng, "tls-server-name", "api.test"));
    }
    let mut user = Vec::new();
    if !rng.one_in(3) {
        user.push(field(rng, "token", "a-token"));
    }
    if rng.one_in(6) {
        user.push(field(rng, "tokenFile", "token"));
    }
    if rng.one_in(2) {
        user.push(format!("client-certificate-data: {}", data(rng, chain, 4)));
        user.push(format!("client-key-data: {}", data(rng, key, 4)));
    }
    let block = |rng: &mut Rng, list: &str, name: &str, kind: &str, inner: Vec<String>| {
        let inner = fields(rng, 4, inner);
        let body =
            if inner.is_empty() && rng.one_in(2) { String::new() } else { format!("  {kind}:\n{inner}") };
        let head = field(rng, "name", name);
        let entry = item(&format!("  {head}\n{body}"), 0);
        format!("{list}:\n{entry}")
    };
    let clusters = block(rng, "clusters", "c", "cluster", cluster);
    let users = block(rng, "users", "u", "user", user);
    let mut context = vec![field(rng, "cluster", "c"), field(rng, "user", "u")];
    if rng.one_in(4) {
        context.push(field(rng, "namespace", "ns"));
    }
    let contexts = block(rng, "contexts", "x", "context", context);
    let mut parts = vec![clusters, users, contexts, format!("{}\n", field(rng, "current-context", "x"))];
    if !rng.one_in(3) {
        parts.push(format!("{}\n", field(rng, "kind", "Config")));
        parts.push(format!("{}\n", field(rng, "apiVersion", "v1")));
    }
    if rng.one_in(3) {
        parts.push("preferences: {}\n".to_owned());
    }
    let parts = rng.shuffled(parts);
    let mut text = parts.concat();
    match rng.below(20) {
        0 => text = text.replace('\n', "\r\n"),
        1 => text = format!("---\n{text}"),
        2 => text = format!("# written by a tool\n\n{text}\n...\n"),
        3 => text = format!("\u{feff}{text}"),
        _ => {}
    }
    text
}

fn input(rng: &mut Rng, pki: &Pki, number: usize) -> Input {
    let front = pki.front.leaf().cn("gateway").issue();
    let text = document(rng, pki, &front.cert_pem(), &front.key_pem());
    let file = pki.write(&format!("{number}.kubeconfig"), &text).display().to_string();
    Input { file, text }
}

fn ours(pki: &Pki, file: &str) -> Result<BackendSettings, String> {
    let mut given = flags(pki, "127.0.0.1:6443".parse().unwrap());
    given.retain(|flag| !flag.starts_with("--backend-kubeconfig"));
    given.extend(["--identity=impersonate".to_owned(), format!("--backend-kubeconfig={file}")]);
    let resolved = resolve(&crate::gateway::parse(given), &mut InputReader::default());
    resolved
        .map(|resolved| resolved.settings.clusters[0].backend.clone())
        .map_err(|errors| errors.to_string())
}

/// What only the gateway refuses: a part of its error, and the reason.
const STRICTER: &[(&str, &str)] = &[
    ("the user has no credential", "the gateway must be mutually authenticated"),
    ("but no client-certificate", "client-go ignores half a credential"),
    ("but no client-key", "client-go ignores half a credential"),
    ("current-context is not set", "client-go connects to localhost, or to the only cluster"),
    ("not an https:// URL", "credentials would be sent in clear text"),
    ("of context \"x\" does not exist", "client-go connects without a credential, or to localhost"),
];

#[test]
fn kubeconfigs_are_read_as_by_client_go() {
    let Some(program) = GoProgram::build("kubeconfigs") else { return };
    let pki = Pki::new();
    pki.write("token", "from-a-file\n");
    pki.write("servers-ca.crt", pki.servers.cert_pem());
    let mut rng = Rng(seed());
    let cases: Vec<Input> = (0..inputs(1_500)).map(|number| input(&mut rng, &pki, number)).collect();
    let words = program.compare(
        "kubeconfigs",
        &cases,
        |case| json!({"file": case.file}),
        |case| case.text.clone(),
        |case, answer| judge(&ours(&pki, &case.file), answer),
    );
    words.occurred(&["read", "refused", "stricter"]);
    assert!(Path::new(&cases[0].file).is_file());
}

fn judge(ours: &Result<BackendSettings, String>, answer: &Value) -> Result<&'static str, String> {
    let theirs = answer["error"].as_str().unwrap();
    match ours {
        Err(_) if !theirs.is_empty() => Ok("refused"),
        // D-kubeconfig-both
        Ok(_) if theirs.contains("are both specified for") => Ok("both"),
        Err(error) if STRICTER.iter().any(|(part, _)| error.contains(part)) => Ok("stricter"),
        Err(error) => Err(format!("ours: {error}; theirs: {answer}")),
        Ok(ours) => {
            let server = format!("https://{}", ours.endpoints[0].address);
            let certificates =
                ours.client_certificate.as_ref().map_or(0, |pair| CertificateKeyPair::chain(pair).len());
            let found = json!({
                "error": "", "server": server, "token": ours.bearer_token.as_ref().map_or("", BearerToken::expose),
                "certificates": certificates, "hasRoots": answer["hasRoots"], "serverName": answer["serverName"],
            });
            if found == *answer { Ok("read") } else { Err(format!("ours: {found}; theirs: {answer}")) }
        }
    }
}
