//! Logs compared with Go's `golang.org/x/mod/sumdb/{tlog,note}`: Go reads what is written here, computes root, tiles and
//! proofs from the entries alone, and checks the proofs; notes that Go signs are read here.
#![expect(clippy::unwrap_used, reason = "a test: a panic is a failed test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_tlog::LogDirectory;
use portcullis_tlog::merkle::{Hash, prove_consistency, prove_inclusion};
use portcullis_tlog::note::{NoteError, NoteSigner, Verifier};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, seed};

fn texts(hashes: &[Hash]) -> Value {
    hashes.iter().map(|hash| STANDARD.encode(hash)).collect()
}

/// The tiles with hashes below a directory, but for the partial ones that a later one replaces.
fn tiles(directory: &Path, size: u64) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for level in 0..8_u32 {
        let count = size >> (8 * level);
        for index in 0..count.div_ceil(256) {
            let width = (count - index * 256).min(256);
            let partial = if width < 256 { format!(".p/{width}") } else { String::new() };
            let name = format!("tile/{level}/{index:03}{partial}");
            found.insert(name.clone(), STANDARD.encode(std::fs::read(directory.join(&name)).unwrap()));
        }
    }
    found
}

#[test]
fn go_reads_the_logs_that_are_written_here() {
    let Some(go) = GoProgram::build("tlog") else { return };
    let mut rng = Rng(seed());
    let key = NoteSigner::from_pem("example.com/log", NoteSigner::generate().unwrap().as_bytes()).unwrap();
    let sizes = [1, 2, 3, 7, 8, 255, 256, 257, 511, 512, 700]
        .into_iter()
        .chain((0..20).map(|_| rng.below(1_500) + 1));
    let sizes: Vec<u64> = sizes.map(|size| u64::try_from(size).unwrap()).collect();
    let (mut directories, mut questions) = (Vec::new(), Vec::new());
    for size in sizes {
        let directory = tempfile::tempdir().unwrap();
        let log = LogDirectory::create(directory.path(), &key).unwrap();
        let mut written = 0;
        while written < size {
            let count = u64::try_from(rng.below(300) + 1).unwrap().min(size - written);
            let entries: Vec<Vec<u8>> = (0..count)
                .map(|_| {
                    let length = rng.below(40);
                    (0..length).map(|_| u8::try_from(rng.below(256)).unwrap()).collect()
                })
                .collect();
            log.open(&key, Duration::ZERO).unwrap().append(&entries).unwrap();
            written += count;
        }
        let tree = log.tree(size);
        let places: Vec<u64> =
            (0..12).map(|_| u64::try_from(rng.below(usize::try_from(size).unwrap())).unwrap()).collect();
        let trees: Vec<u64> = places.iter().map(|place| place + 1).collect();
        let records: Vec<Value> =
            places.iter().map(|place| texts(&prove_inclusion(&tree, *place, size).unwrap())).collect();
        let proofs: Vec<Value> =
            trees.iter().map(|old| texts(&prove_consistency(&tree, *old, size).unwrap())).collect();
        questions.push(json!({"directory": directory.path(), "verifier": key.verifier().to_string(),
            "records": places, "trees": trees, "recordProofs": records, "treeProofs": proofs}));
        directories.push((directory, size));
    }
    for ((question, answer), (directory, size)) in questions.iter().zip(go.ask(&questions)).zip(&directories)
    {
        assert_eq!((&answer["error"], &answer["size"]), (&json!(""), &json!(size)));
        assert_eq!(answer["tiles"], json!(tiles(directory.path(), *size)), "{size}");
        assert_eq!(answer["recordProofs"], question["recordProofs"], "{size}");
        assert_eq!(answer["treeProofs"], question["treeProofs"], "{size}");
        assert!(answer["refused"].as_array().unwrap().iter().all(|error| error == ""), "{answer}");
        let root = LogDirectory::new(directory.path()).checkpoint(key.verifier()).unwrap().root;
        assert_eq!(answer["root"], STANDARD.encode(root));
    }
}

#[test]
fn notes_that_go_signs_are_read_here() {
    let Some(go) = GoProgram::build("tlog") else { return };
    let texts =
        ["a\n", "a\n\nb\n", "example.com/go\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n", "ä\n\n\n"];
    let questions: Vec<Value> = texts.iter().map(|text| json!({"text": text})).collect();
    for (text, answer) in texts.iter().zip(go.ask(&questions)) {
        let verifier = Verifier::parse(answer["key"].as_str().unwrap()).unwrap();
        let note = answer["note"].as_str().unwrap();
        assert_eq!(verifier.open(note.as_bytes()), Ok(*text));
        let other = note.replacen(text, "another\n", 1);
        assert_eq!(
            verifier.open(other.as_bytes()),
            Err(NoteError::WrongSignature("example.com/go".to_owned()))
        );
    }
}
