//! Patterns and numbers in text, compared with Go's `regexp` and `strconv`: refusals, matches, and the characters of
//! each class. Inputs are random; `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` change their seed and number.

mod parts;

use portcullis_cel::conformance::{pattern_characters, pattern_matches, read_double};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

use self::parts::{CLASS_PARTS, GROUPS, PARTS, REPEATS, TEXTS};

/// Patterns that only we refuse: those beyond our size limits, and surrogates, which Go treats as U+FFFD in some
/// patterns and ignores in others.
const STRICTER: &[&str] =
    &["expression too large", "expression nests too deeply", "half of a surrogate pair"];

fn class(rng: &mut Rng) -> String {
    let mut text = String::from(if rng.one_in(4) { "[^" } else { "[" });
    for _ in 0..=rng.below(5) {
        text.push_str(*rng.pick(CLASS_PARTS));
        if rng.one_in(4) {
            text.push('-');
            text.push_str(*rng.pick(CLASS_PARTS));
        }
    }
    if !rng.one_in(30) {
        text.push(']');
    }
    text
}

fn pattern(rng: &mut Rng, depth: usize) -> String {
    let mut text = String::new();
    for _ in 0..=rng.below(4) {
        match rng.below(8) {
            0..=2 => text.push_str(&class(rng)),
            3 if depth > 0 => {
                text.push_str(*rng.pick(GROUPS));
                text.push_str(&pattern(rng, depth - 1));
                text.push_str(if rng.one_in(30) { "" } else { ")" });
            }
            4 if depth > 0 => {
                text.push_str(&pattern(rng, depth - 1));
                text.push('|');
                text.push_str(&pattern(rng, depth - 1));
            }
            _ => text.push_str(*rng.pick(PARTS)),
        }
        if rng.one_in(3) {
            text.push_str(*rng.pick(REPEATS));
        }
    }
    text
}

fn whole_pattern(rng: &mut Rng) -> String {
    let depth = rng.below(4);
    let pattern = pattern(rng, depth);
    if rng.one_in(200) {
        // Go's own bound is 1000.
        let repetitions = 1 + rng.below(1_200);
        return format!("{pattern}{}", "?(?i)".repeat(repetitions));
    }
    match rng.below(6) {
        0 => format!("^{pattern}$"),
        1 => format!("(?i){pattern}"),
        2 => format!("^(?:{pattern})$"),
        _ => pattern,
    }
}

fn texts(rng: &mut Rng) -> Vec<String> {
    let mut text =
        || (0..rng.below(8)).map(|_| *TEXTS.get(rng.below(TEXTS.len())).unwrap()).collect::<String>();
    let mut texts: Vec<String> = (0..4).map(|_| text()).collect();
    // Single characters, since most classes match one character.
    texts.extend((0..6).map(|_| (*rng.pick(TEXTS)).to_owned()));
    texts
}

#[test]
fn patterns_are_those_of_go() {
    const AT_ONCE: usize = 20_000;
    let Some(program) = GoProgram::build("patterns") else { return };
    let (seed, rounds) = (seed(), inputs(20_000));
    let mut rng = Rng(seed);
    let (mut failures, mut taken, mut refused, mut stricter) = (Vec::new(), 0, 0, 0);
    for round in (0..rounds).step_by(AT_ONCE) {
        let cases: Vec<_> =
            (0..AT_ONCE.min(rounds - round)).map(|_| (whole_pattern(&mut rng), texts(&mut rng))).collect();
        let questions: Vec<Value> =
            cases.iter().map(|(pattern, texts)| json!({"pattern": pattern, "texts": texts})).collect();
        for ((pattern, texts), answer) in cases.iter().zip(program.ask(&questions)) {
            let theirs = if answer["error"] == "" { Some(&answer["matches"]) } else { None };
            match (pattern_matches(pattern, texts), theirs) {
                (Ok(ours), Some(theirs)) if json!(ours) == *theirs => taken += 1,
                (Err(_), None) => refused += 1,
                (Err(error), Some(_)) if STRICTER.iter().any(|text| error.contains(text)) => stricter += 1,
                (ours, _) => {
                    failures
                        .push(format!("{pattern:?} on {texts:?}\n  ours:   {ours:?}\n  theirs: {answer}"));
                }
            }
        }
        assert!(
            failures.is_empty(),
            "seed {seed}: {} differ\n{}",
            failures.len(),
            failures[..failures.len().min(20)].join("\n")
        );
    }
    eprintln!("{rounds} patterns: {taken} taken, {refused} refused, {stricter} refused here alone");
    assert!(taken > rounds / 5 && refused > rounds / 5, "{taken} taken, {refused} refused");
    assert!(stricter < rounds / 20, "{stricter}");
}

