// SPDX-License-Identifier: Apache-2.0
use std::path::Path;
use std::slice;

use isobit_sys as sys;

use crate::element::{check_dtype, Element};
use crate::error::{check, Result};
use crate::handle::{c_path, c_text, handle, sized};

handle!(ArraysHandle, isobit_arrays, isobit_arrays_destroy);

/// The named arrays of a npy, npz, safetensors or GGUF file.
#[derive(Debug)]
pub struct Arrays(ArraysHandle);

// SAFETY: nothing changes after the file was read, and the library ties it to no thread.
unsafe impl Send for Arrays {}
// SAFETY: as above.
unsafe impl Sync for Arrays {}

impl Arrays {
    /// Reads every array of a file, which is recognised by its content. Of GGUF all tensors become f32.
    pub fn load(path: impl AsRef<Path>) -> Result<Arrays> {
        let path = c_path(path.as_ref())?;
        // SAFETY: a text that ends with a zero, and where the handle goes.
        ArraysHandle::new(|out| unsafe { sys::isobit_arrays_load(path.as_ptr(), out) }).map(Arrays)
    }

    /// Elements of an array, and its shape; `name` is "" for the one of a npy file. Refuses another type than the
    /// array's.
    pub fn get<T: Element>(&self, name: &str) -> Result<(&[T], Vec<i64>)> {
        let text = c_text(name, "name")?;
        let mut info = sized!(isobit_array_info);
        // SAFETY: handle, text and structure live.
        check(unsafe { sys::isobit_arrays_find(self.0.get(), text.as_ptr(), &mut info) })?;
        check_dtype::<T>(info.dtype, name)?;
        let count = info.size_bytes as usize / std::mem::size_of::<T>();
        // SAFETY: the library says that so many elements of T lie there as long as the handle lives, aligned as it
        // allocates; every pattern of bits is a value of the types of Element.
        let values = if count == 0 { &[][..] } else { unsafe { slice::from_raw_parts(info.data.cast(), count) } };
        Ok((values, info.shape[..info.dimensions as usize].to_vec()))
    }
}
