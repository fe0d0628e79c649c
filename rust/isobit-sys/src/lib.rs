// SPDX-License-Identifier: Apache-2.0
//! `isobit.h`, the C interface of isobit, declared for Rust: the same names, types and order, nothing added. What a
//! call demands and gives is said in `isobit.h` and `docs/c_api.md`; the crate `isobit` is the safe interface.
#![allow(non_camel_case_types)]
#![deny(missing_docs)]

use std::marker::PhantomData;
use std::os::raw::{c_char, c_void};

/// `ISOBIT_OK` of `isobit.h`.
pub const ISOBIT_OK: i32 = 0;
/// A value that the caller passed is outside its limits.
pub const ISOBIT_INVALID_ARGUMENT: i32 = 1;
/// A file's content is truncated, inconsistent or of an unknown version.
pub const ISOBIT_INVALID_FILE: i32 = 2;
/// The operating system refused a read or a write.
pub const ISOBIT_IO: i32 = 3;
/// Well-formed, but refused by name.
pub const ISOBIT_UNSUPPORTED: i32 = 4;
/// The overflow proof failed (numerics.md, section 8).
pub const ISOBIT_OVERFLOW: i32 = 5;
/// Not possible here or now, e.g. a path that this processor cannot run.
pub const ISOBIT_FAILED_PRECONDITION: i32 = 6;
/// The system has no memory or no thread left.
pub const ISOBIT_NO_RESOURCES: i32 = 100;

/// `ISOBIT_CPU_DEFAULT` of `isobit.h`.
pub const ISOBIT_CPU_DEFAULT: i32 = 0;
/// `ISOBIT_CPU_REFERENCE` of `isobit.h`.
pub const ISOBIT_CPU_REFERENCE: i32 = 1;
/// `ISOBIT_CPU_SCALAR` of `isobit.h`.
pub const ISOBIT_CPU_SCALAR: i32 = 2;
/// `ISOBIT_CPU_AVX2` of `isobit.h`.
pub const ISOBIT_CPU_AVX2: i32 = 3;
/// `ISOBIT_CPU_AVXVNNI` of `isobit.h`.
pub const ISOBIT_CPU_AVXVNNI: i32 = 4;
/// `ISOBIT_CPU_AVX512VNNI` of `isobit.h`.
pub const ISOBIT_CPU_AVX512VNNI: i32 = 5;
/// `ISOBIT_CPU_AMX` of `isobit.h`.
pub const ISOBIT_CPU_AMX: i32 = 6;

/// `ISOBIT_S8` of `isobit.h`.
pub const ISOBIT_S8: i32 = 0;
/// `ISOBIT_U8` of `isobit.h`.
pub const ISOBIT_U8: i32 = 1;
/// `ISOBIT_S16` of `isobit.h`.
pub const ISOBIT_S16: i32 = 2;
/// `ISOBIT_U16` of `isobit.h`.
pub const ISOBIT_U16: i32 = 3;
/// `ISOBIT_S32` of `isobit.h`.
pub const ISOBIT_S32: i32 = 4;
/// `ISOBIT_U32` of `isobit.h`.
pub const ISOBIT_U32: i32 = 5;
/// `ISOBIT_S64` of `isobit.h`.
pub const ISOBIT_S64: i32 = 6;
/// `ISOBIT_F16` of `isobit.h`.
pub const ISOBIT_F16: i32 = 7;
/// `ISOBIT_BF16` of `isobit.h`.
pub const ISOBIT_BF16: i32 = 8;
/// `ISOBIT_F32` of `isobit.h`.
pub const ISOBIT_F32: i32 = 9;
/// `ISOBIT_F64` of `isobit.h`.
pub const ISOBIT_F64: i32 = 10;

/// `ISOBIT_NEAREST_EVEN` of `isobit.h`.
pub const ISOBIT_NEAREST_EVEN: i32 = 0;
/// `ISOBIT_NEAREST_UP` of `isobit.h`.
pub const ISOBIT_NEAREST_UP: i32 = 1;
/// `ISOBIT_NEAREST_AWAY` of `isobit.h`.
pub const ISOBIT_NEAREST_AWAY: i32 = 2;
/// `ISOBIT_FLOOR` of `isobit.h`.
pub const ISOBIT_FLOOR: i32 = 3;

/// Scale = 2^-shift.
pub const ISOBIT_SCALE_POW2: i32 = 0;
/// Scale = real_scale.
pub const ISOBIT_SCALE_REAL: i32 = 1;

/// Which real numbers codes stand for: (code - zero_point) * scale, code in 0..2^bits - 1, or signed in
/// -2^(bits-1)..2^(bits-1) - 1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_grid {
    /// 1..32
    pub bits: i32,
    /// 0 or 1
    pub is_signed: i32,
    /// ISOBIT_SCALE_...
    pub scale_kind: i32,
    /// ISOBIT_SCALE_POW2: -32..62
    pub shift: i32,
    /// ISOBIT_SCALE_REAL: a positive normal number
    pub real_scale: f32,
    /// Zero
    pub reserved: i32,
    /// a code
    pub zero_point: i64,
}

