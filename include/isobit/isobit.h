// SPDX-License-Identifier: Apache-2.0
// The C interface (C99 and later, C++): libisobit.so, docs/c_api.md. Arithmetic: docs/numerics.md.
//
// Status. Functions that can fail return an int32_t: ISOBIT_OK, or why not; isobit_last_error() then names the
// argument, the value and the limit. Nothing is written to results, and a handle that was to be made is NULL, unless
// the function says otherwise. No C++ exception leaves the library, and it never ends the program.
//
// Handles (isobit_gru*, ...) are made by functions that take a pointer to one as their last argument, and end with the
// _destroy of the same name, which takes NULL, too. A handle does not depend on those that it was made from: they may
// be destroyed in any order. Models, tables, weights and layers never change: threads may share them. States,
// workspaces and pools are for one call at a time.
//
// Structures. The caller sets struct_size to sizeof of the structure and every field that is not wanted to zero, which
// is its default where the field has one. A smaller struct_size than this version's is refused. A larger one, of a
// program compiled for a later version, is accepted up to 1024 bytes: what this version does not know must be zero in
// structures that are read, and is set to zero in those that are written. isobit_grid and isobit_conv_axis are parts of
// others, have no size of their own and will not grow. Fields named reserved must be zero.
//
// Arrays are dense, in C order, aligned to their elements; what a call writes must not overlap what it reads. Their
// sizes are given in elements and checked against what the call needs. A pointer may be NULL where its size is 0.
#ifndef ISOBIT_ISOBIT_H_
#define ISOBIT_ISOBIT_H_

#include <stdint.h>

#if defined(__GNUC__)
#define ISOBIT_API __attribute__((visibility("default")))
#else
#define ISOBIT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------------------------------------
// Status, version, instruction sets

enum {
  ISOBIT_OK = 0,
  ISOBIT_INVALID_ARGUMENT = 1,     // a value that the caller passed is outside its limits
  ISOBIT_INVALID_FILE = 2,         // a file's content is truncated, inconsistent or of an unknown version
  ISOBIT_IO = 3,                   // the operating system refused a read or a write
  ISOBIT_UNSUPPORTED = 4,          // well-formed, but refused by name
  ISOBIT_OVERFLOW = 5,             // the overflow proof failed (numerics.md, section 8)
  ISOBIT_FAILED_PRECONDITION = 6,  // not possible here or now, e.g. a path that this processor cannot run
  ISOBIT_NO_RESOURCES = 100        // the system has no memory or no thread left
};

// Version of the library, "MAJOR.MINOR.PATCH". Before 1.0 the interface may change with MINOR, which is therefore part
// of the library's soname.
ISOBIT_API const char* isobit_version(void);

// Why the last call that failed on this thread did; "" when none has. Valid until the next one fails on this thread.
ISOBIT_API const char* isobit_last_error(void);

// "ok", "invalid argument", "invalid file", ...; "unknown status" for other values.
ISOBIT_API const char* isobit_status_name(int32_t status);

// Instruction sets that kernels are written for; all give the same bytes, but layers of ISOBIT_ACTIVATIONS_FLOAT, whose
// order of sums is the kernel's own. DEFAULT is the best that this processor has, or what the environment variable
// ISOBIT_CPU names.
enum {
  ISOBIT_CPU_DEFAULT = 0,
  ISOBIT_CPU_REFERENCE = 1,
  ISOBIT_CPU_SCALAR = 2,
  ISOBIT_CPU_AVX2 = 3,
  ISOBIT_CPU_AVXVNNI = 4,
  ISOBIT_CPU_AVX512VNNI = 5,
  ISOBIT_CPU_AMX = 6
};

// ISOBIT_OK where cpu_path (ISOBIT_CPU_...) can run here. Errors: ISOBIT_FAILED_PRECONDITION with what is missing;
// ISOBIT_INVALID_ARGUMENT for other numbers; ISOBIT_CPU_DEFAULT: for what is wrong with ISOBIT_CPU.
ISOBIT_API int32_t isobit_cpu_check(int32_t cpu_path);

// Types of elements.
enum {
  ISOBIT_S8 = 0,
  ISOBIT_U8 = 1,
  ISOBIT_S16 = 2,
  ISOBIT_U16 = 3,
  ISOBIT_S32 = 4,
  ISOBIT_U32 = 5,
  ISOBIT_S64 = 6,
  ISOBIT_F16 = 7,
  ISOBIT_BF16 = 8,
  ISOBIT_F32 = 9,
  ISOBIT_F64 = 10
};

// How integers are rounded after a shift: numerics.md, section 1.
enum { ISOBIT_NEAREST_EVEN = 0, ISOBIT_NEAREST_UP = 1, ISOBIT_NEAREST_AWAY = 2, ISOBIT_FLOOR = 3 };

// Kinds of scales of a grid.
enum {
  ISOBIT_SCALE_POW2 = 0,  // scale = 2^-shift
  ISOBIT_SCALE_REAL = 1   // scale = real_scale
};

// Which real numbers codes stand for: (code - zero_point) * scale, code in 0..2^bits - 1, or signed in
// -2^(bits-1)..2^(bits-1) - 1.
typedef struct isobit_grid {
  int32_t bits;        // 1..32
  int32_t is_signed;   // 0 or 1
  int32_t scale_kind;  // ISOBIT_SCALE_...
  int32_t shift;       // ISOBIT_SCALE_POW2: -32..62
  float real_scale;    // ISOBIT_SCALE_REAL: a positive normal number
  int32_t reserved;
  int64_t zero_point;  // a code
} isobit_grid;

// ---------------------------------------------------------------------------------------------------------------
// Threads

// A fixed number of threads, among which a call splits its work; bytes never depend on it. One call at a time.
typedef struct isobit_pool isobit_pool;

// threads: 1..1024, the caller's included; 0: one for each processor that this process may use.
ISOBIT_API int32_t isobit_pool_create(int32_t threads, isobit_pool** pool);
ISOBIT_API void isobit_pool_destroy(isobit_pool* pool);
// The number of threads; 0 for NULL.
ISOBIT_API int32_t isobit_pool_threads(const isobit_pool* pool);

// ---------------------------------------------------------------------------------------------------------------
// Arrays in files

// The named arrays of a npy, npz, safetensors or GGUF file. Immutable.
typedef struct isobit_arrays isobit_arrays;

typedef struct isobit_array_info {
  uint32_t struct_size;
  int32_t dtype;       // ISOBIT_S8, ...
  int32_t dimensions;  // 0..8
  int32_t reserved;
  int64_t shape[8];  // the first `dimensions`; the rest is 0
  int64_t size_bytes;
  const void* data;  // valid until the isobit_arrays is destroyed
} isobit_array_info;

