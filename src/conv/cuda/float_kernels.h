// SPDX-License-Identifier: Apache-2.0
// The kernels of convolutions of floating-point images on a device, beside those of linear layers.
#ifndef ISOBIT_CONV_CUDA_FLOAT_KERNELS_H_
#define ISOBIT_CONV_CUDA_FLOAT_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conv/cuda/kernels.h"
#include "conv/pixel_weights.h"
#include "isobit/conv.h"
#include "isobit/dtype.h"
#include "isobit/status.h"
#include "linear/cuda/image.h"
#include "linear/cuda/product.h"
#include "linear/cuda/rows.h"

namespace isobit::cuda {

/// What ConvSource::outside has where every pixel could be quantised; else the first that could not.
inline constexpr unsigned long long kNoneRefused = kNoneOutside;

/// Rows of a product (linear/cuda/rows.h), outputs [source.first, source.first + source.m), of one group of channels,
/// whose first is first_channel. is_linear: row m is pixel source.first + m.
struct PixelRows {
  ConvSource source;
  PixelBlocks blocks;
  int64_t first_channel;
  bool is_linear;
};
Status prepare_pixel_rows(const ImageLayout& image, const RowsLayout& layout, const PixelRows& rows, Dtype x_dtype,
                          bool asymmetric, std::byte* to, bool early, cudaStream_t stream);

/// Sections 10 and 11, each output by itself. Parameters are those of (r, s, block) and o, o fastest.
struct FloatDirect {
  ConvSource source;
  ConvActivations activations;
  bool has_offsets;
  PixelBlocks blocks;
  const int16_t* weights;  // v, [R * S * C / groups, O]
  const float* scales;     // S
  const float* offsets;    // O
  const float* bias;       // [O]
  int32_t outputs, group_outputs;
  ProductArgs result;  // of y: y, y_stride, y_type, lo, hi
};
Status run_float_direct(const FloatDirect& conv, Dtype x_dtype, cudaStream_t stream);

/// Pixels as a tile copies them (tile.h): each block of channels filled up to block_elements with zeros.
struct PixelCopies {
  const void* x;     // of 2 bytes an element
  int64_t x_stride;  // elements
  int64_t pixels;
  int32_t groups;
  PixelBlocks blocks;
  int32_t block_elements;  // a multiple of 8
  void* to;                // [pixels, groups, blocks, block_elements]
};
Status copy_pixels(const PixelCopies& copies, cudaStream_t stream);

/// The same as codes, symmetric, each block filled up to block_codes.
struct PixelCodes {
  const void* x;
  int64_t x_stride, pixels;
  int32_t groups;
  PixelBlocks blocks;
  int32_t block_codes;          // a multiple of kScaledDepth
  int8_t* to;                   // [pixels, groups, blocks, block_codes]
  float* scales;                // Sa, [pixels, groups * blocks]; NaN where a block cannot be quantised
  unsigned long long* refused;  // the first such pixel
  int64_t first_pixel;          // of x, among all
};
Status quantize_pixels(const PixelCodes& codes, Dtype x_dtype, cudaStream_t stream);

/// Whether run_float_depthwise() has a kernel for it: as has_depthwise(), and C a multiple of 4.
bool has_float_depthwise(const ConvShape& shape);
/// One output a channel.
struct FloatDepthwise {
  ConvSource source;
  const float* weights;  // of floats W, of codes v; [R * S, C]
  const float* scales;   // S, of codes; null: of floats
  const float* bias;
  ProductArgs result;  // of y: y, y_stride, y_type, lo, hi
};
Status run_float_depthwise(const FloatDepthwise& conv, Dtype x_dtype, cudaStream_t stream);

/// One scale for each image.
struct ImageCodes {
  const void* x;
  int64_t x_stride, images, pixels, channels;  // pixels: of an image
  uint32_t* magnitudes;                        // of each image, the largest, as the bits of a float; 0 at the start
  uint8_t* codes;                              // a + 128, [images, pixels, channels]
};
/// Magnitudes, then codes.
Status quantize_images(const ImageCodes& images, Dtype x_dtype, cudaStream_t stream);

/// y of the sums d.
struct ImageResults {
  const int32_t* sums;  // [images * outputs, channels]
  int64_t images, outputs, channels;
  const uint32_t* magnitudes;
  const float* scales;  // [channels]
  const float* bias;
  ProductArgs result;  // of y: y, y_stride, y_type, lo, hi
};
Status finish_images(const ImageResults& results, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_CONV_CUDA_FLOAT_KERNELS_H_
