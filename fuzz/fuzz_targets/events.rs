//! Change events of any shape, on documents of any shape.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mongoseal::fuzzing::event(bytes));