// Reads every array of a file, which is recognised by its content. Of GGUF all tensors become f32.
// Errors: ISOBIT_IO, ISOBIT_INVALID_FILE, ISOBIT_UNSUPPORTED name the file and the array.
ISOBIT_API int32_t isobit_arrays_load(const char* path, isobit_arrays** arrays);
ISOBIT_API void isobit_arrays_destroy(isobit_arrays* arrays);
// The array of that name ("" for the one of a npy file). Errors: ISOBIT_INVALID_ARGUMENT if there is none;
// ISOBIT_UNSUPPORTED if it has more than 8 dimensions.
ISOBIT_API int32_t isobit_arrays_find(const isobit_arrays* arrays, const char* name, isobit_array_info* info);

// ---------------------------------------------------------------------------------------------------------------
// GRU models: numerics.md, sections 4 to 8
//
//   u = sigmoid(W_u x + bw_u + R_u h + br_u)      r = sigmoid(W_r x + bw_r + R_r h + br_r)
//   n = tanh(W_n x + bw_n + r * (R_n h + br_n))   h' = u * h + (1 - u) * n
//
// in integers. T steps, N sequences, C inputs, H hidden units, L layers, D directions (1 or 2).

typedef struct isobit_gru isobit_gru;
// The codes of h of every layer and direction, [L * D, N, H].
typedef struct isobit_gru_state isobit_gru_state;
// Scratch memory of a model's calls.
typedef struct isobit_gru_workspace isobit_gru_workspace;

typedef struct isobit_gru_info {
  uint32_t struct_size;
  int32_t directions;    // D
  int64_t layers;        // L
  int64_t input_size;    // C
  int64_t hidden_size;   // H
  int64_t output_size;   // D * H
  int32_t input_dtype;   // of codes of x: ISOBIT_S8 .. ISOBIT_U32
  int32_t output_dtype;  // of codes of y
  isobit_grid input_grid;
  isobit_grid output_grid;
} isobit_gru_info;

typedef struct isobit_gru_run_options {
  uint32_t struct_size;
  int32_t cpu_path;             // ISOBIT_CPU_...
  const int64_t* lengths;       // [N], 0..T: past its length a sequence's state stays, and y is 0
  int64_t length_count;         // N, or 0: every sequence has T steps
  const uint8_t* zoneout_mask;  // [T, N, D * H], models of one layer: 1 takes h', 0 keeps h
  int64_t zoneout_count;        // T * N * D * H, or 0: no mask
  int32_t batch_first;          // 1: x is [N, T, C] and y [N, T, D * H]
  int32_t whole_sequence;       // 1: x holds whole sequences, not pieces; bidirectional models are refused without it
  isobit_pool* pool;            // NULL: the caller's thread
} isobit_gru_run_options;

// A model that `isobit quantize` or GruModel::save wrote. name: which GRU of a file with several, else NULL. Every
// field is checked and the overflow proof made anew. Errors: ISOBIT_IO, ISOBIT_INVALID_FILE, ISOBIT_UNSUPPORTED,
// ISOBIT_OVERFLOW; ISOBIT_INVALID_ARGUMENT for a name that the file has not.
ISOBIT_API int32_t isobit_gru_load(const char* path, const char* name, isobit_gru** gru);
ISOBIT_API void isobit_gru_destroy(isobit_gru* gru);
ISOBIT_API int32_t isobit_gru_get_info(const isobit_gru* gru, isobit_gru_info* info);

// The state before the first step, h = 0, of `batch` sequences, 0..2^31 - 1.
ISOBIT_API int32_t isobit_gru_state_create(const isobit_gru* gru, int64_t batch, isobit_gru_state** state);
ISOBIT_API void isobit_gru_state_destroy(isobit_gru_state* state);
// h = 0 again.
ISOBIT_API int32_t isobit_gru_state_reset(isobit_gru_state* state);
// to = from, of the same model (the handle that isobit_gru_load made) and batch.
ISOBIT_API int32_t isobit_gru_state_copy(const isobit_gru_state* from, isobit_gru_state* to);
// to = from of another model with as many layers, directions and hidden units, and of the same batch: requantised in
// integers to the grids of `to`, as from an encoder to a decoder. Errors: ISOBIT_INVALID_ARGUMENT, ISOBIT_OVERFLOW.
ISOBIT_API int32_t isobit_gru_state_hand_over(const isobit_gru_state* from, isobit_gru_state* to);
// h [L * D, N, H] as numbers: count = L * D * N * H. set quantises and refuses NaN by its index.
ISOBIT_API int32_t isobit_gru_state_set(isobit_gru_state* state, const float* h, int64_t count);
ISOBIT_API int32_t isobit_gru_state_get(const isobit_gru_state* state, float* h, int64_t count);

// Memory for calls of this model with up to `batch` sequences and `steps` steps, each 0..2^31 - 1, on up to `threads`
// threads, 1..1024.
ISOBIT_API int32_t isobit_gru_workspace_create(const isobit_gru* gru, int64_t batch, int64_t steps, int32_t threads,
                                               isobit_gru_workspace** workspace);
ISOBIT_API void isobit_gru_workspace_destroy(isobit_gru_workspace* workspace);
// Its bytes; 0 for NULL.
ISOBIT_API int64_t isobit_gru_workspace_size_bytes(const isobit_gru_workspace* workspace);

// x [T, N, C] to y [T, N, D * H], quantised on input_grid and dequantised from output_grid; N is the state's batch.
// Continues from `state` and leaves the last one there, so that a sequence may be cut anywhere (models of two
// directions: the reverse direction starts anew from `state` in each call). steps: T, 0..2^31 - 1; x_count = T * N * C,
// y_count = T * N * D * H. options: NULL for the defaults. Allocates nothing.
// Errors: ISOBIT_INVALID_ARGUMENT for sizes, NaN in x, lengths, overlaps, a state or workspace of another model or too
// small; ISOBIT_UNSUPPORTED or ISOBIT_FAILED_PRECONDITION for a path that cannot run the model, or here. Nothing is
// written then.
ISOBIT_API int32_t isobit_gru_forward(const isobit_gru* gru, const float* x, int64_t x_count, float* y, int64_t y_count,
                                      int64_t steps, isobit_gru_state* state, isobit_gru_workspace* workspace,
                                      const isobit_gru_run_options* options);
// The same on codes of input_dtype and output_dtype. A code of x that is not on input_grid is refused by its index.
ISOBIT_API int32_t isobit_gru_forward_codes(const isobit_gru* gru, const void* x, int64_t x_count, void* y,
                                            int64_t y_count, int64_t steps, isobit_gru_state* state,
                                            isobit_gru_workspace* workspace, const isobit_gru_run_options* options);

