use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn safe(text: &str) -> (String, u64) {
    let (mut filter, mut safe) = (SafeText::default(), String::new());
    filter.filter(text, &mut safe);
    (safe, filter.dropped())
}

#[test]
fn text_and_its_layout_pass() {
    for text in [
        "plain text\r\n\ttab\x08",
        "naïve 日本語 🦀 می\u{200c}خواهم",
        "\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3mrgb\x1b[m \x1b[4:3mcurly",
        "\x1b[A\x1b[2B\x1b[10;20H\x1b[5G\x1b[3d\x1b[s\x1b[u\x1b7\x1b8\x1bD\x1bM\x1bE",
        "\x1b[2J\x1b[K\x1b[1K\x1b[?2K\x1b[3X\x1b[2L\x1b[2M\x1b[4P\x1b[@\x1b[12b",
        "\x1b[1;24r\x1b[r\x1b[2S\x1b[T\x1b[4h\x1b[4l",
        "\x1b[?1049h\x1b[?25l\x1b[?7h\x1b[?25;1049l",
        "\x1b(0lqqk\x1b(B\x1b)0\x0eq\x0f",
        RESTORE,
        "\x1b[?1049l\x1b[?6l",
    ] {
        assert_eq!(safe(text), (text.to_owned(), 0), "{text:?}");
    }
}

#[test]
fn device_control_is_dropped() {
    for (name, text, expected) in [
        ("title", "a\x1b]0;title\x07b", "ab"),
        ("title, ended by ST", "a\x1b]2;title\x1b\\b", "ab"),
        ("title in C1", "a\u{9d}0;title\u{9c}b", "ab"),
        ("clipboard", "a\x1b]52;c;cm0gLXJmIC8=\x07b", "ab"),
        ("hyperlink", "\x1b]8;;http://example.com\x1b\\text\x1b]8;;\x1b\\", "text"),
        ("a title without an end", "a\x1b]0;title\r\nall\x1b[1mthe rest", "a\x1b[1mthe rest"),
        ("DCS", "a\x1bP$q\"p\x1b\\b", "ab"),
        ("DCS is not ended by BEL", "a\x1bPx\x07y\x1b\\b", "ab"),
        ("DCS in C1", "a\u{90}+q544e\u{9c}b", "ab"),
        ("APC", "a\x1b_Gi=1;AAAA\x1b\\b", "ab"),
        ("APC in C1", "a\u{9f}x\u{9c}b", "ab"),
        ("PM", "a\x1b^x\x1b\\b\u{9e}y\u{9c}c", "abc"),
        ("SOS", "a\x1bXx\x1b\\b\u{98}y\u{9c}c", "abc"),
        ("device attributes", "a\x1b[cb\x1b[0cc\x1b[>cd\x1b[=ce\x1bZf", "abcdef"),
        ("status report", "a\x1b[5nb\x1b[6nc\x1b[?6nd", "abcd"),
        ("status report in C1", "a\u{9b}6nb", "ab"),
        ("modes and versions", "a\x1b[?1$pb\x1b[>qc\x1b[xd\x1b[?ue", "abcde"),
        ("query of a style", "a\x1b[?4mb\x1b[>4;1mc", "abc"),
        ("answerback", "a\x05b", "ab"),
        ("window operations", "a\x1b[21tb\x1b[8;1;1tc", "abc"),
        ("printing", "a\x1b[5ib\x1b[?5ic", "abc"),
        ("mouse, paste and focus", "a\x1b[?1000hb\x1b[?2004hc\x1b[?1004;25hd", "abcd"),
        ("mouse tracking", "a\x1b[1;2;3;4;5Tb", "ab"),
        ("keyboard", "a\x1b[2hb\x1b=c\x1b>d\x1b[>1ue", "abcde"),
        ("reset", "a\x1bcb\x1b[!pc", "abc"),
        ("bell", "a\x07b", "ab"),
        ("marks of direction", "a\u{202e}b\u{2066}c", "abc"),
        ("a character set", "a\x1b(Ab\x1b%Gc", "abc"),
        ("a number of five digits", "a\x1b[10000Pb", "ab"),
        ("a thousand repetitions", "a\x1b[1000bb", "ab"),
        ("erasing what the reader could scroll back to", "a\x1b[3Jb\x1b[03Jc", "abc"),
        ("a cancelled sequence", "a\x1b[3\x18b\x1b]0;x\x1ac", "abc"),
        ("a sequence in a sequence", "a\x1b[3\x1b[1mb", "a\x1b[1mb"),
        ("a sequence of screen and tmux: its text is shown elsewhere", "a\x1bkb\x1b\\c", "abc"),
    ] {
        let (safe, dropped) = safe(text);
        assert_eq!(safe, expected, "{name}");
        assert!(dropped > 0, "{name}");
    }
}

