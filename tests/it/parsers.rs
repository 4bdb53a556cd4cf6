//! Parsers of client input, compared with Go's packages, where a difference could let a client pass for another one:
//! PEM, certificate requests, extra keys in header names, request targets, URLs.
//!
//! Inputs are random: fragments on which parsers typically differ, and the damaged corpus of `fuzz/`. Each comparison
//! lists the inputs that only we refuse; we may never be more lenient. `PORTCULLIS_SEED` sets another seed and
//! `PORTCULLIS_INPUTS` the number of inputs of each kind.

mod extra;
mod requests;
mod target;
mod text;
mod url;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::comparison::Compared;
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

/// Compares our parser with Go's on random inputs, each of which must give one of the `expected` results at least once.
fn compare<I: AsRef<[u8]>>(
    kind: &str,
    usual: usize,
    mut make: impl FnMut(&mut Rng) -> I,
    question: impl Fn(&I) -> Value,
    judge: impl Fn(&I, &Value) -> Compared,
    expected: &[&str],
) {
    let Some(program) = GoProgram::build("parsers") else { return };
    let mut rng = Rng(seed());
    let all: Vec<I> = (0..inputs(usual)).map(|_| make(&mut rng)).collect();
    let of_kind = |input: &I| {
        let mut question = question(input);
        question["kind"] = kind.into();
        question
    };
    let show = |input: &I| input.as_ref().escape_ascii().to_string();
    program.compare(kind, &all, of_kind, show, judge).occurred(expected);
}

/// Decodes base64; empty for null.
fn octets(value: &Value) -> Vec<u8> {
    value.as_str().map(|text| STANDARD.decode(text).unwrap()).unwrap_or_default()
}

fn lists(value: &Value) -> Vec<Vec<u8>> {
    value.as_array().map(|list| list.iter().map(octets).collect()).unwrap_or_default()
}

/// The files of a directory of `fuzz/corpus`.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Concatenates random words.
fn soup(rng: &mut Rng, words: &[&str], most: usize) -> Vec<u8> {
    (0..rng.below(most)).flat_map(|_| rng.pick(words).as_bytes().to_vec()).collect()
}

fn whole(input: &[u8]) -> Value {
    json!({"data": STANDARD.encode(input)})
}

#[test]
fn pem_blocks_are_those_that_go_finds() {
    use portcullis::internal::{PemBlock, decode_pem, is_bare_pem};
    let corpora = [corpus("pem"), corpus("pem_bundle")].concat();
    compare(
        "pem",
        20_000,
        |rng| text::any(rng, &corpora),
        |input| whole(input),
        |input, answer| {
            let mut rest = input.as_slice();
            let mut found = Vec::new();
            while let Some((block, after)) = decode_pem(rest) {
                found.push((block, after.len()));
                rest = after;
            }
            let expected = answer.as_array().unwrap().iter().map(|block| {
                let headers = block["headers"].as_bool().unwrap();
                let (kind, content) = (octets(&block["type"]), octets(&block["bytes"]));
                (
                    PemBlock { kind, headers, content },
                    usize::try_from(block["rest"].as_u64().unwrap()).unwrap(),
                )
            });
            let expected: Vec<_> = expected.collect();
            if found != expected {
                return Err(format!("ours {found:?}, Go {expected:?}"));
            }
            for (block, _) in &found {
                if found.len() > 1 || block.headers {
                    assert!(!is_bare_pem(input, &block.kind), "{}", input.escape_ascii());
                }
            }
            Ok(match found.as_slice() {
                [] => "none",
                [(block, _)] if is_bare_pem(input, &block.kind) => "bare",
                [(block, _)] if block.headers => "headers",
                [_] => "one",
                _ => "several",
            })
        },
        &["none", "bare", "headers", "one", "several"],
    );
}

#[test]
fn certificate_requests_are_parsed_as_by_go() {
    let known = requests::known();
    compare(
        "csr",
        4_000,
        |rng| requests::any(rng, &known),
        |input| whole(input),
        |input, answer| requests::judge(input, answer),
        &["as Go", "no PEM", "malformed", "signature", "stricter: not bare", "stricter: weak"],
    );
}

#[test]
fn extra_keys_are_decoded_as_by_the_api_server() {
    compare(
        "extra",
        10_000,
        extra::any,
        |input| whole(input),
        |input, answer| extra::judge(input, answer),
        &["as Go", "no header name", "stricter: not UTF-8"],
    );
}

#[test]
fn targets_are_parsed_as_by_the_api_server() {
    compare(
        "target",
        20_000,
        target::any,
        |input| json!({"method": input.method, "data": STANDARD.encode(input.forwarded())}),
        target::judge,
        &["resource", "other path", "no request info", "refused", "no path", "stricter: characters"],
    );
}

#[test]
fn urls_are_parsed_and_written_as_by_go() {
    compare(
        "url",
        20_000,
        url::any,
        |input| whole(input),
        |input, answer| url::judge(input, answer),
        &["as Go", "refused", "not UTF-8"],
    );
}
