// SPDX-License-Identifier: Apache-2.0
use std::path::Path;

use isobit_sys as sys;

use crate::element::Element;
use crate::error::{check, Error, Result};
use crate::handle::{c_path, c_text, count, handle, sized, text};
use crate::pool::{self, Pool};

handle!(TableHandle, isobit_fp16_table, isobit_fp16_table_destroy);

/// How a table is evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum TableModel {
    /// float32 throughout.
    #[default]
    F32 = sys::ISOBIT_FP16_F32,
    /// The published GPU code.
    NliGpu = sys::ISOBIT_FP16_NLI_GPU,
    /// The published CPU code.
    NliCpu = sys::ISOBIT_FP16_NLI_CPU,
}

/// Errors over every finite float16 input against the correctly rounded result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certificate {
    /// In units of the last place of the correct result.
    pub max_ulp: f64,
    /// The mean of the same.
    pub mean_ulp: f64,
    /// The smallest float16 code with `max_ulp`.
    pub worst_code: u16,
    /// The largest absolute error.
    pub max_absolute: f64,
    /// 0 to 1.
    pub share_exact: f64,
    /// 0 to 1.
    pub share_within_ulp: f64,
}

/// An activation function as hardware with a small table of floats computes it: y = table(x), float16 to float16.
#[derive(Debug)]
pub struct Table(TableHandle);

// SAFETY: a table never changes, and the library ties it to no thread.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// A table that isobit carries: "silu", "gelu", "tanh", ...; `half_values`: its values are float16 numbers.
    pub fn builtin(function: &str, model: TableModel, half_values: bool) -> Result<Table> {
        let function = c_text(function, "function")?;
        // SAFETY: a text that ends with a zero, and where the handle goes.
        TableHandle::new(|out| unsafe {
            sys::isobit_fp16_table_builtin(function.as_ptr(), model as i32, half_values as i32, out)
        })
        .map(Table)
    }

    /// A table that `isobit table fit` wrote.
    pub fn load(path: impl AsRef<Path>) -> Result<Table> {
        let path = c_path(path.as_ref())?;
        // SAFETY: as in `builtin`.
        TableHandle::new(|out| unsafe { sys::isobit_fp16_table_load(path.as_ptr(), out) }).map(Table)
    }

    /// "silu", ...; "custom" for a function of the user's own.
    pub fn function(&self) -> &str {
        // SAFETY: the text stays as long as the handle.
        unsafe { text(sys::isobit_fp16_table_function(self.0.get())) }
    }

    /// Its errors.
    pub fn certificate(&self) -> Result<Certificate> {
        let mut c = sized!(isobit_fp16_table_info);
        // SAFETY: handle and structure live.
        check(unsafe { sys::isobit_fp16_table_get_info(self.0.get(), &mut c) })?;
        Ok(Certificate {
            max_ulp: c.max_ulp,
            mean_ulp: c.mean_ulp,
            worst_code: c.worst_code as u16,
            max_absolute: c.max_absolute,
            share_exact: c.share_exact,
            share_within_ulp: c.share_within_ulp,
        })
    }

    /// `y[i] = table(x[i])`. Types: f32, F16 or Bf16, any pair: x is rounded to float16 (nearest even), y is the
    /// float16 result widened or rounded. NaN gives NaN.
    pub fn run<X: Element, Y: Element>(&self, x: &[X], y: &mut [Y], pool: Option<&Pool>) -> Result<()> {
        if x.len() != y.len() {
            return Err(Error::invalid(format!("y has {} elements, must have {} as x has", y.len(), x.len())));
        }
        // SAFETY: a handle and slices of one length that live.
        check(unsafe {
            sys::isobit_fp16_table_run(
                self.0.get(),
                x.as_ptr().cast(),
                X::DTYPE,
                y.as_mut_ptr().cast(),
                Y::DTYPE,
                count(x),
                pool::raw(pool),
            )
        })
    }
}
