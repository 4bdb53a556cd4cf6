#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| portcullis::fuzzing::session_text(data));
