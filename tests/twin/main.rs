//! The gateway beside the real kube-apiserver.
fn main() {}
