//! The memory of decoded values, against that of the process. Alone in its process, so that nothing else takes memory.

#![expect(clippy::unwrap_used, reason = "a test program: a panic is a failed test")]

use portcullis_go::json::raw::{DecodedSize, decode};

/// The memory that the process uses now, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn no_value_takes_more_memory_than_its_size_says() {
    let entries = |count: usize| {
        let entries: Vec<String> = (0..count).map(|number| format!("\"key{number}\":{number}")).collect();
        format!("{{{}}}", entries.join(","))
    };
    let shapes = [
        ("empty objects", "{},".to_owned()),
        ("small objects", "{\"a\":1},".to_owned()),
        ("texts", "\"abcdefgh\",".to_owned()),
        ("numbers", "1,".to_owned()),
        ("objects of two", "{\"name\":\"abc\",\"value\":{\"x\":[]}},".to_owned()),
        ("large objects", format!("{},", entries(500))),
    ];
    for (name, element) in shapes {
        let text = format!("[{}0]", element.repeat((3 << 20) / element.len()));
        let size = DecodedSize::of(text.as_bytes()).unwrap().bytes;
        let before = resident();
        let values: Vec<_> = (0..2).map(|_| decode(text.as_bytes()).unwrap()).collect();
        let taken = (resident() - before) / values.len();
        println!("{name}: {size} bytes expected, {taken} taken, {} of text", text.len());
        // What a value before has left to the allocator is taken again, so there is no lower bound but for the first one.
        assert!(taken <= size + size / 10 + (1 << 20), "{name}: {taken} bytes, not {size}");
        drop(values);
    }
}
