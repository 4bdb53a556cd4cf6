//! Programs of `tests/backend/`, which judge by Go's own code: a line of JSON to each, an answer on a line of its own.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{paths, real};

/// A program that was built.
#[derive(Debug)]
pub struct GoProgram(PathBuf);

impl GoProgram {
    /// Builds `tests/backend/NAME`. Without Go the test is skipped, and says so.
    pub fn build(name: &str) -> Option<Self> {
        let program = paths::temporary_dir().join(format!("go-{name}"));
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).arg(format!("./{name}"));
        match build.current_dir(paths::go_module()).status() {
            Ok(status) => {
                assert!(status.success(), "tests/backend/{name} does not build");
                Some(Self(program))
            }
            Err(error) => {
                assert!(!real::is_required(), "Go is required here: {error}");
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
        // The program answers while it reads.
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

    /// Its output when it is run with these arguments and this input.
    pub fn run(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut command = Command::new(&self.0);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the Go program starts");
        // Dropped at the end of the statement, which closes it.
        child.stdin.take().unwrap().write_all(input).expect("the Go program reads");
        let output = child.wait_with_output().expect("the Go program runs");
        assert!(output.status.success());
        output.stdout
    }
}
