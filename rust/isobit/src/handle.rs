// SPDX-License-Identifier: Apache-2.0
//! Handles of C, structures with their size, and texts.
use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use crate::error::{check, Error, Result};

/// Declares the owner of a C handle: `get()` is its pointer, never null; dropping ends it.
macro_rules! handle {
    ($name:ident, $raw:ident, $destroy:ident) => {
        #[derive(Debug)]
        pub(crate) struct $name(std::ptr::NonNull<isobit_sys::$raw>);

        impl $name {
            /// `make` calls the function that makes the handle.
            pub(crate) fn new(make: impl FnOnce(*mut *mut isobit_sys::$raw) -> i32) -> crate::Result<$name> {
                crate::handle::made(make).map($name)
            }
            pub(crate) fn get(&self) -> *mut isobit_sys::$raw {
                self.0.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by `new`, ended once.
                unsafe { isobit_sys::$destroy(self.get()) }
            }
        }
    };
}
pub(crate) use handle;

pub(crate) fn made<T>(make: impl FnOnce(*mut *mut T) -> i32) -> Result<ptr::NonNull<T>> {
    let mut raw = ptr::null_mut();
    check(make(&mut raw))?;
    Ok(ptr::NonNull::new(raw).expect("the library gives a handle where it reports success"))
}

/// A structure of isobit.h, all zeros but its size.
macro_rules! sized {
    ($name:ident) => {{
        // SAFETY: structures of isobit.h hold numbers and pointers, for which zeros are values.
        let mut value: isobit_sys::$name = unsafe { std::mem::zeroed() };
        value.struct_size = std::mem::size_of::<isobit_sys::$name>() as u32;
        value
    }};
}
pub(crate) use sized;

/// Lengths of slices are at most isize::MAX bytes.
pub(crate) fn count<T>(slice: &[T]) -> i64 {
    slice.len() as i64
}

pub(crate) fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::invalid(format!("path {:?} holds a zero byte", path)))
}

pub(crate) fn c_text(text: &str, name: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{} is {:?}, which holds a zero byte", name, text)))
}

/// # Safety
/// `text` ends with a zero and stays for 'a.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> &'a str {
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("a text that is not UTF-8")
}
