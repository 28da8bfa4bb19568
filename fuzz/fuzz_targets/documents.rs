//! Documents of any shape, where records are expected.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mongoseal::fuzzing::document(bytes));
