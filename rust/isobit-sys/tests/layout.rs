// SPDX-License-Identifier: Apache-2.0
//! The declarations against tests/c_abi.txt, which a C program makes from isobit.h: functions with their types, values
//! of constants, sizes and offsets of structures. Nothing may be missing on either side.
use isobit_sys::*;
use std::collections::BTreeSet;
use std::mem::{size_of, MaybeUninit};
use std::ptr::addr_of;

const TABLE: &str = include_str!("../../../tests/c_abi.txt");
const SOURCE: &str = include_str!("../src/lib.rs");

fn lines_of(kind: &str) -> BTreeSet<String> {
    let found: BTreeSet<String> = TABLE.lines().filter(|l| l.starts_with(kind)).map(String::from).collect();
    assert!(!found.is_empty(), "c_abi.txt has no line of kind {}", kind);
    found
}

fn same(declared: BTreeSet<String>, expected: BTreeSet<String>) {
    let only_rust: Vec<_> = declared.difference(&expected).collect();
    let only_c: Vec<_> = expected.difference(&declared).collect();
    assert!(only_rust.is_empty() && only_c.is_empty(), "in Rust only: {:#?}\nin C only: {:#?}", only_rust, only_c);
}

/// "const int64_t*" to "*const i64", "int64_t[8]" to "[i64; 8]".
fn rust_type(c: &str) -> String {
    if let Some((element, length)) = c.strip_suffix(']').and_then(|c| c.split_once('[')) {
        return format!("[{}; {}]", rust_type(element), length);
    }
    let base = c.trim_start_matches("const ").trim_end_matches('*');
    let mut rust = match base {
        "int32_t" => "i32",
        "uint32_t" => "u32",
        "int64_t" => "i64",
        "uint8_t" => "u8",
        "float" => "f32",
        "double" => "f64",
        "char" => "c_char",
        "void" => "c_void",
        name => name,
    }
    .to_string();
    for level in 0..c.matches('*').count() {
        rust = format!("{}{}", if level == 0 && c.starts_with("const ") { "*const " } else { "*mut " }, rust);
    }
    rust
}

/// "int32_t f(const float* x)" to "fn f(x: *const f32) -> i32".
fn rust_function(prototype: &str) -> String {
    let (head, arguments) = prototype.trim_end_matches(')').split_once('(').unwrap();
    let (result, name) = head.rsplit_once(' ').unwrap();
    let arguments: Vec<String> = arguments
        .split(", ")
        .filter(|argument| *argument != "void")
        .map(|argument| argument.rsplit_once(' ').unwrap())
        .map(|(kind, name)| format!("{}: {}", name, rust_type(kind)))
        .collect();
    let result = if result == "void" { String::new() } else { format!(" -> {}", rust_type(result)) };
    format!("fn {}({}){}", name, arguments.join(", "), result)
}

#[test]
fn every_function_is_declared_with_its_types() {
    let expected: BTreeSet<String> =
        lines_of("function ").iter().map(|line| rust_function(&line["function ".len()..])).collect();
    let source = SOURCE.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(").replace(", )", ")");
    let declared: BTreeSet<String> =
        source.split("pub fn ").skip(1).map(|text| format!("fn {}", text.split(';').next().unwrap())).collect();
    same(declared, expected);
}

#[test]
fn every_constant_has_its_value() {
    let declared: BTreeSet<String> = SOURCE
        .lines()
        .filter_map(|line| line.strip_prefix("pub const "))
        .map(|line| format!("constant {}", line.trim_end_matches(';').replace(": i32 =", "")))
        .collect();
    same(declared, lines_of("constant "));
}

/// The lines of c_abi.txt of one structure; the compiler checks that each field has the type given here.
macro_rules! structure {
    ($out:expr, $name:ident { $($field:ident: $kind:ty),* $(,)? }) => {{
        $out.insert(format!("struct {} size {}", stringify!($name), size_of::<$name>()));
        let value = MaybeUninit::<$name>::uninit();
        let base = value.as_ptr();
        $(
            let _typed: fn(&$name) -> &$kind = |value| &value.$field;
            // SAFETY: addr_of makes no reference and reads nothing; base points to memory of that size.
            let offset = unsafe { addr_of!((*base).$field) as usize } - base as usize;
            $out.insert(format!(
                "field {}.{} {} offset {} size {}", stringify!($name), stringify!($field),
                stringify!($kind).replace("std::os::raw::", ""), offset, size_of::<$kind>()
            ));
        )*
    }};
}

