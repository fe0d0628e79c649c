// SPDX-License-Identifier: Apache-2.0
use std::path::Path;
use std::ptr;

use isobit_sys as sys;

use crate::element::{check_dtype, dtype_name, Element};
use crate::error::{check, Error, Result};
use crate::handle::{c_path, c_text, count, handle, sized};
use crate::pool::{self, CpuPath, Grid, Pool};

handle!(GruHandle, isobit_gru, isobit_gru_destroy);
handle!(StateHandle, isobit_gru_state, isobit_gru_state_destroy);
handle!(WorkspaceHandle, isobit_gru_workspace, isobit_gru_workspace_destroy);

/// An integer GRU.
#[derive(Debug)]
pub struct Gru {
    handle: GruHandle,
    info: GruInfo,
    input_dtype: i32,
    output_dtype: i32,
}

// SAFETY: a model never changes, and the library ties it to no thread.
unsafe impl Send for Gru {}
// SAFETY: as above.
unsafe impl Sync for Gru {}

/// What a model is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GruInfo {
    /// D, 1 or 2.
    pub directions: i32,
    /// L.
    pub layers: i64,
    /// C.
    pub input_size: i64,
    /// H.
    pub hidden_size: i64,
    /// D * H.
    pub output_size: i64,
    /// Type of codes of x: "s8", "u8", ..., "u32".
    pub input_type: &'static str,
    /// Type of codes of y.
    pub output_type: &'static str,
    /// Grid of x.
    pub input_grid: Grid,
    /// Grid of y.
    pub output_grid: Grid,
}

/// The codes of h of every layer and direction, `[L * D, N, H]`.
#[derive(Debug)]
pub struct GruState {
    handle: StateHandle,
    values: usize,
}

// SAFETY: the library ties a state to no thread.
unsafe impl Send for GruState {}
// SAFETY: what takes &self reads only.
unsafe impl Sync for GruState {}

/// Scratch memory of a model's calls.
#[derive(Debug)]
pub struct GruWorkspace(WorkspaceHandle);

// SAFETY: the library ties a workspace to no thread; calls take it as &mut.
unsafe impl Send for GruWorkspace {}

/// Options of a run; `Default` is none of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct GruRun<'a> {
    /// Instruction set.
    pub path: CpuPath,
    /// `[N]`, 0..=T: past its length a sequence's state stays, and y is 0. None: every sequence has T steps.
    pub lengths: Option<&'a [i64]>,
    /// `[T, N, D * H]`, models of one layer: 1 takes h', 0 keeps h.
    pub zoneout_mask: Option<&'a [u8]>,
    /// x is `[N, T, C]` and y `[N, T, D * H]`.
    pub batch_first: bool,
    /// x holds whole sequences, not pieces of them. Bidirectional models are refused without it.
    pub whole_sequence: bool,
    /// None: the caller's thread.
    pub pool: Option<&'a Pool>,
}

impl GruRun<'_> {
    fn to_c(self) -> Result<sys::isobit_gru_run_options> {
        let mut c = sized!(isobit_gru_run_options);
        c.cpu_path = self.path as i32;
        if let Some(lengths) = self.lengths {
            refuse_empty(lengths, "lengths")?;
            c.lengths = lengths.as_ptr();
            c.length_count = count(lengths);
        }
        if let Some(mask) = self.zoneout_mask {
            refuse_empty(mask, "zoneout_mask")?;
            c.zoneout_mask = mask.as_ptr();
            c.zoneout_count = count(mask);
        }
        c.batch_first = self.batch_first as i32;
        c.whole_sequence = self.whole_sequence as i32;
        c.pool = pool::raw(self.pool);
        Ok(c)
    }
}

/// C takes a size of 0 for None.
fn refuse_empty<T>(values: &[T], name: &str) -> Result<()> {
    if values.is_empty() {
        return Err(Error::invalid(format!("{} is empty, must be None or have elements", name)));
    }
    Ok(())
}

impl Gru {
    /// A model that `isobit quantize` wrote. `name`: which GRU of a file with several. Every field is checked and the
    /// overflow proof made anew.
    pub fn load(path: impl AsRef<Path>, name: Option<&str>) -> Result<Gru> {
        let path = c_path(path.as_ref())?;
        let name = name.map(|name| c_text(name, "name")).transpose()?;
        let name = name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: texts that end with a zero, and where the handle goes.
        let handle = GruHandle::new(|out| unsafe { sys::isobit_gru_load(path.as_ptr(), name, out) })?;
        let mut c = sized!(isobit_gru_info);
        // SAFETY: handle and structure live.
        check(unsafe { sys::isobit_gru_get_info(handle.get(), &mut c) })?;
        let info = GruInfo {
            directions: c.directions,
            layers: c.layers,
            input_size: c.input_size,
            hidden_size: c.hidden_size,
            output_size: c.output_size,
            input_type: dtype_name(c.input_dtype),
            output_type: dtype_name(c.output_dtype),
            input_grid: Grid::from_c(&c.input_grid),
            output_grid: Grid::from_c(&c.output_grid),
        };
        Ok(Gru { handle, info, input_dtype: c.input_dtype, output_dtype: c.output_dtype })
    }