// ---------------------------------------------------------------------------------------------------------------
// FP16 tables: numerics.md, section 13

// An activation function as hardware with a small table of floats computes it: y = table(x), float16 to float16.
typedef struct isobit_fp16_table isobit_fp16_table;

// How a table is evaluated.
enum {
  ISOBIT_FP16_F32 = 0,      // float32 throughout
  ISOBIT_FP16_NLI_GPU = 1,  // the published GPU code
  ISOBIT_FP16_NLI_CPU = 2   // the published CPU code
};

// What a table is, and its certificate: errors over every finite float16 input against the correctly rounded result.
typedef struct isobit_fp16_table_info {
  uint32_t struct_size;
  int32_t model;        // ISOBIT_FP16_...
  int32_t half_values;  // 1: its values are float16 numbers
  uint32_t worst_code;  // the smallest float16 code with max_ulp
  double beta;          // of swish; else 1
  double max_ulp;       // in units of the last place of the correct result
  double mean_ulp;
  double max_absolute;
  double share_exact;       // 0..1
  double share_within_ulp;  // 0..1
} isobit_fp16_table_info;

// A table that isobit carries. function: "silu", "gelu", "tanh", "sigmoid", ... (`isobit table check --all`); model:
// ISOBIT_FP16_...; half_values: 0 or 1. Errors: ISOBIT_INVALID_ARGUMENT names what there is.
ISOBIT_API int32_t isobit_fp16_table_builtin(const char* function, int32_t model, int32_t half_values,
                                             isobit_fp16_table** table);
// A table that `isobit table fit` wrote. Errors: ISOBIT_IO, ISOBIT_INVALID_FILE, ISOBIT_UNSUPPORTED.
ISOBIT_API int32_t isobit_fp16_table_load(const char* path, isobit_fp16_table** table);
ISOBIT_API void isobit_fp16_table_destroy(isobit_fp16_table* table);
ISOBIT_API int32_t isobit_fp16_table_get_info(const isobit_fp16_table* table, isobit_fp16_table_info* info);
// "silu", ...; "custom" for a function of the user's own; "" for NULL. Valid as long as the table.
ISOBIT_API const char* isobit_fp16_table_function(const isobit_fp16_table* table);
// y[i] = table(x[i]), i in 0..count-1. Types: ISOBIT_F16, ISOBIT_BF16 or ISOBIT_F32, any pair: x is rounded to float16
// (nearest even), y is the float16 result widened or rounded. NaN gives NaN. y may be x where both types have one size.
// pool: NULL for the caller's thread. Allocates nothing. Errors: ISOBIT_UNSUPPORTED for other types.
ISOBIT_API int32_t isobit_fp16_table_run(const isobit_fp16_table* table, const void* x, int32_t x_dtype, void* y,
                                         int32_t y_dtype, int64_t count, isobit_pool* pool);

// ---------------------------------------------------------------------------------------------------------------
// Low-bit weights: numerics.md, section 9
//
//   W[n, k] = S[n, g] * v[n, k] + O[n, g], g = floor(k / group)
//
//   kind        v                                               O
//   symmetric   w - 2^(bits-1); bits = 1: 2w - 1, that is +-1   none
//   zero_point  w - z[n, g], z an integer in 0..2^bits          none
//   offset      w - z, one z for the matrix                     a floating-point number, like S
//
// with codes w in 0..2^bits - 1. N rows (outputs), K columns (inputs), both 1..2^31 - 1.

// A matrix of such weights. Immutable.
typedef struct isobit_low_bit isobit_low_bit;

enum { ISOBIT_SYMMETRIC = 0, ISOBIT_ZERO_POINT = 1, ISOBIT_OFFSET = 2 };

enum {
  ISOBIT_ABSMAX = 0,  // S from the largest magnitude; symmetric only
  ISOBIT_MINMAX = 1,  // from smallest and largest value; zero_point and offset only
  ISOBIT_MSE = 2      // the range of these times 1 - i/64, i = 0..31, with the least squared error
};

typedef struct isobit_low_bit_options {
  uint32_t struct_size;
  int32_t bits;         // 1, 2, 4 or 8; no default
  int64_t group;        // K, or a multiple of 8 below K; no default
  int32_t kind;         // ISOBIT_SYMMETRIC, ...
  int32_t method;       // ISOBIT_ABSMAX, ...
  int32_t scale_dtype;  // of S and O: ISOBIT_F32, ISOBIT_F16 or ISOBIT_BF16; no default
  int32_t reserved;
} isobit_low_bit_options;

typedef struct isobit_low_bit_info {
  uint32_t struct_size;
  int32_t bits;
  int64_t rows;         // N
  int64_t columns;      // K
  int64_t group;        // elements of a group
  int64_t groups;       // of a row: G = ceil(K / group)
  int64_t row_bytes;    // of the codes of a row
  int64_t size_bytes;   // codes, scales, zero points, offsets
  int32_t kind;         // ISOBIT_SYMMETRIC, ...
  int32_t scale_dtype;  // ISOBIT_F32, ISOBIT_F16 or ISOBIT_BF16
} isobit_low_bit_info;

// Quantises weights [rows, columns] of ISOBIT_F32, ISOBIT_F16 or ISOBIT_BF16; count = rows * columns. The same bytes on
// every machine. pool: NULL for the caller's thread. Errors: ISOBIT_INVALID_ARGUMENT for options outside their limits,
// a weight that is not finite (by its index), a scale that its type cannot hold; ISOBIT_UNSUPPORTED for other types.
ISOBIT_API int32_t isobit_low_bit_quantize(const void* weights, int32_t dtype, int64_t count, int64_t rows,
                                           int64_t columns, const isobit_low_bit_options* options, isobit_pool* pool,
                                           isobit_low_bit** matrix);
// A matrix of a file that isobit_low_bit_save or save_low_bit wrote. name: which one, or NULL for the only one.
// Where the file says that its columns are in another order than x (GPTQ with groups in the order of activations), the
// handle knows: weights, products and what is saved are as if they were not.
// Errors: ISOBIT_IO, ISOBIT_INVALID_FILE, ISOBIT_UNSUPPORTED; ISOBIT_INVALID_ARGUMENT for a name that is not there.
ISOBIT_API int32_t isobit_low_bit_load(const char* path, const char* name, isobit_low_bit** matrix);
// One matrix in a file, under that name (UTF-8, not empty); the file appears whole or not at all.
ISOBIT_API int32_t isobit_low_bit_save(const isobit_low_bit* matrix, const char* name, const char* path);
ISOBIT_API void isobit_low_bit_destroy(isobit_low_bit* matrix);
ISOBIT_API int32_t isobit_low_bit_get_info(const isobit_low_bit* matrix, isobit_low_bit_info* info);
// weights[n * K + k] = W[n, k] in float32; count = N * K.
ISOBIT_API int32_t isobit_low_bit_dequantize(const isobit_low_bit* matrix, float* weights, int64_t count,
                                             isobit_pool* pool);