#[test]
fn structures_lie_in_memory_as_in_c() {
    let mut found = BTreeSet::new();
    structure!(
        found,
        isobit_grid {
            bits: i32,
            is_signed: i32,
            scale_kind: i32,
            shift: i32,
            real_scale: f32,
            reserved: i32,
            zero_point: i64,
        }
    );
    structure!(found, isobit_export_options {
        struct_size: u32,
        target: i32,
        name: *const std::os::raw::c_char,
        selftest_steps: i64,
        float_entry: i32,
        allow_large_tables: i32,
        force: i32,
        reserved: i32,
    });
    structure!(
        found,
        isobit_export_info {
            struct_size: u32,
            reserved: i32,
            weights_bytes: i64,
            tables_bytes: i64,
            constants_bytes: i64,
            selftest_bytes: i64,
            state_bytes: i64,
            scratch_bytes: i64,
            multiply_adds: i64,
        }
    );
    structure!(found, isobit_array_info {
        struct_size: u32,
        dtype: i32,
        dimensions: i32,
        reserved: i32,
        shape: [i64; 8],
        size_bytes: i64,
        data: *const std::os::raw::c_void,
    });
    structure!(
        found,
        isobit_gru_info {
            struct_size: u32,
            directions: i32,
            layers: i64,
            input_size: i64,
            hidden_size: i64,
            output_size: i64,
            input_dtype: i32,
            output_dtype: i32,
            input_grid: isobit_grid,
            output_grid: isobit_grid,
        }
    );
    structure!(found, isobit_gru_run_options {
        struct_size: u32,
        cpu_path: i32,
        lengths: *const i64,
        length_count: i64,
        zoneout_mask: *const u8,
        zoneout_count: i64,
        batch_first: i32,
        whole_sequence: i32,
        pool: *mut isobit_pool,
    });
    structure!(
        found,
        isobit_fp16_table_info {
            struct_size: u32,
            model: i32,
            half_values: i32,
            worst_code: u32,
            beta: f64,
            max_ulp: f64,
            mean_ulp: f64,
            max_absolute: f64,
            share_exact: f64,
            share_within_ulp: f64,
        }
    );
    structure!(
        found,
        isobit_low_bit_options {
            struct_size: u32,
            bits: i32,
            group: i64,
            kind: i32,
            method: i32,
            scale_dtype: i32,
            reserved: i32,
        }
    );
    structure!(
        found,
        isobit_low_bit_info {
            struct_size: u32,
            bits: i32,
            rows: i64,
            columns: i64,
            group: i64,
            groups: i64,
            row_bytes: i64,
            size_bytes: i64,
            kind: i32,
            scale_dtype: i32,
        }
    );
    structure!(found, isobit_linear_options {
        struct_size: u32,
        activations: i32,
        cpu_path: i32,
        has_clamp: i32,
        clamp_lo: f32,
        clamp_hi: f32,
        bias: *const f32,
        bias_count: i64,
    });
    structure!(
        found,
        isobit_linear_info {
            struct_size: u32,
            activations: i32,
            cpu_path: i32,
            reserved: i32,
            rows: i64,
            columns: i64,
            size_bytes: i64,
        }
    );
    structure!(found, isobit_linear_run_options {
        struct_size: u32,
        unchecked: i32,
        x_stride: i64,
        y_stride: i64,
        pool: *mut isobit_pool,
    });
    structure!(found, isobit_static_linear_options {
        struct_size: u32,
        cpu_path: i32,
        has_output: i32,
        has_clamp: i32,
        clamp_lo: f32,
        clamp_hi: f32,
        rounding: i32,
        reserved: i32,
        input: isobit_grid,
        output: isobit_grid,
        bias: *const f32,
        bias_count: i64,
    });
    structure!(
        found,
        isobit_static_linear_info {
            struct_size: u32,
            cpu_path: i32,
            x_dtype: i32,
            y_dtype: i32,
            rows: i64,
            columns: i64,
        }
    );
    structure!(
        found,
        isobit_conv_axis { kernel: i64, stride: i64, dilation: i64, pad_before: i64, pad_after: i64, more: i64 }
    );
    structure!(
        found,
        isobit_conv_shape {
            struct_size: u32,
            transposed: i32,
            channels: i64,
            outputs: i64,
            groups: i64,
            rows: isobit_conv_axis,
            columns: isobit_conv_axis,
        }
    );
    structure!(
        found,
        isobit_conv_info {
            struct_size: u32,
            activations: i32,
            cpu_path: i32,
            transposed: i32,
            channels: i64,
            outputs: i64,
            groups: i64,
            rows: isobit_conv_axis,
            columns: isobit_conv_axis,
        }
    );
    structure!(
        found,
        isobit_static_conv_info {
            struct_size: u32,
            cpu_path: i32,
            x_dtype: i32,
            y_dtype: i32,
            residual_dtype: i32,
            has_residual: i32,
            has_output: i32,
            transposed: i32,
            channels: i64,
            outputs: i64,
            groups: i64,
            rows: isobit_conv_axis,
            columns: isobit_conv_axis,
            input: isobit_grid,
            output: isobit_grid,
            residual: isobit_grid,
        }
    );
    structure!(
        found,
        isobit_static_pool_options {
            struct_size: u32,
            kind: i32,
            counts_outside: i32,
            rounding: i32,
            rows: isobit_conv_axis,
            columns: isobit_conv_axis,
            input: isobit_grid,
            output: isobit_grid,
        }
    );
    structure!(found, isobit_static_pool_info { struct_size: u32, kind: i32, x_dtype: i32, y_dtype: i32 });
    let mut expected: BTreeSet<String> = lines_of("struct ");
    for line in lines_of("field ") {
        let (head, tail) = line.split_once(" offset ").unwrap();
        let (name, kind) = head["field ".len()..].split_once(' ').unwrap();
        expected.insert(format!("field {} {} offset {}", name, rust_type(kind), tail));
    }
    structure!(found, isobit_device_run_options {
        struct_size: u32,
        reserved: i32,
        x_stride: i64,
        y_stride: i64,
        stream: *mut std::os::raw::c_void,
    });
    same(found, expected);
}

#[test]
fn the_library_is_of_this_version() {
    // SAFETY: a pointer to a text that ends with a zero and stays.
    let version = unsafe { std::ffi::CStr::from_ptr(isobit_version()) };
    assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}
