//! Texts of two PEM blocks in which Go's reader finds the first block that a reader by other rules does not find first.
//!
//! Each is made of a harmless request, which Go reads and people approve, and of a harmful one, which must never be
//! signed for it.

/// Names of the texts, and the texts; both requests are PEM as Go's `pem.Encode` writes it.
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
