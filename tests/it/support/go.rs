//! Programs of `tests/backend/`, which judge by Go's own code: a line of JSON to each, an answer on a line of its own.

#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A program that was built.
#[derive(Debug)]
pub struct GoProgram(PathBuf);

impl GoProgram {
    /// Builds `tests/backend/NAME`. Without Go the test is skipped, and says so.
    pub fn build(name: &str) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("go-{name}"));
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).arg(format!("./{name}"));
        match build.current_dir(root.join("tests/backend")).status() {
            Ok(status) => {
                assert!(status.success(), "tests/backend/{name} does not build");
                Some(Self(program))
            }
            Err(error) => {
                let required = std::env::var_os("PORTCULLIS_REQUIRE_TWIN").is_some_and(|value| value == "1");
                assert!(!required, "Go is required here: {error}");
                eprintln!(
                    "SKIPPED: nothing is compared with tests/backend/{name}, because there is no `go` here"
                );
                None
            }
        }
    }

    /// One answer to each question, in their order.
    pub fn ask(&self, questions: &[Value]) -> Vec<Value> {
        let mut child = Command::new(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the Go program starts");
        let mut stdin = BufWriter::new(child.stdin.take().unwrap());
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // The program answers while it is asked.
        let answers: Vec<Value> = std::thread::scope(|scope| {
            scope.spawn(move || {
                for question in questions {
                    writeln!(stdin, "{question}").expect("the Go program reads");
                }
                stdin.flush().expect("the Go program reads");
            });
            stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
        });
        assert!(child.wait().unwrap().success());
        assert_eq!(answers.len(), questions.len());
        answers
    }

    /// What it prints when it is run with one argument.
    pub fn run(&self, argument: &str) -> Vec<u8> {
        let output = Command::new(&self.0).arg(argument).output().expect("the Go program runs");
        assert!(output.status.success());
        output.stdout
    }
}

/// The seed of random inputs; `PORTCULLIS_SEED` sets another.
pub fn seed() -> u64 {
    std::env::var("PORTCULLIS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// How many random inputs of a kind to compare; `PORTCULLIS_INPUTS` sets another number, for a long run.
pub fn inputs(usual: usize) -> usize {
    std::env::var("PORTCULLIS_INPUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// `SplitMix64`: the same inputs for the same seed.
#[derive(Debug)]
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

    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    pub fn shuffled<T>(&mut self, mut list: Vec<T>) -> Vec<T> {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
        list
    }

    pub fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