// ---------------------------------------------------------------------------------------------------------------
// Linear layers on low-bit weights: numerics.md, sections 10 to 12
//
//   y[m, n] = act( sum over k of x[m, k] * W[n, k] + bias[n] )      act(v) = v < lo ? lo : v > hi ? hi : v, or none
//
// x is [M, K], y is [M, N]. M is 0..2^31 - 1.

// A layer with floating-point rows in and out. Immutable.
typedef struct isobit_linear isobit_linear;
// A layer of codes of 2 to 16 bits on fixed grids, integers only. Immutable.
typedef struct isobit_static_linear isobit_static_linear;
// Scratch memory of calls; any layer of either kind may use it that needs no more of it than was asked for.
typedef struct isobit_linear_workspace isobit_linear_workspace;

// What happens to x before the product. The groups of a convolution are blocks of channels of a pixel.
enum {
  ISOBIT_ACTIVATIONS_FLOAT = 0,            // nothing; the order of the sums is the kernel's own: section 10
  ISOBIT_ACTIVATIONS_INT8 = 1,             // 8-bit codes of each group, symmetric; same bytes everywhere: section 11
  ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC = 2,  // the same with an offset for each group
  ISOBIT_ACTIVATIONS_INT8_PER_IMAGE = 3    // convolutions only: 8-bit codes with one symmetric scale for each image
};

typedef struct isobit_linear_options {
  uint32_t struct_size;
  int32_t activations;  // ISOBIT_ACTIVATIONS_...
  int32_t cpu_path;     // ISOBIT_CPU_...
  int32_t has_clamp;    // 1: act clamps
  float clamp_lo;       // lo <= hi, not NaN; 0 without a clamp
  float clamp_hi;
  const float* bias;   // [N], copied
  int64_t bias_count;  // N, or 0: no bias
} isobit_linear_options;

typedef struct isobit_linear_info {
  uint32_t struct_size;
  int32_t activations;  // ISOBIT_ACTIVATIONS_...
  int32_t cpu_path;     // that it was packed for
  int32_t reserved;
  int64_t rows;        // N
  int64_t columns;     // K
  int64_t size_bytes;  // of the packed weights with what else a call reads
} isobit_linear_info;

typedef struct isobit_linear_run_options {
  uint32_t struct_size;
  int32_t unchecked;  // 1: rows of x are not searched for NaN and infinity; such a row of y becomes NaN. int8 only
  int64_t x_stride;   // elements from row to row of x, at least K; 0: K
  int64_t y_stride;   // elements from row to row of y, at least N; 0: N. What lies between rows is not written
  isobit_pool* pool;  // NULL: the caller's thread
} isobit_linear_run_options;

// Packs the weights. options: NULL for the defaults. Errors: ISOBIT_INVALID_ARGUMENT for options outside their limits;
// ISOBIT_FAILED_PRECONDITION for a path that this processor cannot run; ISOBIT_UNSUPPORTED for one without a kernel.
ISOBIT_API int32_t isobit_linear_create(const isobit_low_bit* matrix, const isobit_linear_options* options,
                                        isobit_linear** layer);
ISOBIT_API void isobit_linear_destroy(isobit_linear* layer);
ISOBIT_API int32_t isobit_linear_get_info(const isobit_linear* layer, isobit_linear_info* info);
// The kernel that it runs, "int8_avx512vnni"; "" for NULL. Valid as long as the library is loaded.
ISOBIT_API const char* isobit_linear_kernel(const isobit_linear* layer);
// Memory for calls with up to m rows on up to `threads` threads, 1..1024.
ISOBIT_API int32_t isobit_linear_workspace_create(const isobit_linear* layer, int64_t m, int32_t threads,
                                                  isobit_linear_workspace** workspace);
ISOBIT_API void isobit_linear_workspace_destroy(isobit_linear_workspace* workspace);
// Its bytes; 0 for NULL.
ISOBIT_API int64_t isobit_linear_workspace_size_bytes(const isobit_linear_workspace* workspace);
// y = act(x W^T + bias) for m rows. x_count is at least (m - 1) * x_stride + K, y_count (m - 1) * y_stride + N.
// Types: ISOBIT_ACTIVATIONS_FLOAT: ISOBIT_F32, ISOBIT_F16 or ISOBIT_BF16, the same of x and y; int8: x also ISOBIT_F64,
// any pair. options: NULL for the defaults. Allocates nothing.
// Errors: ISOBIT_UNSUPPORTED for other types; ISOBIT_INVALID_ARGUMENT for sizes, strides, overlaps, a workspace too
// small, or a row that is not finite (int8), by its index. Nothing is written then.
ISOBIT_API int32_t isobit_linear_forward(const isobit_linear* layer, const void* x, int32_t x_dtype, int64_t x_count,
                                         void* y, int32_t y_dtype, int64_t y_count, int64_t m,
                                         isobit_linear_workspace* workspace, const isobit_linear_run_options* options);

typedef struct isobit_static_linear_options {
  uint32_t struct_size;
  int32_t cpu_path;    // ISOBIT_CPU_...
  int32_t has_output;  // 1: y is on the grid `output`; 0: y is the accumulators, ISOBIT_S32
  int32_t has_clamp;   // 1: act clamps; needs an output grid
  float clamp_lo;      // in real numbers, lo <= hi; 0 without a clamp
  float clamp_hi;
  int32_t rounding;  // ISOBIT_NEAREST_EVEN, ...
  int32_t reserved;
  isobit_grid input;   // of x: 2 to 16 bits; no default
  isobit_grid output;  // of y: 2 to 16 bits; zeros without one
  const float* bias;   // [N], finite, copied
  int64_t bias_count;  // N, or 0: no bias
} isobit_static_linear_options;

typedef struct isobit_static_linear_info {
  uint32_t struct_size;
  int32_t cpu_path;  // that it was packed for
  int32_t x_dtype;   // ISOBIT_S8, ISOBIT_U8, ISOBIT_S16 or ISOBIT_U16
  int32_t y_dtype;   // the same, or ISOBIT_S32
  int64_t rows;      // N
  int64_t columns;   // K
} isobit_static_linear_info;

