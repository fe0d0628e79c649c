// SPDX-License-Identifier: Apache-2.0
//! Models as C99, for microcontrollers: `docs/microcontrollers.md` of isobit.
use std::path::Path;
use std::ptr;

use isobit_sys as sys;

use crate::error::{check, Result};
use crate::handle::{c_path, c_text, sized};

/// What the C is for. All targets give the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Target {
    /// C99 and nothing else.
    #[default]
    Generic = sys::ISOBIT_TARGET_GENERIC,
    /// The same.
    CortexM3 = sys::ISOBIT_TARGET_CORTEX_M3,
    /// With SMLAD.
    CortexM4 = sys::ISOBIT_TARGET_CORTEX_M4,
    /// With SMLAD.
    CortexM7 = sys::ISOBIT_TARGET_CORTEX_M7,
    /// With SMLAD.
    CortexM33 = sys::ISOBIT_TARGET_CORTEX_M33,
    /// With MVE.
    CortexM55 = sys::ISOBIT_TARGET_CORTEX_M55,
}

/// Options of [`export_c`]; `Default` is none of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportOptions<'a> {
    /// The processor.
    pub target: Target,
    /// A C identifier, of files and functions. None: made from that of the model.
    pub name: Option<&'a str>,
    /// That `NAME_selftest` compares, at most 1000; 0: 8.
    pub selftest_steps: i64,
    /// A GRU of one direction also gets a step that takes and gives float32.
    pub float_entry: bool,
    /// Activation tables above 16 KB.
    pub allow_large_tables: bool,
    /// Files of an earlier export are overwritten.
    pub force: bool,
}

/// Bytes of a microcontroller's memories, without code and stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Flash: codes of weights.
    pub weights_bytes: i64,
    /// Flash: values of activation tables.
    pub tables_bytes: i64,
    /// Flash: start values and rescales of rows, constants of layers.
    pub constants_bytes: i64,
    /// Flash, where `NAME_selftest` is called.
    pub selftest_bytes: i64,
    /// RAM that is kept between steps.
    pub state_bytes: i64,
    /// RAM during a call.
    pub scratch_bytes: i64,
    /// A step of a GRU, a row of a linear layer, an output pixel of a convolution.
    pub multiply_adds: i64,
}

/// Writes `NAME.h`, `NAME.c`, `NAME_data.c` and `NAME.cmake` to `folder`, which is made where it is not there: all of
/// them, or none. `model` is a file with a GRU, a linear layer or a convolution of static codes, `layer` which of
/// several. Errors: a name that is no C identifier, steps outside their limits, a folder that is not empty without
/// `force`, a GRU whose x, h, W or R has more than 16 bits, tables above 16 KB.
pub fn export_c(
    model: impl AsRef<Path>,
    layer: Option<&str>,
    folder: impl AsRef<Path>,
    options: &ExportOptions,
) -> Result<ExportInfo> {
    let model = c_path(model.as_ref())?;
    let folder = c_path(folder.as_ref())?;
    let layer = layer.map(|text| c_text(text, "layer")).transpose()?;
    let name = options.name.map(|text| c_text(text, "name")).transpose()?;
    let mut c = sized!(isobit_export_options);
    c.target = options.target as i32;
    c.name = name.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    c.selftest_steps = options.selftest_steps;
    c.float_entry = options.float_entry as i32;
    c.allow_large_tables = options.allow_large_tables as i32;
    c.force = options.force as i32;
    let mut info = sized!(isobit_export_info);
    // SAFETY: texts and structures live.
    check(unsafe {
        sys::isobit_export_c(
            model.as_ptr(),
            layer.as_ref().map_or(ptr::null(), |text| text.as_ptr()),
            folder.as_ptr(),
            &c,
            &mut info,
        )
    })?;
    Ok(ExportInfo {
        weights_bytes: info.weights_bytes,
        tables_bytes: info.tables_bytes,
        constants_bytes: info.constants_bytes,
        selftest_bytes: info.selftest_bytes,
        state_bytes: info.state_bytes,
        scratch_bytes: info.scratch_bytes,
        multiply_adds: info.multiply_adds,
    })
}
