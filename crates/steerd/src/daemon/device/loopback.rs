//! Loopback within a NIC of mlx5: the driver turns it on while more than one verbs context is open on the
//! device (drivers/infiniband/hw/mlx5/main.c, `mlx5_ib_enable_lb`). Packets that one program sends by the
//! NIC may then match flows of another.

use control::Known;

/// The driver that turns it on.
const DRIVER: &str = "mlx5_core";

/// The warning about contexts of others on an open device. `contexts`: those of all processes.
pub(super) fn warning(device: &str, known: &Known, contexts: u64) -> Option<String> {
    let Known::Driver(driver) = known else { return None };
    let others = contexts.saturating_sub(1);
    if others == 0 || !driver.starts_with(DRIVER) {
        return None;
    }
    let contexts = if others == 1 { "context" } else { "contexts" };
    Some(format!(
        "{others} other verbs {contexts} on {device}: the driver loops packets back within the NIC, so what another \
         program sends by it may match flows of steerd (hint: `rdma resource show ctx` lists them; end those programs, \
         or match the packets' source)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_others_are_warned_of() {
        let driver = |name: &str| Known::Driver(name.to_owned());
        let text = warning("mlx5_0", &driver("mlx5_core.sf"), 3).expect("two others");
        assert!(text.starts_with("2 other verbs contexts on mlx5_0: "), "{text}");
        assert!(
            warning("mlx5_0", &driver("mlx5_core"), 2)
                .is_some_and(|text| text.contains("1 other verbs context "))
        );
        assert_eq!(warning("mlx5_0", &driver("mlx5_core"), 1), None, "its own");
        assert_eq!(warning("mlx4_0", &driver("mlx4_core"), 5), None, "another driver");
        assert_eq!(warning("softnic0", &Known::Provider, 5), None);
    }
}