// matrix: 1, 2, 4 or 8 bits, symmetric, one group a row. acc[m, n] = sum over k of (q_x - z_x) * w + bias code, int32;
// y = acc, or acc rescaled to the output grid and clamped. Errors: ISOBIT_INVALID_ARGUMENT for other weights, grids or
// options; ISOBIT_OVERFLOW for a ratio of scales without an encoding, or accumulators that do not fit.
ISOBIT_API int32_t isobit_static_linear_create(const isobit_low_bit* matrix,
                                               const isobit_static_linear_options* options,
                                               isobit_static_linear** layer);
// A layer that StaticLinearLayer::save wrote. name: which layer of a file with several, else NULL. Every field is
// checked and the overflow proof made anew. Errors: as of isobit_gru_load, and those of a cpu_path.
ISOBIT_API int32_t isobit_static_linear_load(const char* path, const char* name, int32_t cpu_path,
                                             isobit_static_linear** layer);
ISOBIT_API void isobit_static_linear_destroy(isobit_static_linear* layer);
ISOBIT_API int32_t isobit_static_linear_get_info(const isobit_static_linear* layer, isobit_static_linear_info* info);
// As isobit_linear_kernel.
ISOBIT_API const char* isobit_static_linear_kernel(const isobit_static_linear* layer);
// As isobit_linear_workspace_create.
ISOBIT_API int32_t isobit_static_linear_workspace_create(const isobit_static_linear* layer, int64_t m, int32_t threads,
                                                         isobit_linear_workspace** workspace);
// x: codes of x_dtype on the input grid, y: codes of y_dtype; sizes, strides and errors as of isobit_linear_forward
// (`unchecked` must be 0).
ISOBIT_API int32_t isobit_static_linear_forward(const isobit_static_linear* layer, const void* x, int64_t x_count,
                                                void* y, int64_t y_count, int64_t m, isobit_linear_workspace* workspace,
                                                const isobit_linear_run_options* options);

// ---------------------------------------------------------------------------------------------------------------
// Convolutions on the CPU: numerics.md, section 12; docs/conv.md
//
// Images x are [B, H, W, C], y is [B, P, Q, O]. One dimension is H = R = 1.

// What a layer does along one dimension of an image. Part of other structures.
typedef struct isobit_conv_axis {
  int64_t kernel;      // R or S; 0: 1
  int64_t stride;      // 0: 1
  int64_t dilation;    // 0: 1
  int64_t pad_before;  // top or left
  int64_t pad_after;   // bottom or right
  int64_t more;        // transposed: outputs beyond the last, below stride or dilation
} isobit_conv_axis;

typedef struct isobit_conv_shape {
  uint32_t struct_size;
  int32_t transposed;        // 0 or 1
  int64_t channels;          // C; no default
  int64_t outputs;           // O; no default
  int64_t groups;            // divides both; depthwise: C; 0: 1
  isobit_conv_axis rows;     // along H
  isobit_conv_axis columns;  // along W
} isobit_conv_shape;

// A convolution with floating-point images in and out, on low-bit weights. Immutable.
//   y[b, p, q, o] = act( sum over r, s, c of x[b, i, j, first + c] * W[o, r, s, c] + bias[o] )
// A pixel outside x is 0.
typedef struct isobit_conv isobit_conv;

typedef struct isobit_conv_info {
  uint32_t struct_size;
  int32_t activations;       // ISOBIT_ACTIVATIONS_...
  int32_t cpu_path;          // that it was packed for
  int32_t transposed;        // 0 or 1
  int64_t channels;          // C
  int64_t outputs;           // O
  int64_t groups;            // of both
  isobit_conv_axis rows;     // along H
  isobit_conv_axis columns;  // along W
} isobit_conv_info;

// matrix: weights [O * R * S, C / groups], rows in the order (o, r, s), with groups of section 9 along the channels; or
// [O, R * S * C / groups], k over (r, s, c), c fastest, with one group a row. ISOBIT_ACTIVATIONS_INT8_PER_IMAGE takes
// the second only, symmetric. options: as of isobit_linear_create; bias [O]. Errors: ISOBIT_INVALID_ARGUMENT for a
// shape, weights or options outside their limits, and for columns in another order than x; ISOBIT_UNSUPPORTED for
// ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC where blocks of channels must be filled up to a multiple of 8 and weights have no
// code for zero, for ISOBIT_ACTIVATIONS_INT8_PER_IMAGE with R * S * C / groups of 65,536 and more, and for a path
// without a kernel; ISOBIT_FAILED_PRECONDITION for one that this processor cannot run.
ISOBIT_API int32_t isobit_conv_create(const isobit_low_bit* matrix, const isobit_conv_shape* shape,
                                      const isobit_linear_options* options, isobit_conv** layer);
ISOBIT_API void isobit_conv_destroy(isobit_conv* layer);
ISOBIT_API int32_t isobit_conv_get_info(const isobit_conv* layer, isobit_conv_info* info);
// P and Q of images of rows x columns (H x W). Errors: ISOBIT_INVALID_ARGUMENT where a size is not 1..2^31 - 1, such as
// where the kernel is larger than the padded image.
ISOBIT_API int32_t isobit_conv_output_size(const isobit_conv* layer, int64_t rows, int64_t columns,
                                           int64_t* output_rows, int64_t* output_columns);
// Memory for calls with up to `images` images, 0..2^31 - 1, of rows x columns, on up to `threads` threads, 1..1024.
// Layers of every kind share workspaces.
ISOBIT_API int32_t isobit_conv_workspace_create(const isobit_conv* layer, int64_t images, int64_t rows, int64_t columns,
                                                int32_t threads, isobit_linear_workspace** workspace);
// x [images, rows, columns, C] to y [images, P, Q, O]. Strides are from pixel to pixel: x_count is at least
// C + (images * rows * columns - 1) * x_stride, y_count O + (images * P * Q - 1) * y_stride. Types as of
// isobit_linear_forward. options: NULL for the defaults; what an `unchecked` call computes of numbers that are not
// finite is NaN. Allocates nothing, except on ISOBIT_CPU_REFERENCE.
// Errors: ISOBIT_UNSUPPORTED for other types; ISOBIT_INVALID_ARGUMENT for sizes, strides, overlaps, a workspace too
// small, or a pixel (ISOBIT_ACTIVATIONS_INT8_PER_IMAGE: an image) that is not finite (int8), by its place. Nothing is
// written then.
ISOBIT_API int32_t isobit_conv_forward(const isobit_conv* layer, const void* x, int32_t x_dtype, int64_t x_count,
                                       void* y, int32_t y_dtype, int64_t y_count, int64_t images, int64_t rows,
                                       int64_t columns, isobit_linear_workspace* workspace,
                                       const isobit_linear_run_options* options);

