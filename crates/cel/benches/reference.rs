//! Time and instructions of an evaluation, beside cel-go as kube-apiserver configures it, in one run:
//! `cargo bench -p portcullis-cel`.
//!
//! Both sides compile an expression once and evaluate it in a loop, each in a process of its own. Two loops of different
//! lengths are subtracted, so that the start of the process and the compilation do not count. Instructions are counted
//! with `perf stat`, where it is present and permitted.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test program: a panic is a failed test"
)]
#![allow(clippy::print_stderr, clippy::print_stdout, missing_docs, reason = "the output of a test program")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

fn claims() -> Value {
    let groups: Vec<String> = (0..20).map(|number| format!("team-{number}")).collect();
    json!({
        "sub": "alice-42", "email": "alice@example.com", "email_verified": true, "hd": "example.com", "groups": groups,
    })
}

/// A loop of one side: its time, and its instructions if they can be counted.
#[derive(Debug, Clone, Copy)]
struct Loop {
    time: Duration,
    instructions: Option<u64>,
}

/// Runs `command` with `input`; its output is the time of the loop in nanoseconds.
fn measured(command: &Command, input: &str) -> Loop {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut counted = Command::new("perf");
    counted.args(["stat", "-x,", "-e", "instructions:u", "-o"]).arg(file.path()).arg("--");
    counted.arg(command.get_program()).args(command.get_args());
    let with_perf = run(&mut counted, input);
    let counts = std::fs::read_to_string(file.path()).unwrap_or_default();
    let line = counts.lines().find(|line| line.contains("instructions"));
    let instructions = line.and_then(|line| line.split(',').next()?.parse().ok());
    let time = with_perf.or_else(|| {
        let mut plain = Command::new(command.get_program());
        run(plain.args(command.get_args()), input)
    });
    Loop { time: Duration::from_nanos(time.expect("the loop runs")), instructions }
}

fn run(command: &mut Command, input: &str) -> Option<u64> {
    use std::io::Write as _;
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    child.stdin.take()?.write_all(input.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Nanoseconds and instructions of one evaluation: the medians of the rounds.
fn per_evaluation(command: &Command, question: &Value) -> (f64, Option<f64>) {
    let input = |count: u32| {
        let mut question = question.clone();
        question["iterations"] = json!(count);
        question.to_string()
    };
    let count = f64::from(LONG - SHORT);
    let mut times = Vec::new();
    let mut instructions = Vec::new();
    for _ in 0..ROUNDS {
        let (short, long) = (measured(command, &input(SHORT)), measured(command, &input(LONG)));
        times.push((long.time.as_secs_f64() - short.time.as_secs_f64()) * 1e9 / count);
        if let (Some(short), Some(long)) = (short.instructions, long.instructions) {
            let difference = u32::try_from(long.saturating_sub(short) / 1000).unwrap_or(u32::MAX);
            instructions.push(f64::from(difference) * 1000.0 / count);
        }
    }
    (median(times).unwrap(), median(instructions))
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
        let (our_time, our_instructions) = per_evaluation(&ours, &question);
        let (their_time, their_instructions) = per_evaluation(&theirs, &question);
        let counts = match (our_instructions, their_instructions) {
            (Some(ours), Some(theirs)) => format!("{ours:>14.0}{theirs:>14.0}{:>8.1}", theirs / ours),
            _ => format!("{:>14}{:>14}{:>8}", "–", "–", "–"),
        };
        println!("{name:<26}{our_time:>12.0}{their_time:>12.0}{:>8.1}{counts}", their_time / our_time);
    }
}
