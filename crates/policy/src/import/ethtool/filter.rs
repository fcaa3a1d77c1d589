//! One filter of `ethtool -n`: lines of the form `Name: value mask: mask`, where a set bit of the mask is a
//! bit that is *not* compared. The destination MAC address of a filter for IP packets is the exception:
//! `rxclass.c` of ethtool prints that mask as the driver has it, where a set bit is compared (read in ethtool
//! 6.1 and 6.14).
//!
//! A value under a mask that compares none of its bits is a contradiction: i40e lists filters without their
//! masks, though the device compares them. Such a filter is left out, because a rule without the value would
//! match more.

use std::collections::BTreeMap;
use std::net::IpAddr;

use packet::{Field, IpProtocol, MacAddr};

use super::MAX_WORKER;
use super::{Keys, Note, masked_addresses, masked_ranges, quoted};

/// The drop-eligible bit in the control information of a VLAN tag (IEEE 802.1Q).
const DROP_ELIGIBLE: u128 = 0x1000;

/// Where a filter sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Drop,
    Queue(u32),
    /// An RSS context; 0 is the default one.
    Context(u32),
}

/// A filter as listed.
pub(super) struct Filter {
    /// The line of its beginning.
    pub(super) line: u32,
    /// The location in the device's table.
    pub(super) location: u64,
    /// The text after each name.
    fields: BTreeMap<String, String>,
    /// A problem that prevents conversion.
    problem: Option<String>,
}

/// The reason why a filter is left out.
type Reason = String;

impl Filter {
    pub(super) fn new(line: u32, location: &str) -> Self {
        let parsed = location.parse();
        let problem = parsed.is_err().then(|| format!("`{}` is not a location", quoted(location)));
        Self { line, location: parsed.unwrap_or(u64::MAX), fields: BTreeMap::new(), problem }
    }

    pub(super) fn shown(&self) -> String {
        match self.location {
            u64::MAX => "without a location".to_owned(),
            location => location.to_string(),
        }
    }

    /// The note that the filter leaves packets to the kernel and its rule does not; `None`: it drops them.
    pub(super) fn note_of_leaving(&self, target: Target) -> Option<Note> {
        let target = match target {
            Target::Drop => return None,
            Target::Queue(queue) => format!("queue {queue}"),
            Target::Context(context) => format!("the queues of RSS context {context}"),
        };
        let message = format!(
            "filter {} leaves packets to the kernel, on {target}; here they leave the kernel for workers (hint: import with \
             --kernel-sink, which returns them, or write `queues` in place of `workers` in the group, which puts them on \
             these queues of the NIC)",
            self.shown()
        );
        Some(Note { line: self.line, message })
    }

    pub(super) fn take(&mut self, text: &str) {
        match text.split_once(':') {
            Some((name, value)) => {
                let (name, value) = (name.trim(), value.trim());
                let earlier = self.fields.entry(name.to_owned()).or_insert_with(|| value.to_owned());
                if *earlier != value {
                    self.problem = Some(format!("`{}` is listed twice", quoted(name)));
                }
            }
            None => self.problem = Some(format!("not understood: {}", quoted(text))),
        }
    }

    /// The filter's match and target.
    pub(super) fn translate(&self, notes: &mut Vec<Note>) -> Result<(Keys, Target), Reason> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let mut reading =
            Reading { filter: self, left: self.fields.clone(), keys: Keys::default(), has_tag: false };
        let target = reading.target(notes)?;
        reading.kind()?;
        reading.link(notes)?;
        match reading.left.keys().next() {
            Some(name) => Err(format!("`{}` is not supported", quoted(name))),
            None => Ok((reading.keys, target)),
        }
    }
}

/// A filter being converted: lines that were read are removed from `left`.
struct Reading<'f> {
    filter: &'f Filter,
    left: BTreeMap<String, String>,
    keys: Keys,
    /// Whether `keys` has the protocol of the tag.
    has_tag: bool,
}

