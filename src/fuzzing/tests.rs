//! Runs the properties on the committed corpus and on random structured inputs.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

type FuzzTarget = (&'static str, fn(&[u8]));

const TARGETS: [FuzzTarget; 17] = [
    ("cel_expression", cel_expression),
    ("cel_values", cel_values),
    ("credentials", credentials),
    ("crls", crls),
    ("csr", csr),
    ("extra_key", extra_key),
    ("forwarded_identity", forwarded_identity),
    ("kubeconfig", kubeconfig),
    ("pem", pem),
    ("pem_bundle", pem_bundle),
    ("proxy_header", proxy_header),
    ("request_info", request_info),
    ("session_stream", session_stream),
    ("session_text", session_text),
    ("token_csv", token_csv),
    ("wellformed", wellformed),
    ("x509", x509),
];

/// The corpus files of a target.
fn corpus(target: &str) -> Vec<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let read = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    read.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn the_corpus_holds() {
    for (target, property) in TARGETS {
        let files = corpus(target);
        assert!(files.len() >= 5, "{target}");
        for file in files {
            let data = std::fs::read(&file).unwrap();
            let held = std::panic::catch_unwind(|| property(&data));
            assert!(held.is_ok(), "{}", file.display());
        }
    }
}

/// A text of tokens that the parser knows, separated by `|` here, and of a few random ones.
fn words(known: &'static str, max: usize) -> impl Strategy<Value = String> {
    let word = prop_oneof![
        8 => prop::sample::select(known.split('|').collect::<Vec<_>>()).prop_map(str::to_owned),
        1 => "[ -~]{0,3}",
        1 => "\\PC{0,2}",
    ];
    prop::collection::vec(word, 0..max).prop_map(|words| words.concat())
}

const PATH: &str = "/api|/apis|/v1|/apps|/watch|/proxy|/namespaces|/namespaces/o|/status|/finalize|/pods|/exec|/x|\
    /é|/|/.|/..|%2F|%2e|%25|%|%ff";
const QUERY: &str = "?|&|&|=|;|watch=|1|0|false|limit=|timeout=|timeoutSeconds=|1h|5s|.5|-|9223372036854775807ns|\
    fieldSelector=|labelSelector=|metadata.name|%3D|%3d|!|%2C|%5C|%|+|in|notin|(|)|a|b|>|<|..|/";
const NAMES: &str = "X-Remote-|x_remote_|x.Remote-|Impersonate-|impersonate_|User|Uid|Group|Extra-|K|%4b|Connection|\
    Upgrade|Keep-Alive|TE|Authorization|X-Auth-Name|Sec-WebSocket-Protocol|Audit-Id|X-Forwarded-For|\
    Accept|-|_|.";
const VALUES: &str = "alice|system:masters|,|, | |\t|close|Upgrade|websocket|X-Remote-User|x-remote-group|\
    X-Remote-Extra-K|audit-id|base64url.bearer.authorization.k8s.io.|dG9r|Bearer |trailers|é";
const IDENTITY: &str = "\nuser |\nuid |\ngroup |\nextra |=|a|B|/|%|%4b| |\t|␊|\r|\0|\u{7f}|é|system:masters";
const CSV: &str = "a|b|,|,|,|\"|\"\"|\n|\r\n|\r| |é|t,u,i\n|\"g,h\"";
const PEM: &str = "-----BEGIN A-----\n|-----BEGIN A-----\n|-----END A-----\n|-----END A-----\n|-----BEGIN |-----END |-----|A|\n|\n\
    |\r|\r\n| |\t|:|x: y\n|QUFB|QUFB\n|QQ==|=|\u{c}|\0|é";
const PROXY_LINE: &str = "TCP4 |TCP6 |UNKNOWN|192.0.2.1 10.0.0.1 |2001:db8::1 ::1 |::ffff:1.2.3.4 |1 2|443 |65535 |0|\r\n|\r\n|\n|\r| ";
const TERMINAL: &str = "\u{1b}|\u{1b}[|\u{1b}]|\u{1b}P|\u{1b}_|\u{1b}(|\u{1b}\\|\u{9b}|\u{9d}|\u{9c}|\u{90}|0|1|25|47|1049|6|2004|52|?|>|!|$|;|:|h|l|m|n|c|J|K|H|T|r\
    |q|t|i|s|u|p|\u{7}|\u{18}|\u{5}|\r|\n|\r\n|\t|\u{8}|\u{e}|\u{202e}|a|é";
const EXPRESSION: &str = "object|.spec|.list|.names|.?a|[0]|['a']|(|)|(|)|[|]|{|}|'a': |, |, |1|2.5|3u|-1|'a'|b'a'|true|null| + | - | * |\
    \n / | % | == | != | < | in | && | || | ? | : |!|-|.all(x, |.map(x, |.filter(x, |.exists_one(x, |x|x|.sortBy(x, |.size()|\
    .sort()|.reverse()|.flatten()|.join(',')|dyn(|int(|string(|type(|has(|lists.range(3)|optional.of(|.optMap(x, |.or(|\
    .matches('a+')|.split('')|.replace('a', |quantity('1')|ip('::1')|duration('1h')|authorizer.path('/a').check('get')|.allowed()";
const JSON: &str = "{|}|[|]|,|,|:|\"a\"|\"b\"|\"\"|1|-1|0.5|1e300|9223372036854775807|true|false|null|\"\\u00e9\"|\"10.0.0.1\"| ";
const REQUEST: &str = "a|:443|/|%zz|%41|?|@|[::1]|\nHost: |\nHost: a|\nTransfer-Encoding: |chunked|\nExpect: |\
    100-continue|,| HTTP/1.1| HTTP/1.0| HTTP/2.0";

/// Header lines.
fn header() -> impl Strategy<Value = String> {
    let line = (words(NAMES, 4), words(VALUES, 5)).prop_map(|(name, value)| format!("{name}: {value}\n"));
    prop::collection::vec(line, 0..8).prop_map(|lines| lines.concat())
}

/// A corpus file with a few changed bytes.
fn damaged(target: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let files: Vec<Vec<u8>> = corpus(target).iter().map(|file| std::fs::read(file).unwrap()).collect();
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (prop::sample::select(files), damage).prop_map(|(mut data, damage)| {
        for (at, byte) in damage {
            if !data.is_empty() {
                let at = at.index(data.len());
                data[at] = byte;
            }
        }
        data
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn requests_are_read(
        method in prop::sample::select(vec!["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "A"]),
        prefix in prop::sample::select(vec!["", "/", "/api/v1", "/apis/apps/v1", "/api/v1/namespaces/o"]),
        path in words(PATH, 7),
        query in words(QUERY, 12),
    ) {
        request_info(format!("{method} {prefix}{path}{query}").as_bytes());
    }

    #[test]
    fn expressions_end(text in words(EXPRESSION, 14), json in words(JSON, 14)) {
        cel_expression(text.as_bytes());
        cel_values(json.as_bytes());
    }

    #[test]
    fn extra_keys_arrive(key in words("%|%4|4b|%2F|%25|+|K|k|%zz|%ff|é", 8), any: String) {
        extra_key(key.as_bytes());
        extra_key(any.as_bytes());
    }

    #[test]
    fn malformed_requests_are_refused(target in words(REQUEST, 8)) {
        wellformed(format!("GET {target}").as_bytes());
    }

    #[test]
    fn credentials_are_taken(header in header()) {
        credentials(header.as_bytes());
    }

    #[test]
    fn identities_are_forwarded(impersonate: bool, identity in words(IDENTITY, 12), header in header()) {
        let mode = if impersonate { "!" } else { "" };
        forwarded_identity(format!("{mode}user alice{identity}\n\n{header}").as_bytes());
    }

    #[test]
    fn token_files_are_read(text in words(CSV, 16)) {
        token_csv(text.as_bytes());
    }

    #[test]
    fn blocks_are_found(text in words(PEM, 20), data in damaged("pem")) {
        pem(text.as_bytes());
        pem(&data);
    }

    #[test]
    fn proxy_headers_are_read(line in words(PROXY_LINE, 9), data in damaged("proxy_header")) {
        proxy_header(format!("PROXY {line}").as_bytes());
        proxy_header(&data);
    }

    #[test]
    fn streams_of_sessions_are_decoded(data in damaged("session_stream"), random: Vec<u8>) {
        session_stream(&data);
        session_stream(&random);
    }

    #[test]
    fn text_of_sessions_is_harmless(size in "[a-p]", text in words(TERMINAL, 24)) {
        session_text(format!("{size}{text}").as_bytes());
    }

    #[test]
    fn bundles_are_read(data in damaged("pem_bundle")) {
        pem_bundle(&data);
    }

    #[test]
    fn certificate_requests_are_read(data in damaged("csr")) {
        csr(&data);
    }

    #[test]
    fn unsigned_certificates_are_rejected(data in damaged("x509")) {
        x509(&data);
    }

    #[test]
    fn unsigned_crls_are_refused(data in damaged("crls")) {
        crls(&data);
    }

    #[test]
    fn kubeconfigs_are_validated(data in damaged("kubeconfig")) {
        kubeconfig(&data);
    }
}
