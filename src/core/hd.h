// SPDX-License-Identifier: Apache-2.0
// ISOBIT_HD marks a function that is compiled for host and device alike. Forced inlining also keeps a copy
// that was compiled for a wider instruction set from being linked into baseline code.
#ifndef ISOBIT_CORE_HD_H_
#define ISOBIT_CORE_HD_H_

#ifdef __CUDACC__
#define ISOBIT_HD __host__ __device__ __forceinline__
#else
#define ISOBIT_HD [[gnu::always_inline]] inline
#endif

#endif  // ISOBIT_CORE_HD_H_