// ---------------------------------------------------------------------------------------------------------------
// Convolutions and pooling of static codes, on the CPU: numerics.md, section 12; docs/conv.md
//
//   y[b, p, q, o] = clamp( rs_o(sum over r, s, c of (x[b, i, j, first + c] - z_x) * W[o, r, s, c] + bias[o])
//                          + rs_r(residual[b, p, q, o] - z_r) + z_y, lo, hi )
//
// x and y are codes of 2 to 16 bits. A pixel outside x is z_x.

// A convolution. Immutable.
typedef struct isobit_static_conv isobit_static_conv;
// A convolution of one dimension whose x comes in chunks of columns. Immutable.
typedef struct isobit_static_conv_stream isobit_static_conv_stream;
// What a stream has seen last, [B, pad_before, C].
typedef struct isobit_static_conv_state isobit_static_conv_state;
// The largest code or the average of a window. Immutable.
typedef struct isobit_static_pool isobit_static_pool;

typedef struct isobit_static_conv_info {
  uint32_t struct_size;
  int32_t cpu_path;          // that it was packed for
  int32_t x_dtype;           // ISOBIT_S8, ISOBIT_U8, ISOBIT_S16 or ISOBIT_U16
  int32_t y_dtype;           // the same, or ISOBIT_S32
  int32_t residual_dtype;    // as x_dtype; 0 without a residual
  int32_t has_residual;      // 1: the layer adds one
  int32_t has_output;        // 0: y is the accumulators
  int32_t transposed;        // 0 or 1
  int64_t channels;          // C
  int64_t outputs;           // O
  int64_t groups;            // of both
  isobit_conv_axis rows;     // along H
  isobit_conv_axis columns;  // along W
  isobit_grid input;         // of x
  isobit_grid output;        // of y; zeros without one
  isobit_grid residual;      // zeros without one
} isobit_static_conv_info;

// matrix: weights [O, K], K = R * S * C / groups, k over (r, s, c), c fastest; 1, 2, 4 or 8 bits, symmetric, one group
// a row. options: as of isobit_static_linear_create; bias [O]. residual: the grid, of 2 to 16 bits, of codes that every
// call adds; it needs an output grid; NULL: none. The reference computes layers of the default path that kernels cannot
// hold. Errors: ISOBIT_INVALID_ARGUMENT for a shape, weights, grids or options outside their limits, and for columns in
// another order than x; ISOBIT_OVERFLOW for a ratio of scales without an encoding, or sums that do not fit;
// ISOBIT_FAILED_PRECONDITION and ISOBIT_UNSUPPORTED for a path.
ISOBIT_API int32_t isobit_static_conv_create(const isobit_low_bit* matrix, const isobit_conv_shape* shape,
                                             const isobit_static_linear_options* options, const isobit_grid* residual,
                                             isobit_static_conv** layer);
// A layer that StaticConvLayer::save wrote; all else as of isobit_static_linear_load.
ISOBIT_API int32_t isobit_static_conv_load(const char* path, const char* name, int32_t cpu_path,
                                           isobit_static_conv** layer);
ISOBIT_API void isobit_static_conv_destroy(isobit_static_conv* layer);
ISOBIT_API int32_t isobit_static_conv_get_info(const isobit_static_conv* layer, isobit_static_conv_info* info);
// As isobit_conv_output_size.
ISOBIT_API int32_t isobit_static_conv_output_size(const isobit_static_conv* layer, int64_t rows, int64_t columns,
                                                  int64_t* output_rows, int64_t* output_columns);
// As isobit_conv_workspace_create.
ISOBIT_API int32_t isobit_static_conv_workspace_create(const isobit_static_conv* layer, int64_t images, int64_t rows,
                                                       int64_t columns, int32_t threads,
                                                       isobit_linear_workspace** workspace);
// x [images, rows, columns, C] to y [images, P, Q, O], codes of x_dtype and y_dtype; sizes and strides as of
// isobit_conv_forward. residual: codes of residual_dtype with the strides of y, apart from y or y itself; NULL and 0
// where the layer adds none. options: NULL for the defaults (`unchecked` must be 0). Allocates nothing, except on
// ISOBIT_CPU_REFERENCE. Errors: ISOBIT_INVALID_ARGUMENT for sizes, strides, overlaps, a workspace too small, a code
// outside its grid, by its place. Nothing is written then.
ISOBIT_API int32_t isobit_static_conv_forward(const isobit_static_conv* layer, const void* x, int64_t x_count, void* y,
                                              int64_t y_count, int64_t images, int64_t rows, int64_t columns,
                                              isobit_linear_workspace* workspace, const void* residual,
                                              int64_t residual_count, const isobit_linear_run_options* options);

// The layer as a stream, on its path. Its rows have kernel 1, stride 1 and no pads; columns.pad_after is 0, pad_before
// from max(0, extent - stride) to extent - 1 with extent = dilation * (kernel - 1) + 1; causal is extent - 1. Errors:
// ISOBIT_INVALID_ARGUMENT for other shapes.
ISOBIT_API int32_t isobit_static_conv_stream_create(const isobit_static_conv* layer,
                                                    isobit_static_conv_stream** stream);
ISOBIT_API void isobit_static_conv_stream_destroy(isobit_static_conv_stream* stream);
// The state before the first chunk, of `images` images and chunks of up to `columns` columns, each 1..2^31 - 1.
ISOBIT_API int32_t isobit_static_conv_state_create(const isobit_static_conv_stream* stream, int64_t images,
                                                   int64_t columns, isobit_static_conv_state** state);
ISOBIT_API void isobit_static_conv_state_destroy(isobit_static_conv_state* state);
// As before the first chunk.
ISOBIT_API int32_t isobit_static_conv_state_reset(isobit_static_conv_state* state);
// Memory for such chunks.
ISOBIT_API int32_t isobit_static_conv_stream_workspace_create(const isobit_static_conv_stream* stream, int64_t images,
                                                              int64_t columns, int32_t threads,
                                                              isobit_linear_workspace** workspace);
// x [B, columns, C] to y [B, columns / stride, O], B the state's images: the outputs of all chunks, one after the
// other, are those of the whole. columns: a multiple of the stride, 0 too, at most those of the state. All else as of
// isobit_static_conv_forward; after an error the state is as before.
ISOBIT_API int32_t isobit_static_conv_stream_forward(const isobit_static_conv_stream* stream, const void* x,
                                                     int64_t x_count, void* y, int64_t y_count, int64_t columns,
                                                     isobit_static_conv_state* state,
                                                     isobit_linear_workspace* workspace, const void* residual,
                                                     int64_t residual_count, const isobit_linear_run_options* options);

enum { ISOBIT_POOL_MAX = 0, ISOBIT_POOL_AVERAGE = 1 };