/// A fixed number of threads, among which a call splits its work; bytes never depend on it. One call at a time.
#[repr(C)]
pub struct isobit_pool {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// The named arrays of a npy, npz, safetensors or GGUF file. Immutable.
#[repr(C)]
pub struct isobit_arrays {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// `isobit_array_info` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_array_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_S8, ...
    pub dtype: i32,
    /// 0..8
    pub dimensions: i32,
    /// Zero
    pub reserved: i32,
    /// The first `dimensions`; the rest is 0
    pub shape: [i64; 8],
    /// Size bytes
    pub size_bytes: i64,
    /// Valid until the isobit_arrays is destroyed
    pub data: *const c_void,
}

/// `isobit_gru` of `isobit.h`.
#[repr(C)]
pub struct isobit_gru {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// The codes of h of every layer and direction, `[L * D, N, H]`.
#[repr(C)]
pub struct isobit_gru_state {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// Scratch memory of a model's calls.
#[repr(C)]
pub struct isobit_gru_workspace {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// `isobit_gru_info` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_gru_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// D
    pub directions: i32,
    /// L
    pub layers: i64,
    /// C
    pub input_size: i64,
    /// H
    pub hidden_size: i64,
    /// D * H
    pub output_size: i64,
    /// Of codes of x: ISOBIT_S8 .. ISOBIT_U32
    pub input_dtype: i32,
    /// Of codes of y
    pub output_dtype: i32,
    /// Input grid
    pub input_grid: isobit_grid,
    /// Output grid
    pub output_grid: isobit_grid,
}

/// `isobit_gru_run_options` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_gru_run_options {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_CPU_...
    pub cpu_path: i32,
    /// `[N]`, 0..T: past its length a sequence's state stays, and y is 0
    pub lengths: *const i64,
    /// N, or 0: every sequence has T steps
    pub length_count: i64,
    /// `[T, N, D * H]`, models of one layer: 1 takes h', 0 keeps h
    pub zoneout_mask: *const u8,
    /// T * N * D * H, or 0: no mask
    pub zoneout_count: i64,
    /// 1: x is `[N, T, C]` and y `[N, T, D * H]`
    pub batch_first: i32,
    /// 1: x holds whole sequences, not pieces; bidirectional models are refused without it
    pub whole_sequence: i32,
    /// NULL: the caller's thread
    pub pool: *mut isobit_pool,
}

/// An activation function as hardware with a small table of floats computes it: y = table(x), float16 to float16.
#[repr(C)]
pub struct isobit_fp16_table {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// Float32 throughout.
pub const ISOBIT_FP16_F32: i32 = 0;
/// The published GPU code.
pub const ISOBIT_FP16_NLI_GPU: i32 = 1;
/// The published CPU code.
pub const ISOBIT_FP16_NLI_CPU: i32 = 2;

/// Structure of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_export_options {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_TARGET_...
    pub target: i32,
    /// A C identifier, of files and functions; NULL: made from that of the model
    pub name: *const c_char,
    /// That NAME_selftest compares, at most 1000; 0: 8
    pub selftest_steps: i64,
    /// 1: a GRU of one direction also gets a step that takes and gives float32
    pub float_entry: i32,
    /// 1: activation tables above 16 KB
    pub allow_large_tables: i32,
    /// 1: files of an earlier export are overwritten
    pub force: i32,
    /// Zero
    pub reserved: i32,
}

/// Structure of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_export_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// Zero
    pub reserved: i32,
    /// Flash
    pub weights_bytes: i64,
    /// Flash
    pub tables_bytes: i64,
    /// Flash
    pub constants_bytes: i64,
    /// Flash, where NAME_selftest is called
    pub selftest_bytes: i64,
    /// RAM that is kept between steps
    pub state_bytes: i64,
    /// RAM during a call
    pub scratch_bytes: i64,
    /// A step of a GRU, a row of a linear layer, an output pixel of a convolution
    pub multiply_adds: i64,
}

/// What a table is, and its certificate: errors over every finite float16 input against the correctly rounded result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_fp16_table_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_FP16_...
    pub model: i32,
    /// 1: its values are float16 numbers
    pub half_values: i32,
    /// The smallest float16 code with max_ulp
    pub worst_code: u32,
    /// Of swish; else 1
    pub beta: f64,
    /// In units of the last place of the correct result
    pub max_ulp: f64,
    /// Mean ulp
    pub mean_ulp: f64,
    /// Max absolute
    pub max_absolute: f64,
    /// 0..1
    pub share_exact: f64,
    /// 0..1
    pub share_within_ulp: f64,
}

/// A matrix of such weights. Immutable.
#[repr(C)]
pub struct isobit_low_bit {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// `ISOBIT_SYMMETRIC` of `isobit.h`.
pub const ISOBIT_SYMMETRIC: i32 = 0;
/// `ISOBIT_ZERO_POINT` of `isobit.h`.
pub const ISOBIT_ZERO_POINT: i32 = 1;
/// `ISOBIT_OFFSET` of `isobit.h`.
pub const ISOBIT_OFFSET: i32 = 2;

/// S from the largest magnitude; symmetric only.
pub const ISOBIT_ABSMAX: i32 = 0;
/// From smallest and largest value; zero_point and offset only.
pub const ISOBIT_MINMAX: i32 = 1;
/// The range of these times 1 - i/64, i = 0..31, with the least squared error.
pub const ISOBIT_MSE: i32 = 2;

/// `isobit_low_bit_options` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_low_bit_options {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// 1, 2, 4 or 8; no default
    pub bits: i32,
    /// K, or a multiple of 8 below K; no default
    pub group: i64,
    /// ISOBIT_SYMMETRIC, ...
    pub kind: i32,
    /// ISOBIT_ABSMAX, ...
    pub method: i32,
    /// Of S and O: ISOBIT_F32, ISOBIT_F16 or ISOBIT_BF16; no default
    pub scale_dtype: i32,
    /// Zero
    pub reserved: i32,
}

/// `isobit_low_bit_info` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_low_bit_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// Bits
    pub bits: i32,
    /// N
    pub rows: i64,
    /// K
    pub columns: i64,
    /// Elements of a group
    pub group: i64,
    /// Of a row: G = ceil(K / group)
    pub groups: i64,
    /// Of the codes of a row
    pub row_bytes: i64,
    /// Codes, scales, zero points, offsets
    pub size_bytes: i64,
    /// ISOBIT_SYMMETRIC, ...
    pub kind: i32,
    /// ISOBIT_F32, ISOBIT_F16 or ISOBIT_BF16
    pub scale_dtype: i32,
}

/// A layer with floating-point rows in and out. Immutable.
#[repr(C)]
pub struct isobit_linear {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// A layer of codes of 2 to 16 bits on fixed grids, integers only. Immutable.
#[repr(C)]
pub struct isobit_static_linear {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// Scratch memory of calls; any layer of either kind may use it that needs no more of it than was asked for.
#[repr(C)]
pub struct isobit_linear_workspace {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// Nothing; the order of the sums is the kernel's own: section 10.
pub const ISOBIT_ACTIVATIONS_FLOAT: i32 = 0;
/// 8-bit codes of each group, symmetric; the same bytes everywhere: section 11.
pub const ISOBIT_ACTIVATIONS_INT8: i32 = 1;
/// The same with an offset for each group.
pub const ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC: i32 = 2;
/// Convolutions only: 8-bit codes with one symmetric scale for each image.
pub const ISOBIT_ACTIVATIONS_INT8_PER_IMAGE: i32 = 3;

/// `isobit_linear_options` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_linear_options {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_ACTIVATIONS_...
    pub activations: i32,
    /// ISOBIT_CPU_...
    pub cpu_path: i32,
    /// 1: act clamps
    pub has_clamp: i32,
    /// Lo <= hi, not NaN; 0 without a clamp
    pub clamp_lo: f32,
    /// Clamp hi
    pub clamp_hi: f32,
    /// `[N]`, copied
    pub bias: *const f32,
    /// N, or 0: no bias
    pub bias_count: i64,
}

/// `isobit_linear_info` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_linear_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_ACTIVATIONS_...
    pub activations: i32,
    /// That it was packed for
    pub cpu_path: i32,
    /// Zero
    pub reserved: i32,
    /// N
    pub rows: i64,
    /// K
    pub columns: i64,
    /// Of the packed weights with what else a call reads
    pub size_bytes: i64,
}

/// `isobit_linear_run_options` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_linear_run_options {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// 1: rows of x are not searched for NaN and infinity; such a row of y becomes NaN. int8 only
    pub unchecked: i32,
    /// Elements from row to row of x, at least K; 0: K
    pub x_stride: i64,
    /// Elements from row to row of y, at least N; 0: N. What lies between rows is not written
    pub y_stride: i64,
    /// NULL: the caller's thread
    pub pool: *mut isobit_pool,
}

