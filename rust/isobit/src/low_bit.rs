// SPDX-License-Identifier: Apache-2.0
use std::path::Path;
use std::ptr;

use isobit_sys as sys;

use crate::element::Element;
use crate::error::{check, Result};
use crate::handle::{c_path, c_text, count, handle, sized};
use crate::pool::{self, Pool};

handle!(MatrixHandle, isobit_low_bit, isobit_low_bit_destroy);

/// Width of the codes of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum BitWidth {
    /// 1 bit.
    One = 1,
    /// 2 bits.
    Two = 2,
    /// 4 bits.
    Four = 4,
    /// 8 bits.
    Eight = 8,
}

/// What codes w stand for: S * v + O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// v = w - 2^(bits-1); for 1 bit 2w - 1.
    #[default]
    Symmetric = sys::ISOBIT_SYMMETRIC,
    /// v = w - z, z an integer for each group.
    ZeroPoint = sys::ISOBIT_ZERO_POINT,
    /// v = w - z, one z for the matrix, and O a number for each group.
    Offset = sys::ISOBIT_OFFSET,
}

impl Kind {
    fn from_number(number: i32) -> Kind {
        [Kind::ZeroPoint, Kind::Offset].into_iter().find(|kind| *kind as i32 == number).unwrap_or_default()
    }
}

/// How scales are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Method {
    /// From the largest magnitude; symmetric only.
    #[default]
    Absmax = sys::ISOBIT_ABSMAX,
    /// From smallest and largest value; the other kinds only.
    Minmax = sys::ISOBIT_MINMAX,
    /// The least squared error of 32 ranges.
    Mse = sys::ISOBIT_MSE,
}

/// Type of scales and offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum ScaleType {
    /// float32.
    #[default]
    F32 = sys::ISOBIT_F32,
    /// float16.
    F16 = sys::ISOBIT_F16,
    /// bfloat16.
    Bf16 = sys::ISOBIT_BF16,
}

impl ScaleType {
    fn from_number(number: i32) -> ScaleType {
        [ScaleType::F16, ScaleType::Bf16].into_iter().find(|kind| *kind as i32 == number).unwrap_or_default()
    }
}

/// How weights are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowBitOptions {
    /// Width of codes.
    pub bits: BitWidth,
    /// Elements of a group: K, or a multiple of 8 below K.
    pub group: i64,
    /// What codes stand for.
    pub kind: Kind,
    /// How scales are found.
    pub method: Method,
    /// Type of scales.
    pub scales: ScaleType,
}

/// What a matrix is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowBitInfo {
    /// Width of codes: 1, 2, 4 or 8.
    pub bits: i32,
    /// N.
    pub rows: i64,
    /// K.
    pub columns: i64,
    /// Elements of a group.
    pub group: i64,
    /// Groups of a row: ceil(K / group).
    pub groups: i64,
    /// Bytes of the codes of a row.
    pub row_bytes: i64,
    /// Bytes of codes, scales, zero points and offsets.
    pub size_bytes: i64,
    /// What codes stand for.
    pub kind: Kind,
    /// Type of scales.
    pub scales: ScaleType,
}

/// Weights `[N, K]` of 1, 2, 4 or 8 bits.
#[derive(Debug)]
pub struct LowBitMatrix {
    pub(crate) handle: MatrixHandle,
    info: LowBitInfo,
}

// SAFETY: a matrix never changes, and the library ties it to no thread.
unsafe impl Send for LowBitMatrix {}
// SAFETY: as above.
unsafe impl Sync for LowBitMatrix {}

impl LowBitMatrix {
    fn of(handle: MatrixHandle) -> Result<LowBitMatrix> {
        let mut c = sized!(isobit_low_bit_info);
        // SAFETY: handle and structure live.
        check(unsafe { sys::isobit_low_bit_get_info(handle.get(), &mut c) })?;
        let info = LowBitInfo {
            bits: c.bits,
            rows: c.rows,
            columns: c.columns,
            group: c.group,
            groups: c.groups,
            row_bytes: c.row_bytes,
            size_bytes: c.size_bytes,
            kind: Kind::from_number(c.kind),
            scales: ScaleType::from_number(c.scale_dtype),
        };
        Ok(LowBitMatrix { handle, info })
    }

    /// Quantises `weights [rows, columns]` of f32, F16 or Bf16. The same bytes on every machine.
    pub fn quantize<T: Element>(
        weights: &[T],
        rows: i64,
        columns: i64,
        options: &LowBitOptions,
        pool: Option<&Pool>,
    ) -> Result<LowBitMatrix> {
        let mut c = sized!(isobit_low_bit_options);
        c.bits = options.bits as i32;
        c.group = options.group;
        c.kind = options.kind as i32;
        c.method = options.method as i32;
        c.scale_dtype = options.scales as i32;
        // SAFETY: a slice with its length, a structure, and where the handle goes.
        LowBitMatrix::of(MatrixHandle::new(|out| unsafe {
            sys::isobit_low_bit_quantize(
                weights.as_ptr().cast(),
                T::DTYPE,
                count(weights),
                rows,
                columns,
                &c,
                pool::raw(pool),
                out,
            )
        })?)
    }

    /// A matrix of a file; `name`: which one of several.
    pub fn load(path: impl AsRef<Path>, name: Option<&str>) -> Result<LowBitMatrix> {
        let path = c_path(path.as_ref())?;
        let name = name.map(|name| c_text(name, "name")).transpose()?;
        let name = name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: texts that end with a zero, and where the handle goes.
        LowBitMatrix::of(MatrixHandle::new(|out| unsafe { sys::isobit_low_bit_load(path.as_ptr(), name, out) })?)
    }

    /// Writes a file with this matrix alone; it appears whole or not at all.
    pub fn save(&self, name: &str, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path(path.as_ref())?;
        let name = c_text(name, "name")?;
        // SAFETY: a handle and texts that live.
        check(unsafe { sys::isobit_low_bit_save(self.handle.get(), name.as_ptr(), path.as_ptr()) })
    }

    /// What it is.
    pub fn info(&self) -> &LowBitInfo {
        &self.info
    }

    /// `[N, K]` in float32.
    pub fn dequantize(&self, pool: Option<&Pool>) -> Result<Vec<f32>> {
        let mut weights = vec![0.0; (self.info.rows * self.info.columns) as usize];
        // SAFETY: a handle and a slice that live.
        check(unsafe {
            sys::isobit_low_bit_dequantize(self.handle.get(), weights.as_mut_ptr(), count(&weights), pool::raw(pool))
        })?;
        Ok(weights)
    }
}