typedef struct isobit_static_pool_options {
  uint32_t struct_size;
  int32_t kind;              // ISOBIT_POOL_...
  int32_t counts_outside;    // average: 1: of R * S pixels, those outside x are z_x; 0: of the pixels inside x
  int32_t rounding;          // ISOBIT_NEAREST_EVEN, ...
  isobit_conv_axis rows;     // the window along H; each pad is smaller than its side
  isobit_conv_axis columns;  // along W
  isobit_grid input;         // of x: 2 to 16 bits; no default
  isobit_grid output;        // of y: 2 to 16 bits; zeros: input, which it is of ISOBIT_POOL_MAX
} isobit_static_pool_options;

typedef struct isobit_static_pool_info {
  uint32_t struct_size;
  int32_t kind;     // ISOBIT_POOL_...
  int32_t x_dtype;  // ISOBIT_S8, ISOBIT_U8, ISOBIT_S16 or ISOBIT_U16
  int32_t y_dtype;  // the same
} isobit_static_pool_info;

// Errors: ISOBIT_INVALID_ARGUMENT for a window, grids or options outside their limits, a ratio of scales without an
// encoding.
ISOBIT_API int32_t isobit_static_pool_create(const isobit_static_pool_options* options, isobit_static_pool** layer);
ISOBIT_API void isobit_static_pool_destroy(isobit_static_pool* layer);
ISOBIT_API int32_t isobit_static_pool_get_info(const isobit_static_pool* layer, isobit_static_pool_info* info);
// As isobit_conv_output_size.
ISOBIT_API int32_t isobit_static_pool_output_size(const isobit_static_pool* layer, int64_t rows, int64_t columns,
                                                  int64_t* output_rows, int64_t* output_columns);
// x [images, rows, columns, channels] to y [images, P, Q, channels]; sizes, strides and errors as of
// isobit_static_conv_forward. Needs no workspace and allocates nothing.
ISOBIT_API int32_t isobit_static_pool_forward(const isobit_static_pool* layer, const void* x, int64_t x_count, void* y,
                                              int64_t y_count, int64_t images, int64_t rows, int64_t columns,
                                              int64_t channels, const isobit_linear_run_options* options);

// ---------------------------------------------------------------------------------------------------------------
// Linear layers on CUDA devices: docs/linear_cuda.md
//
// They need libisobit_cuda.so of the same release, which the first call looks for: the file that the environment
// variable ISOBIT_CUDA_LIBRARY names, else the one in the folder of libisobit.so, else what the loader finds. x, y and
// workspaces are memory of the layer's device, which the caller allocates; streams are cudaStream_t.

// A layer of either kind on one device, with the bytes of the one on the host; float activations: section 10.
// Immutable.
typedef struct isobit_device_linear isobit_device_linear;

typedef struct isobit_device_run_options {
  uint32_t struct_size;
  int32_t reserved;
  int64_t x_stride;  // elements from row to row of x, at least K; 0: K
  int64_t y_stride;  // elements from row to row of y, at least N; 0: N. What lies between rows is not written
  void* stream;      // NULL: the default stream
} isobit_device_run_options;

// Packs the weights, copies them to the device with that number and waits for that. options: as isobit_linear_create,
// with cpu_path ISOBIT_CPU_DEFAULT. Errors: those of isobit_linear_create; ISOBIT_UNSUPPORTED without
// libisobit_cuda.so, for a device without code, for columns in another order than x, and for int8 groups of 65,536
// elements and more; ISOBIT_FAILED_PRECONDITION for a device that is not there.
ISOBIT_API int32_t isobit_device_linear_create(const isobit_low_bit* matrix, const isobit_linear_options* options,
                                               int32_t device, isobit_device_linear** layer);
// The same of a layer of static codes. ISOBIT_UNSUPPORTED besides for K above 65,793.
ISOBIT_API int32_t isobit_device_linear_create_static(const isobit_static_linear* host_layer, int32_t device,
                                                      isobit_device_linear** layer);
ISOBIT_API void isobit_device_linear_destroy(isobit_device_linear* layer);
// Bytes of device memory, from a multiple of 256 on, for runs of at most m rows.
ISOBIT_API int32_t isobit_device_linear_workspace_bytes(const isobit_device_linear* layer, int64_t m, int64_t* bytes);
// As isobit_linear_forward, or isobit_static_linear_forward with the types of that layer, but asynchronous on the
// stream: a row of x that is not finite (int8) gives NaN, a code outside the grid counts as the nearer end, and
// isobit_device_linear_check_input tells of them. Allocates nothing; can be captured in a graph. Errors, before
// anything is launched: those of the host, and ISOBIT_INVALID_ARGUMENT for memory that is not the device's.
ISOBIT_API int32_t isobit_device_linear_forward(const isobit_device_linear* layer, const void* x, int32_t x_dtype,
                                                int64_t x_count, void* y, int32_t y_dtype, int64_t y_count, int64_t m,
                                                void* workspace, int64_t workspace_bytes,
                                                const isobit_device_run_options* options);
// Waits for the stream. ISOBIT_INVALID_ARGUMENT with the first row of x that is not finite, or the first code outside
// the grid, in the last run, which was of m rows and used this workspace.
ISOBIT_API int32_t isobit_device_linear_check_input(const isobit_device_linear* layer, void* workspace,
                                                    int64_t workspace_bytes, int64_t m, void* stream);

// ---------------------------------------------------------------------------------------------------------------
// Convolutions on CUDA devices: docs/conv.md
//
// As linear layers there: they need libisobit_cuda.so, arrays and workspaces are memory of the layer's device, and
// isobit_device_run_options has their stream, and their strides from pixel to pixel: at least C and O; 0: C, O.

// A layer of floating-point images on one device, with the bytes of the one on the host; float activations: section 10.
// Immutable.
typedef struct isobit_device_conv isobit_device_conv;
// A layer of static codes on one device, with the bytes of the one on the host. Immutable.
typedef struct isobit_device_static_conv isobit_device_static_conv;

// Packs the weights, copies them to the device with that number and waits for that. matrix, shape, options: as
// isobit_conv_create, with cpu_path ISOBIT_CPU_DEFAULT. Errors: those of isobit_conv_create; ISOBIT_UNSUPPORTED without
// libisobit_cuda.so, for a device without code, for blocks of 65,536 channels and more, and for R * S * C / groups of
// 2^31 and more; ISOBIT_FAILED_PRECONDITION for a device that is not there.
ISOBIT_API int32_t isobit_device_conv_create(const isobit_low_bit* matrix, const isobit_conv_shape* shape,
                                             const isobit_linear_options* options, int32_t device,
                                             isobit_device_conv** layer);