/// `isobit_static_linear_options` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_static_linear_options {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_CPU_...
    pub cpu_path: i32,
    /// 1: y is on the grid `output`; 0: y is the accumulators, ISOBIT_S32
    pub has_output: i32,
    /// 1: act clamps; needs an output grid
    pub has_clamp: i32,
    /// In real numbers, lo <= hi; 0 without a clamp
    pub clamp_lo: f32,
    /// Clamp hi
    pub clamp_hi: f32,
    /// ISOBIT_NEAREST_EVEN, ...
    pub rounding: i32,
    /// Zero
    pub reserved: i32,
    /// Of x: 2 to 16 bits; no default
    pub input: isobit_grid,
    /// Of y: 2 to 16 bits; zeros without one
    pub output: isobit_grid,
    /// `[N]`, finite, copied
    pub bias: *const f32,
    /// N, or 0: no bias
    pub bias_count: i64,
}

/// `isobit_static_linear_info` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_static_linear_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// That it was packed for
    pub cpu_path: i32,
    /// ISOBIT_S8, ISOBIT_U8, ISOBIT_S16 or ISOBIT_U16
    pub x_dtype: i32,
    /// The same, or ISOBIT_S32
    pub y_dtype: i32,
    /// N
    pub rows: i64,
    /// K
    pub columns: i64,
}

/// What a layer does along one dimension of an image. Part of other structures.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_conv_axis {
    /// R or S; 0: 1
    pub kernel: i64,
    /// 0: 1
    pub stride: i64,
    /// 0: 1
    pub dilation: i64,
    /// Top or left
    pub pad_before: i64,
    /// Bottom or right
    pub pad_after: i64,
    /// Transposed: outputs beyond the last, below stride or dilation
    pub more: i64,
}

/// `isobit_conv_shape` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_conv_shape {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// 0 or 1
    pub transposed: i32,
    /// C; no default
    pub channels: i64,
    /// O; no default
    pub outputs: i64,
    /// Divides both; depthwise: C; 0: 1
    pub groups: i64,
    /// Along H
    pub rows: isobit_conv_axis,
    /// Along W
    pub columns: isobit_conv_axis,
}

/// A convolution with floating-point images in and out, on low-bit weights. Immutable.
#[repr(C)]
pub struct isobit_conv {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// `isobit_conv_info` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_conv_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_ACTIVATIONS_...
    pub activations: i32,
    /// That it was packed for
    pub cpu_path: i32,
    /// 0 or 1
    pub transposed: i32,
    /// C
    pub channels: i64,
    /// O
    pub outputs: i64,
    /// Of both
    pub groups: i64,
    /// Along H
    pub rows: isobit_conv_axis,
    /// Along W
    pub columns: isobit_conv_axis,
}