#[test]
fn a_control_character_in_a_sequence_is_obeyed_before_it() {
    assert_eq!(safe("a\x1b[3\n1mb").0, "a\n\x1b[31mb");
}

#[test]
fn c1_forms_of_safe_sequences_pass_in_their_7_bit_form() {
    assert_eq!(safe("\u{9b}1m\u{85}\u{84}\u{8d}").0, "\x1b[1m\x1bE\x1bD\x1bM");
}

#[test]
fn sequences_are_bounded() {
    let text = format!("a\x1b[{}mb\x1b{}Bc", "1;".repeat(1000), "(".repeat(1000));
    assert!(!safe(&text).0.contains("1;"));
    let mut filter = SafeText::default();
    let mut out = String::new();
    filter.filter("\x1b]", &mut out);
    (0..100_000).for_each(|_| filter.filter("title", &mut out));
    assert_eq!(out, "");
}

/// The end of the alternate screen and of the origin mode moves the cursor: only a terminal that has them gets it.
#[test]
fn a_terminal_is_restored_from_the_modes_that_it_has() {
    let restored = |text: &str| {
        let mut filter = SafeText::default();
        filter.filter(text, &mut String::new());
        (filter.restore(true).replace(RESTORE, "…"), filter.is_on_alternate_screen())
    };
    for (text, expected, is_alternate) in [
        ("", "…", false),
        ("\x1b[?25l\x1b[31m", "…", false),
        ("\x1b[?1049h", "\x1b[?1049l…", true),
        ("\x1b[?47", "…", false),
        ("\x1b[?25;1047h", "\x1b[?1049l…", true),
        ("\x1b[?1049h\x1b[?1049l", "…", false),
        ("\x1b[?1049h\x1b[?1049$p", "\x1b[?1049l…", true),
        ("\x1b[?6h", "\x1b[?6l…", false),
        ("\x1b[?6h\x1b[?6l", "…", false),
    ] {
        assert_eq!(restored(text), (expected.to_owned(), is_alternate), "{text:?}");
    }
    // Half a sequence ends, and what filtered text has not is reset.
    let unfiltered = SafeText::default().restore(false);
    assert!(unfiltered.starts_with('\x18') && unfiltered.ends_with(RESTORE), "{unfiltered:?}");
    assert!(unfiltered.contains("\x1b[?1000l") && unfiltered.contains("\x1b[?2004l"), "{unfiltered:?}");
}

fn plain(pieces: &[&str]) -> String {
    let (mut filter, mut plain) = (PlainText::default(), String::new());
    for piece in pieces {
        filter.filter(piece, &mut plain);
    }
    filter.finish(&mut plain);
    plain
}

#[test]
fn plain_text_has_no_sequences() {
    for (name, pieces, expected) in [
        ("lines", &["a\r\nb\n\nc\td"][..], "a\nb\n\nc\td\n"),
        ("a line end in two pieces", &["a\r", "\nb"], "a\nb\n"),
        ("colours", &["\x1b[1;31mred\x1b[0m and", " \x1b[", "32mgreen"], "red and green\n"),
        ("a title and a clipboard", &["a\x1b]0;title\x07b\x1b]52;c;eA==\x1b\\c"], "abc\n"),
        ("a progress bar", &["10 %\r20 %\r\n"], "10 %\n20 %\n"),
        ("colours after a carriage return", &["10 %\r\x1b[32m\nb"], "10 %\nb\n"),
        ("a screen", &["\x1b[2J\x1b[1;1Hone\x1b[2;1Htwo\x1b[3dthree"], "one\ntwo\nthree\n"),
        ("columns stay on the line", &["a\x1b[10Gb\x1b[2Cc"], "abc\n"),
        ("backspace and character sets", &["ab\x08c\x1b(0q\x1b(B\x0e\x0f"], "abcq\n"),
        ("marks of direction", &["a\u{202e}b"], "ab\n"),
        ("nothing", &["\x1b[H\x1b[2J\r"], ""),
    ] {
        assert_eq!(plain(pieces), expected, "{name}");
    }
}