ISOBIT_API void isobit_device_conv_destroy(isobit_device_conv* layer);
// Bytes of device memory, from a multiple of 256 on, for a run of so many images, 0..2^31 - 1, of rows x columns, with
// x of any type. Errors: those of isobit_conv_output_size; ISOBIT_INVALID_ARGUMENT for x or y of more than 2^46
// elements, images of more than 2^31 - 1 pixels or outputs, or such a side with its pads.
ISOBIT_API int32_t isobit_device_conv_workspace_bytes(const isobit_device_conv* layer, int64_t images, int64_t rows,
                                                      int64_t columns, int64_t* bytes);
// As isobit_conv_forward, but asynchronous on the stream: outputs of a pixel of x (ISOBIT_ACTIVATIONS_INT8_PER_IMAGE:
// an image) that is not finite (int8) are NaN, and isobit_device_conv_check_input tells of it. Allocates nothing; can
// be captured in a graph. Errors, before anything is launched: those of the host and of
// isobit_device_conv_workspace_bytes, and ISOBIT_INVALID_ARGUMENT for memory that is not the device's.
ISOBIT_API int32_t isobit_device_conv_forward(const isobit_device_conv* layer, const void* x, int32_t x_dtype,
                                              int64_t x_count, void* y, int32_t y_dtype, int64_t y_count,
                                              int64_t images, int64_t rows, int64_t columns, void* workspace,
                                              int64_t workspace_bytes, const isobit_device_run_options* options);
// Waits for the stream. ISOBIT_INVALID_ARGUMENT with the first pixel or image of x that is not finite (int8), of those
// that outputs read, in the last run, which was of so many images of rows x columns and used this workspace.
ISOBIT_API int32_t isobit_device_conv_check_input(const isobit_device_conv* layer, const void* workspace,
                                                  int64_t workspace_bytes, int64_t images, int64_t rows,
                                                  int64_t columns, void* stream);

// Packs the weights, copies them to the device with that number and waits for that. Errors: ISOBIT_UNSUPPORTED without
// libisobit_cuda.so, and for a device without code; ISOBIT_FAILED_PRECONDITION for a device that is not there.
ISOBIT_API int32_t isobit_device_static_conv_create(const isobit_static_conv* host_layer, int32_t device,
                                                    isobit_device_static_conv** layer);
ISOBIT_API void isobit_device_static_conv_destroy(isobit_device_static_conv* layer);
// Bytes of device memory, from a multiple of 256 on, for a run of so many images, 0..2^31 - 1, of rows x columns.
// Errors: those of isobit_static_conv_output_size; ISOBIT_INVALID_ARGUMENT for x or y of more than 2^46 elements,
// images of more than 2^31 - 1 pixels or outputs, or such a side with its pads.
ISOBIT_API int32_t isobit_device_static_conv_workspace_bytes(const isobit_device_static_conv* layer, int64_t images,
                                                             int64_t rows, int64_t columns, int64_t* bytes);
// As isobit_static_conv_forward, but asynchronous on the stream: a code outside its grid counts as the nearer end, and
// isobit_device_static_conv_check_input tells of those of x. Allocates nothing; can be captured in a graph. Errors,
// before anything is launched: those of the host and of isobit_device_static_conv_workspace_bytes, and
// ISOBIT_INVALID_ARGUMENT for memory that is not the device's.
ISOBIT_API int32_t isobit_device_static_conv_forward(const isobit_device_static_conv* layer, const void* x,
                                                     int64_t x_count, void* y, int64_t y_count, int64_t images,
                                                     int64_t rows, int64_t columns, void* workspace,
                                                     int64_t workspace_bytes, const void* residual,
                                                     int64_t residual_count, const isobit_device_run_options* options);
// Waits for the stream. ISOBIT_INVALID_ARGUMENT with the first code of x outside the grid, of those that outputs read,
// in the last run of at least one image that used this workspace.
ISOBIT_API int32_t isobit_device_static_conv_check_input(const isobit_device_static_conv* layer, const void* workspace,
                                                         int64_t workspace_bytes, void* stream);

// ---------------------------------------------------------------------------------------------------------------
// Models as C99, for microcontrollers: docs/microcontrollers.md

// What the C is for. All targets give the same bytes.
enum {
  ISOBIT_TARGET_GENERIC = 0,  // C99 and nothing else
  ISOBIT_TARGET_CORTEX_M3 = 1,
  ISOBIT_TARGET_CORTEX_M4 = 2,   // with SMLAD
  ISOBIT_TARGET_CORTEX_M7 = 3,   // the same
  ISOBIT_TARGET_CORTEX_M33 = 4,  // the same
  ISOBIT_TARGET_CORTEX_M55 = 5   // with MVE
};

typedef struct isobit_export_options {
  uint32_t struct_size;
  int32_t target;              // ISOBIT_TARGET_...
  const char* name;            // a C identifier, of files and functions; NULL: made from that of the model
  int64_t selftest_steps;      // that NAME_selftest compares, at most 1000; 0: 8
  int32_t float_entry;         // 1: a GRU of one direction also gets a step that takes and gives float32
  int32_t allow_large_tables;  // 1: activation tables above 16 KB
  int32_t force;               // 1: files of an earlier export are overwritten
  int32_t reserved;
} isobit_export_options;

// Bytes of a microcontroller's memories, without code and stack.
typedef struct isobit_export_info {
  uint32_t struct_size;
  int32_t reserved;
  int64_t weights_bytes;    // flash
  int64_t tables_bytes;     // flash
  int64_t constants_bytes;  // flash
  int64_t selftest_bytes;   // flash, where NAME_selftest is called
  int64_t state_bytes;      // RAM that is kept between steps
  int64_t scratch_bytes;    // RAM during a call
  int64_t multiply_adds;    // a step of a GRU, a row of a linear layer, an output pixel of a convolution
} isobit_export_info;

// Writes NAME.h, NAME.c, NAME_data.c and NAME.cmake to the folder, which is made where it is not there: all of them, or
// none. model: a file with a GRU, a linear layer or a convolution of static codes; layer: which of several, else NULL.
// info may be NULL. Errors: ISOBIT_IO, ISOBIT_INVALID_FILE; ISOBIT_INVALID_ARGUMENT for a name that is no C identifier,
// steps outside their limits, and a folder that is not empty, without force; ISOBIT_UNSUPPORTED for a GRU whose x, h, W
// or R has more than 16 bits, and for large tables.
ISOBIT_API int32_t isobit_export_c(const char* model, const char* layer, const char* folder,
                                   const isobit_export_options* options, isobit_export_info* info);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // ISOBIT_ISOBIT_H_
