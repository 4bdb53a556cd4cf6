//! The programs of `tests/go/`, which run Go's own code: each line of input is a JSON question, each line of output the
//! answer.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use crate::{paths, real};

/// A built program.
#[derive(Debug)]
pub struct GoProgram(PathBuf);

impl GoProgram {
    /// Builds `tests/go/NAME`, once in a process. Without Go, prints that the test is skipped and returns `None`.
    pub fn build(name: &str) -> Option<Self> {
        Self::build_with(name, None)
    }

    /// As [`Self::build`], with the modules of `tests/go/releases/RELEASE.mod` instead of those of `tests/go/go.mod`.
    pub fn build_of(name: &str, release: &str) -> Option<Self> {
        Self::build_with(name, Some(release))
    }

    fn build_with(name: &str, release: Option<&str>) -> Option<Self> {
        static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
        // A test that fails to build another program has poisoned no entry.
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        let file = release.map_or_else(|| name.to_owned(), |release| format!("{name}-{release}"));
        if let Some(program) = built.get(&file) {
            return Some(Self(program.clone()));
        }
        let program = Self::compile(name, release, &file)?;
        built.insert(file, program.clone());
        Some(Self(program))
    }

    fn compile(name: &str, release: Option<&str>, file: &str) -> Option<PathBuf> {
        // `.ci/run` builds all programs in advance, with the same flags into the same directory.
        let directory = paths::temporary_dir().join("go");
        std::fs::create_dir_all(&directory).unwrap();
        let program = directory.join(file);
        // Another test program may run the program that this one would replace.
        let lock = File::create(directory.join(format!("{file}.lock"))).unwrap();
        lock.lock().unwrap();
        let mut build = Command::new("go");
        // Builds also in a checkout of another owner, below another module.
        build.args(["build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w"]);
        if let Some(release) = release {
            let modules = paths::go_module().join("releases").join(format!("{release}.mod"));
            build.arg(format!("-modfile={}", modules.display()));
        }
        build.arg("-o").arg(&program).arg(".").env("CGO_ENABLED", "0").env("GOWORK", "off");
        let started = (!program.is_file()).then(Instant::now);
        if started.is_some() {
            real::note(&format!(
                "building tests/go/{file} with Go (once; the first takes minutes, others seconds)"
            ));
        }
        // A few programs are modules of their own.
        match build.current_dir(paths::go_module().join(name)).status() {
            Ok(status) => {
                assert!(status.success(), "tests/go/{file} does not build");
                if let Some(started) = started {
                    real::note(&format!("tests/go/{file} is built ({} s)", started.elapsed().as_secs()));
                }
                Some(program)
            }
            Err(error) => {
                assert!(!real::is_required(), "Go is required here: {error}");
                eprintln!("SKIPPED: nothing is compared with tests/go/{file}, because there is no `go` here");
                None
            }
        }
    }

    /// The path of the program.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The answers to the questions, in the same order.
    pub fn ask(&self, questions: &[Value]) -> Vec<Value> {
        let mut child = Command::new(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the Go program starts");
        let mut stdin = BufWriter::new(child.stdin.take().unwrap());
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // The program writes answers while it reads questions.
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

    /// Runs the program with these arguments and this input; returns its output.
    pub fn run(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut command = Command::new(&self.0);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the Go program starts");
        // The temporary is dropped at the end of the statement, which closes the pipe.
        child.stdin.take().unwrap().write_all(input).expect("the Go program reads");
        let output = child.wait_with_output().expect("the Go program runs");
        assert!(output.status.success());
        output.stdout
    }
}
