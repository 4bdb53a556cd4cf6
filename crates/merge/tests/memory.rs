//! What it takes to read a hostile document, measured: the peak of the resident memory of the process.

#![expect(clippy::unwrap_used, reason = "a test program: a panic is a failed test")]

use std::path::Path;

use portcullis_merge::{MAX_SIZE, Schemas};

/// The document that this process measures.
const DOCUMENT: &str = "PORTCULLIS_MEASURED_DOCUMENT";

/// A figure of the resident memory of this process, in bytes.
// linux: Documentation/filesystems/proc.rst
fn resident(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// In a process of its own, whose memory nothing else has used.
#[test]
fn measured() {
    let Some(path) = std::env::var_os(DOCUMENT) else { return };
    let document = std::fs::read(path).unwrap();
    let (before, read) = (resident("VmRSS:"), Schemas::read(&document).map(|schemas| schemas.size()));
    println!("took {} {read:?}", resident("VmHWM:") - before);
}

/// What reading a document takes.
fn measure(name: &str, document: &str) -> (usize, String) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.replace(' ', "-"));
    std::fs::write(&file, document).unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", "measured", "--nocapture"]).env(DOCUMENT, &file).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let line = output.split_once("took ").unwrap().1.lines().next().unwrap();
    let (took, read) = line.split_once(' ').unwrap();
    (took.parse().unwrap(), read.to_owned())
}

/// A document with one schema.
fn of(schema: &str) -> String {
    format!(r#"{{"components":{{"schemas":{{"a":{schema}}}}}}}"#)
}

/// So many members of an object.
fn members(count: usize, value: &str) -> String {
    let members: Vec<_> = (0..count).map(|number| format!(r#""{number}":{value}"#)).collect();
    members.join(",")
}

fn documents() -> Vec<(&'static str, String)> {
    let long = |count: usize| format!("[{}]", vec!["0"; count].join(","));
    let properties = |count: usize, value: &str| {
        of(&format!(r#"{{"type":"object","properties":{{{}}}}}"#, members(count, value)))
    };
    let numbered =
        |count: usize, key: &str, value: &str| properties(count, &format!(r#"{{"{key}":{value}}}"#));
    vec![
        ("many properties", properties(150_000, "{}")),
        ("many lists", properties(20_000, r#"{"type":"array","items":{"type":"string"}}"#)),
        ("many maps", properties(20_000, r#"{"additionalProperties":{}}"#)),
        ("one default", numbered(1, "default", &long(2 << 20))),
        ("many defaults", numbered(4_000, "default", &long(500))),
        ("many extensions", numbered(60, "x-kubernetes-list-map-keys", &long(32_000))),
        ("many references", numbered(20_000, "$ref", r#""x""#)),
        ("a long reference", numbered(1, "$ref", &long(7 << 20))),
        ("many kinds of none", properties(10, &format!(r#"{{"allOf":[{}]}}"#, vec!["{}"; 50_000].join(",")))),
    ]
}

#[test]
fn reading_takes_no_more_than_it_says() {
    for (name, document) in documents() {
        let announced = Schemas::memory_to_read(document.as_bytes()).unwrap() + MAX_SIZE;
        let (took, read) = measure(name, &document);
        println!("{name}: {} MiB, announced {} MiB, {read}", took >> 20, announced >> 20);
        assert!(took <= announced, "{name}");
    }
    let too_many = of(&format!(r#"{{"properties":{{{}}}}}"#, members(260_000, "{}")));
    assert_eq!(
        Schemas::read(too_many.as_bytes()).unwrap_err().to_string(),
        "the OpenAPI document has more than 250,000 members"
    );
}
