//! The PodIdentity extension, compared with Go's `encoding/asn1`, which defines its form: extensions that Go makes, and damage.
//!
//! We may refuse what Go accepts, for the reasons in `STRICTER`; never the reverse. What both accept has the same parts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis::internal::PodIdentity;
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::pki::{seq, tlv};
use testkit::random::{Rng, inputs, seed};

/// Ends of our errors about extensions that Go accepts, and the reasons.
const STRICTER: &[(&str, &str)] = &[
    ("it has more elements than are known", "Go ignores them"),
    ("there is data after it", "Go leaves it to its caller"),
];

fn ours(content: &[u8]) -> Result<Value, String> {
    let of = PodIdentity::parse(content).map_err(|error| error.to_string())?;
    Ok(json!([
        of.namespace,
        of.namespace_uid,
        of.service_account_name,
        of.service_account_uid,
        of.pod_name,
        of.pod_uid,
        of.node_name,
        of.node_uid,
    ]))
}

/// Extensions that Go makes; ours must encode them in the same way.
fn made(go: &GoProgram) -> Vec<Vec<u8>> {
    let text = String::from_utf8(go.run(&["-make"], b"")).unwrap();
    let content = |line: &str| {
        let question: Value = serde_json::from_str(line).unwrap();
        STANDARD.decode(question["content"].as_str().unwrap()).unwrap()
    };
    text.lines().map(content).collect()
}

fn damaged(rng: &mut Rng, mut content: Vec<u8>) -> Vec<u8> {
    for _ in 0..=rng.below(2) {
        let at = rng.below(content.len());
        match rng.below(5) {
            0 => content[at] ^= 1 << rng.below(8),
            1 => content[at] = rng.byte(),
            2 => content[at] = *rng.pick(&[0x00, 0x0c, 0x13, 0x1f, 0x30, 0x31, 0x7f, 0x80, 0x81, 0xa0, 0xff]),
            3 => drop(content.remove(at)),
            _ => content.insert(at, rng.byte()),
        }
        if content.is_empty() {
            break;
        }
    }
    content
}

/// Sequences of elements with tags and texts by chance.
fn random(rng: &mut Rng) -> Vec<u8> {
    let mut elements = Vec::new();
    for number in 0..7 + rng.below(3) {
        let tag = match rng.below(12) {
            0 => rng.byte(),
            1 => 0x0c,
            _ => 0x80 | u8::try_from(number).unwrap(),
        };
        let text = *rng.pick(&["", "a", "web-0", "ü", "\u{0}", "a b"]);
        elements.push(match rng.below(20) {
            0 => tlv(tag, &[0xc3]),
            1 => tlv(tag, &tlv(0x0c, text.as_bytes())),
            _ => tlv(tag, text.as_bytes()),
        });
    }
    seq(&elements)
}

#[test]
fn pod_identities_are_read_as_by_go() {
    let Some(go) = GoProgram::build("podidentities") else { return };
    let mut rng = Rng(seed());
    let made = made(&go);
    for content in &made {
        let encoded = PodIdentity::parse(content).unwrap().to_der().unwrap();
        assert_eq!(encoded, *content);
    }
    let mut cases = made.clone();
    for index in 0..inputs(6000) {
        cases.push(damaged(&mut rng, made[index % made.len()].clone()));
        cases.push(random(&mut rng));
    }
    let encoded = |content: &Vec<u8>| STANDARD.encode(content);
    let question = |case: &Vec<u8>| json!({"content": encoded(case)});
    let words = go.compare("extensions", &cases, question, encoded, |case, theirs| {
        match (ours(case), theirs["parse"] == "") {
            (Ok(ours), true) if ours == theirs["parts"] && theirs["rest"] == 0 => Ok("both accept"),
            (Ok(ours), _) => Err(format!("ours: {ours}\nGo: {theirs}")),
            (Err(_), false) => Ok("both refuse"),
            (Err(error), true) => match STRICTER.iter().find(|(end, _)| error.ends_with(end)) {
                Some((end, _)) => Ok(*end),
                None => Err(format!("only Go accepts: {error}")),
            },
        }
    });
    assert!(words.count("both accept") > 100 && words.count("both refuse") > 100, "{words:?}");
}
