//! Why a device has no room for rules at run time, for operators.

use compiler::{CapacityRow, Obstacle};
use device_model::DeviceModel;
use policy::{Diagnostic, Policy};

use super::DeviceRoom;

impl DeviceRoom {
    /// Why the device has no room for as many rules at run time as `[runtime]` of the policy lets into it,
    /// and the remedy: an error, or a warning if the policy does not give their number; `None`: it has room.
    #[must_use]
    pub fn diagnostic(&self, policy: &Policy, profile: &DeviceModel) -> Option<Diagnostic> {
        let runtime = policy.runtime.as_ref().filter(|_| self.fit < self.rules)?;
        let Obstacle { reason, limit, errno, .. } = self.obstacle_of(&profile.name);
        let errno = errno.map_or_else(String::new, |errno| format!(" ({errno})"));
        let spare: Vec<String> = self.spare_forms.iter().map(|form| format!("`{form}`")).collect();
        let without = match &*spare {
            [] => String::new(),
            [form] => format!(", or leave the fields {form} out of `matches`"),
            several => format!(", or leave the fields {} out of `matches`", several.join(" or ")),
        };
        let message = format!("{reason}{errno}");
        Some(if runtime.device_rules_given {
            runtime.place.error(message, limit).hint(format!("write device_rules = {}{without}", self.fit))
        } else {
            let lowered = format!("at most {} rules at run time will be in the device{without}", self.fit);
            runtime.place.warning(message, limit).hint(lowered)
        })
    }

    fn obstacle_of(&self, device: &str) -> Obstacle {
        let rules = match self.rules {
            1 => "1 rule at run time".to_owned(),
            rules => format!("{rules} rules at run time"),
        };
        let none = Obstacle {
            rule: None,
            reason: String::new(),
            limit: String::new(),
            errno: None,
            remedy: String::new(),
        };
        if let Some(Obstacle { reason, limit, errno, .. }) = &self.obstacle {
            let reason = format!("`{device}` can have no rules at run time: {reason}");
            return Obstacle { reason, limit: limit.clone(), errno: *errno, ..none };
        }
        let Some(row) = self.shortage() else {
            let reason = format!(
                "the flows of later rules cannot exclude the packets of {rules} that leave them to the kernel"
            );
            return Obstacle { reason, limit: "too many parts of flows".to_owned(), ..none };
        };
        let CapacityRow { what, used, errno, .. } = row;
        let most = row.most.unwrap_or(0);
        let (for_it, two) = row.for_one_program();
        let reason = format!(
            "with {rules} in the device, the policy needs {used} {what}, `{device}` has {most}{for_it}"
        );
        Obstacle { reason, limit: format!("{most} {what}{two}"), errno: Some(*errno), ..none }
    }
}
