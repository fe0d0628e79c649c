// SPDX-License-Identifier: Apache-2.0
use isobit_sys as sys;

/// A float16 number by its bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct F16(pub u16);

/// A bfloat16 number by its bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bf16(pub u16);

mod sealed {
    pub trait Sealed {}
}

/// A type of elements that the library knows; which of them a call takes is said there.
pub trait Element: Copy + sealed::Sealed {
    /// Its number in isobit.h.
    const DTYPE: i32;
    /// "s8", "f32", ...
    const NAME: &'static str;
}

macro_rules! elements {
    ($($kind:ty, $dtype:ident, $name:literal;)*) => {$(
        impl sealed::Sealed for $kind {}
        impl Element for $kind {
            const DTYPE: i32 = sys::$dtype;
            const NAME: &'static str = $name;
        }
    )*};
}
elements! {
    i8, ISOBIT_S8, "s8";
    u8, ISOBIT_U8, "u8";
    i16, ISOBIT_S16, "s16";
    u16, ISOBIT_U16, "u16";
    i32, ISOBIT_S32, "s32";
    u32, ISOBIT_U32, "u32";
    i64, ISOBIT_S64, "s64";
    F16, ISOBIT_F16, "f16";
    Bf16, ISOBIT_BF16, "bf16";
    f32, ISOBIT_F32, "f32";
    f64, ISOBIT_F64, "f64";
}

/// "s8", ...
pub(crate) fn dtype_name(dtype: i32) -> &'static str {
    const NAMES: [&str; 11] = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "f16", "bf16", "f32", "f64"];
    NAMES.get(dtype as usize).copied().unwrap_or("of an unknown type")
}

/// Refuses codes of another type than the model's.
pub(crate) fn check_dtype<T: Element>(dtype: i32, name: &str) -> crate::Result<()> {
    if T::DTYPE == dtype {
        return Ok(());
    }
    Err(crate::Error::invalid(format!("{} is {}, must be {}", name, T::NAME, dtype_name(dtype))))
}
