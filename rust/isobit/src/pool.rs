// SPDX-License-Identifier: Apache-2.0
use std::ptr;

use isobit_sys as sys;

use crate::error::{check, Result};
use crate::handle::handle;

handle!(PoolHandle, isobit_pool, isobit_pool_destroy);

/// A fixed number of threads, among which a call splits its work; bytes never depend on it.
#[derive(Debug)]
pub struct Pool(PoolHandle);

// SAFETY: the library ties a pool to no thread. Not Sync: one call at a time.
unsafe impl Send for Pool {}

impl Pool {
    /// `threads` in 1..=1024, the caller's included; 0: one for each processor that this process may use.
    pub fn new(threads: i32) -> Result<Pool> {
        // SAFETY: the pointer is to where the handle goes.
        PoolHandle::new(|out| unsafe { sys::isobit_pool_create(threads, out) }).map(Pool)
    }

    /// The number of threads.
    pub fn threads(&self) -> i32 {
        // SAFETY: a handle that lives.
        unsafe { sys::isobit_pool_threads(self.0.get()) }
    }
}

pub(crate) fn raw(pool: Option<&Pool>) -> *mut sys::isobit_pool {
    pool.map_or(ptr::null_mut(), |pool| pool.0.get())
}

/// Instruction sets that kernels are written for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum CpuPath {
    /// The best that this processor has, or what the environment variable `ISOBIT_CPU` names.
    #[default]
    Default = sys::ISOBIT_CPU_DEFAULT,
    /// The normative code; runs everything.
    Reference = sys::ISOBIT_CPU_REFERENCE,
    /// Plain C++.
    Scalar = sys::ISOBIT_CPU_SCALAR,
    /// AVX2 with FMA and F16C.
    Avx2 = sys::ISOBIT_CPU_AVX2,
    /// AVX-VNNI.
    AvxVnni = sys::ISOBIT_CPU_AVXVNNI,
    /// AVX-512 VNNI.
    Avx512Vnni = sys::ISOBIT_CPU_AVX512VNNI,
    /// AMX tiles of 8-bit integers, beside AVX-512 VNNI.
    Amx = sys::ISOBIT_CPU_AMX,
}

impl CpuPath {
    /// Why this processor cannot run it, if so.
    pub fn check(self) -> Result<()> {
        // SAFETY: takes a number.
        check(unsafe { sys::isobit_cpu_check(self as i32) })
    }

    pub(crate) fn from_number(number: i32) -> CpuPath {
        [CpuPath::Reference, CpuPath::Scalar, CpuPath::Avx2, CpuPath::AvxVnni, CpuPath::Avx512Vnni, CpuPath::Amx]
            .into_iter()
            .find(|path| *path as i32 == number)
            .unwrap_or_default()
    }
}

/// Scale of a [`Grid`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// 2^-shift, shift in -32..=62.
    Pow2(i32),
    /// A positive normal number.
    Real(f32),
}

/// Which real numbers codes stand for: (code - zero_point) * scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Width of codes, 1..=32.
    pub bits: i32,
    /// Codes in -2^(bits-1)..2^(bits-1), else in 0..2^bits.
    pub is_signed: bool,
    /// The distance of two codes.
    pub scale: Scale,
    /// The code of 0.
    pub zero_point: i64,
}

impl Grid {
    pub(crate) fn from_c(c: &sys::isobit_grid) -> Grid {
        let scale =
            if c.scale_kind == sys::ISOBIT_SCALE_REAL { Scale::Real(c.real_scale) } else { Scale::Pow2(c.shift) };
        Grid { bits: c.bits, is_signed: c.is_signed == 1, scale, zero_point: c.zero_point }
    }

    pub(crate) fn to_c(self) -> sys::isobit_grid {
        let (scale_kind, shift, real_scale) = match self.scale {
            Scale::Pow2(shift) => (sys::ISOBIT_SCALE_POW2, shift, 0.0),
            Scale::Real(scale) => (sys::ISOBIT_SCALE_REAL, 0, scale),
        };
        sys::isobit_grid {
            bits: self.bits,
            is_signed: self.is_signed as i32,
            scale_kind,
            shift,
            real_scale,
            reserved: 0,
            zero_point: self.zero_point,
        }
    }
}
