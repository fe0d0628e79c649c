// SPDX-License-Identifier: Apache-2.0
//! Where libisobit.so is: in the folder that `ISOBIT_LIB_DIR` names, else where pkg-config says.
use std::env;
use std::process::{exit, Command};

fn fail(message: &str) -> ! {
    eprintln!("isobit-sys: {}", message);
    exit(1);
}

fn main() {
    println!("cargo:rerun-if-env-changed=ISOBIT_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(folder) = env::var("ISOBIT_LIB_DIR") {
        if !std::path::Path::new(&folder).join("libisobit.so").exists() {
            fail(&format!("ISOBIT_LIB_DIR is {}, which has no libisobit.so", folder));
        }
        println!("cargo:rustc-link-search=native={}", folder);
        println!("cargo:rustc-link-lib=dylib=isobit");
        return;
    }
    // The interface is that of one minor version.
    let version = env!("CARGO_PKG_VERSION");
    let minor: u32 = env!("CARGO_PKG_VERSION_MINOR").parse().expect("cargo gives a number");
    let next = format!("isobit-c < {}.{}", env!("CARGO_PKG_VERSION_MAJOR"), minor + 1);
    let output = Command::new("pkg-config")
        .args(["--libs", &format!("isobit-c >= {}", version), &next])
        .output()
        .unwrap_or_else(|error| fail(&format!("cannot run pkg-config ({}); set ISOBIT_LIB_DIR", error)));
    if !output.status.success() {
        fail(&format!(
            "set ISOBIT_LIB_DIR, or PKG_CONFIG_PATH for pkg-config, which says: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    for flag in String::from_utf8_lossy(&output.stdout).split_whitespace() {
        if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={}", folder);
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib=dylib={}", library);
        }
    }
}
