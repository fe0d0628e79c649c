// SPDX-License-Identifier: Apache-2.0
// PTX that several kernels use: programmatic dependent launch, barriers in shared memory, bulk copies, clusters. sm_90
// and later, but for what comes first.
#ifndef ISOBIT_CORE_CUDA_PTX_CUH_
#define ISOBIT_CORE_CUDA_PTX_CUH_

#include <cstdint>

namespace isobit::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// A grid launched with early_start() may begin when every block of the grid before it has said this, or has ended.
/// So all of those are on the device by then, and the new grid, whatever room it takes, keeps none from a block that it
/// waits for. Nothing before sm_90.
__device__ __forceinline__ void let_next_grid_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Until the grid before has ended, and what it wrote is visible. Every grid launched with early_start() waits in each
/// block, so the end of a grid is the end of all before it. Nothing before sm_90, or where the launch was another.
__device__ __forceinline__ void wait_for_grid_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Of constants. Volatile, so that it stays before the wait. Not with .L1::no_allocate: the second-level cache keeps
/// little of what is loaded so, and the next call needs it there.
__device__ __forceinline__ uint4 load_weights(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
/// Four codes beside the number of their step, in one word of 64 bits, which is read as it was written: whoever finds
/// the number has the codes, and no fence is needed.
__device__ __forceinline__ void publish(uint2* to, uint32_t data, uint32_t step) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(static_cast<uint64_t>(step) << 32 | data)
               : "memory");
}
/// Two such words.
__device__ __forceinline__ void poll(const uint2* from, ulonglong2& two) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0,%1}, [%2];" : "=l"(two.x), "=l"(two.y) : "l"(from) : "memory");
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Global to this block's shared memory; 16-byte aligned, a multiple of 16 bytes.
__device__ __forceinline__ void fetch(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
/// The same to each block of a cluster whose bit is set in `blocks`, at the same place, told to the same barrier there.
__device__ __forceinline__ void fetch_for_cluster(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                                  uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(blocks)
      : "memory");
}
/// A box of a tensor map with three dimensions, at these coordinates, to this block's shared memory, 1024-byte aligned.
/// map: in a kernel's parameters.
__device__ __forceinline__ void fetch_box(uint32_t to, const void* map, int32_t column, int32_t row, int32_t step,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4}], "
      "[%5];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(step), "r"(barrier)
      : "memory");
}
/// The same to each block of a cluster whose bit is set in `blocks`.
__device__ __forceinline__ void fetch_box_for_cluster(uint32_t to, const void* map, int32_t column, int32_t row,
                                                      int32_t step, uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2,%3,%4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(step), "r"(barrier), "h"(blocks)
      : "memory");
}
/// So that the first box need not wait for the map.
__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// From this block's shared memory to `address`, told to `barrier`: both address_in a block of the cluster. 16-byte
/// aligned, a multiple of 16 bytes. What was written to `from` has gone through fence_before_copies.
__device__ __forceinline__ void copy_to_block(uint32_t address, uint32_t from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
/// What this thread wrote to shared memory is seen by bulk copies after the next barrier.
__device__ __forceinline__ void fence_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// What st.async and bulk copies write is visible to whoever waits for the phase that counts their bytes. The scope of
/// the wait itself is the block: a wider one would throw away the first-level cache in every step.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
/// Whether a phase is complete that barrier_wait would wait for.
__device__ __forceinline__ bool barrier_is_complete(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ uint32_t address_in(uint32_t shared, uint32_t block) {
  uint32_t address = 0;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(block));
  return address;
}
/// `barrier`: address_in another block or this one.
__device__ __forceinline__ void barrier_arrive_in(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void send(uint32_t address, const uint4& data, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(address),
               "r"(data.x), "r"(data.y), "r"(data.z), "r"(data.w), "r"(barrier)
               : "memory");
}
/// Barriers of some warps of a block, 1 to 15; `threads`: of those that wait and those that only arrive.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/// The same where warps come to it at different places of the code, in different instructions.
__device__ __forceinline__ void named_barrier_sync_apart(int barrier, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/// True in one thread of a whole warp. What only that one does needs no loop over threads for instructions that take
/// uniform operands, as bulk copies do: the compiler knows this instruction, but not lane == 0.
__device__ __forceinline__ bool is_elected() {
  uint32_t elected = 0;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}
/// Registers a thread of this warpgroup from here on. kStart: what every thread starts with, 168 in a block of 384
/// threads, 128 in one of 512. Only code for sm_90a has the instruction.
template <int kCount, int kStart = 168>
__device__ __forceinline__ void trade_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kCount > kStart) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  }
#endif
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// In two parts, of barriers in shared memory that have gone through fence.mbarrier_init; no memory is ordered
/// otherwise.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ uint32_t block_in_cluster() {
  uint32_t rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// 0 and on; that of the block where it was launched without clusters.
__device__ __forceinline__ uint32_t cluster_in_grid() {
  uint32_t index = 0;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}
}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_PTX_CUH_
