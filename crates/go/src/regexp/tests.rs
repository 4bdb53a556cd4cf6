use super::*;

/// Whether a literal pattern matches; an error if it is invalid.
fn matches(pattern: &str, text: &str) -> Option<bool> {
    Some(build(pattern, MAX_COMPILED).ok()?.is_match(text))
}

/// `None` for an invalid pattern.
#[test]
fn classes_are_those_of_go() {
    let cases: &[(&str, &str, Option<bool>)] = &[
        ("^[!--a]$", "#", Some(true)),
        ("^[!--a]$", "a", Some(true)),
        ("^[!--a]$", "b", Some(false)),
        ("^[a-z--9]$", "5", Some(true)),
        ("^[---]$", "-", Some(true)),
        ("^[+--]$", ",", Some(true)),
        ("^[a-]$", "-", Some(true)),
        ("^[-a]$", "-", Some(true)),
        ("^[a\\-z]$", "b", Some(false)),
        ("^[\\d-z]$", "-", Some(true)),
        ("^[\\d-z]$", "x", Some(false)),
        ("[a--]", "", None),
        ("[a-\\d]", "", None),
        ("[\\[--\\]]", "", None),
        ("^[a&&b~~c]$", "&", Some(true)),
        ("^[]a]$", "]", Some(true)),
        ("^[^]a]$", "]", Some(false)),
        ("[]", "", None),
        ("^[[a]$", "[", Some(true)),
        ("^[[:alpha:]_]$", "_", Some(true)),
        ("^[[:^alpha:]]$", "1", Some(true)),
        ("[[:ALPHA:]]", "", None),
        ("[[:nope:]]", "", None),
        ("^[[:a]$", ":", Some(true)),
        ("^[A-[:digit:]]$", "B]", Some(true)),
        ("^[A-[:digit:]]$", "5]", Some(false)),
        ("^[A-[:digit:]]$", "d]", Some(true)),
        ("^\\p{L}$", "é", Some(true)),
        ("^\\P{L}$", "é", Some(false)),
        ("^\\p{^L}$", "1", Some(true)),
        ("^\\p{Greek}+$", "αβγ", Some(true)),
        ("^\\pL$", "é", Some(true)),
        ("^\\p{lower_case letter}$", "a", Some(true)),
        ("\\p{Old_Italic}", "", None),
        ("\\p{Nope}", "", None),
        ("\\p{L", "", None),
        ("\\p", "", None),
        ("^\\x{e9}$", "é", Some(true)),
        ("^\\x{1F600}$", "\u{1F600}", Some(true)),
        ("^\\x{41}*$", "AAA", Some(true)),
        ("^\\x41{2}$", "AA", Some(true)),
        ("\\x{110000}", "", None),
        ("\\x{}", "", None),
        ("^[^\\x{D7FF}\\x{E000}]$", "\u{E000}", Some(false)),
        ("\\x{D800}", "", None),
        ("[\\x{D800}]", "", None),
        ("^[\\x{D7FF}-\\x{E000}]$", "\u{E000}", Some(true)),
        ("(?i)^\u{390}$", "\u{1FD3}", Some(false)),
        ("(?i)^k$", "\u{212A}", Some(true)),
    ];
    for (pattern, text, expected) in cases {
        assert_eq!(matches(pattern, text), *expected, "{pattern} on {text}");
    }
}

