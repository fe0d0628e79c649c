// SPDX-License-Identifier: Apache-2.0
use std::fmt;

use isobit_sys as sys;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatusCode {
    /// A value that the caller passed is outside its limits.
    InvalidArgument,
    /// A file's content is truncated, inconsistent or of an unknown version.
    InvalidFile,
    /// The operating system refused a read or a write.
    Io,
    /// Well-formed, but refused by name.
    Unsupported,
    /// The overflow proof failed.
    Overflow,
    /// Not possible here or now, e.g. a path that this processor cannot run.
    FailedPrecondition,
    /// The system has no memory or no thread left.
    NoResources,
    /// A number that this crate does not know.
    Other(i32),
}

/// What went wrong; the message names the argument or file, the value and the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: StatusCode,
    message: String,
}

/// A value, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The kind of failure.
    pub fn code(&self) -> StatusCode {
        self.code
    }

    /// The text.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn invalid(message: String) -> Error {
        Error { code: StatusCode::InvalidArgument, message }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The status of a call that this thread has just made.
pub(crate) fn check(status: i32) -> Result<()> {
    let code = match status {
        sys::ISOBIT_OK => return Ok(()),
        sys::ISOBIT_INVALID_ARGUMENT => StatusCode::InvalidArgument,
        sys::ISOBIT_INVALID_FILE => StatusCode::InvalidFile,
        sys::ISOBIT_IO => StatusCode::Io,
        sys::ISOBIT_UNSUPPORTED => StatusCode::Unsupported,
        sys::ISOBIT_OVERFLOW => StatusCode::Overflow,
        sys::ISOBIT_FAILED_PRECONDITION => StatusCode::FailedPrecondition,
        sys::ISOBIT_NO_RESOURCES => StatusCode::NoResources,
        other => StatusCode::Other(other),
    };
    // SAFETY: the text stays until the next call of this thread fails, and is copied before.
    let message = unsafe { crate::handle::text(sys::isobit_last_error()) }.to_string();
    Err(Error { code, message })
}
