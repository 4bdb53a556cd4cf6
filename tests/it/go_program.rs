//! Programs in `tests/backend` that judge by Go's own code: one question per line of JSON, one answer per line.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A program that is built.
pub struct GoProgram(PathBuf);

impl GoProgram {
    /// Builds the program in `tests/backend/NAME`; `None` without Go.
    pub fn build(name: &str) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("go-{name}"));
        let mut build = Command::new("go");
        build
            .args(["build", "-o"])
            .arg(&program)
            .arg(format!("./{name}"))
            .current_dir(root.join("tests/backend"));
        match build.status() {
            Ok(status) => {
                assert!(status.success(), "tests/backend/{name} does not build");
                Some(Self(program))
            }
            Err(error) => {
                assert!(
                    std::env::var_os("PORTCULLIS_REQUIRE_TWIN").is_none_or(|value| value != "1"),
                    "Go is required here: {error}"
                );
                eprintln!("SKIPPED: nothing is compared with {name}, because there is no `go` here");
                None
            }
        }
    }

    /// Its answers to these questions.
    pub fn ask(&self, questions: &[Value]) -> Vec<Value> {
        let mut child = Command::new(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the Go program starts");
        let mut stdin = child.stdin.take().unwrap();
        let lines: Vec<String> = questions.iter().map(Value::to_string).collect();
        let writer = std::thread::spawn(move || {
            for line in lines {
                writeln!(stdin, "{line}").expect("the Go program reads");
            }
        });
        let answers: Vec<Value> = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        writer.join().unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(answers.len(), questions.len());
        answers
    }
}

/// The seed of random inputs, and how many there are to be: `PORTCULLIS_SEED` and `PORTCULLIS_ROUNDS`.
pub fn seed_and_rounds(rounds: usize) -> (u64, usize) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let rounds = number("PORTCULLIS_ROUNDS").map_or(rounds, |rounds| usize::try_from(rounds).unwrap());
    (number("PORTCULLIS_SEED").unwrap_or(1), rounds)
}

/// `SplitMix64`: the same inputs for the same seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}
