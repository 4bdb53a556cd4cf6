use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::Index;
use serde_json::json;

use super::*;

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "[\\x00-\u{10ffff}]{0,9}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 9, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..9).prop_map(Value::from),
            proptest::collection::btree_map("[a-c\"\\\\]{0,2}", inner, 0..9)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_value_is_decoded_as_it_was_written(value in values()) {
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            prop_assert_eq!(decode(text.as_bytes()).unwrap(), value.clone());
        }
    }

    // Of one that is cut off, nothing is decoded, and nothing panics.
    #[test]
    fn a_value_that_is_cut_off_is_not_decoded(value in values(), end in any::<Index>()) {
        let text = json!([value]).to_string();
        let end = end.index(text.len());
        prop_assert!(decode(&text.as_bytes()[..end]).is_err());
    }
}

#[test]
fn of_repeated_members_the_last_one_counts() {
    assert_eq!(decode(br#"{"a":{"b":1},"a":{"c":2}}"#), Ok(json!({"a": {"c": 2}})));
    assert_eq!(decode(b" 1.0 "), Ok(json!(1.0)));
    assert_eq!(decode(b"18446744073709551615"), Ok(json!(u64::MAX)));
    assert!(decode(b"1e999").is_err() && decode(b"{} {}").is_err() && decode(b"").is_err());
}

fn nested(levels: usize) -> String {
    format!("{}1{}", "{\"a\":[".repeat(levels / 2), "]}".repeat(levels / 2))
}

/// As deep as Go reads: also to clone, compare, encode and drop it, on a thread with the stack that the module names.
#[test]
fn the_deepest_values_are_decoded() {
    let thread = std::thread::Builder::new().stack_size(STACK_SIZE);
    let deepest = thread.spawn(|| {
        let text = nested(MAX_NESTING);
        let value = decode(text.as_bytes()).unwrap();
        assert_eq!(crate::json::encode(&value), text.as_bytes());
        let copy = value.clone();
        copy == value && DecodedSize::of(text.as_bytes()).unwrap().nesting == MAX_NESTING
    });
    assert!(deepest.unwrap().join().unwrap());
    let error = "invalid character '{' exceeded max depth";
    assert_eq!(decode(nested(MAX_NESTING + 2).as_bytes()), Err(error.to_owned()));
}

/// A text of many levels takes as long as a flat one of its size.
#[test]
fn the_time_does_not_grow_with_the_nesting() {
    let time = |text: &str| {
        let began = std::time::Instant::now();
        check(text.as_bytes()).unwrap();
        DecodedSize::of(text.as_bytes()).unwrap();
        began.elapsed()
    };
    let shallow = format!("[{}1]", "{\"a\":[1]},".repeat(100_000));
    let deep = format!("[{}1]", format!("{},", nested(9_000)).repeat(30));
    let of_kilobyte = |text: &str| {
        let best = (0..3).map(|_| time(text)).min().unwrap();
        best / u32::try_from(text.len() >> 10).unwrap()
    };
    assert!(of_kilobyte(&deep) < 10 * of_kilobyte(&shallow));
}
