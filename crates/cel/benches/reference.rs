//! Time and instructions of an evaluation, beside cel-go as kube-apiserver configures it, in one run:
//! `cargo bench -p portcullis-cel`.
//!
//! Both sides compile an expression once and evaluate it in a loop, each in a process of its own. Two loops of different
//! lengths are subtracted, so that the start of the process and the compilation do not count. Instructions are counted
//! by Valgrind's cachegrind in shorter loops, where Valgrind is present; those of Go's garbage collector are among them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test program: a panic is a failed test"
)]
#![allow(clippy::print_stderr, clippy::print_stdout, missing_docs, reason = "the output of a test program")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use portcullis_cel::{Bindings, Environment, Expression, ResultType};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;

/// What is evaluated: a name, the purpose in the Go program, and the expression.
const CASES: [(&str, &str, &str); 3] = [
    ("a prefix for each group", "mapping", "dyn(claims.groups).map(g, 'oidc:' + g)"),
    (
        "a condition on a token",
        "claimRule",
        "claims.email_verified == true && claims.email.endsWith('@example.com') && claims.hd == 'example.com'",
    ),
    ("a pattern", "claimRule", "string(claims.sub).matches('^[a-z]+-[0-9]{1,4}$')"),
];
const ROUNDS: u32 = 5;
const SHORT: u32 = 20_000;
const LONG: u32 = 120_000;
const COUNTED_SHORT: u32 = 1_000;
const COUNTED_LONG: u32 = 5_000;

fn claims() -> Value {
    let groups: Vec<String> = (0..20).map(|number| format!("team-{number}")).collect();
    json!({
        "sub": "alice-42", "email": "alice@example.com", "email_verified": true, "hd": "example.com", "groups": groups,
    })
}

fn run(command: &mut Command, input: &str) -> Option<Output> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    child.stdin.take()?.write_all(input.as_bytes()).ok()?;
    child.wait_with_output().ok()
}

/// The input of a loop.
fn input(question: &Value, iterations: u32) -> String {
    let mut question = question.clone();
    question["iterations"] = json!(iterations);
    question.to_string()
}

/// Nanoseconds of one evaluation: the median of the rounds.
fn nanoseconds(command: &Command, question: &Value) -> f64 {
    let time = |iterations| {
        let output = run(&mut clone(command), &input(question, iterations)).expect("the loop runs");
        String::from_utf8(output.stdout).unwrap().trim().parse::<f64>().expect("the time of the loop")
    };
    median((0..ROUNDS).map(|_| (time(LONG) - time(SHORT)) / f64::from(LONG - SHORT)).collect()).unwrap()
}

/// Instructions of one evaluation.
fn instructions(command: &Command, question: &Value) -> Option<f64> {
    let count = |iterations| {
        let mut counted = Command::new("valgrind");
        counted.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
        counted.arg(command.get_program()).args(command.get_args());
        let log = String::from_utf8(run(&mut counted, &input(question, iterations))?.stderr).ok()?;
        let (_, count) = log.lines().find(|line| line.contains("refs:"))?.split_once("refs:")?;
        count.trim().replace(',', "").parse::<f64>().ok()
    };
    Some((count(COUNTED_LONG)? - count(COUNTED_SHORT)?) / f64::from(COUNTED_LONG - COUNTED_SHORT))
}

fn clone(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    copy
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// The loop of our side, in a process of its own.
fn evaluate_in_a_loop() {
    let question: Value = serde_json::from_reader(std::io::stdin()).unwrap();
    let result = if question["purpose"] == "mapping" { ResultType::Any } else { ResultType::Bool };
    let text = question["expression"].as_str().unwrap();
    let expression = Expression::compile(text, Environment::CLAIMS, result).unwrap();
    let claims = question["claims"].as_object().unwrap();
    let iterations = question["iterations"].as_u64().unwrap();
    let bindings = Bindings::claims(claims);
    let started = Instant::now();
    for _ in 0..iterations {
        std::hint::black_box(expression.evaluate(std::hint::black_box(&bindings)).unwrap());
    }
    println!("{}", started.elapsed().as_nanos());
}

fn main() {
    if std::env::args().any(|argument| argument == "--loop") {
        return evaluate_in_a_loop();
    }
    let Some(reference) = GoProgram::build("cel") else { return };
    let mut theirs = Command::new(reference.path());
    theirs.arg("loop");
    let mut ours = Command::new(std::env::current_exe().unwrap());
    ours.arg("--loop");
    println!(
        "{:<26}{:>12}{:>12}{:>8}{:>14}{:>14}{:>8}",
        "", "ns", "cel-go", "ratio", "instructions", "cel-go", "ratio"
    );
    for (name, purpose, expression) in CASES {
        let question = json!({"purpose": purpose, "expression": expression, "claims": claims()});
        let (our_time, their_time) = (nanoseconds(&ours, &question), nanoseconds(&theirs, &question));
        let counts = match (instructions(&ours, &question), instructions(&theirs, &question)) {
            (Some(ours), Some(theirs)) => format!("{ours:>14.0}{theirs:>14.0}{:>8.1}", theirs / ours),
            _ => format!("{:>14}{:>14}{:>8}", "–", "–", "–"),
        };
        println!("{name:<26}{our_time:>12.0}{their_time:>12.0}{:>8.1}{counts}", their_time / our_time);
    }
}
