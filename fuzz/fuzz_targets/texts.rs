//! Texts of any shape, where words are expected.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| mongoseal::fuzzing::text(text));