#[test]
fn a_player_keeps_the_pauses_up_to_the_limit() {
    let at = Duration::from_millis;
    let due = |speed: f64, idle_limit: Option<u64>, times: [u64; 4]| {
        let mut pace = Pace::new(speed, idle_limit.map(at));
        times.map(|time| pace.due(at(time)).as_millis())
    };
    assert_eq!(due(1.0, None, [100, 100, 5000, 5500]), [100, 100, 5000, 5500]);
    assert_eq!(due(2.0, None, [100, 100, 5000, 5500]), [50, 50, 2500, 2750]);
    assert_eq!(due(0.5, None, [100, 200, 300, 400]), [200, 400, 600, 800]);
    assert_eq!(due(1.0, Some(2000), [100, 100, 5000, 5500]), [100, 100, 2100, 2600]);
    // The limit is of the recorded time.
    assert_eq!(due(2.0, Some(2000), [100, 100, 5000, 5500]), [50, 50, 1050, 1300]);
    // A time that goes back is no time, and none is too long.
    assert_eq!(due(1.0, None, [100, 50, 100, 200]), [100, 100, 100, 200]);
    assert_eq!(Pace::new(1e-9, None).due(Duration::MAX), Duration::MAX);
}

/// Text that is likely to have sequences.
fn terminal_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("\x1b"),
        Just("["),
        Just("]"),
        Just("?"),
        Just("0"),
        Just("52;"),
        Just("m"),
        Just("n"),
        Just("c"),
        Just("h"),
        Just("P"),
        Just("\\"),
        Just("\x07"),
        Just("\u{9b}"),
        Just("\u{9d}"),
        Just("\u{9c}"),
        Just("\u{90}"),
        Just("("),
        Just("\x18"),
        Just("\n"),
        Just("é"),
        Just("$"),
        Just("T"),
        Just("1049"),
        Just("q"),
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_pieces_give_the_same_text(text in terminal_text()) {
        let (mut filter, mut pieces) = (SafeText::default(), String::new());
        text.chars().for_each(|c| filter.filter(c.encode_utf8(&mut [0; 4]), &mut pieces));
        prop_assert_eq!(pieces, safe(&text).0);
    }

    #[test]
    fn plain_text_is_plain_in_any_pieces(text in prop_oneof![terminal_text(), any::<String>()]) {
        let whole = plain(&[&text]);
        prop_assert!(!whole.chars().any(|c| is_obeyed(c) && c != '\n' && c != '\t'), "{whole:?}");
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        prop_assert_eq!(plain(&pieces.iter().map(String::as_str).collect::<Vec<_>>()), whole.clone());
        // All that is printed by a terminal is in it.
        let printed = |text: &str| text.chars().filter(|c| !is_obeyed(*c)).collect::<String>();
        let strip = |text: &str| {
            let mut chars = text.chars();
            let mut kept = String::new();
            while let Some(c) = chars.next() {
                match c {
                    ESC => match chars.next() {
                        Some('[') => drop(chars.find(|c| matches!(c, '\x40'..='\x7e'))),
                        Some('(' | ')') => drop(chars.next()),
                        _ => {}
                    },
                    c => kept.push(c),
                }
            }
            kept
        };
        prop_assert_eq!(printed(&whole), printed(&strip(&safe(&text).0)));
    }

    /// What passes once passes again: the filter leaves no halves that make a sequence together.
    #[test]
    fn safe_text_is_safe(text in prop_oneof![terminal_text(), any::<String>()]) {
        let (once, _) = safe(&text);
        prop_assert_eq!(safe(&once), (once.clone(), 0));
        let obeyed = |c| matches!(c, '\u{80}'..='\u{9f}' | '\x07' | '\x05');
        prop_assert!(!once.chars().any(obeyed));
    }
}
