//! Compiles the static inline functions of the installed `infiniband/verbs.h` into functions that Rust can
//! call.

fn main() {
    println!("cargo:rerun-if-changed=fuzz_targets/provider/inlines.c");
    cc::Build::new().file("fuzz_targets/provider/inlines.c").warnings(false).compile("verbs_inlines");
    println!("cargo:rustc-link-lib=ibverbs");
}