#[test]
fn the_rest_of_the_syntax_is_that_of_go() {
    let cases: &[(&str, &str, Option<bool>)] = &[
        ("(a{500}){3}", "", None),
        ("(a{500}){2}", "", Some(false)),
        ("(?:a{1000}){0}", "", Some(true)),
        ("a{1001}", "", None),
        ("a{2,1}", "", None),
        ("^a{01}$", "a{01}", Some(true)),
        ("^a{,2}$", "a{,2}", Some(true)),
        ("a**", "", None),
        ("a*?+", "", None),
        ("^a*(?i)*$", "aa", Some(true)),
        ("*", "", None),
        ("a|*", "", None),
        ("(*)", "", None),
        ("^\\Qa.\\E*$", "a...", Some(true)),
        ("^\\Qa.b", "a.b", Some(true)),
        ("(?i:a)b", "AB", Some(false)),
        ("(?i:a)b", "Ab", Some(true)),
        ("(a(?i)b|c)d", "aBD", Some(false)),
        ("(a(?i)b|c)d", "Cd", Some(true)),
        ("(?)a", "a", Some(true)),
        ("(?-)a", "", None),
        ("(?i-)a", "", None),
        ("(?i-s-m)a", "", None),
        ("(?x)a", "", None),
        ("(?=a)", "", None),
        ("(?P<n>a)(?<n>b)", "ab", Some(true)),
        ("(?P<1>a)", "a", Some(true)),
        ("(?P<>a)", "", None),
        ("(?P<a b>c)", "", None),
        ("(?P=n)", "", None),
        ("(?P<n", "", None),
        ("a)", "", None),
        ("(a", "", None),
        ("^a$", "a\n", Some(false)),
        ("(?m)^a$", "a\n", Some(true)),
        ("a.b", "a\nb", Some(false)),
        ("(?s)a.b", "a\nb", Some(true)),
        ("\\bé", "é", Some(false)),
        ("\\1", "", None),
        ("^\\12$", "\n", Some(true)),
        ("^\\08$", "\u{0}8", Some(true)),
        ("\\8", "", None),
        ("\\é", "", None),
        ("\\C", "", None),
        ("[\\b]", "", None),
        ("\\", "", None),
        ("^\\_\\-\\/$", "_-/", Some(true)),
        ("#a b", "#a b", Some(true)),
    ];
    for (pattern, text, expected) in cases {
        assert_eq!(matches(pattern, text), *expected, "{pattern} on {text}");
    }
}

/// Each pattern is rejected, or needs no more memory than its bound.
#[test]
fn hostile_patterns_are_bounded() {
    let hostile = [
        "(".repeat(5_000),
        format!("{}{}", "(".repeat(101), ")".repeat(101)),
        format!("{}{}", "(?:".repeat(3_000), ")".repeat(3_000)),
        "a{1000}".repeat(1_000),
        format!("({}){{1000}}", "\\b".repeat(3_400)),
        format!("({}){{1000}}", "(?:)".repeat(2_000)),
        "(((a{10}){10}){10}){0}".repeat(400),
        "\\pL".repeat(3_000),
        "(?i)".to_owned() + &"\\PL".repeat(3_000),
        "(?i)".to_owned() + &"[!-\\x{10ffff}]".repeat(600),
        "(?i)".to_owned() + &"[^k]".repeat(2_000),
        "[\\pL\\pN\\pM]{1000}".to_owned(),
        "(.*.*=.*){100}".to_owned(),
        "(?:a?){500}a{500}".to_owned(),
        "(a|b|c|".repeat(90) + &")".repeat(90),
        "x|".repeat(4_999),
        "é".repeat(5_000),
        "(\\pL|\\pN|é){500}".to_owned(),
        "[".repeat(10_000),
        "(?P<a>".repeat(100) + &"|".repeat(5_000),
        "a".repeat(10_001),
        "a".to_owned() + &"?(?i)".repeat(1_999),
        "a".to_owned() + &"*(?:)(?i)".repeat(1_100),
        "(?:a".repeat(90) + &"?(?i)+(?i))*(?i)?".repeat(90),
    ];
    let mut compiled = 0;
    for pattern in &hostile {
        let head: String = pattern.chars().take(20).collect();
        match build(pattern, MAX_COMPUTED) {
            Ok(regex) => {
                compiled += 1;
                let memory = regex.memory_usage();
                assert!(memory <= 8 * MAX_COMPUTED, "{head}: {memory}");
            }
            Err(error) => assert!(error.to_string().starts_with("error parsing regexp: "), "{head}: {error}"),
        }
    }
    assert!(compiled >= 2, "{compiled}");
    let nested = |depth: usize| format!("{}{}", "(".repeat(depth), ")".repeat(depth));
    assert!(build(&nested(100), MAX_COMPUTED).is_ok());
    // Nested repetitions have the same height in Go's tree and in ours.
    let stacked = |repetitions: usize| build(&format!("a{}", "?(?i)".repeat(repetitions)), MAX_COMPILED);
    assert!(stacked(249).unwrap().is_match("a"));
    for repetitions in [250, 1_000, 1_999] {
        let error = stacked(repetitions).unwrap_err();
        assert!(
            error.to_string().starts_with("error parsing regexp: expression nests too deeply: "),
            "{error}"
        );
    }
}
