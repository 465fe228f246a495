//! Turns on `cfg(loom)` for this crate alone, so that the lease word can be included as it is and
//! nothing else has to be built again.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
