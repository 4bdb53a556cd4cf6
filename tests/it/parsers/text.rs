//! Texts with PEM: complete blocks with damaged lines, and parts of blocks in random order.

use testkit::random::Rng;

const PARTS: &[&str] = &[
    "-----BEGIN A-----\n",
    "-----BEGIN A-----\n",
    "-----END A-----\n",
    "-----END A-----\n",
    "\n-----END A-----",
    "-----BEGIN ",
    "\n-----END ",
    "-----END ",
    "-----",
    "-----\n",
    "A",
    "B",
    "\n",
    "\n",
    "\r\n",
    "\r",
    " ",
    "\t",
    "\x0c",
    "\x0b",
    "\0",
    "-",
    ":",
    "x: y\n",
    "x:\n",
    ": -----BEGIN \n",
    "QUFB",
    "QUFB\n",
    "QQ==\n",
    "QQ=",
    "Q",
    "=",
    "+/",
    "-_",
    "\u{85}",
    "\u{a0}",
    "\u{feff}",
    "é",
];
const ENDS: &[&str] =
    &["\n", "\n", "\n", "\r\n", " \n", "\t\r\n", "\r\r\n", "\r", "\x0c\n", "\x0b\n", "\0\n", "", "\n\n"];
const TYPES: &[&str] =
    &["A", "A", "A", "B", "", "A:", " A", "CERTIFICATE", "CERTIFICATE REQUEST", "-----BEGIN A", "-----"];
const HEADERS: &[&str] = &[
    "x: y",
    "x:",
    ":",
    "Proc-Type: 4,ENCRYPTED",
    "x: -----BEGIN ",
    "-----END z:",
    "-----BEGIN A:-----",
    " x : y ",
];
const CONTENT: &[&str] = &[
    "QUFB", "QQ==", "QQ=", "=", "QR==", "QUFBQUFB", "QU FB", "Q-FB", "", "\tQUFB", "QU\rFB", "x: y", "\u{a0}",
];

pub(super) fn any(rng: &mut Rng, corpora: &[Vec<u8>]) -> Vec<u8> {
    let mut text = match rng.below(4) {
        0 => super::soup(rng, PARTS, 24),
        1 => rng.pick(corpora).clone(),
        _ => (0..=rng.below(3)).flat_map(|_| block(rng)).collect(),
    };
    if !rng.one_in(3) {
        damage(rng, &mut text);
    }
    text
}

/// A block with occasional unusual lines.
fn block(rng: &mut Rng) -> Vec<u8> {
    let kind = *rng.pick(TYPES);
    let mut text = String::new();
    let push = |rng: &mut Rng, text: &mut String, line: &str| {
        text.push_str(line);
        text.push_str(if rng.one_in(4) { *rng.pick(ENDS) } else { "\n" });
    };
    if rng.one_in(4) {
        let before = *rng.pick(PARTS);
        push(rng, &mut text, before);
    }
    push(rng, &mut text, &format!("-----BEGIN {kind}-----"));
    if rng.one_in(3) {
        for _ in 0..=rng.below(2) {
            let header = *rng.pick(HEADERS);
            push(rng, &mut text, header);
        }
    }
    if rng.one_in(3) {
        push(rng, &mut text, "");
    }
    for _ in 0..rng.below(4) {
        let content = if rng.one_in(3) { *rng.pick(CONTENT) } else { "QUFB" };
        push(rng, &mut text, content);
    }
    let kind = if rng.one_in(8) { *rng.pick(TYPES) } else { kind };
    push(rng, &mut text, &format!("-----END {kind}-----"));
    text.into_bytes()
}

/// Removes, adds, duplicates or moves bytes and parts.
pub(super) fn damage(rng: &mut Rng, text: &mut Vec<u8>) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(text.len() + 1);
        let to = (at + rng.below(12)).min(text.len());
        match rng.below(6) {
            0 => drop(text.splice(at..at, rng.pick(PARTS).bytes())),
            1 => drop(text.drain(at..to)),
            2 => {
                let copy = text[at..to].to_vec();
                let into = rng.below(text.len() + 1);
                text.splice(into..into, copy);
            }
            3 if at < text.len() => text[at] = rng.byte(),
            4 if at < text.len() => text[at] ^= 1 << rng.below(8),
            _ => {
                // After the end of a line.
                let ends: Vec<_> = (0..text.len()).filter(|at| text[*at] == b'\n').collect();
                if !ends.is_empty() {
                    let at = *rng.pick(&ends);
                    text.splice(at..at, rng.pick(&[" ", "\t", "\r", "\x0c", "\x0b", ":", "-", "="]).bytes());
                }
            }
        }
    }
}
