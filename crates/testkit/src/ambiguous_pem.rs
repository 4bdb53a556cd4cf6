//! Ambiguous texts with two PEM blocks, in which Go's parser and other parsers find different first blocks.
//!
//! Each contains a harmless request, which Go parses and people approve, and a harmful one, which must never be signed
//! in its place.

/// The texts with their names; both requests are PEM as Go's `pem.Encode` writes it.
pub fn ambiguous(harmless: &str, harmful: &str) -> Vec<(&'static str, String)> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----\n";
    const END: &str = "-----END CERTIFICATE REQUEST-----";
    let behind_begin = |text: &str| harmful.replacen(BEGIN, &format!("{BEGIN}{text}"), 1);
    let first_line = harmful.lines().nth(1).unwrap();
    vec![
        ("BEGIN within a header", behind_begin("x: -----BEGIN \n\n") + harmless),
        ("a header behind an empty line", behind_begin("\nx: y\n\n") + harmless),
        ("a form feed in the content", harmful.replace(first_line, &format!("{first_line}\x0c")) + harmless),
        ("a form feed behind BEGIN", harmful.replacen("-----\n", "-----\x0c\n", 1) + harmless),
        ("a form feed behind END", harmful.replace(END, &format!("{END}\x0c")) + harmless),
        ("BEGIN behind END", format!("x\n-----END {harmless}{harmful}")),
    ]
}
