//! Loopback within a NIC of mlx5. The driver keeps it off where firmware has transport domains and a bit to
//! disable it (`disable_local_lb_uc`, `disable_local_lb_mc`), and turns it on while two or more user contexts
//! with a transport domain are open, or a queue pair asks for it (drivers/infiniband/hw/mlx5/main.c,
//! `mlx5_ib_enable_lb`). Packets that one program sends by the NIC may then match flows of another.
//!
//! The kernel counts all contexts, and does not show which have a transport domain or what the firmware has:
//! the warning is about what may be.

/// The driver that turns it on.
const DRIVER: &str = "mlx5_core";

/// The warning about contexts of others on an open device of this kernel driver, whatever its model.
/// `contexts`: those of all processes.
pub(super) fn warning(device: &str, driver: &str, contexts: u64) -> Option<String> {
    let others = contexts.saturating_sub(1);
    if others == 0 || driver.split('.').next() != Some(DRIVER) {
        return None;
    }
    let contexts = if others == 1 { "context" } else { "contexts" };
    Some(format!(
        "{others} other verbs {contexts} on {device}: the driver may loop packets back within the NIC, so what another \
         program sends by it may match flows of steerd (hint: `rdma resource show ctx` lists the programs; end those \
         that need not run, or move them to another device)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_others_are_warned_of() {
        let text = warning("mlx5_0", "mlx5_core.sf", 3).expect("two others");
        assert!(text.starts_with("2 other verbs contexts on mlx5_0: the driver may loop"), "{text}");
        let one = warning("mlx5_0", "mlx5_core", 2);
        assert!(one.is_some_and(|text| text.contains("1 other verbs context ")));
        assert_eq!(warning("mlx5_0", "mlx5_core", 1), None, "its own");
        assert_eq!(warning("mlx4_0", "mlx4_core", 5), None, "another driver");
        assert_eq!(warning("rdma0", "mlx5_corex", 5), None);
        assert_eq!(warning("rdma0", "", 5), None, "no driver");
    }
}