/// Merges adjacent ranges of characters, without surrogates.
fn merged(ranges: impl IntoIterator<Item = (u32, u32)>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<_> = ranges
        .into_iter()
        .flat_map(|(first, last)| [(first, last.min(0xD7FF)), (first.max(0xE000), last)])
        .filter(|(first, last)| first <= last)
        .collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// Every class name of Go, negated or not, case-sensitive or not; and the case folding of each character.
#[test]
fn classes_hold_the_same_characters_as_those_of_go() {
    let Some(program) = GoProgram::build("patterns") else { return };
    let names = program.ask(&[json!({"names": true})]).remove(0);
    let names: Vec<&str> =
        names["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.len() > 200, "{}", names.len());
    let mut patterns = Vec::new();
    for name in names {
        for name in [name.to_owned(), name.to_lowercase(), name.replace('_', " "), name.replace('_', "")] {
            patterns.extend(["\\p", "\\P", "(?i)\\p", "(?i)\\P"].map(|class| format!("{class}{{{name}}}")));
        }
    }
    for escape in [
        "\\d",
        "\\D",
        "\\s",
        "\\S",
        "\\w",
        "\\W",
        "[[:graph:]]",
        "[[:^punct:]]",
        "[[:upper:]]",
        "[[:^lower:]]",
    ] {
        patterns.extend([escape.to_owned(), format!("(?i){escape}")]);
    }
    let characters = |range: std::ops::Range<u32>| range.filter_map(char::from_u32).map(u32::from);
    patterns.extend(characters(0..0x2_0000).map(|character| format!("(?i)\\x{{{character:x}}}")));
    patterns.extend((0x200..0x1100).map(|block| format!("(?i)[\\x{{{block:x}00}}-\\x{{{block:x}FF}}]")));
    let questions: Vec<Value> =
        patterns.iter().map(|pattern| json!({"pattern": pattern, "characters": true})).collect();
    let (mut failures, mut taken) = (Vec::new(), 0);
    for (pattern, answer) in patterns.iter().zip(program.ask(&questions)) {
        let theirs = (answer["error"] == "").then(|| {
            let ends: Vec<u32> = serde_json::from_value(answer["characters"].clone()).unwrap();
            merged(ends.chunks(2).map(|ends| (ends[0], ends[1])))
        });
        let ours = pattern_characters(pattern).ok().map(|ranges| {
            merged(ranges.unwrap().into_iter().map(|(first, last)| (u32::from(first), u32::from(last))))
        });
        taken += usize::from(ours.is_some());
        if ours != theirs {
            failures.push(format!("{pattern}: {}", difference(ours.as_ref(), theirs.as_ref())));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} differ: {:#?}",
        failures.len(),
        patterns.len(),
        &failures[..failures.len().min(40)]
    );
    assert!(taken > patterns.len() / 2, "{taken}");
}

fn difference(ours: Option<&Vec<(u32, u32)>>, theirs: Option<&Vec<(u32, u32)>>) -> String {
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        return format!("taken here: {}, there: {}", ours.is_some(), theirs.is_some());
    };
    let in_it =
        |ranges: &[(u32, u32)], one: u32| ranges.iter().any(|(first, last)| (*first..=*last).contains(&one));
    let of_one = |one: &u32| in_it(ours, *one) != in_it(theirs, *one);
    let ends = ours.iter().chain(theirs).flat_map(|(first, last)| [*first, *last]);
    let odd: Vec<String> = ends.filter(of_one).take(6).map(|one| format!("{one:X}")).collect();
    format!("in one of them alone: {}", odd.join(" "))
}

#[test]
fn doubles_in_text_are_those_of_go() {
    const PARTS: &[&str] = &[
        "+",
        "-",
        "0x",
        "0X",
        "0",
        "1",
        "9",
        "f",
        "F",
        "8",
        "123456789",
        "00000000000",
        "ffffffffffffff",
        "7ff",
        ".",
        "_",
        "e",
        "E",
        "p",
        "P",
        "e+",
        "p-",
        "p+",
        "1023",
        "1074",
        "1075",
        "308",
        "309",
        "324",
        "inf",
        "Inf",
        "infinity",
        "nan",
        "NaN",
        "i",
        "n",
        " ",
    ];
    const SHAPES: &[&str] = &[
        "0x1.",
        "0x",
        "-0x.",
        "1.",
        "",
        "0x1.fffffffffffff",
        "9007199254740993",
        "4.9e-",
        "1e",
        "0x1p-",
        "2.2250738585072",
    ];
    let Some(program) = GoProgram::build("patterns") else { return };
    let (seed, rounds) = (seed(), inputs(20_000));
    // All inputs are held in memory.
    let rounds = rounds.min(400_000);
    let mut rng = Rng(seed);
    let mut texts: Vec<String> = (0..rounds)
        .map(|_| {
            let mut text = (*rng.pick(SHAPES)).to_owned();
            (0..rng.below(6)).for_each(|_| text.push_str(*rng.pick(PARTS)));
            if rng.one_in(3) {
                let exponent = i64::try_from(rng.below(2300)).unwrap() - 1150;
                text.push_str(*rng.pick(&["p", "e"]));
                text.push_str(&exponent.to_string());
            }
            text
        })
        .collect();
    // Doubles, and numbers half-way between two of them.
    texts.extend((0..rounds / 4).map(|_| {
        let digits = rng.next_u64() >> rng.below(64);
        let exponent = i64::try_from(rng.below(2300)).unwrap() - 1200;
        format!("0x{digits:x}.{:x}p{exponent}", rng.next_u64() >> rng.below(64))
    }));
    let questions: Vec<Value> = texts.iter().map(|text| json!({"number": text})).collect();
    let (mut failures, mut read) = (Vec::new(), 0);
    for (text, answer) in texts.iter().zip(program.ask(&questions)) {
        let theirs = (answer["error"] == "")
            .then(|| f64::from_bits(answer["bits"].as_str().unwrap().parse().unwrap()));
        let ours = read_double(text);
        let same = match (ours, theirs) {
            (Some(ours), Some(theirs)) => {
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan()
            }
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        read += usize::from(ours.is_some());
        if !same {
            failures.push(format!("{text:?}: {ours:?} here, {theirs:?} there"));
        }
    }
    assert!(
        failures.is_empty(),
        "seed {seed}: {} differ: {:#?}",
        failures.len(),
        &failures[..failures.len().min(40)]
    );
    assert!(read > texts.len() / 5, "{read} of {}", texts.len());
}