impl Reading<'_> {
    fn target(&mut self, notes: &mut Vec<Note>) -> Result<Target, Reason> {
        let context = self.left.remove("RSS Context ID");
        let action = self.left.remove("Action").ok_or("it has no action")?;
        if action == "Drop" {
            return Ok(Target::Drop);
        }
        let odd = || format!("the action `{}` has no equivalent in a policy", quoted(&action));
        let target = action.strip_prefix("Direct to ").ok_or_else(odd)?;
        if target.starts_with("VF ") {
            return Err(format!(
                "it delivers to a virtual function ({}), which a policy cannot do",
                quoted(target)
            ));
        }
        let (context, base) = match target.strip_prefix("RSS Context ") {
            // Since ethtool 6.14; older versions print the context separately and the offset as the queue.
            Some(rest) => {
                let (context, offset) = rest.split_once(' ').unwrap_or((rest, ""));
                let base: String = offset.chars().filter(char::is_ascii_digit).collect();
                (Some(context.to_owned()), base)
            }
            None => (context, target.strip_prefix("queue ").ok_or_else(odd)?.to_owned()),
        };
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| odd());
        let Some(context) = context else {
            let cookie = base.trim().parse::<u64>().map_err(|_| odd())?;
            // Older versions print the whole cookie, with the virtual function from 1 in bits 32 to 39 (Linux
            // include/uapi/linux/ethtool.h, `ethtool_get_flow_spec_ring_vf`).
            if cookie >> 32 != 0 {
                let (function, queue) = ((cookie >> 32) & 0xff, cookie & 0xffff_ffff);
                return Err(match function {
                    0 => odd(),
                    _ => format!(
                        "it delivers to queue {queue} of virtual function {}, which a policy cannot do",
                        function - 1
                    ),
                });
            }
            let queue = number(&base)?;
            return match queue > MAX_WORKER {
                true => Err(format!("a worker's number is at most {MAX_WORKER}")),
                false => Ok(Target::Queue(queue)),
            };
        };
        if !matches!(&*base, "" | "0") {
            let message = format!("filter {}: the queues' offset {base} is left out", self.filter.shown());
            notes.push(Note { line: self.filter.line, message });
        }
        Ok(Target::Context(number(&context)?))
    }

    /// The keys of the filter's type.
    fn kind(&mut self) -> Result<(), Reason> {
        if self.left.remove("Flow Type").is_some_and(|kind| kind == "Raw Ethernet") {
            let types = self.number("Ethertype", 16)?;
            match *types {
                // In a policy `ethertype` is the type after the tags.
                [(tag @ (0x8100 | 0x88a8 | 0x9100), high)] if tag == high => {
                    self.keys.push("vlan_tpid", format!("{tag:#06x}"));
                    self.has_tag = true;
                }
                _ => self.keys.ether_types(&types),
            }
            return Ok(());
        }
        let kind = self.left.remove("Rule Type").ok_or("it has no type")?;
        let odd = || format!("the type `{}` is not supported", quoted(&kind));
        let (protocol, version) = match kind.strip_prefix("Raw ") {
            Some(version) => ("", version),
            None => kind.split_once(" over ").ok_or_else(odd)?,
        };
        let (family, service, key) = match version {
            "IPv4" => ("ipv4", "TOS", "tos"),
            "IPv6" => ("ipv6", "Traffic Class", "traffic_class"),
            _ => return Err(odd()),
        };
        self.keys.text("family", family);
        for (name, key) in [("Src IP addr", "src"), ("Dest IP addr", "dst")] {
            self.address(name, key, version)?;
        }
        let service = self.number(service, 8)?;
        self.keys.ranges(key, &service);
        match protocol {
            "TCP" | "UDP" | "SCTP" => self.ports(&protocol.to_lowercase()),
            "IPSEC AH" => self.index("ah"),
            "IPSEC ESP" => self.index("esp"),
            "" => self.raw(),
            _ => Err(odd()),
        }
    }

    fn ports(&mut self, protocol: &str) -> Result<(), Reason> {
        self.keys.text("protocol", protocol);
        let fields = Field::ports_of(protocol.parse().unwrap_or_default());
        for (name, field) in ["Src port", "Dest port"].into_iter().zip(fields) {
            let ports = self.number(name, 16)?;
            self.keys.ranges(field.name(), &ports);
        }
        Ok(())
    }

    fn index(&mut self, protocol: &str) -> Result<(), Reason> {
        self.keys.text("protocol", protocol);
        let index = self.number("SPI", 32)?;
        if protocol == "ah" && !index.is_empty() {
            return Err("a policy cannot match the SPI of AH".to_owned());
        }
        self.keys.ranges("esp_spi", &index);
        Ok(())
    }

    /// Any protocol with its first four bytes, which are the ports of TCP, UDP and SCTP.
    fn raw(&mut self) -> Result<(), Reason> {
        let protocols = self.number("Protocol", 8)?;
        self.keys.ranges("protocol", &protocols);
        let Some((value, matters)) = self.masked("L4 bytes", 32)? else { return Ok(()) };
        if matters == 0 {
            return Ok(());
        }
        let has_ports = |protocol: &IpProtocol| *protocols == [(protocol.0.into(), protocol.0.into())];
        let with_ports = [IpProtocol::TCP, IpProtocol::UDP, IpProtocol::SCTP];
        let protocol = with_ports.into_iter().find(has_ports).ok_or(
            "a policy can match the first bytes after the IP header only as ports of TCP, UDP or SCTP",
        )?;
        for (field, shift) in Field::ports_of(protocol).into_iter().zip([16, 0]) {
            let ports = masked_ranges(value >> shift & 0xffff, matters >> shift & 0xffff, 16);
            self.keys.ranges(field.name(), &ports.ok_or("the mask of the ports takes too many ranges")?);
        }
        Ok(())
    }

    /// MAC addresses, the VLAN tag and user-defined data.
    fn link(&mut self, notes: &mut Vec<Note>) -> Result<(), Reason> {
        let for_frames = self.filter.fields.contains_key("Flow Type");
        self.mac("Src MAC addr", "src_mac", true)?;
        self.mac("Dest MAC addr", "dst_mac", for_frames)?;
        let types = self.number("VLAN EtherType", 16)?;
        match *types {
            [] => {}
            _ if self.has_tag => return Err("it has two tag protocols for one tag".to_owned()),
            [(0x8100 | 0x88a8 | 0x9100, high)] if types[0].0 == high => {
                self.keys.push("vlan_tpid", format!("{high:#06x}"));
            }
            _ => return Err("its VLAN ethertype is not that of a VLAN tag".to_owned()),
        }
        if let Some((value, matters)) = self.masked("VLAN", 16)? {
            let part = |shift: u32, bits: u32| {
                let ones = (1u128 << bits) - 1;
                masked_ranges(value >> shift & ones, matters >> shift & ones, bits)
                    .ok_or("the mask of its VLAN takes too many ranges")
            };
            if matters & DROP_ELIGIBLE != 0 {
                if value & DROP_ELIGIBLE != 0 {
                    return Err("a policy cannot match the drop-eligible bit of a VLAN tag".to_owned());
                }
                // Every `vlan N` without a mask of its own is listed so, and drivers do not compare the bit.
                let message = format!(
                    "filter {}: the drop-eligible bit of its VLAN is not compared; the priority is, as listed: remove \
                     `vlan_priority` if the driver compares the VLAN ID alone, as mlx5 does",
                    self.filter.shown()
                );
                notes.push(Note { line: self.filter.line, message });
            }
            self.keys.ranges("vlan", &part(0, 12)?);
            self.keys.ranges("vlan_priority", &part(13, 3)?);
        }
        match self.masked("User-defined", 64)? {
            Some((_, matters)) if matters != 0 => {
                Err("its user-defined data is specific to the driver".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// A value of `bits` bits, and the bits that are compared.
    fn masked(&mut self, name: &str, bits: u32) -> Result<Option<(u128, u128)>, Reason> {
        let Some(text) = self.left.remove(name) else { return Ok(None) };
        let wrong = || format!("`{name}` is not understood: {}", quoted(&text));
        let (value, mask) = halves(&text).ok_or_else(wrong)?;
        let (value, mask) = (number(value).ok_or_else(wrong)?, number(mask).ok_or_else(wrong)?);
        let matters = !mask & ((1 << bits) - 1);
        compared(name, value != 0, matters != 0)?;
        Ok(Some((value, matters)))
    }

    /// Reads a number and its mask as ranges.
    fn number(&mut self, name: &str, bits: u32) -> Result<Vec<(u128, u128)>, Reason> {
        let Some((value, matters)) = self.masked(name, bits)? else { return Ok(Vec::new()) };
        masked_ranges(value, matters, bits)
            .ok_or_else(|| format!("the mask of `{name}` takes too many ranges"))
    }

    /// An address of this IP version.
    fn address(&mut self, name: &str, key: &str, version: &str) -> Result<(), Reason> {
        let Some(text) = self.left.remove(name) else { return Ok(()) };
        let wrong = || format!("`{name}` is not understood: {}", quoted(&text));
        let (value, mask) = halves(&text).ok_or_else(wrong)?;
        let value: IpAddr = value.parse().map_err(|_| wrong())?;
        if value.is_ipv4() != (version == "IPv4") {
            return Err(format!("`{name}` is not an {version} address: {}", quoted(&text)));
        }
        let matters = match mask.parse().map_err(|_| wrong())? {
            IpAddr::V4(mask) => IpAddr::V4(!mask),
            IpAddr::V6(mask) => IpAddr::V6(!mask),
        };
        if value.is_ipv4() != matters.is_ipv4() {
            return Err(wrong());
        }
        compared(name, !value.is_unspecified(), !matters.is_unspecified())?;
        let list = masked_addresses(value, matters)
            .ok_or_else(|| format!("the mask of `{name}` takes too many prefixes"))?;
        match &*list {
            [] => {}
            [one] => self.keys.text(key, one),
            _ => self.keys.push(key, format!("[\"{}\"]", list.join("\", \""))),
        }
        Ok(())
    }

    /// A MAC address, whose mask has the bits that are not compared (`is_inverted`) or those that are.
    fn mac(&mut self, name: &str, key: &str, is_inverted: bool) -> Result<(), Reason> {
        let Some(text) = self.left.remove(name) else { return Ok(()) };
        let wrong = || format!("`{name}` is not understood: {}", quoted(&text));
        let (value, mask) = halves(&text).ok_or_else(wrong)?;
        let address = |text: &str| text.to_lowercase().parse::<MacAddr>().map_err(|_| wrong());
        let (value, mask) = (address(value)?, address(mask)?);
        let matters = if is_inverted { MacAddr(mask.0.map(|byte| !byte)) } else { mask };
        compared(name, value.0 != [0; 6], matters.0 != [0; 6])?;
        let value = MacAddr(std::array::from_fn(|i| value.0[i] & matters.0[i]));
        match matters {
            MacAddr([0, 0, 0, 0, 0, 0]) => {}
            MacAddr::BROADCAST => self.keys.text(key, value),
            _ => self.keys.text(key, format!("{value}/{matters}")),
        }
        Ok(())
    }
}

/// Refuses a value that the listing has, but says is not compared.
fn compared(name: &str, has_value: bool, is_compared: bool) -> Result<(), Reason> {
    match has_value && !is_compared {
        true => Err(format!(
            "the listing has a value of `{name}` and a mask that compares none of it; i40e lists no masks: write the rule \
             by hand if the device compares it"
        )),
        false => Ok(()),
    }
}

/// `VALUE mask: MASK`.
fn halves(text: &str) -> Option<(&str, &str)> {
    let (value, mask) = text.split_once("mask:")?;
    Some((value.trim(), mask.trim()))
}

/// A number as printf writes it: hexadecimal after `0x`, or decimal; an SPI printed by `%d` may be negative.
fn number(text: &str) -> Option<u128> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(u128::from),
        None => match text.parse::<i64>().ok()? {
            negative @ ..0 => i32::try_from(negative).ok().map(|number| u128::from(number as u32)),
            number => u128::try_from(number).ok(),
        },
    }
}