/// A convolution. Immutable.
#[repr(C)]
pub struct isobit_static_conv {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// A convolution of one dimension whose x comes in chunks of columns. Immutable.
#[repr(C)]
pub struct isobit_static_conv_stream {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// What a stream has seen last, `[B, pad_before, C]`.
#[repr(C)]
pub struct isobit_static_conv_state {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// The largest code or the average of a window. Immutable.
#[repr(C)]
pub struct isobit_static_pool {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// `isobit_static_conv_info` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_static_conv_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// That it was packed for
    pub cpu_path: i32,
    /// ISOBIT_S8, ISOBIT_U8, ISOBIT_S16 or ISOBIT_U16
    pub x_dtype: i32,
    /// The same, or ISOBIT_S32
    pub y_dtype: i32,
    /// As x_dtype; 0 without a residual
    pub residual_dtype: i32,
    /// 1: the layer adds one
    pub has_residual: i32,
    /// 0: y is the accumulators
    pub has_output: i32,
    /// 0 or 1
    pub transposed: i32,
    /// C
    pub channels: i64,
    /// O
    pub outputs: i64,
    /// Of both
    pub groups: i64,
    /// Along H
    pub rows: isobit_conv_axis,
    /// Along W
    pub columns: isobit_conv_axis,
    /// Of x
    pub input: isobit_grid,
    /// Of y; zeros without one
    pub output: isobit_grid,
    /// Zeros without one
    pub residual: isobit_grid,
}

/// `ISOBIT_POOL_MAX` of `isobit.h`.
pub const ISOBIT_POOL_MAX: i32 = 0;
/// `ISOBIT_POOL_AVERAGE` of `isobit.h`.
pub const ISOBIT_POOL_AVERAGE: i32 = 1;

/// `ISOBIT_TARGET_GENERIC` of `isobit.h`.
pub const ISOBIT_TARGET_GENERIC: i32 = 0;
/// `ISOBIT_TARGET_CORTEX_M3` of `isobit.h`.
pub const ISOBIT_TARGET_CORTEX_M3: i32 = 1;
/// `ISOBIT_TARGET_CORTEX_M4` of `isobit.h`.
pub const ISOBIT_TARGET_CORTEX_M4: i32 = 2;
/// `ISOBIT_TARGET_CORTEX_M7` of `isobit.h`.
pub const ISOBIT_TARGET_CORTEX_M7: i32 = 3;
/// `ISOBIT_TARGET_CORTEX_M33` of `isobit.h`.
pub const ISOBIT_TARGET_CORTEX_M33: i32 = 4;
/// `ISOBIT_TARGET_CORTEX_M55` of `isobit.h`.
pub const ISOBIT_TARGET_CORTEX_M55: i32 = 5;

/// `isobit_static_pool_options` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_static_pool_options {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_POOL_...
    pub kind: i32,
    /// Average: 1: of R * S pixels, those outside x are z_x; 0: of the pixels inside x
    pub counts_outside: i32,
    /// ISOBIT_NEAREST_EVEN, ...
    pub rounding: i32,
    /// The window along H; each pad is smaller than its side
    pub rows: isobit_conv_axis,
    /// Along W
    pub columns: isobit_conv_axis,
    /// Of x: 2 to 16 bits; no default
    pub input: isobit_grid,
    /// Of y: 2 to 16 bits; zeros: input, which it is of ISOBIT_POOL_MAX
    pub output: isobit_grid,
}

/// `isobit_static_pool_info` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_static_pool_info {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// ISOBIT_POOL_...
    pub kind: i32,
    /// ISOBIT_S8, ISOBIT_U8, ISOBIT_S16 or ISOBIT_U16
    pub x_dtype: i32,
    /// The same
    pub y_dtype: i32,
}

/// A layer of either kind on one device, with the bytes of the one on the host; float activations: section 10.
/// Immutable.
#[repr(C)]
pub struct isobit_device_linear {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// `isobit_device_run_options` of `isobit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct isobit_device_run_options {
    /// `sizeof` of the structure
    pub struct_size: u32,
    /// Zero
    pub reserved: i32,
    /// Elements from row to row of x, at least K; 0: K
    pub x_stride: i64,
    /// Elements from row to row of y, at least N; 0: N. What lies between rows is not written
    pub y_stride: i64,
    /// NULL: the default stream
    pub stream: *mut c_void,
}

/// A layer of floating-point images on one device, with the bytes of the one on the host; float activations: section
/// 10. Immutable.
#[repr(C)]
pub struct isobit_device_conv {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

/// A layer of static codes on one device, with the bytes of the one on the host. Immutable.
#[repr(C)]
pub struct isobit_device_static_conv {
    _opaque: [u8; 0],
    _not_shared: PhantomData<*mut u8>,
}

extern "C" {
    /// Version of the library, "MAJOR.MINOR.PATCH". Before 1.0 the interface may change with MINOR, which is therefore
    /// part of the library's soname.
    pub fn isobit_version() -> *const c_char;
    /// Why the last call that failed on this thread did; "" when none has. Valid until the next one fails on this
    /// thread.
    pub fn isobit_last_error() -> *const c_char;
    /// "ok", "invalid argument", "invalid file", ...; "unknown status" for other values.
    pub fn isobit_status_name(status: i32) -> *const c_char;
    /// ISOBIT_OK where cpu_path (ISOBIT_CPU_...) can run here. Errors: ISOBIT_FAILED_PRECONDITION with what is missing;
    /// ISOBIT_INVALID_ARGUMENT for other numbers; ISOBIT_CPU_DEFAULT: for what is wrong with ISOBIT_CPU.
    pub fn isobit_cpu_check(cpu_path: i32) -> i32;
    /// threads: 1..1024, the caller's included; 0: one for each processor that this process may use.
    pub fn isobit_pool_create(threads: i32, pool: *mut *mut isobit_pool) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_pool_destroy(pool: *mut isobit_pool);
    /// The number of threads; 0 for NULL.
    pub fn isobit_pool_threads(pool: *const isobit_pool) -> i32;
    /// Reads every array of a file, which is recognised by its content. Of GGUF all tensors become f32.
    /// Errors: ISOBIT_IO, ISOBIT_INVALID_FILE, ISOBIT_UNSUPPORTED name the file and the array.
    pub fn isobit_arrays_load(path: *const c_char, arrays: *mut *mut isobit_arrays) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_arrays_destroy(arrays: *mut isobit_arrays);
    /// The array of that name ("" for the one of a npy file). Errors: ISOBIT_INVALID_ARGUMENT if there is none;
    /// ISOBIT_UNSUPPORTED if it has more than 8 dimensions.
    pub fn isobit_arrays_find(arrays: *const isobit_arrays, name: *const c_char, info: *mut isobit_array_info) -> i32;
    /// A model that `isobit quantize` or GruModel::save wrote. name: which GRU of a file with several, else NULL. Every
    /// field is checked and the overflow proof made anew. Errors: ISOBIT_IO, ISOBIT_INVALID_FILE, ISOBIT_UNSUPPORTED,
    /// ISOBIT_OVERFLOW; ISOBIT_INVALID_ARGUMENT for a name that the file has not.
    pub fn isobit_gru_load(path: *const c_char, name: *const c_char, gru: *mut *mut isobit_gru) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_gru_destroy(gru: *mut isobit_gru);
    /// Fills `info`.
    pub fn isobit_gru_get_info(gru: *const isobit_gru, info: *mut isobit_gru_info) -> i32;
    /// The state before the first step, h = 0, of `batch` sequences, 0..2^31 - 1.
    pub fn isobit_gru_state_create(gru: *const isobit_gru, batch: i64, state: *mut *mut isobit_gru_state) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_gru_state_destroy(state: *mut isobit_gru_state);
    /// h = 0 again.
    pub fn isobit_gru_state_reset(state: *mut isobit_gru_state) -> i32;
    /// to = from, of the same model (the handle that isobit_gru_load made) and batch.
    pub fn isobit_gru_state_copy(from: *const isobit_gru_state, to: *mut isobit_gru_state) -> i32;
    /// to = from of another model with as many layers, directions and hidden units, and of the same batch: requantised
    /// in integers to the grids of `to`, as from an encoder to a decoder. Errors: ISOBIT_INVALID_ARGUMENT,
    /// ISOBIT_OVERFLOW.
    pub fn isobit_gru_state_hand_over(from: *const isobit_gru_state, to: *mut isobit_gru_state) -> i32;
    /// h `[L * D, N, H]` as numbers: count = L * D * N * H. set quantises and refuses NaN by its index.
    pub fn isobit_gru_state_set(state: *mut isobit_gru_state, h: *const f32, count: i64) -> i32;
    /// See `isobit.h`.
    pub fn isobit_gru_state_get(state: *const isobit_gru_state, h: *mut f32, count: i64) -> i32;
    /// Memory for calls of this model with up to `batch` sequences and `steps` steps, each 0..2^31 - 1, on up to
    /// `threads` threads, 1..1024.
    pub fn isobit_gru_workspace_create(
        gru: *const isobit_gru,
        batch: i64,
        steps: i64,
        threads: i32,
        workspace: *mut *mut isobit_gru_workspace,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_gru_workspace_destroy(workspace: *mut isobit_gru_workspace);
    /// Its bytes; 0 for NULL.
    pub fn isobit_gru_workspace_size_bytes(workspace: *const isobit_gru_workspace) -> i64;
    /// x `[T, N, C]` to y `[T, N, D * H]`, quantised on input_grid and dequantised from output_grid; N is the state's
    /// batch. Continues from `state` and leaves the last one there, so that a sequence may be cut anywhere (models of
    /// two directions: the reverse direction starts anew from `state` in each call). steps: T, 0..2^31 - 1; x_count = T
    /// * N * C, y_count = T * N * D * H. options: NULL for the defaults. Allocates nothing. Errors:
    /// ISOBIT_INVALID_ARGUMENT for sizes, NaN in x, lengths, overlaps, a state or workspace of another model or too
    /// small; ISOBIT_UNSUPPORTED or ISOBIT_FAILED_PRECONDITION for a path that cannot run the model, or here. Nothing
    /// is written then.
    pub fn isobit_gru_forward(
        gru: *const isobit_gru,
        x: *const f32,
        x_count: i64,
        y: *mut f32,
        y_count: i64,
        steps: i64,
        state: *mut isobit_gru_state,
        workspace: *mut isobit_gru_workspace,
        options: *const isobit_gru_run_options,
    ) -> i32;
    /// The same on codes of input_dtype and output_dtype. A code of x that is not on input_grid is refused by its
    /// index.
    pub fn isobit_gru_forward_codes(
        gru: *const isobit_gru,
        x: *const c_void,
        x_count: i64,
        y: *mut c_void,
        y_count: i64,
        steps: i64,
        state: *mut isobit_gru_state,
        workspace: *mut isobit_gru_workspace,
        options: *const isobit_gru_run_options,
    ) -> i32;
    /// A table that isobit carries. function: "silu", "gelu", "tanh", "sigmoid", ... (`isobit table check --all`);
    /// model: ISOBIT_FP16_...; half_values: 0 or 1. Errors: ISOBIT_INVALID_ARGUMENT names what there is.
    pub fn isobit_fp16_table_builtin(
        function: *const c_char,
        model: i32,
        half_values: i32,
        table: *mut *mut isobit_fp16_table,
    ) -> i32;
    /// A table that `isobit table fit` wrote. Errors: ISOBIT_IO, ISOBIT_INVALID_FILE, ISOBIT_UNSUPPORTED.
    pub fn isobit_fp16_table_load(path: *const c_char, table: *mut *mut isobit_fp16_table) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_fp16_table_destroy(table: *mut isobit_fp16_table);
    /// Fills `info`.
    pub fn isobit_fp16_table_get_info(table: *const isobit_fp16_table, info: *mut isobit_fp16_table_info) -> i32;
    /// "silu", ...; "custom" for a function of the user's own; "" for NULL. Valid as long as the table.
    pub fn isobit_fp16_table_function(table: *const isobit_fp16_table) -> *const c_char;
    /// y`[i]` = table(x`[i]`), i in 0..count-1. Types: ISOBIT_F16, ISOBIT_BF16 or ISOBIT_F32, any pair: x is rounded to
    /// float16 (nearest even), y is the float16 result widened or rounded. NaN gives NaN. y may be x where both types
    /// have one size. pool: NULL for the caller's thread. Allocates nothing. Errors: ISOBIT_UNSUPPORTED for other
    /// types.
    pub fn isobit_fp16_table_run(
        table: *const isobit_fp16_table,
        x: *const c_void,
        x_dtype: i32,
        y: *mut c_void,
        y_dtype: i32,
        count: i64,
        pool: *mut isobit_pool,
    ) -> i32;
    /// Quantises weights `[rows, columns]` of ISOBIT_F32, ISOBIT_F16 or ISOBIT_BF16; count = rows * columns. The same
    /// bytes on every machine. pool: NULL for the caller's thread. Errors: ISOBIT_INVALID_ARGUMENT for options outside
    /// their limits, a weight that is not finite (by its index), a scale that its type cannot hold; ISOBIT_UNSUPPORTED
    /// for other types.
    pub fn isobit_low_bit_quantize(
        weights: *const c_void,
        dtype: i32,
        count: i64,
        rows: i64,
        columns: i64,
        options: *const isobit_low_bit_options,
        pool: *mut isobit_pool,
        matrix: *mut *mut isobit_low_bit,
    ) -> i32;
    /// A matrix of a file that isobit_low_bit_save or save_low_bit wrote. name: which one, or NULL for the only one.
    /// Errors: ISOBIT_IO, ISOBIT_INVALID_FILE, ISOBIT_UNSUPPORTED; ISOBIT_INVALID_ARGUMENT for a name that is not
    /// there.
    pub fn isobit_low_bit_load(path: *const c_char, name: *const c_char, matrix: *mut *mut isobit_low_bit) -> i32;
    /// One matrix in a file, under that name (UTF-8, not empty); the file appears whole or not at all.
    pub fn isobit_low_bit_save(matrix: *const isobit_low_bit, name: *const c_char, path: *const c_char) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_low_bit_destroy(matrix: *mut isobit_low_bit);
    /// Fills `info`.
    pub fn isobit_low_bit_get_info(matrix: *const isobit_low_bit, info: *mut isobit_low_bit_info) -> i32;
    /// weights`[n * K + k]` = W`[n, k]` in float32; count = N * K.
    pub fn isobit_low_bit_dequantize(
        matrix: *const isobit_low_bit,
        weights: *mut f32,
        count: i64,
        pool: *mut isobit_pool,
    ) -> i32;
    /// Packs the weights. options: NULL for the defaults. Errors: ISOBIT_INVALID_ARGUMENT for options outside their
    /// limits; ISOBIT_FAILED_PRECONDITION for a path that this processor cannot run; ISOBIT_UNSUPPORTED for one without
    /// a kernel.
    pub fn isobit_linear_create(
        matrix: *const isobit_low_bit,
        options: *const isobit_linear_options,
        layer: *mut *mut isobit_linear,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_linear_destroy(layer: *mut isobit_linear);
    /// Fills `info`.
    pub fn isobit_linear_get_info(layer: *const isobit_linear, info: *mut isobit_linear_info) -> i32;
    /// The kernel that it runs, "int8_avx512vnni"; "" for NULL. Valid as long as the library is loaded.
    pub fn isobit_linear_kernel(layer: *const isobit_linear) -> *const c_char;
    /// Memory for calls with up to m rows on up to `threads` threads, 1..1024.
    pub fn isobit_linear_workspace_create(
        layer: *const isobit_linear,
        m: i64,
        threads: i32,
        workspace: *mut *mut isobit_linear_workspace,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_linear_workspace_destroy(workspace: *mut isobit_linear_workspace);
    /// Its bytes; 0 for NULL.
    pub fn isobit_linear_workspace_size_bytes(workspace: *const isobit_linear_workspace) -> i64;
    /// y = act(x W^T + bias) for m rows. x_count is at least (m - 1) * x_stride + K, y_count (m - 1) * y_stride + N.
    /// Types: ISOBIT_ACTIVATIONS_FLOAT: ISOBIT_F32, ISOBIT_F16 or ISOBIT_BF16, the same of x and y; int8: x also
    /// ISOBIT_F64, any pair. options: NULL for the defaults. Allocates nothing. Errors: ISOBIT_UNSUPPORTED for other
    /// types; ISOBIT_INVALID_ARGUMENT for sizes, strides, overlaps, a workspace too small, or a row that is not finite
    /// (int8), by its index. Nothing is written then.
    pub fn isobit_linear_forward(
        layer: *const isobit_linear,
        x: *const c_void,
        x_dtype: i32,
        x_count: i64,
        y: *mut c_void,
        y_dtype: i32,
        y_count: i64,
        m: i64,
        workspace: *mut isobit_linear_workspace,
        options: *const isobit_linear_run_options,
    ) -> i32;
    /// matrix: 1, 2, 4 or 8 bits, symmetric, one group a row. acc`[m, n]` = sum over k of (q_x - z_x) * w + bias code,
    /// int32; y = acc, or acc rescaled to the output grid and clamped. Errors: ISOBIT_INVALID_ARGUMENT for other
    /// weights, grids or options; ISOBIT_OVERFLOW for a ratio of scales without an encoding, or accumulators that do
    /// not fit.
    pub fn isobit_static_linear_create(
        matrix: *const isobit_low_bit,
        options: *const isobit_static_linear_options,
        layer: *mut *mut isobit_static_linear,
    ) -> i32;
    /// A layer that StaticLinearLayer::save wrote. name: which layer of a file with several, else NULL. Every field is
    /// checked and the overflow proof made anew. Errors: as of isobit_gru_load, and those of a cpu_path.
    pub fn isobit_static_linear_load(
        path: *const c_char,
        name: *const c_char,
        cpu_path: i32,
        layer: *mut *mut isobit_static_linear,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_static_linear_destroy(layer: *mut isobit_static_linear);
    /// Fills `info`.
    pub fn isobit_static_linear_get_info(
        layer: *const isobit_static_linear,
        info: *mut isobit_static_linear_info,
    ) -> i32;
    /// As isobit_linear_kernel.
    pub fn isobit_static_linear_kernel(layer: *const isobit_static_linear) -> *const c_char;
    /// As isobit_linear_workspace_create.
    pub fn isobit_static_linear_workspace_create(
        layer: *const isobit_static_linear,
        m: i64,
        threads: i32,
        workspace: *mut *mut isobit_linear_workspace,
    ) -> i32;
    /// x: codes of x_dtype, y: codes of y_dtype; sizes, strides and errors as of isobit_linear_forward (`unchecked`
    /// must be 0).
    pub fn isobit_static_linear_forward(
        layer: *const isobit_static_linear,
        x: *const c_void,
        x_count: i64,
        y: *mut c_void,
        y_count: i64,
        m: i64,
        workspace: *mut isobit_linear_workspace,
        options: *const isobit_linear_run_options,
    ) -> i32;
    /// matrix: weights `[O * R * S, C / groups]`, rows in the order (o, r, s), with groups of section 9 along the
    /// channels; or `[O, R * S * C / groups]`, k over (r, s, c), c fastest, with one group a row.
    /// ISOBIT_ACTIVATIONS_INT8_PER_IMAGE takes the second only, symmetric. options: as of isobit_linear_create; bias
    /// `[O]`. Errors: ISOBIT_INVALID_ARGUMENT for a shape, weights or options outside their limits, and for columns in
    /// another order than x; ISOBIT_UNSUPPORTED for ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC where blocks of channels must be
    /// filled up to a multiple of 8 and weights have no code for zero, for ISOBIT_ACTIVATIONS_INT8_PER_IMAGE with R * S
    /// * C / groups of 65,536 and more, and for a path without a kernel; ISOBIT_FAILED_PRECONDITION for one that this
    /// processor cannot run.
    pub fn isobit_conv_create(
        matrix: *const isobit_low_bit,
        shape: *const isobit_conv_shape,
        options: *const isobit_linear_options,
        layer: *mut *mut isobit_conv,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_conv_destroy(layer: *mut isobit_conv);
    /// Fills `info`.
    pub fn isobit_conv_get_info(layer: *const isobit_conv, info: *mut isobit_conv_info) -> i32;
    /// P and Q of images of rows x columns (H x W). Errors: ISOBIT_INVALID_ARGUMENT where a size is not 1..2^31 - 1,
    /// such as where the kernel is larger than the padded image.
    pub fn isobit_conv_output_size(
        layer: *const isobit_conv,
        rows: i64,
        columns: i64,
        output_rows: *mut i64,
        output_columns: *mut i64,
    ) -> i32;
    /// Memory for calls with up to `images` images, 0..2^31 - 1, of rows x columns, on up to `threads` threads,
    /// 1..1024. Layers of every kind share workspaces.
    pub fn isobit_conv_workspace_create(
        layer: *const isobit_conv,
        images: i64,
        rows: i64,
        columns: i64,
        threads: i32,
        workspace: *mut *mut isobit_linear_workspace,
    ) -> i32;
    /// x `[images, rows, columns, C]` to y `[images, P, Q, O]`. Strides are from pixel to pixel: x_count is at least C
    /// + (images * rows * columns - 1) * x_stride, y_count O + (images * P * Q - 1) * y_stride. Types as of
    /// isobit_linear_forward. options: NULL for the defaults; what an `unchecked` call computes of numbers that are not
    /// finite is NaN. Allocates nothing, except on ISOBIT_CPU_REFERENCE. Errors: ISOBIT_UNSUPPORTED for other types;
    /// ISOBIT_INVALID_ARGUMENT for sizes, strides, overlaps, a workspace too small, or a pixel
    /// (ISOBIT_ACTIVATIONS_INT8_PER_IMAGE: an image) that is not finite (int8), by its place. Nothing is written then.
    pub fn isobit_conv_forward(
        layer: *const isobit_conv,
        x: *const c_void,
        x_dtype: i32,
        x_count: i64,
        y: *mut c_void,
        y_dtype: i32,
        y_count: i64,
        images: i64,
        rows: i64,
        columns: i64,
        workspace: *mut isobit_linear_workspace,
        options: *const isobit_linear_run_options,
    ) -> i32;
    /// matrix: weights `[O, K]`, K = R * S * C / groups, k over (r, s, c), c fastest; 1, 2, 4 or 8 bits, symmetric, one
    /// group a row. options: as of isobit_static_linear_create; bias `[O]`. residual: the grid, of 2 to 16 bits, of
    /// codes that every call adds; it needs an output grid; NULL: none. The reference computes layers of the default
    /// path that kernels cannot hold. Errors: ISOBIT_INVALID_ARGUMENT for a shape, weights, grids or options outside
    /// their limits, and for columns in another order than x; ISOBIT_OVERFLOW for a ratio of scales without an
    /// encoding, or sums that do not fit; ISOBIT_FAILED_PRECONDITION and ISOBIT_UNSUPPORTED for a path.
    pub fn isobit_static_conv_create(
        matrix: *const isobit_low_bit,
        shape: *const isobit_conv_shape,
        options: *const isobit_static_linear_options,
        residual: *const isobit_grid,
        layer: *mut *mut isobit_static_conv,
    ) -> i32;
    /// A layer that StaticConvLayer::save wrote; all else as of isobit_static_linear_load.
    pub fn isobit_static_conv_load(
        path: *const c_char,
        name: *const c_char,
        cpu_path: i32,
        layer: *mut *mut isobit_static_conv,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_static_conv_destroy(layer: *mut isobit_static_conv);
    /// Fills `info`.
    pub fn isobit_static_conv_get_info(layer: *const isobit_static_conv, info: *mut isobit_static_conv_info) -> i32;
    /// As isobit_conv_output_size.
    pub fn isobit_static_conv_output_size(
        layer: *const isobit_static_conv,
        rows: i64,
        columns: i64,
        output_rows: *mut i64,
        output_columns: *mut i64,
    ) -> i32;
    /// As isobit_conv_workspace_create.
    pub fn isobit_static_conv_workspace_create(
        layer: *const isobit_static_conv,
        images: i64,
        rows: i64,
        columns: i64,
        threads: i32,
        workspace: *mut *mut isobit_linear_workspace,
    ) -> i32;
    /// x `[images, rows, columns, C]` to y `[images, P, Q, O]`, codes of x_dtype and y_dtype; sizes and strides as of
    /// isobit_conv_forward. residual: codes of residual_dtype with the strides of y, apart from y or y itself; NULL and
    /// 0 where the layer adds none. options: NULL for the defaults (`unchecked` must be 0). Allocates nothing, except
    /// on ISOBIT_CPU_REFERENCE. Errors: ISOBIT_INVALID_ARGUMENT for sizes, strides, overlaps, a workspace too small, a
    /// code outside its grid, by its place. Nothing is written then.
    pub fn isobit_static_conv_forward(
        layer: *const isobit_static_conv,
        x: *const c_void,
        x_count: i64,
        y: *mut c_void,
        y_count: i64,
        images: i64,
        rows: i64,
        columns: i64,
        workspace: *mut isobit_linear_workspace,
        residual: *const c_void,
        residual_count: i64,
        options: *const isobit_linear_run_options,
    ) -> i32;
    /// The layer as a stream, on its path. Its rows have kernel 1, stride 1 and no pads; columns.pad_after is 0,
    /// pad_before from max(0, extent - stride) to extent - 1 with extent = dilation * (kernel - 1) + 1; causal is
    /// extent - 1. Errors: ISOBIT_INVALID_ARGUMENT for other shapes.
    pub fn isobit_static_conv_stream_create(
        layer: *const isobit_static_conv,
        stream: *mut *mut isobit_static_conv_stream,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_static_conv_stream_destroy(stream: *mut isobit_static_conv_stream);
    /// The state before the first chunk, of `images` images and chunks of up to `columns` columns, each 1..2^31 - 1.
    pub fn isobit_static_conv_state_create(
        stream: *const isobit_static_conv_stream,
        images: i64,
        columns: i64,
        state: *mut *mut isobit_static_conv_state,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_static_conv_state_destroy(state: *mut isobit_static_conv_state);
    /// As before the first chunk.
    pub fn isobit_static_conv_state_reset(state: *mut isobit_static_conv_state) -> i32;
    /// Memory for such chunks.
    pub fn isobit_static_conv_stream_workspace_create(
        stream: *const isobit_static_conv_stream,
        images: i64,
        columns: i64,
        threads: i32,
        workspace: *mut *mut isobit_linear_workspace,
    ) -> i32;
    /// x `[B, columns, C]` to y `[B, columns / stride, O]`, B the state's images: the outputs of all chunks, one after
    /// the other, are those of the whole. columns: a multiple of the stride, 0 too, at most those of the state. All
    /// else as of isobit_static_conv_forward; after an error the state is as before.
    pub fn isobit_static_conv_stream_forward(
        stream: *const isobit_static_conv_stream,
        x: *const c_void,
        x_count: i64,
        y: *mut c_void,
        y_count: i64,
        columns: i64,
        state: *mut isobit_static_conv_state,
        workspace: *mut isobit_linear_workspace,
        residual: *const c_void,
        residual_count: i64,
        options: *const isobit_linear_run_options,
    ) -> i32;
    /// Errors: ISOBIT_INVALID_ARGUMENT for a window, grids or options outside their limits, a ratio of scales without
    /// an encoding.
    pub fn isobit_static_pool_create(
        options: *const isobit_static_pool_options,
        layer: *mut *mut isobit_static_pool,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_static_pool_destroy(layer: *mut isobit_static_pool);
    /// Fills `info`.
    pub fn isobit_static_pool_get_info(layer: *const isobit_static_pool, info: *mut isobit_static_pool_info) -> i32;
    /// As isobit_conv_output_size.
    pub fn isobit_static_pool_output_size(
        layer: *const isobit_static_pool,
        rows: i64,
        columns: i64,
        output_rows: *mut i64,
        output_columns: *mut i64,
    ) -> i32;
    /// x `[images, rows, columns, channels]` to y `[images, P, Q, channels]`; sizes, strides and errors as of
    /// isobit_static_conv_forward. Needs no workspace and allocates nothing.
    pub fn isobit_static_pool_forward(
        layer: *const isobit_static_pool,
        x: *const c_void,
        x_count: i64,
        y: *mut c_void,
        y_count: i64,
        images: i64,
        rows: i64,
        columns: i64,
        channels: i64,
        options: *const isobit_linear_run_options,
    ) -> i32;
    /// Packs the weights, copies them to the device with that number and waits for that. options: as
    /// isobit_linear_create, with cpu_path ISOBIT_CPU_DEFAULT. Errors: those of isobit_linear_create;
    /// ISOBIT_UNSUPPORTED without libisobit_cuda.so, for a device without code, for columns in another order than x,
    /// and for int8 groups of 65,536 elements and more; ISOBIT_FAILED_PRECONDITION for a device that is not there.
    pub fn isobit_device_linear_create(
        matrix: *const isobit_low_bit,
        options: *const isobit_linear_options,
        device: i32,
        layer: *mut *mut isobit_device_linear,
    ) -> i32;
    /// The same of a layer of static codes. ISOBIT_UNSUPPORTED besides for K above 65,793.
    pub fn isobit_device_linear_create_static(
        host_layer: *const isobit_static_linear,
        device: i32,
        layer: *mut *mut isobit_device_linear,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_device_linear_destroy(layer: *mut isobit_device_linear);
    /// Bytes of device memory, from a multiple of 256 on, for runs of at most m rows.
    pub fn isobit_device_linear_workspace_bytes(layer: *const isobit_device_linear, m: i64, bytes: *mut i64) -> i32;
    /// As isobit_linear_forward, or isobit_static_linear_forward with the types of that layer, but asynchronous on the
    /// stream: a row of x that is not finite (int8) gives NaN, a code outside the grid counts as the nearer end, and
    /// isobit_device_linear_check_input tells of them. Allocates nothing; can be captured in a graph. Errors, before
    /// anything is launched: those of the host, and ISOBIT_INVALID_ARGUMENT for memory that is not the device's.
    pub fn isobit_device_linear_forward(
        layer: *const isobit_device_linear,
        x: *const c_void,
        x_dtype: i32,
        x_count: i64,
        y: *mut c_void,
        y_dtype: i32,
        y_count: i64,
        m: i64,
        workspace: *mut c_void,
        workspace_bytes: i64,
        options: *const isobit_device_run_options,
    ) -> i32;
    /// Waits for the stream. ISOBIT_INVALID_ARGUMENT with the first row of x that is not finite, or the first code
    /// outside the grid, in the last run, which was of m rows and used this workspace.
    pub fn isobit_device_linear_check_input(
        layer: *const isobit_device_linear,
        workspace: *mut c_void,
        workspace_bytes: i64,
        m: i64,
        stream: *mut c_void,
    ) -> i32;
    /// Packs the weights, copies them to the device with that number and waits for that. matrix, shape, options: as
    /// isobit_conv_create, with cpu_path ISOBIT_CPU_DEFAULT. Errors: those of isobit_conv_create; ISOBIT_UNSUPPORTED
    /// without libisobit_cuda.so, for a device without code, for blocks of 65,536 channels and more, and for
    /// R * S * C / groups of 2^31 and more; ISOBIT_FAILED_PRECONDITION for a device that is not there.
    pub fn isobit_device_conv_create(
        matrix: *const isobit_low_bit,
        shape: *const isobit_conv_shape,
        options: *const isobit_linear_options,
        device: i32,
        layer: *mut *mut isobit_device_conv,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_device_conv_destroy(layer: *mut isobit_device_conv);
    /// Bytes of device memory, from a multiple of 256 on, for a run of so many images, 0..2^31 - 1, of rows x columns,
    /// with x of any type. Errors: those of isobit_conv_output_size; ISOBIT_INVALID_ARGUMENT for x or y of more than
    /// 2^46 elements, images of more than 2^31 - 1 pixels or outputs, or such a side with its pads.
    pub fn isobit_device_conv_workspace_bytes(
        layer: *const isobit_device_conv,
        images: i64,
        rows: i64,
        columns: i64,
        bytes: *mut i64,
    ) -> i32;
    /// As isobit_conv_forward, but asynchronous on the stream: outputs of a pixel of x
    /// (ISOBIT_ACTIVATIONS_INT8_PER_IMAGE: an image) that is not finite (int8) are NaN, and
    /// isobit_device_conv_check_input tells of it. Allocates nothing; can be captured in a graph. Errors, before
    /// anything is launched: those of the host and of isobit_device_conv_workspace_bytes, and ISOBIT_INVALID_ARGUMENT
    /// for memory that is not the device's.
    pub fn isobit_device_conv_forward(
        layer: *const isobit_device_conv,
        x: *const c_void,
        x_dtype: i32,
        x_count: i64,
        y: *mut c_void,
        y_dtype: i32,
        y_count: i64,
        images: i64,
        rows: i64,
        columns: i64,
        workspace: *mut c_void,
        workspace_bytes: i64,
        options: *const isobit_device_run_options,
    ) -> i32;
    /// Waits for the stream. ISOBIT_INVALID_ARGUMENT with the first pixel or image of x that is not finite (int8), of
    /// those that outputs read, in the last run, which was of so many images of rows x columns and used this workspace.
    pub fn isobit_device_conv_check_input(
        layer: *const isobit_device_conv,
        workspace: *const c_void,
        workspace_bytes: i64,
        images: i64,
        rows: i64,
        columns: i64,
        stream: *mut c_void,
    ) -> i32;
    /// Packs the weights, copies them to the device with that number and waits for that. Errors: ISOBIT_UNSUPPORTED
    /// without libisobit_cuda.so, and for a device without code; ISOBIT_FAILED_PRECONDITION for a device that is not
    /// there.
    pub fn isobit_device_static_conv_create(
        host_layer: *const isobit_static_conv,
        device: i32,
        layer: *mut *mut isobit_device_static_conv,
    ) -> i32;
    /// Ends the handle; NULL is fine.
    pub fn isobit_device_static_conv_destroy(layer: *mut isobit_device_static_conv);
    /// Bytes of device memory, from a multiple of 256 on, for a run of so many images, 0..2^31 - 1, of rows x columns.
    /// Errors: those of isobit_static_conv_output_size; ISOBIT_INVALID_ARGUMENT for x or y of more than 2^46 elements,
    /// images of more than 2^31 - 1 pixels or outputs, or such a side with its pads.
    pub fn isobit_device_static_conv_workspace_bytes(
        layer: *const isobit_device_static_conv,
        images: i64,
        rows: i64,
        columns: i64,
        bytes: *mut i64,
    ) -> i32;
    /// As isobit_static_conv_forward, but asynchronous on the stream: a code outside its grid counts as the nearer end,
    /// and isobit_device_static_conv_check_input tells of those of x. Allocates nothing; can be captured in a graph.
    /// Errors, before anything is launched: those of the host and of isobit_device_static_conv_workspace_bytes, and
    /// ISOBIT_INVALID_ARGUMENT for memory that is not the device's.
    pub fn isobit_device_static_conv_forward(
        layer: *const isobit_device_static_conv,
        x: *const c_void,
        x_count: i64,
        y: *mut c_void,
        y_count: i64,
        images: i64,
        rows: i64,
        columns: i64,
        workspace: *mut c_void,
        workspace_bytes: i64,
        residual: *const c_void,
        residual_count: i64,
        options: *const isobit_device_run_options,
    ) -> i32;
    /// Waits for the stream. ISOBIT_INVALID_ARGUMENT with the first code of x outside the grid, of those that outputs
    /// read, in the last run of at least one image that used this workspace.
    pub fn isobit_device_static_conv_check_input(
        layer: *const isobit_device_static_conv,
        workspace: *const c_void,
        workspace_bytes: i64,
        stream: *mut c_void,
    ) -> i32;
    /// Writes NAME.h, NAME.c, NAME_data.c and NAME.cmake to the folder, which is made where it is not there: all of
    /// them, or none. model: a file with a GRU, a linear layer or a convolution of static codes; layer: which of
    /// several, else NULL. info may be NULL. Errors: ISOBIT_IO, ISOBIT_INVALID_FILE; ISOBIT_INVALID_ARGUMENT for a name
    /// that is no C identifier, steps outside their limits, and a folder that is not empty, without force;
    /// ISOBIT_UNSUPPORTED for a GRU whose x, h, W or R has more than 16 bits, and for large tables.
    pub fn isobit_export_c(
        model: *const c_char,
        layer: *const c_char,
        folder: *const c_char,
        options: *const isobit_export_options,
        info: *mut isobit_export_info,
    ) -> i32;
}