    /// What it is.
    pub fn info(&self) -> &GruInfo {
        &self.info
    }

    /// The state before the first step, h = 0, of `batch` sequences.
    pub fn state(&self, batch: i64) -> Result<GruState> {
        // SAFETY: a handle that lives, and where the new one goes.
        let handle = StateHandle::new(|out| unsafe { sys::isobit_gru_state_create(self.handle.get(), batch, out) })?;
        let values = self.info.layers * i64::from(self.info.directions) * batch * self.info.hidden_size;
        Ok(GruState { handle, values: values as usize })
    }

    /// Memory for calls with up to `batch` sequences and `steps` steps on up to `threads` threads, 1..=1024.
    pub fn workspace(&self, batch: i64, steps: i64, threads: i32) -> Result<GruWorkspace> {
        // SAFETY: as in `state`.
        WorkspaceHandle::new(|out| unsafe {
            sys::isobit_gru_workspace_create(self.handle.get(), batch, steps, threads, out)
        })
        .map(GruWorkspace)
    }

    /// `x [T, N, C]` to `y [T, N, D * H]` in numbers, T = `steps`, N the state's batch. Continues from `state` and
    /// leaves the last one there. Refuses NaN by its index; nothing is written then.
    pub fn forward(
        &self,
        x: &[f32],
        y: &mut [f32],
        steps: i64,
        state: &mut GruState,
        workspace: &mut GruWorkspace,
        run: &GruRun,
    ) -> Result<()> {
        let options = run.to_c()?;
        // SAFETY: handles, slices with their lengths and a structure that live; &mut says that nobody else uses them.
        check(unsafe {
            sys::isobit_gru_forward(
                self.handle.get(),
                x.as_ptr(),
                count(x),
                y.as_mut_ptr(),
                count(y),
                steps,
                state.handle.get(),
                workspace.0.get(),
                &options,
            )
        })
    }

    /// The same on codes, of the types that [`GruInfo`] names. A code of x that is not on the grid is refused.
    pub fn forward_codes<X: Element, Y: Element>(
        &self,
        x: &[X],
        y: &mut [Y],
        steps: i64,
        state: &mut GruState,
        workspace: &mut GruWorkspace,
        run: &GruRun,
    ) -> Result<()> {
        check_dtype::<X>(self.input_dtype, "x")?;
        check_dtype::<Y>(self.output_dtype, "y")?;
        let options = run.to_c()?;
        // SAFETY: as in `forward`, and the types are the model's.
        check(unsafe {
            sys::isobit_gru_forward_codes(
                self.handle.get(),
                x.as_ptr().cast(),
                count(x),
                y.as_mut_ptr().cast(),
                count(y),
                steps,
                state.handle.get(),
                workspace.0.get(),
                &options,
            )
        })
    }
}

impl GruState {
    /// h = 0 again.
    pub fn reset(&mut self) -> Result<()> {
        // SAFETY: a handle that lives.
        check(unsafe { sys::isobit_gru_state_reset(self.handle.get()) })
    }

    /// The state of the same model and batch.
    pub fn copy_from(&mut self, other: &GruState) -> Result<()> {
        // SAFETY: handles that live; two of them, as one is &mut.
        check(unsafe { sys::isobit_gru_state_copy(other.handle.get(), self.handle.get()) })
    }

    /// The state of another model with as many layers, directions and hidden units, requantised in integers, as from
    /// an encoder to a decoder.
    pub fn hand_over_from(&mut self, other: &GruState) -> Result<()> {
        // SAFETY: as in `copy_from`.
        check(unsafe { sys::isobit_gru_state_hand_over(other.handle.get(), self.handle.get()) })
    }

    /// Quantises h, `[L * D, N, H]`.
    pub fn set(&mut self, h: &[f32]) -> Result<()> {
        // SAFETY: a handle and a slice that live.
        check(unsafe { sys::isobit_gru_state_set(self.handle.get(), h.as_ptr(), count(h)) })
    }

    /// h as numbers, `[L * D, N, H]`.
    pub fn get(&self) -> Result<Vec<f32>> {
        let mut h = vec![0.0; self.values];
        // SAFETY: a handle and a slice that live.
        check(unsafe { sys::isobit_gru_state_get(self.handle.get(), h.as_mut_ptr(), count(&h)) })?;
        Ok(h)
    }
}

impl GruWorkspace {
    /// Its bytes.
    pub fn size_bytes(&self) -> i64 {
        // SAFETY: a handle that lives.
        unsafe { sys::isobit_gru_workspace_size_bytes(self.0.get()) }
    }
}
